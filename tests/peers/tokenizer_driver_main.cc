// fovea_peer_driver: the tokenizer and the chat templates behind JSON lines, for the Python peer tests of this folder.
// Reads one request a line on stdin, answers with one line on stdout. Requests, by field "op":
//   load        {"tokenizer": text, "config": text} or {"folder": path}   -> {"ok": true, "vocab_size": n, ...}
//   encode      {"texts": [..], "add_special": b, "parse_special": b}     -> {"ids": [[..]]}
//   decode      {"ids": [[..]], "skip_special": b}                        -> {"texts": [..]}
//   stream      {"ids": [[..]], "skip_special": b}                        -> {"pieces": [[..]]} (the last is finish())
//   bench       {"text": t, "rounds": n}                                  -> {"seconds": best, "tokens": n}
//   render      {"source": template, "context": {..}}                     -> {"text": t}
// Any failure is {"error": message}.
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"

namespace fovea {
namespace {

using nlohmann::ordered_json;

ordered_json failure(const Status& status) { return {{"error", status.to_string()}}; }

class Driver {
 public:
  ordered_json answer(const ordered_json& request) {
    const std::string op = request.at("op");
    if (op == "load") return load(request);
    if (op == "render") return render(request);
    if (!tokenizer_) return {{"error", "no tokenizer is loaded"}};
    if (op == "encode") return encode(request);
    if (op == "decode") return decode(request);
    if (op == "stream") return stream(request);
    if (op == "bench") return bench(request);
    return {{"error", "unknown op " + op}};
  }

 private:
  ordered_json load(const ordered_json& request) {
    auto made = request.contains("folder")
                    ? Tokenizer::load(request.at("folder").get<std::string>())
                    : Tokenizer::from_json(request.at("tokenizer").get<std::string>(), request.value("config", ""));
    if (!made.ok()) return failure(made.status());
    tokenizer_ = std::move(*made);
    return {{"ok", true},
            {"vocab_size", tokenizer_->vocab_size()},
            {"bos", tokenizer_->bos_id()},
            {"eos", tokenizer_->eos_id()},
            {"pad", tokenizer_->pad_id()}};
  }

  ordered_json encode(const ordered_json& request) {
    ordered_json all = ordered_json::array();
    const EncodeOptions options{request.value("add_special", true), request.value("parse_special", true)};
    for (const auto& text : request.at("texts")) {
      const auto ids = tokenizer_->encode(text.get_ref<const std::string&>(), options);
      if (!ids.ok()) return failure(ids.status());
      all.push_back(*ids);
    }
    return {{"ids", std::move(all)}};
  }

  ordered_json decode(const ordered_json& request) {
    ordered_json all = ordered_json::array();
    for (const auto& ids : request.at("ids")) {
      all.push_back(tokenizer_->decode(ids.get<std::vector<std::int32_t>>(), request.value("skip_special", true)));
    }
    return {{"texts", std::move(all)}};
  }

  ordered_json stream(const ordered_json& request) {
    ordered_json all = ordered_json::array();
    StreamDecoder decoder(*tokenizer_, request.value("skip_special", true));
    for (const auto& ids : request.at("ids")) {
      ordered_json pieces = ordered_json::array();
      for (const auto& id : ids) pieces.push_back(decoder.append(id.get<std::int32_t>()));
      pieces.push_back(decoder.finish());
      all.push_back(std::move(pieces));
    }
    return {{"pieces", std::move(all)}};
  }

  ordered_json bench(const ordered_json& request) {
    const auto& text = request.at("text").get_ref<const std::string&>();
    double best = 1e30;
    std::size_t tokens = 0;
    for (int round = 0; round < request.value("rounds", 5); ++round) {
      const auto begin = std::chrono::steady_clock::now();
      const auto ids = tokenizer_->encode(text);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (!ids.ok()) return failure(ids.status());
      best = std::min(best, took.count());
      tokens = ids->size();
    }
    return {{"seconds", best}, {"tokens", tokens}};
  }

  ordered_json render(const ordered_json& request) {
    const auto made = ChatTemplate::parse(request.at("source").get<std::string>());
    if (!made.ok()) return failure(made.status());
    auto text = made->render(request.at("context"));
    if (!text.ok()) return failure(text.status());
    return {{"text", std::move(*text)}};
  }

  std::optional<Tokenizer> tokenizer_;
};

}  // namespace
}  // namespace fovea

int main() {
  std::ios::sync_with_stdio(false);
  fovea::Driver driver;
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json reply;
    try {
      reply = driver.answer(nlohmann::ordered_json::parse(line));
    } catch (const nlohmann::json::exception& error) {
      reply = {{"error", error.what()}};
    }
    std::cout << reply.dump() << std::endl;
  }
  return 0;
}
