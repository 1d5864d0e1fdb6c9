// ResponseWriter: an answer as the Responses API has it: items, each with an id that is the same in every event and in
// the final object. One object serves one request. Made by Service, fed by Generation.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/answer_writer.h"
#include "server/responses/response_tools.h"

namespace fovea::server {

class ResponseWriter final : public AnswerWriter {
 public:
  struct Options {
    std::string id;     // "resp_..."
    std::string model;  // name to show
    std::string echo;   // as ResponseRequest has it
    ResponseToolNames tools;
    bool encrypted_reasoning = false;
    std::int64_t created_unix_s = 0;
  };
  explicit ResponseWriter(Options options) : options_(std::move(options)) {}

  std::string_view keep_alive() const override { return ": keep-alive\n\n"; }
  void begin(std::string* out) override;
  void reasoning(std::string_view text, std::string* out) override;
  void text(std::string_view text, std::string_view logprobs, std::string* out) override;
  void call(const ToolCall& call, std::string* out) override;
  void end(const AnswerEnd& end, std::string* out) override;
  void fail(const ApiError& error, std::string* out) override;
  std::string whole() const override { return whole_; }
  HttpResponse refusal(const ApiError& error) const override;

 private:
  enum class Kind : std::uint8_t { kMessage, kReasoning, kFunction, kCustom };
  struct Item {
    explicit Item(Kind of) : kind(of) {}
    Kind kind;
    std::string id, call_id;
    ResponseTool tool;
    std::string text;      // or arguments, or input
    std::string logprobs;  // entries
  };

  // data: what follows "type" and "sequence_number" in the event.
  void event(std::string* out, std::string_view type, std::string_view data);
  void open_item(Item item, std::string* out);
  void close_item(std::string_view status, std::string* out);
  void grow(std::string_view text, std::string* out);
  // `"item_id":..,"output_index":..`, and `,"content_index":0` where the item has parts.
  std::string place() const;
  static std::string part_json(const Item& item, bool full);
  std::string item_json(const Item& item, std::string_view status, bool full) const;
  // details: members that tell how it stands, a comma behind each.
  std::string response_json(std::string_view status, std::string_view details) const;

  const Options options_;
  std::int64_t sequence_ = 0;
  bool open_ = false;  // the last item has not ended
  std::vector<Item> items_;
  std::string output_;  // items that ended, as JSON
  std::string whole_;
};

}  // namespace fovea::server
