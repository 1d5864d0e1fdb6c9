// Implementation of bpe.h.
#include "engine/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/quote.h"
#include "engine/tokenizer/json_util.h"
#include "engine/tokenizer/unicode.h"

namespace fovea {
namespace {

constexpr std::size_t kShortSymbols = 40;  // below this, scanning beats a heap
constexpr char32_t kLowChars = 0x180;      // covers the whole byte-level alphabet

// A thread's cache of encoded parts: direct mapped, one cache line an entry, no allocation after the first. An entry
// belongs to the model whose instance number it carries, so models share the cache and a dead model's entries just age.
struct CacheEntry {
  static constexpr std::size_t kKey = 26;
  static constexpr std::size_t kIds = 8;
  std::uint32_t instance = 0;
  std::uint8_t key_size = 0;
  std::uint8_t count = 0;
  std::array<char, kKey> key;
  std::array<std::int32_t, kIds> ids;
};
static_assert(sizeof(CacheEntry) == 64);
constexpr std::size_t kCacheEntries = 8192;

std::vector<CacheEntry>& thread_cache() {
  thread_local std::vector<CacheEntry> cache(kCacheEntries);
  return cache;
}

std::size_t cache_slot(std::string_view key, std::uint32_t instance) {
  std::uint64_t h = 0xCBF29CE484222325ull ^ instance ^ (key.size() << 56);
  std::size_t at = 0;
  for (; at + 8 <= key.size(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, key.data() + at, 8);
    h = (h ^ word) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 32;
  }
  std::uint64_t tail = 0;
  std::memcpy(&tail, key.data() + at, key.size() - at);
  h = (h ^ tail) * 0x9E3779B97F4A7C15ull;
  return (h >> 40) & (kCacheEntries - 1);
}

}  // namespace

Result<BpeModel> BpeModel::from_json(const nlohmann::json& spec) {
  static std::atomic<std::uint32_t> instances{0};
  FOVEA_ASSIGN_OR_RETURN(const JsonReader json, JsonReader::create(spec, "tokenizer.json: model"));
  FOVEA_ASSIGN_OR_RETURN(const std::string type, json.string_or("type", "BPE"));
  if (type != "BPE") return unsupported("model type '{}', expected BPE", shorten(type));
  BpeModel model;
  model.instance_ = ++instances;
  const nlohmann::json& dropout = json_util::field(spec, "dropout");
  if (!dropout.is_null() && !(dropout.is_number() && dropout.get<double>() == 0.0)) {
    return unsupported("model: 'dropout' makes encoding random, expected null or 0");
  }
  FOVEA_ASSIGN_OR_RETURN(model.unk_token_, json.string_or("unk_token", ""));
  model.has_unk_ = json_util::field(spec, "unk_token").is_string();
  FOVEA_ASSIGN_OR_RETURN(model.prefix_, json.string_or("continuing_subword_prefix", ""));
  FOVEA_ASSIGN_OR_RETURN(model.suffix_, json.string_or("end_of_word_suffix", ""));
  FOVEA_ASSIGN_OR_RETURN(model.fuse_unk_, json.boolean_or("fuse_unk", false));
  FOVEA_ASSIGN_OR_RETURN(model.byte_fallback_, json.boolean_or("byte_fallback", false));
  FOVEA_ASSIGN_OR_RETURN(model.ignore_merges_, json.boolean_or("ignore_merges", false));
  FOVEA_RETURN_IF_ERROR(model.load_vocab(json_util::field(spec, "vocab")));
  FOVEA_RETURN_IF_ERROR(model.load_merges(json_util::field(spec, "merges")));
  return model;
}

Status BpeModel::load_vocab(const nlohmann::json& vocab) {
  if (!vocab.is_object()) return invalid_argument("model: 'vocab' must be an object of token: id");
  std::int64_t largest = -1;
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= kMaxId) {
      return invalid_argument("model: id of token '{}' is {}, expected an integer below {}", shorten(token),
                              shorten(id.dump()), kMaxId);
    }
    largest = std::max(largest, id.get<std::int64_t>());
  }
  auto owner = std::make_shared<std::vector<std::string>>();
  owner->reserve(vocab.size());
  tokens_.resize(static_cast<std::size_t>(largest + 1));
  ids_.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    const std::string& kept = owner->emplace_back(token);
    tokens_[id.get<std::size_t>()] = kept;
    ids_.emplace(kept, id.get<std::int32_t>());
  }
  tokens_owner_ = std::move(owner);
  low_char_.assign(kLowChars, -1);
  for (char32_t code = 0; code < kLowChars; ++code) {
    std::string utf8;
    unicode::append(utf8, code);
    low_char_[code] = token_to_id(utf8);
  }
  bytes_.assign(256, -1);
  bool all_bytes = true;
  for (int byte = 0; byte < 256; ++byte) {
    bytes_[byte] = token_to_id(fmt::format("<0x{:02X}>", byte));
    all_bytes = all_bytes && bytes_[byte] >= 0;
  }
  if (has_unk_) unk_id_ = token_to_id(unk_token_);
  // Unknown characters may fuse across a cut, and affixes depend on where a piece ends; in every other case a cut is
  // safe.
  may_cut_ = prefix_.empty() && suffix_.empty() && (byte_fallback_ ? all_bytes : !(has_unk_ && fuse_unk_));
  return ok_status();
}

Status BpeModel::load_merges(const nlohmann::json& merges) {
  if (!merges.is_array()) return invalid_argument("model: 'merges' must be an array");
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 2));
  merges_.assign(slots, Merge{});
  merge_mask_ = slots - 1;
  merge_shift_ = 64 - std::countr_zero(slots);
  joints_.assign((std::size_t{1} << kJointBits) / 64, 0);
  std::string joined;
  std::int32_t rank = 0;
  for (const nlohmann::json& merge : merges) {
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view text = merge.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        return invalid_argument("model: merge {} is '{}', expected two tokens with one space between", rank,
                                shorten(text));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      return invalid_argument("model: merge {} is {}, expected \"left right\" or [\"left\", \"right\"]", rank,
                              merge.type_name());
    }
    // The right part carries the prefix of continued words; the merged token has it only at its own start.
    const std::string_view tail = right.substr(std::min(prefix_.size(), right.size()));
    joined.assign(left).append(tail);
    const std::int32_t left_id = token_to_id(left), right_id = token_to_id(right), id = token_to_id(joined);
    if (left_id < 0 || right_id < 0 || id < 0) {
      return invalid_argument("model: merge {} makes '{}' from '{}' and '{}', but '{}' is not in the vocabulary", rank,
                              shorten(joined), shorten(left), shorten(right),
                              shorten(left_id < 0    ? left
                                      : right_id < 0 ? right
                                                     : std::string_view(joined)));
    }
    add_merge(left_id, right_id, rank, id);
    char32_t before = 0;
    for (std::size_t at = 0; at < joined.size();) {
      const auto next = unicode::decode(joined, at);
      if (at != 0) {
        const std::size_t bit = joint(before, next.code);
        joints_[bit >> 6] |= std::uint64_t{1} << (bit & 63);
      }
      before = next.code;
      at += next.length;
    }
    ++rank;
  }
  return ok_status();
}

void BpeModel::add_merge(std::int32_t left, std::int32_t right, std::int32_t rank, std::int32_t id) {
  const std::uint64_t key = pair_key(left, right);
  std::size_t slot = hash(key) >> merge_shift_;
  while (merges_[slot].key != kNoKey && merges_[slot].key != key) slot = (slot + 1) & merge_mask_;
  merges_[slot] = {key, rank, id};
}

std::int32_t BpeModel::token_to_id(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

std::string_view BpeModel::id_to_token(std::int32_t id) const {
  return id < 0 || id >= id_limit() ? std::string_view() : tokens_[static_cast<std::size_t>(id)];
}

std::int32_t BpeModel::char_id(std::string_view character, char32_t code) const {
  return code < kLowChars ? low_char_[code] : token_to_id(character);
}

Status BpeModel::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (piece.empty()) return ok_status();
  if (ignore_merges_) {
    const std::int32_t whole = token_to_id(piece);
    if (whole >= 0) {
      ids.push_back(whole);
      return ok_status();
    }
  }
  if (!may_cut_ || piece.size() <= CacheEntry::kKey) return encode_part(piece, ids);
  std::size_t begin = 0, at = 0;
  char32_t before = 0;
  while (at < piece.size()) {
    const auto next = unicode::decode(piece, at);
    if (at != begin && !may_join(before, next.code)) {
      FOVEA_RETURN_IF_ERROR(encode_part(piece.substr(begin, at - begin), ids));
      begin = at;
    }
    before = next.code;
    at += next.length;
  }
  return encode_part(piece.substr(begin), ids);
}

Status BpeModel::encode_part(std::string_view part, std::vector<std::int32_t>& ids) const {
  CacheEntry* entry = nullptr;
  if (part.size() <= CacheEntry::kKey) {
    entry = &thread_cache()[cache_slot(part, instance_)];
    if (entry->instance == instance_ && entry->key_size == part.size() &&
        std::memcmp(entry->key.data(), part.data(), part.size()) == 0) {
      ids.insert(ids.end(), entry->ids.begin(), entry->ids.begin() + entry->count);
      return ok_status();
    }
  }
  thread_local std::vector<std::int32_t> symbols;
  symbols.clear();
  FOVEA_RETURN_IF_ERROR(initial_symbols(part, symbols));
  if (symbols.size() <= kShortSymbols) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
  if (entry != nullptr && symbols.size() <= CacheEntry::kIds) {
    entry->instance = instance_;
    entry->key_size = static_cast<std::uint8_t>(part.size());
    entry->count = static_cast<std::uint8_t>(symbols.size());
    std::memcpy(entry->key.data(), part.data(), part.size());
    std::copy(symbols.begin(), symbols.end(), entry->ids.begin());
  }
  return ok_status();
}

// One symbol a character; characters that are no token become byte tokens, the unknown token, or nothing.
Status BpeModel::initial_symbols(std::string_view part, std::vector<std::int32_t>& symbols) const {
  bool pending_unk = false;
  std::string affixed;
  for (std::size_t at = 0; at < part.size();) {
    const auto next = unicode::decode(part, at);
    std::string_view character = part.substr(at, next.length);
    const bool first = at == 0;
    at += next.length;
    std::int32_t id;
    if (prefix_.empty() && suffix_.empty()) {
      id = char_id(character, next.code);
    } else {
      affixed.assign(first ? "" : prefix_).append(character).append(at >= part.size() ? suffix_ : "");
      character = affixed;
      id = token_to_id(character);
    }
    if (id >= 0) {
      if (pending_unk) symbols.push_back(unk_id_);
      pending_unk = false;
      symbols.push_back(id);
      continue;
    }
    if (byte_fallback_ && std::all_of(character.begin(), character.end(),
                                      [&](char c) { return bytes_[static_cast<unsigned char>(c)] >= 0; })) {
      for (const char c : character) symbols.push_back(bytes_[static_cast<unsigned char>(c)]);
      continue;
    }
    if (!has_unk_) continue;
    if (unk_id_ < 0) {
      return invalid_argument("'{}' is not in the vocabulary, nor is the unknown token '{}'", character,
                              shorten(unk_token_));
    }
    if (pending_unk && !fuse_unk_) symbols.push_back(unk_id_);
    pending_unk = true;
  }
  if (pending_unk) symbols.push_back(unk_id_);
  return ok_status();
}

void BpeModel::merge_short(std::vector<std::int32_t>& symbols) const {
  constexpr std::int32_t kNone = INT32_MAX;
  std::array<std::int32_t, kShortSymbols> ranks, made;
  std::size_t count = symbols.size();
  const auto look = [&](std::size_t i) {
    const Merge* merge = find_merge(symbols[i], symbols[i + 1]);
    ranks[i] = merge == nullptr ? kNone : merge->rank;
    made[i] = merge == nullptr ? 0 : merge->id;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    const std::size_t best = std::min_element(ranks.begin(), ranks.begin() + (count - 1)) - ranks.begin();
    if (ranks[best] == kNone) break;
    symbols[best] = made[best];
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    std::copy(ranks.begin() + best + 1, ranks.begin() + (count - 1), ranks.begin() + best);
    std::copy(made.begin() + best + 1, made.begin() + (count - 1), made.begin() + best);
    --count;
    if (best > 0) look(best - 1);
    if (best + 1 < count) look(best);
  }
  symbols.resize(count);
}

void BpeModel::merge_long(std::vector<std::int32_t>& symbols) const {
  struct Candidate {
    std::int32_t rank;
    std::int32_t position;
    std::int32_t id;
    bool operator<(const Candidate& other) const {  // std heaps put the largest first
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  const auto count = static_cast<std::int32_t>(symbols.size());
  std::vector<std::int32_t> next(symbols.size()), previous(symbols.size());
  std::vector<Candidate> heap;
  heap.reserve(symbols.size());
  for (std::int32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : -1;
    previous[i] = i - 1;
    if (i + 1 < count) {
      const Merge* merge = find_merge(symbols[i], symbols[i + 1]);
      if (merge != nullptr) heap.push_back({merge->rank, i, merge->id});
    }
  }
  std::make_heap(heap.begin(), heap.end());
  const auto offer = [&](std::int32_t position) {
    const Merge* merge = find_merge(symbols[position], symbols[next[position]]);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, position, merge->id});
    std::push_heap(heap.begin(), heap.end());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate top = heap.back();
    heap.pop_back();
    const std::int32_t right = symbols[top.position] < 0 ? -1 : next[top.position];
    if (right < 0) continue;  // merged into its left neighbour, or last by now
    const Merge* merge = find_merge(symbols[top.position], symbols[right]);
    if (merge == nullptr || merge->id != top.id) continue;  // the pair changed since it was offered
    symbols[top.position] = top.id;
    symbols[right] = -1;
    next[top.position] = next[right];
    if (next[right] >= 0) previous[next[right]] = top.position;
    if (previous[top.position] >= 0) offer(previous[top.position]);
    if (next[top.position] >= 0) offer(top.position);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), -1), symbols.end());
}

}  // namespace fovea
