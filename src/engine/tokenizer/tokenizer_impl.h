// The parts of a Tokenizer. Shared by tokenizer.cc (encode, decode) and tokenizer_load.cc (reading the files) only.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"

namespace fovea {

struct Tokenizer::Impl {
  TokenizerConfig config;
  BpeModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Decoder decoder;
  std::unordered_map<std::int32_t, AddedToken> added;       // by id
  std::unordered_map<std::string, std::int32_t> added_ids;  // by content
  AddedTokenFinder raw_finder;                              // tokens looked for in raw text
  AddedTokenFinder normalized_finder;                       // tokens looked for in normalized text
  std::vector<std::int32_t> prefix;                         // ids the post-processor puts before the text
  std::vector<std::int32_t> suffix;                         // and behind it
  std::int32_t bos_id = -1, eos_id = -1, pad_id = -1;
  std::int32_t vocab_size = 0;

  // Added tokens win over the model's vocabulary; -1 or empty where there is none.
  std::int32_t token_to_id(std::string_view token) const;
  std::string_view id_to_token(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

  Status read(const nlohmann::json& spec);
  Status read_added_tokens(const nlohmann::json& list);
  Status read_post_processor(const nlohmann::json& spec, int depth);
  Status read_template(const nlohmann::json& spec);
  Status finish_loading();

  Status encode_stretch(std::string_view text, bool at_origin, bool parse_special,
                        std::vector<std::int32_t>& ids) const;
};

}  // namespace fovea
