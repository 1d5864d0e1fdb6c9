// Byte-pair encoding of one piece of text into token ids: the "model" field of tokenizer.json. Called by the Tokenizer
// for each pre-tokenized piece.
//
// Exactness: merges are applied lowest rank first, leftmost first among equals, as the reference implementation does.
// Speed: a piece is first cut wherever no merge can ever join two neighbouring characters (a text without any
// pre-tokenizer becomes words this way), short parts are looked up in a cache of the calling thread, short misses are
// merged by scanning, long ones with a heap in O(n log n).
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace fovea {

class BpeModel {
 public:
  static constexpr std::int32_t kMaxId = 1 << 22;

  static Result<BpeModel> from_json(const nlohmann::json& spec);

  // Appends the ids of one piece (valid UTF-8). Thread-safe.
  Status encode(std::string_view piece, std::vector<std::int32_t>& ids) const;

  // -1 if there is no such token.
  std::int32_t token_to_id(std::string_view token) const;
  // Empty if there is no such id.
  std::string_view id_to_token(std::int32_t id) const;
  bool has_id(std::int32_t id) const { return id_to_token(id).data() != nullptr; }
  // One more than the largest id.
  std::int32_t id_limit() const { return static_cast<std::int32_t>(tokens_.size()); }

 private:
  struct Merge {
    std::uint64_t key = kNoKey;
    std::int32_t rank = 0;
    std::int32_t id = 0;
  };
  static constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

  Status load_vocab(const nlohmann::json& vocab);
  Status load_merges(const nlohmann::json& merges);
  void add_merge(std::int32_t left, std::int32_t right, std::int32_t rank, std::int32_t id);
  // The merge of two neighbours, or null.
  const Merge* find_merge(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = pair_key(left, right);
    for (std::size_t slot = hash(key) >> merge_shift_;; slot = (slot + 1) & merge_mask_) {
      const Merge& merge = merges_[slot];
      if (merge.key == key) return &merge;
      if (merge.key == kNoKey) return nullptr;
    }
  }
  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
  }
  static std::uint64_t hash(std::uint64_t key) {
    key = (key ^ (key >> 29)) * 0x9E3779B97F4A7C15ull;
    return (key ^ (key >> 32)) * 0xD6E8FEB86659FD93ull;
  }
  static std::size_t joint(char32_t left, char32_t right) {
    return hash((static_cast<std::uint64_t>(left) << 32) | right) >> (64 - kJointBits);
  }
  bool may_join(char32_t left, char32_t right) const {
    const std::size_t bit = joint(left, right);
    return (joints_[bit >> 6] >> (bit & 63)) & 1;
  }

  Status encode_part(std::string_view part, std::vector<std::int32_t>& ids) const;
  Status initial_symbols(std::string_view part, std::vector<std::int32_t>& symbols) const;
  std::int32_t char_id(std::string_view character, char32_t code) const;
  void merge_short(std::vector<std::int32_t>& symbols) const;
  void merge_long(std::vector<std::int32_t>& symbols) const;

  static constexpr int kJointBits = 20;

  std::shared_ptr<const std::vector<std::string>> tokens_owner_;  // keeps the string_views below alive across moves
  std::vector<std::string_view> tokens_;                          // by id; empty where there is none
  std::unordered_map<std::string_view, std::int32_t> ids_;
  std::vector<Merge> merges_;  // open addressing, a power of two of slots, at most half full
  int merge_shift_ = 63;
  std::size_t merge_mask_ = 1;
  std::vector<std::uint64_t> joints_;   // bit set of hashed character pairs that occur inside some merged token
  std::vector<std::int32_t> low_char_;  // ids of the characters below U+0180, -1 where there is none
  std::vector<std::int32_t> bytes_;     // ids of <0x00>..<0xFF>, -1 where there is none
  std::string unk_token_;
  std::int32_t unk_id_ = -1;
  bool has_unk_ = false;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool may_cut_ = false;        // cutting at characters that never join changes nothing
  std::string prefix_;          // continuing_subword_prefix
  std::string suffix_;          // end_of_word_suffix
  std::uint32_t instance_ = 0;  // marks this model's entries in a thread's cache
};

}  // namespace fovea
