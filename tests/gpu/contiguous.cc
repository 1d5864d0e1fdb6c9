#include "tests/gpu/contiguous.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>

namespace fovea::gpu_test {

using testing::AttentionCase;

void mask_bits_of(const AttentionCase& c, std::vector<std::int64_t>& offsets, std::vector<std::uint8_t>& bits) {
  for (int r = 0; r < c.num_requests(); ++r) {
    const auto rows = static_cast<std::size_t>(c.spec.q_lens[r]), tokens = static_cast<std::size_t>(c.spec.kv_lens[r]);
    offsets.push_back(static_cast<std::int64_t>(bits.size()) * 8);
    bits.resize(bits.size() + (rows * tokens + 7) / 8);
    for (std::size_t i = 0; i < rows * tokens; ++i) {
      if (!c.sees(r, static_cast<int>(i / tokens), static_cast<int>(i % tokens))) continue;
      bits[static_cast<std::size_t>(offsets.back()) / 8 + i / 8] |= static_cast<std::uint8_t>(1u << (i % 8));
    }
  }
  if (bits.empty()) bits.push_back(0);
}

RaggedLists::RaggedLists(const AttentionCase& c) {
  view.num_requests = c.num_requests();
  view.q_lens = c.spec.q_lens.data();
  view.kv_lens = c.spec.kv_lens.data();
  view.mask = static_cast<AttentionMask>(c.spec.mask);
  view.window_left = c.spec.window_left;
  for (int r = 0; r < c.num_requests(); ++r) {
    const std::int32_t first =
        c.page_table[static_cast<std::size_t>(r) * static_cast<std::size_t>(c.page_table_stride)];
    kv_begins.push_back(c.spec.kv_lens[static_cast<std::size_t>(r)] > 0 ? first : 0);
  }
  view.kv_begins = kv_begins.data();
  if (c.spec.mask != abi::MaskKind::kBits) return;
  mask_bits_of(c, mask_offsets, mask);
  view.mask_bits = mask.data();
  view.mask_bytes = static_cast<std::int64_t>(mask.size());
  view.mask_offsets = mask_offsets.data();
}

BlockLists::BlockLists(const AttentionCase& c, std::int32_t page_tokens) {
  std::mt19937_64 random(c.spec.seed + 77);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  view.num_rows = c.spec.q_lens[0];
  view.num_tokens = c.spec.kv_lens[0];
  view.block_rows = std::array<std::int32_t, 8>{1, 3, 7, 16, 33, 64, 100, 128}[static_cast<std::size_t>(below(8))];
  const int wide = std::max(1, 64 / page_tokens);
  view.block_tokens = page_tokens * std::array<int, 4>{1, 2, 3, wide}[static_cast<std::size_t>(below(4))];
  view.heads_differ = c.spec.kv_heads > 1 && below(3) == 0;
  constexpr std::array<AttentionMask, 3> kMasks = {AttentionMask::kNone, AttentionMask::kCausal, AttentionMask::kBits};
  view.mask = kMasks[static_cast<std::size_t>(below(3))];
  const int percent = std::array<int, 5>{0, 10, 40, 80, 100}[static_cast<std::size_t>(below(5))];
  const int lines = (view.num_rows + view.block_rows - 1) / view.block_rows;
  const int columns = (view.num_tokens + view.block_tokens - 1) / view.block_tokens;
  indptr.push_back(0);
  for (int line = 0; line < lines * (view.heads_differ ? c.spec.kv_heads : 1); ++line) {
    for (int column = 0; column < columns; ++column) {
      if (below(100) < percent) indices.push_back(column);
    }
    indptr.push_back(static_cast<std::int32_t>(indices.size()));
  }
  const std::size_t bits =
      indices.size() * static_cast<std::size_t>(view.block_rows) * static_cast<std::size_t>(view.block_tokens);
  if (view.mask == AttentionMask::kBits) mask.resize(bits / 8 + 1);
  for (std::uint8_t& byte : mask) byte = static_cast<std::uint8_t>(random());
  view.indptr = indptr.data();
  view.indices = indices.data();
  view.mask_bits = mask.data();
  view.mask_bytes = static_cast<std::int64_t>(mask.size());
}

bool BlockLists::sees(int row, int token, int kv_head) const {
  const int lines = (view.num_rows + view.block_rows - 1) / view.block_rows;
  const auto line = static_cast<std::size_t>((view.heads_differ ? kv_head * lines : 0) + row / view.block_rows);
  const auto begin = indices.begin() + indptr[line], end = indices.begin() + indptr[line + 1];
  const auto found = std::lower_bound(begin, end, token / view.block_tokens);
  if (found == end || *found != token / view.block_tokens) return false;
  if (view.mask == AttentionMask::kCausal) return token <= view.num_tokens - view.num_rows + row;
  if (view.mask != AttentionMask::kBits) return true;
  const std::int64_t block = found - indices.begin();
  const std::int64_t bit =
      (block * view.block_rows + row % view.block_rows) * view.block_tokens + token % view.block_tokens;
  return mask[static_cast<std::size_t>(bit / 8)] >> (bit % 8) & 1;
}

void set_blocks(AttentionCase& c, std::int32_t page_tokens) {
  const auto lists = std::make_shared<const BlockLists>(c, page_tokens);
  c.blocks_see = [lists](int row, int token, int kv_head) { return lists->sees(row, token, kv_head); };
}

std::int32_t first_token(const AttentionCase& c) { return c.blocks_see && c.spec.kv_lens[0] > 0 ? c.page_table[0] : 0; }

abi::KvPoolView contiguous_pool(const AttentionCase& c, std::int32_t entry_tokens) {
  abi::KvPoolView pool = c.pool;
  const std::int64_t at = first_token(c) * c.pool.page_stride * dtype_bits(c.spec.kv_dtype) / 8;
  pool.k = static_cast<std::byte*>(pool.k) + at;
  pool.v = static_cast<std::byte*>(pool.v) + at;
  pool.page_tokens = c.pool.num_pages - first_token(c);
  pool.token_stride = c.pool.page_stride;
  pool.num_pages = 1;
  pool.page_stride = c.spec.heads_first ? pool.head_stride * c.spec.kv_heads : pool.token_stride * pool.page_tokens;
  pool.entry_tokens = entry_tokens;
  pool.entries_per_page = (pool.page_tokens + entry_tokens - 1) / entry_tokens;
  return pool;
}

PagedKv contiguous_kv(const AttentionCase& c, const TensorView& any, const void* k, const void* v) {
  const std::int64_t tokens = c.pool.num_pages - first_token(c), heads = c.spec.kv_heads, dim = c.spec.head_dim;
  const std::int64_t at = first_token(c) * c.pool.page_stride * dtype_bits(c.spec.kv_dtype) / 8;
  PagedKv kv;
  kv.layout = c.spec.heads_first ? KvLayout::kHND : KvLayout::kNHD;
  kv.k = any;
  kv.k.dtype = c.spec.kv_dtype;
  kv.k.rank = 3;
  const bool hnd = c.spec.heads_first;
  kv.k.shape = {hnd ? heads : tokens, hnd ? tokens : heads, dim, 0, 0};
  kv.k.strides = {hnd ? c.pool.head_stride : c.pool.page_stride, hnd ? c.pool.page_stride : c.pool.head_stride, 1, 0,
                  0};
  kv.v = kv.k;
  kv.k.data = const_cast<std::byte*>(static_cast<const std::byte*>(k) + at);
  kv.v.data = const_cast<std::byte*>(static_cast<const std::byte*>(v) + at);
  return kv;
}

}  // namespace fovea::gpu_test
