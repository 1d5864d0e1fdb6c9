#include "server/openai/chunk_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "server/http/message.h"

namespace fovea::server {
namespace {

// JSON has no infinity: impossible tokens get a logprob that no real one has.
void append_logprob(std::string* out, float logprob) {
  fmt::format_to(std::back_inserter(*out), "{}", std::isfinite(logprob) ? logprob : -9999.0f);
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::int64_t count_characters(std::string_view text) {
  std::int64_t count = 0;
  for (char c : text) count += is_continuation(c) ? 0 : 1;
  return count;
}

// A token as completions show it: its text, or "bytes:\xe2\x80" where it is only a part of a character.
std::string token_text(const std::string& bytes) {
  std::string quoted;
  append_json_string(&quoted, bytes);
  const bool whole =
      quoted.find("\xEF\xBF\xBD") == std::string::npos || bytes.find("\xEF\xBF\xBD") != std::string::npos;
  if (whole) return bytes;
  std::string out = "bytes:";
  for (unsigned char c : bytes) out += fmt::format("\\x{:02x}", c);
  return out;
}

void append_chat_token(std::string* out, const Engine& engine, const TokenLogprob& entry) {
  const std::string bytes = engine.token_bytes(entry.token);
  *out += "{\"token\":";
  append_json_string(out, bytes);
  *out += ",\"bytes\":[";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    fmt::format_to(std::back_inserter(*out), "{}{}", i == 0 ? "" : ",", static_cast<unsigned char>(bytes[i]));
  }
  *out += "],\"logprob\":";
  append_logprob(out, entry.logprob);
}

// {"id":..,"type":"function","function":{"name":..,"arguments":..}}, of custom tools
// {"id":..,"type":"custom","custom":{"name":..,"input":..}}; where it goes on, the arguments alone. index: in a stream.
void append_call(std::string* out, const ToolCall& call, std::optional<int> index) {
  out->push_back('{');
  if (index.has_value()) fmt::format_to(std::back_inserter(*out), "\"index\":{},", *index);
  if (!call.id.empty()) {
    *out += "\"id\":";
    append_json_string(out, call.id);
    *out += call.custom ? ",\"type\":\"custom\"," : ",\"type\":\"function\",";
  }
  *out += call.custom ? "\"custom\":{" : "\"function\":{";
  if (!call.name.empty()) {
    *out += "\"name\":";
    append_json_string(out, call.name);
    out->push_back(',');
  }
  *out += call.custom ? "\"input\":" : "\"arguments\":";
  append_json_string(out, call.arguments);
  *out += "}}";
}

// Under both names that clients read.
void append_reasoning(std::string* out, std::string_view text) {
  const std::string quoted = json_string(text);
  *out += "\"reasoning_content\":" + quoted + ",\"reasoning\":" + quoted;
}

void comma(std::string* out) {
  if (!out->empty()) out->push_back(',');
}

// A member of an object behind others; nothing where they were not asked for.
void append_ids(std::string* out, std::string_view name, const std::vector<std::int32_t>* tokens) {
  if (tokens == nullptr) return;
  fmt::format_to(std::back_inserter(*out), ",\"{}\":", name);
  append_token_ids(out, *tokens);
}

}  // namespace

std::string_view finish_reason_json(FinishReason reason, bool called) {
  switch (reason) {
    case FinishReason::kStop: return called ? "\"tool_calls\"" : "\"stop\"";
    case FinishReason::kLength: return "\"length\"";
    default: return "null";
  }
}

void append_usage(std::string* out, const Usage& usage) {
  fmt::format_to(std::back_inserter(*out),
                 "{{\"prompt_tokens\":{},\"completion_tokens\":{},\"total_tokens\":{},"
                 "\"prompt_tokens_details\":{{\"cached_tokens\":{}}},"
                 "\"completion_tokens_details\":{{\"reasoning_tokens\":{}",
                 usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens + usage.completion_tokens,
                 usage.cached_tokens, usage.reasoning_tokens);
  if (usage.draft_tokens > 0) {
    fmt::format_to(std::back_inserter(*out), ",\"accepted_prediction_tokens\":{},\"rejected_prediction_tokens\":{}",
                   usage.accepted_tokens, usage.draft_tokens - usage.accepted_tokens);
  }
  *out += "}}";
}

void append_token_ids(std::string* out, const std::vector<std::int32_t>& tokens) {
  fmt::format_to(std::back_inserter(*out), "[{}]", fmt::join(tokens, ","));
}

std::string prompt_logprobs_json(const Engine& engine, const PromptScores& scores, std::int32_t top) {
  std::string out = "[null";
  const auto add = [&](const TokenLogprob& entry, std::int32_t rank, bool first) {
    fmt::format_to(std::back_inserter(out), "{}\"{}\":{{\"logprob\":", first ? "" : ",", entry.token);
    append_logprob(&out, entry.logprob);
    fmt::format_to(std::back_inserter(out), ",\"rank\":{},\"decoded_token\":", rank);
    append_json_string(&out, engine.token_bytes(entry.token));
    out.push_back('}');
  };
  for (std::size_t i = 0; i < scores.logprobs.size(); ++i) {
    const std::vector<TokenLogprob>& likely = scores.top[i];
    const auto count = std::min(static_cast<std::int32_t>(likely.size()), std::max(top, 0));
    out += ",{";
    add(scores.logprobs[i], scores.ranks[i], true);
    for (std::int32_t k = 0; k < count; ++k) {
      if (likely[static_cast<std::size_t>(k)].token == scores.logprobs[i].token) continue;
      add(likely[static_cast<std::size_t>(k)], k + 1, false);
    }
    out.push_back('}');
  }
  return out + "]";
}

void LogprobsWriter::add(const GenerationEvent& event) {
  for (std::size_t i = 0; i < event.logprobs.size(); ++i) {
    if (kind_ == ApiKind::kChat) {
      add_chat(event, i);
    } else {
      const auto* top = i < event.top_logprobs.size() ? &event.top_logprobs[i] : nullptr;
      add_completion(event.logprobs[i], top, kMaxTopLogprobs);
    }
  }
}

void LogprobsWriter::add_chat(const GenerationEvent& event, std::size_t i) {
  comma(&first_);
  append_chat_token(&first_, engine_, event.logprobs[i]);
  first_ += ",\"top_logprobs\":[";
  if (i < event.top_logprobs.size()) {
    bool later = false;
    for (const TokenLogprob& entry : event.top_logprobs[i]) {
      if (later) first_.push_back(',');
      later = true;
      append_chat_token(&first_, engine_, entry);
      first_.push_back('}');
    }
  }
  first_ += "]}";
}

void LogprobsWriter::add_prompt(const PromptScores& scores, std::int32_t top) {
  const std::string bytes = engine_.token_bytes(scores.first);
  append_json_string(&first_, token_text(bytes));
  token_logprobs_ = top_logprobs_ = "null";
  offsets_ = "0";
  text_offset_ = count_characters(bytes);
  for (std::size_t i = 0; i < scores.logprobs.size(); ++i) {
    add_completion(scores.logprobs[i], &scores.top[i], static_cast<std::size_t>(std::max(top, 0)));
  }
}

void LogprobsWriter::add_completion(const TokenLogprob& chosen, const std::vector<TokenLogprob>* top,
                                    std::size_t limit) {
  const std::string bytes = engine_.token_bytes(chosen.token);
  comma(&first_);
  append_json_string(&first_, token_text(bytes));
  comma(&token_logprobs_);
  append_logprob(&token_logprobs_, chosen.logprob);
  comma(&offsets_);
  fmt::format_to(std::back_inserter(offsets_), "{}", text_offset_);
  text_offset_ += count_characters(bytes);
  // The chosen token is always among them.
  comma(&top_logprobs_);
  top_logprobs_.push_back('{');
  append_json_string(&top_logprobs_, token_text(bytes));
  top_logprobs_.push_back(':');
  append_logprob(&top_logprobs_, chosen.logprob);
  if (top != nullptr) {
    for (std::size_t i = 0; i < std::min(limit, top->size()); ++i) {
      const TokenLogprob& entry = (*top)[i];
      if (entry.token == chosen.token) continue;
      top_logprobs_.push_back(',');
      append_json_string(&top_logprobs_, token_text(engine_.token_bytes(entry.token)));
      top_logprobs_.push_back(':');
      append_logprob(&top_logprobs_, entry.logprob);
    }
  }
  top_logprobs_.push_back('}');
}

void LogprobsWriter::append_json(std::string* out) {
  if (empty()) {
    *out += "null";
    return;
  }
  if (kind_ == ApiKind::kChat) {
    *out += "{\"content\":[" + first_ + "],\"refusal\":null}";
  } else {
    *out += "{\"tokens\":[" + first_ + "],\"token_logprobs\":[" + token_logprobs_ + "],\"top_logprobs\":[" +
            top_logprobs_ + "],\"text_offset\":[" + offsets_ + "]}";
  }
  clear();
}

void LogprobsWriter::append_entries(std::string* out) {
  if (!out->empty() && !first_.empty()) out->push_back(',');
  *out += first_;
  clear();
}

void LogprobsWriter::clear() {
  first_.clear();
  token_logprobs_.clear();
  top_logprobs_.clear();
  offsets_.clear();
}

ChunkWriter::ChunkWriter(ApiKind kind, std::string_view id, std::int64_t created_unix_s, std::string_view model,
                         bool usage_null)
    : kind_(kind) {
  prefix_ = "data: {\"id\":";
  append_json_string(&prefix_, id);
  prefix_ += fmt::format(",\"object\":\"{}\",\"created\":{},\"model\":",
                         kind == ApiKind::kChat ? "chat.completion.chunk" : "text_completion", created_unix_s);
  append_json_string(&prefix_, model);
  prefix_ += ",\"choices\":[";
  suffix_ = usage_null ? "],\"usage\":null}\n\n" : "]}\n\n";
}

void ChunkWriter::append_delta(std::string* out, const Delta& delta) const {
  const auto end = [&](FinishReason finish, bool with_ids) {
    *out += ",\"logprobs\":";
    *out += with_ids ? delta.logprobs_json : "null";
    *out += ",\"finish_reason\":";
    *out += finish_reason_json(finish, delta.called);
    const bool completion = kind_ == ApiKind::kCompletion;
    if (with_ids && completion) append_ids(out, "prompt_token_ids", delta.prompt_ids);
    if (with_ids) append_ids(out, "token_ids", delta.token_ids);
    *out += "}]";
    if (with_ids && !completion) append_ids(out, "prompt_token_ids", delta.prompt_ids);
    out->append(suffix_, 1);
  };
  if (kind_ == ApiKind::kCompletion) {
    open(out);
    fmt::format_to(std::back_inserter(*out), "{{\"index\":{},\"text\":", delta.index);
    append_json_string(out, delta.text);
    end(delta.finish, true);
    return;
  }
  const bool has_content = delta.first || !delta.text.empty() || !delta.reasoning.empty() || delta.call != nullptr ||
                           delta.logprobs_json != "null" || (delta.token_ids != nullptr && !delta.token_ids->empty());
  if (has_content) {
    open(out);
    fmt::format_to(std::back_inserter(*out), "{{\"index\":{},\"delta\":{{{}", delta.index,
                   delta.first ? "\"role\":\"assistant\"," : "");
    if (!delta.reasoning.empty()) {
      *out += delta.first ? "\"content\":null," : "";
      append_reasoning(out, delta.reasoning);
    } else if (delta.call == nullptr) {
      *out += "\"content\":";
      append_json_string(out, delta.text);
    } else {
      *out += delta.first ? "\"content\":null,\"tool_calls\":[" : "\"tool_calls\":[";
      append_call(out, *delta.call, delta.call_index);
      out->push_back(']');
    }
    out->push_back('}');
    end(FinishReason::kNone, true);
  }
  if (delta.finish != FinishReason::kNone) {
    open(out);
    fmt::format_to(std::back_inserter(*out), "{{\"index\":{},\"delta\":{{}}", delta.index);
    end(delta.finish, false);
  }
}

void ChunkWriter::append_usage_chunk(std::string* out, const Usage& usage) const {
  open(out);
  *out += "],\"usage\":";
  append_usage(out, usage);
  *out += "}\n\n";
}

void ChunkWriter::append_done(std::string* out) { *out += "data: [DONE]\n\n"; }

void ChunkWriter::append_error(std::string* out, std::string_view message, std::string_view type) {
  *out += "data: " + error_body(message, type) + "\n\n";
}

std::string whole_answer(ApiKind kind, std::string_view id, std::int64_t created_unix_s, std::string_view model,
                         const std::vector<FinishedChoice>& choices, const Usage& usage) {
  const bool chat = kind == ApiKind::kChat;
  std::string out = "{\"id\":";
  append_json_string(&out, id);
  out += fmt::format(",\"object\":\"{}\",\"created\":{},\"model\":", chat ? "chat.completion" : "text_completion",
                     created_unix_s);
  append_json_string(&out, model);
  out += ",\"choices\":[";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const FinishedChoice& choice = choices[i];
    out += fmt::format("{}{{\"index\":{},", i == 0 ? "" : ",", choice.index);
    out += chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":";
    if (choice.text.empty() && (!choice.calls.empty() || !choice.reasoning.empty())) {
      out += "null";
    } else {
      append_json_string(&out, choice.text);
    }
    if (chat) {
      out += ",\"refusal\":null";
      if (!choice.reasoning.empty()) {
        out.push_back(',');
        append_reasoning(&out, choice.reasoning);
      }
      for (std::size_t call = 0; call < choice.calls.size(); ++call) {
        out += call == 0 ? ",\"tool_calls\":[" : ",";
        append_call(&out, choice.calls[call], std::nullopt);
      }
      out += choice.calls.empty() ? "}" : "]}";
    }
    out += ",\"logprobs\":";
    out += choice.logprobs_json;
    out += ",\"finish_reason\":";
    out += finish_reason_json(choice.finish, !choice.calls.empty());
    if (!chat && !choice.prompt_logprobs_json.empty()) out += ",\"prompt_logprobs\":" + choice.prompt_logprobs_json;
    if (!chat) append_ids(&out, "prompt_token_ids", choice.prompt_ids);
    append_ids(&out, "token_ids", choice.token_ids);
    out.push_back('}');
  }
  out += "],\"usage\":";
  append_usage(&out, usage);
  if (chat && !choices.empty() && !choices[0].prompt_logprobs_json.empty()) {
    out += ",\"prompt_logprobs\":" + choices[0].prompt_logprobs_json;
  }
  if (chat && !choices.empty()) append_ids(&out, "prompt_token_ids", choices[0].prompt_ids);
  out.push_back('}');
  return out;
}

}  // namespace fovea::server
