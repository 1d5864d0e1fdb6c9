// Text to token ids and back, from the tokenizer.json of a Hugging Face model folder: BPE models, byte-level (GPT-2,
// Llama 3, Qwen) and SentencePiece-style with byte fallback (Llama 2, Mistral, Gemma). Ids equal those of the
// `tokenizers` library. Called by the engine (prompts), the server (streams) and the evaluation.
//
// Input that is not valid UTF-8 is repaired first: each maximal invalid sequence becomes one U+FFFD.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/decoder.h"

namespace fovea {

struct EncodeOptions {
  bool add_special_tokens = true;  // what the post-processor adds, usually a first token
  bool parse_special = true;       // special tokens in the text become their ids; off: they are plain text
};

// What tokenizer_config.json says; fields that it does not have stay empty.
struct TokenizerConfig {
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::optional<std::string> pad_token;
  std::optional<std::string> unk_token;
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<std::int64_t> model_max_length;  // tokens; absurdly large values mean "unknown" and stay empty
  std::vector<std::pair<std::string, std::string>> chat_templates;  // name ("default" where it has none) and source
};

class Tokenizer {
 public:
  static constexpr std::size_t kMaxTextBytes = std::size_t{256} << 20;

  // Reads tokenizer.json (required), tokenizer_config.json, special_tokens_map.json and chat_template.jinja (where they
  // exist) from a model folder.
  static Result<Tokenizer> load(const std::string& folder);
  // From the contents of the files; an empty config is allowed.
  static Result<Tokenizer> from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});

  // Ids of the text. Thread-safe. Fails where a regular expression of the file gives up, or the text is larger than
  // kMaxTextBytes.
  Result<std::vector<std::int32_t>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Text of the ids; ids without a token are skipped. Bytes that are no UTF-8 come out as U+FFFD. Thread-safe.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;
  // The raw bytes of one token as it stands inside a text; possibly a part of a character. Empty for unknown ids.
  std::string token_bytes(std::int32_t id) const;
  // The token as tokenizer.json writes it; empty for unknown ids.
  std::string_view id_to_token(std::int32_t id) const;
  // -1 if there is no such token.
  std::int32_t token_to_id(std::string_view token) const;
  bool is_special(std::int32_t id) const;

  // One more than the largest id.
  std::int32_t vocab_size() const;
  std::int32_t bos_id() const;  // -1 where the config names none
  std::int32_t eos_id() const;
  std::int32_t pad_id() const;
  const TokenizerConfig& config() const;
  // Source of the chat template with this name; null if there is none. "" means the default one.
  const std::string* chat_template(std::string_view name = {}) const;

 private:
  friend class StreamDecoder;
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Decodes a sequence token by token. What append() returned so far, followed by finish(), equals decode() of all ids.
// Never returns part of a character: bytes wait until their character is complete.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  // The text that became certain with this token, often the token's own text, sometimes empty.
  std::string append(std::int32_t id);
  // The rest; an incomplete character is U+FFFD. The decoder is then as new.
  std::string finish();

 private:
  std::shared_ptr<const Tokenizer::Impl> impl_;
  Decoder::Run run_;
  bool skip_special_;
};

}  // namespace fovea
