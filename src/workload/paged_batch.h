// Batches of requests over a paged KV cache, with and without shared prefixes: what bench, tests and `fovea plan
// explain` plan and run. A batch owns its arrays; view() lends them to a Planner.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/plan/planner.h"
#include "fovea/status.h"

namespace fovea {

enum class PageOrder : std::uint8_t { kSequential, kRandom };

struct PagedBatch {
  std::int32_t page_tokens = 16;
  std::int32_t num_pages = 0;  // pages that the table names: 0 .. num_pages - 1
  std::int32_t stride = 0;     // entries a row of the table
  std::vector<std::int32_t> q_lens;
  std::vector<std::int32_t> kv_lens;
  std::vector<std::int32_t> page_table;  // [requests, stride]

  abi::MaskKind mask = abi::MaskKind::kCausal;
  std::int32_t window_left = -1;
  std::vector<std::uint64_t> mask_offsets;
  std::vector<std::uint32_t> mask_strides;
  std::vector<std::int32_t> mask_tails;  // empty: masks over whole lengths
  std::vector<std::uint8_t> mask_bits;

  std::int32_t num_requests() const { return static_cast<std::int32_t>(q_lens.size()); }
  std::int32_t num_rows() const;
  std::int64_t num_tokens() const;  // sum of kv_lens
  AttentionBatch view() const;
  // Limits that this batch and `growth` more tokens a request need at least.
  PlanLimits limits(std::int32_t growth = 0) const;
};

// Requests that share nothing. Each has pages for `growth` more tokens.
PagedBatch flat_batch(std::vector<std::int32_t> q_lens, std::vector<std::int32_t> kv_lens, std::int32_t page_tokens,
                      PageOrder order = PageOrder::kSequential, std::uint64_t seed = 0, std::int32_t growth = 0);

// A run of tokens at the head of several requests, behind its parent's: whole pages.
struct SharedRun {
  std::int32_t parent = -1;  // in the list of runs, before this one; -1: none
  std::int32_t tokens = 0;
};
// Requests of any lengths whose leading pages are those of run run_of[i] and its parents (-1: none), as far as they
// are long enough.
PagedBatch forest_batch(std::vector<std::int32_t> q_lens, std::vector<std::int32_t> kv_lens,
                        const std::vector<SharedRun>& runs, const std::vector<std::int32_t>& run_of,
                        std::int32_t page_tokens, PageOrder order = PageOrder::kSequential, std::uint64_t seed = 0);

// A tree of prefixes as PAT (ASPLOS'26) writes it, "n1,n2,..,B_l1,l2,..,lk": level i has n_i nodes of l_i tokens, the
// last level is the requests' own tokens; request r stands under node r / (B / n_i) of level i.
struct PrefixTree {
  std::vector<std::int32_t> nodes;
  std::vector<std::int32_t> tokens;

  std::int32_t num_requests() const { return nodes.empty() ? 0 : nodes.back(); }
};
// kInvalidArgument for malformed text and for levels that do not divide the batch.
Result<PrefixTree> parse_prefix_tree(std::string_view text);
// The 20 trees of PAT's Figure 10, in its order.
const std::vector<std::string_view>& pat_trees();
// Requests in shuffled order. A level that does not end on a page bound is shared but for its last, partial page.
PagedBatch tree_batch(const PrefixTree& tree, std::int32_t page_tokens, std::int32_t q_len, PageOrder order,
                      std::uint64_t seed, std::int32_t growth = 0);

// A random forest for property tests: several roots, single requests, prefixes that end inside a page, requests that
// are a strict prefix of others, identical requests, empty requests.
struct RandomForest {
  std::int32_t max_requests = 24;
  std::int32_t max_tokens = 400;  // of a request
  std::int32_t max_q_len = 8;
  std::int32_t page_tokens = 16;
  std::int32_t growth = 0;
};
PagedBatch random_forest(const RandomForest& shape, std::uint64_t seed);

// Gives the batch a mask of the kind: window of `window_left`, or random bits over the last `tail` tokens (0: over
// all).
void set_window(PagedBatch& batch, std::int32_t window_left);
void set_random_bits(PagedBatch& batch, std::int32_t tail, std::uint64_t seed);

}  // namespace fovea
