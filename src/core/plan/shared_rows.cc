#include "core/plan/shared_rows.h"

#include <algorithm>
#include <memory>

#include "core/plan/arrays.h"
#include "core/plan/pack.h"

namespace fovea {

std::int32_t SharedRows::most_shared_rows(const PlannerOptions& options) {
  // What a planner has room for where nothing is said.
  const std::int32_t requests = options.limits.max_requests;
  return std::max({options.limits.max_shared_rows, 8 * requests,
                   static_cast<std::int32_t>(std::min<std::int64_t>(std::int64_t{2} * options.limits.max_rows,
                                                                    std::int64_t{32} * requests))});
}

SharedRows::SharedRows(const PlannerOptions& options)
    : share_(options.share_prefixes), rule_(pack_rule(options, static_cast<std::uint64_t>(most_shared_rows(options)))) {
  const auto requests = static_cast<std::uint32_t>(options.limits.max_requests);
  Carver measure(nullptr);
  forest_.carve(measure, requests);
  memory_.resize(measure.used() + Carver::kAlignment);
  void* at = memory_.data();
  std::size_t room = memory_.size();
  Carver fill(static_cast<std::byte*>(std::align(Carver::kAlignment, measure.used(), at, room)));
  forest_.carve(fill, requests);
}

void SharedRows::find(std::span<const RequestRows> requests, const std::int32_t* page_entries) {
  requests_ = requests;
  forest_.nodes.clear();
  tokens_saved_ = 0;
  if (!share_ || requests.size() < 2) return;
  counts_.clear();
  shareable_.clear();
  begins_.clear();
  for (const RequestRows& request : requests) {
    counts_.push_back(request.count);
    // Tokens before the first of the rows: every row sees them, and the request keeps a run of its own.
    shareable_.push_back(static_cast<std::uint32_t>(request.own_begin()) / rule_.page_tokens);
    begins_.push_back(request.list_begin);
  }
  const ForestInput input{
      static_cast<std::uint32_t>(requests.size()), page_entries, 0, counts_.data(), shareable_.data(), begins_.data()};
  build_forest(input, rule_, 0, forest_);
}

void SharedRows::append_rows(std::vector<std::uint32_t>& row_indices, std::vector<std::int32_t>& q_pos) {
  if (forest_.nodes.size == 0) return;
  copy_of_.clear();
  for (std::size_t k = 0; k < requests_.size(); ++k) {
    const RequestRows& request = requests_[forest_.order[k]];
    copy_of_.push_back(static_cast<std::uint32_t>(row_indices.size()));
    for (std::int32_t j = 0; j < request.count; ++j) {
      const std::uint32_t row = request.row_begin + static_cast<std::uint32_t>(j);
      row_indices.push_back(row);
      q_pos.push_back(q_pos[row]);
    }
  }
  adjacent_.clear();
  for (const ForestNode& node : forest_.nodes) {
    const std::uint32_t* rows = row_indices.data() + copy_of_[node.first];
    bool adjacent = true;
    for (std::uint32_t i = 1; i < node.rows; ++i) adjacent &= rows[i] == rows[0] + i;
    adjacent_.push_back(adjacent ? 1 : 0);
  }
  const std::uint32_t step = rule_.tokens_per_tile;
  for (const ForestNode& node : forest_.nodes) {
    std::uint64_t alone = 0;
    for (std::uint32_t k = node.first; k < node.first + node.count; ++k) {
      alone += (static_cast<std::uint32_t>(counts_[forest_.order[k]]) + step - 1) / step;
    }
    const std::uint64_t run = std::uint64_t{node.page_end - node.page_begin} * rule_.page_tokens;
    tokens_saved_ += (alone - (node.rows + step - 1) / step) * run;
  }
}

void SharedRows::append_block_rows(const HeadSegment& segment, std::vector<abi::BlockRow>& block_rows) const {
  for (std::uint32_t n = 0; n < forest_.nodes.size; ++n) {
    const ForestNode& node = forest_.nodes[n];
    abi::BlockRow made = empty_block_row(segment);
    made.row_begin = copy_of_[node.first];
    made.row_count = node.rows;
    made.list_begin = requests_[node.representative].list_begin + node.page_begin;
    made.num_tokens = (node.page_end - node.page_begin) * rule_.page_tokens;
    made.position_base = static_cast<std::int32_t>(node.page_begin * rule_.page_tokens);
    made.mask = abi::MaskKind::kNone;
    made.flags = adjacent_[n] != 0 ? abi::kRowsContiguous : 0;
    made.num_requests = node.count;
    block_rows.push_back(made);
  }
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const RequestRows& request = requests_[i];
    if (request.count == 0) continue;
    const std::uint32_t begin = forest_.nodes.size == 0 ? 0 : forest_.private_begin[i];
    abi::BlockRow made = empty_block_row(segment);
    made.row_begin = request.row_begin;
    made.row_count = static_cast<std::uint32_t>(request.count);
    made.list_begin = request.list_begin + begin;
    made.num_tokens =
        static_cast<std::uint32_t>(request.tree ? request.own_begin() : request.end) - begin * rule_.page_tokens;
    made.position_base = static_cast<std::int32_t>(begin * rule_.page_tokens);
    made.mask = request.tree ? abi::MaskKind::kNone : abi::MaskKind::kCausal;
    made.flags = abi::kRowsContiguous;
    if (made.num_tokens > 0) block_rows.push_back(made);
    if (request.tree) block_rows.push_back(tree_block_row(segment, request));
  }
}

}  // namespace fovea
