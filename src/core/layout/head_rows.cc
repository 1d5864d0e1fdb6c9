#include "core/layout/head_rows.h"

#include <algorithm>

namespace fovea {

void add_head_rows(const HeadSegment& segment, const RequestRows& rows, bool invariant,
                   std::vector<abi::BlockRow>& block_rows) {
  if (rows.count <= 0) return;
  abi::BlockRow all{};
  all.row_begin = rows.row_begin;
  all.row_count = static_cast<std::uint32_t>(rows.count);
  all.list_begin = rows.list_begin;
  all.num_tokens = static_cast<std::uint32_t>(rows.end);
  all.positions_begin = abi::kNone;
  all.length_slot = abi::kNone;
  all.window_left = -1;
  all.head_begin = static_cast<std::uint16_t>(segment.head_begin);
  all.head_end = static_cast<std::uint16_t>(segment.head_end);
  all.pool = static_cast<std::uint16_t>(segment.pool);
  all.mask = abi::MaskKind::kCausal;
  all.flags = abi::kRowsContiguous;
  all.num_requests = 1;
  const bool streams = segment.window_tokens > 0;
  if (!streams || (!invariant && rows.end <= segment.window_tokens + segment.sink_tokens)) {
    block_rows.push_back(all);
    return;
  }
  const std::int32_t sinks = std::min(segment.sink_tokens, rows.end);
  if (sinks > 0) {
    abi::BlockRow first = all;
    first.num_tokens = static_cast<std::uint32_t>(sinks);
    block_rows.push_back(first);
  }
  if (sinks == rows.end) return;
  abi::BlockRow recent = all;
  recent.mask = abi::MaskKind::kWindow;
  recent.window_left = segment.window_tokens - 1;
  recent.first_token = static_cast<std::uint32_t>(sinks);
  block_rows.push_back(recent);
}

}  // namespace fovea
