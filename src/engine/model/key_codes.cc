// See key_codes.h. The file: {"layers": [[{"channels": [32], "mean": [32], "step": [32]} a KV head] a layer]}, and what
// is for people.
#include "engine/model/key_codes.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;

// A list of kCodeChannels numbers, each in [low, high].
Status read_numbers(const Json& head, const char* key, double low, double high, float* out) {
  const auto found = head.find(key);
  if (found == head.end() || !found->is_array() || found->size() != static_cast<std::size_t>(abi::kCodeChannels)) {
    return data_loss("\"{}\" must be a list of {} numbers", key, abi::kCodeChannels);
  }
  for (std::size_t i = 0; i < found->size(); ++i) {
    const Json& value = (*found)[i];
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!(number >= low && number <= high)) {
      return data_loss("\"{}\"[{}] is {}, expected a number from {} to {}", key, i, shorten(value.dump()), low, high);
    }
    out[i] = static_cast<float>(number);
  }
  return ok_status();
}

Status read_head(const Json& head, std::int32_t head_dim, abi::KeyCode* out) {
  if (!head.is_object()) return data_loss("a KV head is no object");
  float channels[abi::kCodeChannels];
  FOVEA_RETURN_IF_ERROR(read_numbers(head, "channels", 0, head_dim - 1, channels));
  FOVEA_RETURN_IF_ERROR(read_numbers(head, "mean", -65504, 65504, out->mean));
  FOVEA_RETURN_IF_ERROR(read_numbers(head, "step", 1e-6, 65504, out->step));
  for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
    out->channel[i] = static_cast<std::uint8_t>(channels[i]);
    const bool twice = std::find(channels, channels + i, channels[i]) != channels + i;
    if (twice || static_cast<float>(out->channel[i]) != channels[i]) {
      return data_loss("\"channels\"[{}] is {}, expected whole numbers, each once", i, channels[i]);
    }
  }
  return ok_status();
}

}  // namespace

Result<KeyCodes> load_key_codes(const std::string& folder, const ModelConfig& config) {
  const std::filesystem::path path = std::filesystem::path(folder) / kKeyCodesFile;
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return KeyCodes();
  return read_key_codes(path.string(), config);
}

Result<KeyCodes> read_key_codes(const std::string& file, const ModelConfig& config) {
  KeyCodes codes;
  FOVEA_ASSIGN_OR_RETURN(const std::string text, read_file(file, kMostBytes));
  FOVEA_ASSIGN_OR_RETURN(const Json json, parse_json(text, file));
  const auto wrong = [&](const std::string& what) { return data_loss("{}: {}", shorten(file), what); };
  const Json layers = json.is_object() ? json.value("layers", Json()) : Json();
  if (!layers.is_array() || layers.size() != static_cast<std::size_t>(config.num_layers)) {
    return wrong(fmt::format("\"layers\" must be a list of the model's {} layers", config.num_layers));
  }
  codes.num_kv_heads = config.num_kv_heads;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const Json& heads = layers[layer];
    if (!heads.is_array() || heads.size() != static_cast<std::size_t>(config.num_kv_heads)) {
      return wrong(fmt::format("layer {} must be a list of the model's {} KV heads", layer, config.num_kv_heads));
    }
    for (std::size_t head = 0; head < heads.size(); ++head) {
      abi::KeyCode code{};
      const Status status = read_head(heads[head], config.head_dim, &code);
      if (!status.ok()) return wrong(fmt::format("layer {}, KV head {}: {}", layer, head, status.message()));
      codes.codes.push_back(code);
    }
  }
  return codes;
}

std::string to_json(const KeyCodes& codes, std::string_view model) {
  // Numbers of a head, as few digits as tell them from their neighbours in half precision.
  const auto list = [](const auto& values) {
    std::string text;
    for (const auto value : values) text += fmt::format("{}{:.5g}", text.empty() ? "" : ", ", value);
    return text;
  };
  std::string layers;
  for (std::size_t i = 0; i < codes.codes.size(); ++i) {
    const abi::KeyCode& code = codes.codes[i];
    const bool first = i % static_cast<std::size_t>(codes.num_kv_heads) == 0;
    layers += i == 0 ? "  [" : first ? "],\n  [" : ",\n   ";
    layers += fmt::format("{{\"channels\": [{}], \"mean\": [{}], \"step\": [{}]}}", fmt::join(code.channel, ", "),
                          list(code.mean), list(code.step));
  }
  return fmt::format("{{\"model\": {}, \"kind\": \"channels\", \"bits\": 4,\n \"layers\": [\n{}]\n]}}\n",
                     Json(model).dump(), layers);
}

}  // namespace fovea
