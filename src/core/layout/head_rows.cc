#include "core/layout/head_rows.h"

#include <algorithm>

namespace fovea {
namespace {

abi::BlockRow block_row_of(const HeadSegment& segment, const RequestRows& rows) {
  abi::BlockRow made = empty_block_row(segment);
  made.row_begin = rows.row_begin;
  made.row_count = static_cast<std::uint32_t>(rows.count);
  made.list_begin = rows.list_begin;
  made.flags = abi::kRowsContiguous;
  return made;
}

}  // namespace

abi::BlockRow empty_block_row(const HeadSegment& segment) {
  abi::BlockRow made{};
  made.positions_begin = abi::kNone;
  made.length_slot = abi::kNone;
  made.window_left = -1;
  made.head_begin = static_cast<std::uint16_t>(segment.head_begin);
  made.head_end = static_cast<std::uint16_t>(segment.head_end);
  made.pool = static_cast<std::uint16_t>(segment.pool);
  made.num_requests = 1;
  return made;
}

abi::BlockRow tree_block_row(const HeadSegment& segment, const RequestRows& rows) {
  abi::BlockRow made = block_row_of(segment, rows);
  made.num_tokens = static_cast<std::uint32_t>(rows.end);
  made.first_token = static_cast<std::uint32_t>(rows.own_begin());
  made.mask = abi::MaskKind::kBits;
  // Bits are addressed from the run's token 0; the offset may wrap, for those before first_token are never looked up.
  made.mask_offset = rows.mask_offset - made.first_token;
  made.mask_stride = static_cast<std::uint32_t>(rows.count);
  return made;
}

void add_head_rows(const HeadSegment& segment, const RequestRows& rows, bool invariant,
                   std::vector<abi::BlockRow>& block_rows) {
  if (rows.count <= 0) return;
  abi::BlockRow all = block_row_of(segment, rows);
  const std::int32_t end = rows.tree ? rows.own_begin() : rows.end;
  all.num_tokens = static_cast<std::uint32_t>(end);
  all.mask = rows.tree ? abi::MaskKind::kNone : abi::MaskKind::kCausal;
  if (rows.tree) block_rows.push_back(tree_block_row(segment, rows));
  if (rows.tree && end == 0) return;
  const bool streams = segment.window_tokens > 0;
  if (!streams || (!invariant && rows.end <= segment.window_tokens + segment.sink_tokens)) {
    block_rows.push_back(all);
    return;
  }
  const std::int32_t sinks = std::min(segment.sink_tokens, end);
  if (sinks > 0) {
    abi::BlockRow first = all;
    first.num_tokens = static_cast<std::uint32_t>(sinks);
    block_rows.push_back(first);
  }
  if (sinks == end) return;
  abi::BlockRow recent = all;
  recent.mask = abi::MaskKind::kWindow;
  recent.window_left = segment.window_tokens - 1;
  recent.first_token = static_cast<std::uint32_t>(sinks);
  block_rows.push_back(recent);
}

}  // namespace fovea
