// Planner: turns a batch into a plan (abi/plan.h) by four pure steps, pack, tile, cut and merge list, inside a
// workspace whose size depends on declared maxima only. Called by src/attention, bench and `fovea plan
// explain`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "abi/cost.h"
#include "abi/plan.h"
#include "fovea/status.h"

namespace fovea {

// A batch of attention requests, borrowed from the caller for the length of a call. Query tokens of request i are the
// rows [sum q_lens[<i], + q_lens[i]) of Q; they are the last q_lens[i] of its kv_lens[i] tokens (bottom-right
// alignment).
struct AttentionBatch {
  std::int32_t num_requests = 0;
  const std::int32_t* q_lens = nullptr;   // [num_requests], >= 0
  const std::int32_t* kv_lens = nullptr;  // [num_requests], >= 0, new tokens included
  // Page entries: request i's stand at entries list_begins[i] on, else at i * page_table_stride on. Null: the lists are
  // where only the executor reads them (on a device), and nothing is shared.
  const std::int32_t* page_table = nullptr;
  std::int32_t page_table_stride = 0;         // entries a request has room for; not read with list_begins
  const std::int64_t* list_begins = nullptr;  // [num_requests], each below 2^32; borrowed until the next plan
  abi::MaskKind mask = abi::MaskKind::kCausal;
  std::int32_t window_left = -1;  // MaskKind::kWindow: tokens before the query still seen
  // MaskKind::kBits: request i's own mask over all its kv_lens[i] tokens starts at bit mask_offsets[i] and has
  // mask_strides[i] bits a query token. Where only the newest tokens differ (a speculative tree), the planner needs
  // bits for the last `mask_tail` tokens only: everything before is seen, and the bits start at that tail.
  const std::uint64_t* mask_offsets = nullptr;  // [num_requests]
  const std::uint32_t* mask_strides = nullptr;  // [num_requests]
  const std::int32_t* mask_tails = nullptr;     // [num_requests] or null: whole length
  const std::uint8_t* mask_bits = nullptr;
};

// Block rows made by the caller, borrowed for as long as the plan is used.
struct BlockRowBatch {
  std::int32_t num_rows = 0;  // rows of Q and of the output
  std::span<const abi::BlockRow> block_rows;
  std::span<const std::uint32_t> row_indices;  // the first num_rows are 0, 1, ..; further copies in any order
  std::span<const std::int32_t> q_pos;         // parallel to row_indices
  const std::int32_t* page_entries = nullptr;
  bool entries_on_device = false;  // the entries stand where the executor reads them, and may be written after the plan
  const std::int32_t* kv_positions = nullptr;  // for block rows with positions_begin
  std::span<const std::int32_t> kv_lens;       // by length slot
  const std::uint8_t* mask_bits = nullptr;
  std::size_t mask_bytes = 0;  // of mask_bits, for executors that copy them
  // By pool: bytes of K and V of a token and KV head, for PlanStats. Empty: all as PlannerOptions::kv_element_bits
  // says.
  std::span<const std::uint32_t> pool_token_bytes;
  std::uint64_t kv_bytes_saved = 0;  // by block rows of several requests, for PlanStats::kv_bytes_unshared
  bool other_plans = false;          // (query token, KV head) pairs without a block row are in another plan
};

struct PlanLimits {
  std::int32_t max_requests = 256;
  std::int32_t max_rows = 4096;  // query tokens
  std::int32_t max_pages_per_request = 2048;
  // (query token, part) pairs that prefix sharing and tree masks may leave as partial states: a decode request under
  // two shared nodes counts three. Beyond it the packer stops sharing. 0: max(8 requests, min(2 rows, 32 requests)).
  std::int32_t max_shared_rows = 0;
  std::int32_t max_block_rows = 0;  // for plan_block_rows(); 0: 3 a request, which is all that plan() ever makes
  // For plan_block_rows(): query tokens of all block rows together, one counted once for each block row it stands in.
  // 0: rows + max(rows, max_shared_rows), which is all that plan() ever makes.
  std::int32_t max_covered_rows = 0;
};

struct PlannerOptions {
  std::int32_t num_qo_heads = 32;
  std::int32_t num_kv_heads = 8;
  std::int32_t head_dim = 128;
  std::int32_t kv_element_bits = 16;
  std::int32_t page_tokens = 16;  // tokens a page entry names
  std::int32_t num_workers = 1;   // those that start together: threads, or CTAs of a grid
  // Queues a worker where requests share runs, 1 to 8. More than 1: the first num_workers queues read shared runs
  // alone, so that most rows are complete, and merged at once, when the requests' own runs end; each further round has
  // half of what is left, and workers claim its queues in order. All other plans give each worker one queue, of equal
  // cost.
  std::int32_t shared_rounds = 1;
  // Of such plans, 0: as all others. Where shared runs make too few tiles to go round, so that each would be divided
  // into many short parts, tiles of shared_tile_rows: twice the tiles in half the parts. Not where a worker reads more
  // than twice shared_part_bytes of the runs in tall tiles, and would read more in low ones.
  std::int32_t shared_tile_rows = 0;
  std::int32_t shared_balance_rows = 0;  // see cost_balance_rows
  std::int32_t shared_part_bytes = 0;    // K and V that a part of a divided pair reads at least, see least_part_bytes
  std::int32_t tile_rows = 128;        // most (token, query head) rows a tile may hold; classes are 16, 32, .. up to it
  std::int32_t tile_tokens = 0;        // most query tokens a tile may hold; 0: as many as its rows do
  std::int32_t block_tokens = 64;      // cuts fall on multiples of this many KV tokens
  bool share_prefixes = true;          // pack requests whose leading full pages are the same
  bool batch_invariant = false;        // a request's bits do not depend on who shares its batch
  std::int32_t invariant_chunk = 512;  // tokens; bounds of chunks in batch_invariant mode
  // The cost model (abi/cost.h), in bytes read: what starting an item costs, and how many (token, query head) rows a
  // tile has when arithmetic takes as long as reading K and V (about 8 on a CPU, 100 and more on a GPU).
  std::int32_t cost_item_bytes = 4096;
  std::int32_t cost_balance_rows = 8;
  // What dividing pairs of a tile and a head adds to the time of a whole plan, however many they are (their parts must
  // meet once more at the end), as bytes read by one worker meanwhile. Plans whose pairs, undivided, make no worker
  // later than that are left undivided. 0: dividing is free.
  std::int64_t cost_divide_bytes = 0;
  std::int32_t least_part_bytes = 0;  // K and V that a part of a divided pair reads at least
  // Pairs of a tile and a head stay whole where they spread evenly, the longest first (core/schedule/longest_first.h);
  // else they are cut as others. Such plans cannot be cut again on a device.
  bool longest_first = false;
  PlanLimits limits;
};

// Rows of the tiles that plans with these options are made of: tile_rows, or those of tile_tokens.
std::int32_t most_tile_rows(const PlannerOptions& options);

// The cost model that plans with these options are cut by.
abi::CostModel cost_model(const PlannerOptions& options);

// What a plan costs; printed by `fovea plan explain` and reported by metrics.
struct PlanStats {
  std::uint64_t kv_bytes = 0;           // K and V bytes the items read, each shared run once
  std::uint64_t kv_bytes_unshared = 0;  // bytes if every request read its own KV
  std::uint64_t partial_bytes = 0;      // written and read again by the merge
  std::uint64_t total_cost = 0;         // of the integer cost model
  std::uint64_t max_worker_cost = 0;    // makespan
  std::uint32_t split_rows = 0;         // (tile, head) pairs that a cut divided
};

struct PlanArrays;

// What a device plan carries so that the device can cut it again (core/plan/device_plan), borrowed like PlanView.
struct PlanGrowth {
  const PlanArrays* arrays = nullptr;  // null: growing this plan packs anew, or makes new chunks: the host does it
  abi::CostModel cost;
  std::uint32_t span_rounds = 1;
  std::uint32_t first_tiles = 0;  // several rounds: tiles that the first is for
  std::uint32_t num_spans = 0;
  std::uint32_t block_tokens = 64;
  std::uint32_t tile_rows = 128;
  std::uint32_t tile_partial_rows = 0;
  std::int64_t max_tokens = 0;  // of a request, by its page list
};

class Planner {
 public:
  static Result<Planner> create(const PlannerOptions& options);
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;
  ~Planner();

  // Makes a plan; allocates nothing after create(). Fails with kOutOfRange when the batch exceeds the limits.
  Status plan(const AttentionBatch& batch);
  // Same requests, same page table rows, lengths grew (each by >= 0): cuts again, keeps the packing.
  Status grow(const std::int32_t* kv_lens);
  // Whether grow() would take these lengths; it refuses before it changes anything.
  Status check_growth(const std::int32_t* kv_lens) const;

  // The second entry, for producers of block rows (sparse heads, selected pages, cascades, rings): the same tile, cut
  // and merge steps over block rows as given. Every (query token, KV head) must stand in at least one block row, but
  // for other_plans.
  Status plan_block_rows(const BlockRowBatch& batch);

  // Valid until the next plan() or grow(). Its page entries and mask bits are the caller's.
  abi::PlanView view() const;
  PlanGrowth growth() const;
  PlanStats stats() const;
  // Partial rows the caller's workspace must hold, by declared maxima: each is head_dim floats and one float.
  std::uint32_t max_partial_rows() const;
  const PlannerOptions& options() const;

 private:
  struct Impl;
  explicit Planner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea
