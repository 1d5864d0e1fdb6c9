#include "core/forest/forest.h"

#include <algorithm>

namespace fovea {
namespace {

std::uint32_t ceil_div(std::uint64_t a, std::uint64_t b) { return static_cast<std::uint32_t>((a + b - 1) / b); }

class Builder {
 public:
  Builder(const ForestInput& input, const PackRule& rule, Forest& forest) : in_(input), rule_(rule), f_(forest) {}

  void build() {
    f_.order.size = f_.private_begin.size = in_.num_requests;
    f_.nodes.clear();
    f_.stack.clear();
    for (std::uint32_t i = 0; i < in_.num_requests; ++i) {
      f_.order[i] = i;
      f_.private_begin[i] = 0;
    }
    if (in_.num_requests < 2) return;
    group_by_page({0, in_.num_requests, 0, 0, false});
    // Nearly every batch without sharing ends here: all first pages differ.
    if (f_.group_size.size == in_.num_requests) return;
    keep_none();
    descend({0, in_.num_requests, 0, 0, false}, 0, 0);
    while (f_.stack.size != 0) {
      const Forest::Frame frame = f_.stack[--f_.stack.size];
      visit(frame);
    }
  }

 private:
  const std::int32_t* pages(std::uint32_t request) const {
    return in_.page_table +
           (in_.begins != nullptr ? static_cast<std::size_t>(in_.begins[request]) : request * in_.stride);
  }
  std::uint32_t limit(std::uint32_t request) const { return in_.rows[request] == 0 ? 0 : in_.shareable_pages[request]; }

  // Groups the requests of a slice by the page at frame.depth, in order of first appearance; a request that has no page
  // there is a group of its own.
  void group_by_page(const Forest::Frame& frame) {
    if (++f_.stamp == 0) {  // wrapped: old stamps would look current
      std::fill(f_.table.data, f_.table.data + f_.table.capacity, 0);
      f_.stamp = 1;
    }
    f_.group_size.clear();
    f_.group_rows.clear();
    const std::uint32_t mask = f_.table.capacity - 1;
    for (std::uint32_t i = frame.low; i < frame.high; ++i) {
      const std::uint32_t request = f_.order[i];
      const std::uint32_t rows = static_cast<std::uint32_t>(in_.rows[request]);
      std::uint32_t group = f_.group_size.size;
      if (limit(request) > frame.depth) {
        const std::int32_t page = pages(request)[frame.depth];
        std::uint32_t slot = (static_cast<std::uint32_t>(page) * 0x9e3779b1u >> 7) & mask;
        while ((f_.table[slot] >> 32) == f_.stamp && f_.table_page[slot] != page) slot = (slot + 1) & mask;
        if ((f_.table[slot] >> 32) == f_.stamp) {
          group = static_cast<std::uint32_t>(f_.table[slot]);
        } else {
          f_.table[slot] = (std::uint64_t{f_.stamp} << 32) | group;
          f_.table_page[slot] = page;
        }
      }
      if (group == f_.group_size.size) {
        f_.group_size.push(0);
        f_.group_rows.push(0);
      }
      f_.group_of[i] = group;
      f_.group_size[group] += 1;
      f_.group_rows[group] += rows;
    }
  }

  void keep_none() {
    for (std::uint32_t g = 0; g < f_.group_size.size; ++g) f_.group_kept[g] = 0;
  }

  std::uint64_t tiles(std::uint64_t rows) const { return ceil_div(rows, rule_.tokens_per_tile); }

  // Chooses which groups read the run [page_begin, page_end) together; returns their rows, 0 when none do.
  std::uint32_t choose_kept(std::uint32_t rows, std::uint32_t run_pages, bool under_node) {
    const std::uint32_t num_groups = f_.group_size.size;
    for (std::uint32_t g = 0; g < num_groups; ++g) f_.group_kept[g] = 1;
    const std::uint64_t run_bytes = std::uint64_t{run_pages} * rule_.page_tokens * rule_.kv_token_bytes;
    const std::uint64_t row_bytes = (under_node ? 1 : 2) * rule_.partial_row_bytes;
    std::uint32_t kept_rows = rows;
    std::uint32_t num_kept = num_groups;
    if (!rule_.always_share) {
      std::uint64_t alone = 0;  // tiles that read the run if nobody shared it
      for (std::uint32_t g = 0; g < num_groups; ++g) alone += tiles(f_.group_rows[g]);
      std::uint64_t merged = 0;
      for (std::uint32_t g = 0; g < num_groups && num_kept > 0; ++g) {
        const std::uint32_t own = f_.group_rows[g];
        const std::uint64_t added = tiles(kept_rows - own) + tiles(own) - tiles(kept_rows);
        if (num_kept > 1 && own * row_bytes < added * run_bytes) continue;
        f_.group_kept[g] = 0;
        kept_rows -= own;
        --num_kept;
        merged += tiles(own);
      }
      // The loop decides one child at a time; together they may still be better off alone.
      if ((tiles(kept_rows) + merged) * run_bytes + kept_rows * row_bytes >= alone * run_bytes) kept_rows = 0;
    }
    const std::uint64_t pairs = std::uint64_t{kept_rows} * (under_node ? 1 : 2);
    if (f_.shared_rows + pairs > rule_.max_shared_rows) kept_rows = 0;
    if (kept_rows == 0) keep_none();
    return kept_rows;
  }

  // A slice of two or more requests with the same page at frame.depth.
  void visit(Forest::Frame frame) {
    const std::uint32_t first = f_.order[frame.low];
    std::uint32_t common = limit(first);
    for (std::uint32_t i = frame.low + 1; i < frame.high; ++i) {
      const std::uint32_t request = f_.order[i];
      const std::uint32_t most = std::min(common, limit(request));
      common = frame.depth + 1 +
               common_pages(pages(first) + frame.depth + 1, pages(request) + frame.depth + 1, most - frame.depth - 1);
    }
    frame.depth = common;
    group_by_page(frame);
    const std::uint32_t run_end = common / rule_.pages_multiple * rule_.pages_multiple;
    std::uint32_t rows = 0;
    for (std::uint32_t g = 0; g < f_.group_rows.size; ++g) rows += f_.group_rows[g];
    std::uint32_t kept_rows = 0;
    if (run_end > frame.run_begin) {
      kept_rows = choose_kept(rows, run_end - frame.run_begin, frame.under_node);
    } else {
      keep_none();
    }
    std::uint32_t kept = 0;
    for (std::uint32_t g = 0; g < f_.group_size.size; ++g) kept += f_.group_kept[g] ? f_.group_size[g] : 0;
    descend(frame, kept, run_end);
    if (kept == 0) return;
    f_.nodes.push({frame.low, kept, kept_rows, f_.order[frame.low], frame.run_begin, run_end});
    f_.shared_rows += std::uint64_t{kept_rows} * (frame.under_node ? 1 : 2);
  }

  // Moves the kept groups' requests to the front of the slice, settles groups of one and queues the others.
  void descend(const Forest::Frame& frame, std::uint32_t kept, std::uint32_t run_end) {
    const std::uint32_t num_groups = f_.group_size.size;
    std::uint32_t kept_place = frame.low;
    std::uint32_t merged_place = frame.low + kept;
    const std::uint32_t stack_begin = f_.stack.size;
    for (std::uint32_t g = 0; g < num_groups; ++g) {
      std::uint32_t& place = f_.group_kept[g] ? kept_place : merged_place;
      f_.group_place[g] = place;
      place += f_.group_size[g];
      if (f_.group_size[g] < 2) continue;
      f_.stack.push({f_.group_place[g], place, frame.depth, f_.group_kept[g] ? run_end : frame.run_begin,
                     frame.under_node || f_.group_kept[g]});
    }
    std::reverse(f_.stack.begin() + stack_begin, f_.stack.end());
    for (std::uint32_t i = frame.low; i < frame.high; ++i) {
      const std::uint32_t group = f_.group_of[i];
      const std::uint32_t request = f_.order[i];
      f_.moved[f_.group_place[group]++] = request;
      if (f_.group_size[group] == 1) f_.private_begin[request] = f_.group_kept[group] ? run_end : frame.run_begin;
    }
    std::copy(f_.moved.begin() + frame.low, f_.moved.begin() + frame.high, f_.order.begin() + frame.low);
  }

  const ForestInput& in_;
  const PackRule& rule_;
  Forest& f_;
};

}  // namespace

void Forest::carve(Carver& carver, std::uint32_t max_requests) {
  const std::uint32_t n = std::max<std::uint32_t>(max_requests, 1);
  std::uint32_t slots = 16;
  while (slots < 2 * n) slots *= 2;
  order.carve(carver, n);
  nodes.carve(carver, n);
  private_begin.carve(carver, n);
  stack.carve(carver, n);
  group_of.carve(carver, n);
  group_size.carve(carver, n);
  group_rows.carve(carver, n);
  group_place.carve(carver, n);
  group_kept.carve(carver, n);
  moved.carve(carver, n);
  table.carve(carver, slots);
  table_page.carve(carver, slots);
  stamp = 0;
}

std::uint32_t common_pages(const std::int32_t* a, const std::int32_t* b, std::uint32_t limit) {
  constexpr std::uint32_t kBlock = 32;
  std::uint32_t i = 0;
  for (; i + kBlock <= limit; i += kBlock) {
    std::int32_t different = 0;
    for (std::uint32_t j = 0; j < kBlock; ++j) different |= a[i + j] ^ b[i + j];
    if (different != 0) break;
  }
  while (i < limit && a[i] == b[i]) ++i;
  return i;
}

void build_forest(const ForestInput& input, const PackRule& rule, std::uint64_t shared_rows_used, Forest& forest) {
  forest.shared_rows = shared_rows_used;
  Builder(input, rule, forest).build();
}

}  // namespace fovea
