// The prefix forest of a batch: which requests share which leading pages, and which of those runs are worth sharing.
// Built from page tables by grouping and common-prefix lengths, O(pages that are shared + requests), without
// allocation. Called by core/plan/pack.
//
// Requests are grouped by their first page (in order of first appearance, so that the result depends on the batch and
// not on physical page numbers), each group's common prefix becomes a node, and what is left is grouped again by the
// next page. At each node the packer chooses, child by child, whether the child's rows take part in reading the node's
// run once for all (keep) or read it again beside their own tokens (merge into the child).
#pragma once

#include <cstdint>

#include "core/schedule/workspace.h"

namespace fovea {

struct ForestInput {
  std::uint32_t num_requests = 0;
  const std::int32_t* page_table = nullptr;        // lists of page entries
  std::size_t stride = 0;                          // entries from one list to the next, where begins is null
  const std::int32_t* rows = nullptr;              // query tokens a request; 0: the request takes no part
  const std::uint32_t* shareable_pages = nullptr;  // leading full pages that every row of the request sees whole
  const std::int64_t* begins = nullptr;            // by request: first entry of its list
};

// When a child reads its parent's run again (prefix_aware notes, section 7 point 5, after PAT's packing rule): iff
//   parts * rows_c * group * partial_row_bytes >= added tiles * run tokens * kv_token_bytes,
// that is, iff the partial states this saves outweigh reading the run more often. parts is 1, and 2 under no other
// node, where a request that stops sharing needs no partial state at all.
struct PackRule {
  std::uint32_t tokens_per_tile = 32;  // query tokens of the largest tile
  std::uint32_t page_tokens = 16;
  std::uint32_t pages_multiple = 1;     // shared runs end at multiples of this many pages (whole chunks)
  std::uint64_t partial_row_bytes = 0;  // state of one query token under one KV head (all its query heads), both ways
  std::uint64_t kv_token_bytes = 0;     // K and V of one token of one KV head
  std::uint64_t max_shared_rows = 0;    // (query token, part) pairs that may become partial states
  bool always_share = false;            // keep every child (tests, and measurements of the rule)
};

// A run that rows of several requests read once: pages [page_begin, page_end) of the table of request `representative`,
// for the requests order[first .. first + count).
struct ForestNode {
  std::uint32_t first;
  std::uint32_t count;
  std::uint32_t rows;  // query tokens of those requests
  std::uint32_t representative;
  std::uint32_t page_begin;
  std::uint32_t page_end;
};

// A forest and the memory it is built in.
struct Forest {
  FixedVector<std::uint32_t> order;          // requests, so that every node's are adjacent
  FixedVector<ForestNode> nodes;             // ancestors before descendants
  FixedVector<std::uint32_t> private_begin;  // by request: first page that it reads for itself alone
  std::uint64_t shared_rows = 0;             // (query token, part) pairs in use

  // Scratch.
  struct Frame {
    std::uint32_t low, high;  // slice of order
    std::uint32_t depth;      // pages known to be common
    std::uint32_t run_begin;  // first page not yet read by a node above
    bool under_node;          // some node above is kept for these requests
  };
  FixedVector<Frame> stack;
  FixedVector<std::uint32_t> group_of;    // by position in the slice
  FixedVector<std::uint32_t> group_size;  // by group: requests
  FixedVector<std::uint32_t> group_rows;  // query tokens
  FixedVector<std::uint32_t> group_place;
  FixedVector<std::uint8_t> group_kept;
  FixedVector<std::uint32_t> moved;
  FixedVector<std::uint64_t> table;  // open addressing: stamp << 32 | group
  FixedVector<std::int32_t> table_page;
  std::uint32_t stamp = 0;

  void carve(Carver& carver, std::uint32_t max_requests);
};

// Leading entries in which two page lists agree, at most limit.
std::uint32_t common_pages(const std::int32_t* a, const std::int32_t* b, std::uint32_t limit);

// shared_rows_used: pairs already spent by the caller (tree masks).
void build_forest(const ForestInput& input, const PackRule& rule, std::uint64_t shared_rows_used, Forest& forest);

}  // namespace fovea
