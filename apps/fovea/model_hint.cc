#include "model_hint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/quote.h"

namespace fovea::app {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// "org/name" of letters, digits, '-', '_' and '.', nothing of which is a file here.
bool looks_like_hub_id(const std::string& model) {
  const std::size_t slash = model.find('/');
  if (slash == 0 || slash == std::string::npos || slash + 1 == model.size() || model.size() > 140) return false;
  if (model.find('/', slash + 1) != std::string::npos || model[0] == '.' || model[0] == '~') return false;
  const bool plain = std::all_of(model.begin(), model.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_./").find(c) != std::string_view::npos;
  });
  return plain && !is_there(model.substr(0, slash));
}

std::string save_again(const std::string& what, const std::string& model) {
  return fmt::format(
      "transformers rewrites it: python -c \"from transformers import {0}; "
      "{0}.from_pretrained('{1}').save_pretrained('{1}')\"",
      what, model);
}

std::string hint(const std::string& model) {
  const fs::path path(model);
  const std::string extension = path.extension();
  if (extension == ".gguf") {
    return "GGUF files are not read: download the model's folder of safetensors instead, as `hf download ORG/NAME "
           "--local-dir NAME`, and give that folder";
  }
  if (path.filename() == "tokenizer.model") return "give the model's folder, not its tokenizer";
  if (looks_like_hub_id(model) && !is_there(path)) {
    const std::string name = path.filename();
    return fmt::format(
        "nothing is downloaded: if it is a model of the Hugging Face Hub, run `hf download {} --local-dir "
        "{}` (pip install huggingface_hub) and give the folder {}",
        model, name, name);
  }
  std::error_code error;
  if (fs::is_regular_file(path, error) && extension == ".safetensors") return "give the folder that holds the file";
  if (!fs::is_directory(path, error)) return "";
  if (is_there(path / "tokenizer.model") && !is_there(path / "tokenizer.json")) {
    return "its tokenizer is a SentencePiece file, and tokenizer.json is read; " + save_again("AutoTokenizer", model);
  }
  const bool pickled = is_there(path / "pytorch_model.bin") || is_there(path / "pytorch_model.bin.index.json");
  const bool weights = is_there(path / "model.safetensors") || is_there(path / "model.safetensors.index.json");
  if (pickled && !weights) {
    return "its weights are pickled, and safetensors are read; " + save_again("AutoModelForCausalLM", model);
  }
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".gguf" && !is_there(path / "config.json")) return hint(entry.path().string());
  }
  return "";
}

}  // namespace

Status with_model_hint(const Status& error, const std::string& model) {
  // A long name is cut in the error, and is no model that anyone has.
  const std::string text = model.empty() || model.size() > 400 ? "" : hint(model);
  if (text.empty()) return error;
  return Status(error.code(), fmt::format("{}; {}", error.message(), text));
}

}  // namespace fovea::app
