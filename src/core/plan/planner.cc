#include "core/plan/planner.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/status.h"
#include "core/plan/arrays.h"
#include "core/plan/merge_list.h"
#include "core/plan/pack.h"

namespace fovea {
namespace {

struct FreeAligned {
  void operator()(std::byte* block) const { ::operator delete (block, std::align_val_t{Carver::kAlignment}); }
};

std::uint32_t as_u32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

}  // namespace

struct Planner::Impl {
  PlannerOptions options;
  PlanCapacity capacity{};
  std::unique_ptr<std::byte, FreeAligned> memory;
  PlanArrays arrays;
  PackConfig pack;
  TileConfig tile;
  CutConfig cut;
  PackResult packed;
  AttentionBatch batch;  // as planned last; lengths are re-pointed to copies
  BlockRowBatch given;   // as planned last by plan_block_rows
  bool from_block_rows = false;
  std::uint32_t num_rows = 0;
  std::uint64_t generation = 0;
  std::uint32_t tile_partial_rows = 0;  // of undivided tiles
  std::uint32_t num_partial_rows = 0;
  std::uint32_t first_tiles = 0;  // of the first round of shared_rounds, or 0
  bool whole_pairs = false;       // scheduled by longest_first

  Status init(const PlannerOptions& wanted);
  bool in_shared_rounds() const { return options.shared_rounds > 1 && !options.batch_invariant && packed.shared; }
  void choose_tiles();
  void make_all_tiles();
  void choose_rounds();
  bool choose_shared_rounds();
  bool emit_whole_pairs(ScheduleOutput& out);
  bool has_head_runs() const;
  void schedule(bool new_tiles);
  bool repacks() const;
  Status repack(const std::int32_t* kv_lens);
};

Status Planner::Impl::init(const PlannerOptions& wanted) {
  options = wanted;
  FOVEA_ASSIGN_OR_RETURN(capacity, plan_capacity(options));
  const std::uint32_t workers = as_u32(options.num_workers * options.shared_rounds);
  Carver measure(nullptr);
  arrays.carve(measure, capacity, workers, options.longest_first);
  memory.reset(
      static_cast<std::byte*>(::operator new (measure.used(), std::align_val_t{Carver::kAlignment}, std::nothrow)));
  if (memory == nullptr)
    return resource_exhausted("no memory for a plan of {} bytes; lower the limits", measure.used());
  std::memset(memory.get(), 0, measure.used());
  Carver fill(memory.get());
  arrays.carve(fill, capacity, workers, options.longest_first);

  const std::uint32_t group = as_u32(options.num_qo_heads / options.num_kv_heads);
  const abi::CostModel cost = cost_model(options);
  tile = {group, as_u32(most_tile_rows(options)), as_u32(options.block_tokens), options.batch_invariant, cost};
  cut.num_workers = as_u32(options.num_workers);
  cut.group = group;
  cut.block_tokens = as_u32(options.block_tokens);
  cut.invariant_chunk = options.batch_invariant ? as_u32(options.invariant_chunk) : 0;
  cut.cost = cost;
  pack.page_tokens = as_u32(options.page_tokens);
  pack.num_kv_heads = as_u32(options.num_kv_heads);
  pack.share_prefixes = options.share_prefixes;
  pack.rule = pack_rule(options, capacity.shared_rows);
  make_all_tiles();
  schedule(true);
  return ok_status();
}

// Rows of a tile and the least bytes of a part, by whether the batch shares runs, and how many tiles those make.
void Planner::Impl::choose_tiles() {
  const bool shared = in_shared_rounds();
  const std::int32_t part_bytes =
      shared && options.shared_part_bytes > 0 ? options.shared_part_bytes : options.least_part_bytes;
  tile.cost.least_part = cut.cost.least_part = as_u32(part_bytes);
  const std::int32_t balance =
      shared && options.shared_balance_rows > 0 ? options.shared_balance_rows : options.cost_balance_rows;
  tile.cost.balance_rows = cut.cost.balance_rows = as_u32(balance);
  tile.tile_rows = as_u32(most_tile_rows(options));
  if (shared && options.shared_tile_rows > 0) {
    std::uint64_t pairs = 0;                      // of a tile of a shared run and a head
    std::uint64_t bytes = 0, with_low_tiles = 0;  // what they read, and would read with tiles of shared_tile_rows
    const auto tiles_of = [](std::uint64_t tokens, std::uint32_t most) { return (tokens + most - 1) / most; };
    for (const abi::BlockRow& b : arrays.block_rows) {
      if (b.num_requests == 1) continue;
      const std::uint64_t heads = b.head_end - b.head_begin;
      const std::uint64_t pairs_of = tiles_of(b.row_count, tile.tokens_per_tile()) * heads;
      const std::uint64_t run_bytes = std::uint64_t{b.num_tokens - b.first_token} * tile.cost.token;
      pairs += pairs_of;
      bytes += pairs_of * run_bytes;
      with_low_tiles += tiles_of(b.row_count, as_u32(options.shared_tile_rows) / tile.group) * heads * run_bytes;
    }
    const std::uint64_t workers = as_u32(options.num_workers);
    // Long runs keep every worker busy with tall tiles in parts of some length, and low ones would only read them
    // again.
    const bool reads_again = with_low_tiles > bytes && bytes > 2 * workers * as_u32(part_bytes);
    if (4 * pairs <= 3 * workers && !reads_again) tile.tile_rows = as_u32(options.shared_tile_rows);
  }
  cut.tokens_per_tile = tile.tokens_per_tile();
}

void Planner::Impl::make_all_tiles() {
  choose_tiles();
  arrays.tiles.clear();
  tile_partial_rows = make_tiles(arrays.block_rows.data, arrays.block_rows.size, arrays.q_pos.data, tile, arrays.tiles,
                                 arrays.tile_begin.data);
}

// Runs of several requests come first in the list of tiles; false where there are none.
bool Planner::Impl::choose_shared_rounds() {
  first_tiles = 0;
  cut.first_cost = 0;
  if (!in_shared_rounds()) return false;
  while (first_tiles < arrays.tiles.size && arrays.block_rows[arrays.tiles[first_tiles].block_row].num_requests > 1) {
    const PlanTile& t = arrays.tiles[first_tiles++];
    cut.first_cost += t.cost() * t.heads();
  }
  return first_tiles != 0;
}

// How many rounds of spans, and whether pairs had better stay whole.
void Planner::Impl::choose_rounds() {
  cut.num_spans = 0;
  cut.span_rounds = choose_shared_rounds() ? as_u32(options.shared_rounds) : 1;
  cut.num_workers = as_u32(options.num_workers) * cut.span_rounds;
  if (cut.span_rounds > 1) return;
  if (options.cost_divide_bytes > 0 && !options.batch_invariant) {
    std::uint64_t pairs = 0;
    std::uint64_t largest = 0;
    for (const PlanTile& t : arrays.tiles) {
      pairs += t.heads();
      largest = std::max(largest, t.cost());
    }
    const std::uint64_t workers = as_u32(options.num_workers);
    const std::uint64_t each = (pairs + workers - 1) / workers;
    const std::uint64_t total = total_cost(arrays.tiles);
    const std::uint64_t most = total / workers + static_cast<std::uint64_t>(options.cost_divide_bytes);
    if (each * largest <= most) {
      cut.num_spans = pairs == 0 ? 0 : static_cast<std::uint32_t>((pairs + each - 1) / each);
    } else if (pairs < workers && pairs * largest <= total + total / 64) {
      // Pairs alike, fewer than workers: as many parts of each, so that no worker has parts of two of them.
      const std::uint64_t spans = workers / pairs * pairs;
      if (total / spans <= most) cut.num_spans = static_cast<std::uint32_t>(spans);
    }
  }
}

bool Planner::Impl::emit_whole_pairs(ScheduleOutput& out) {
  LongestFirstConfig config;
  config.num_workers = cut.num_workers;
  config.tokens_per_tile = cut.tokens_per_tile;
  config.token_bytes = tile.cost.token;
  return emit_longest_first(arrays.block_rows.data, arrays.tiles, config, arrays.longest_first, out);
}

// Whether queue entries may be runs of heads, where pairs stand in order: a run ends where the next entry begins.
bool Planner::Impl::has_head_runs() const {
  if (options.batch_invariant) return false;
  if (!from_block_rows) return true;
  return std::all_of(arrays.block_rows.begin(), arrays.block_rows.end(), [&](const abi::BlockRow& row) {
    return row.head_begin == 0 && row.head_end == pack.num_kv_heads;
  });
}

// Cut and merge list over the tiles as they stand, and the header.
void Planner::Impl::schedule(bool new_tiles) {
  ScheduleOutput out{&arrays.items,      &arrays.splits,          &arrays.queue,
                     arrays.queue_begin, arrays.worker_cost.data, options.batch_invariant ? 0 : tile_partial_rows,
                     has_head_runs()};
  if (new_tiles) choose_rounds();  // grown plans keep theirs, so that a device has room for their queues
  whole_pairs = options.longest_first && !options.batch_invariant && cut.span_rounds == 1 && emit_whole_pairs(out);
  if (options.batch_invariant) {
    emit_chunks(arrays.block_rows.data, arrays.tiles, cut, out);
  } else if (!whole_pairs) {
    cut_tiles(arrays.tiles, cut, arrays.cuts.data, arrays.other_cuts.data, arrays.worker_cost.data);
    emit_spans(arrays.block_rows.data, arrays.tiles, arrays.cuts.data, cut, out);
  }
  if (new_tiles) {
    list_shared_merges(arrays, num_rows, tile.group, tile.tokens_per_tile(), options.batch_invariant);
  }
  list_cut_merges(arrays, tile.group, tile.tokens_per_tile());
  arrays.queue.data[arrays.queue.size] = 0;
  FOVEA_CHECK(out.num_partial_rows <= capacity.partial_rows);
  num_partial_rows = out.num_partial_rows;

  arrays.launches[0] = {0, cut.num_workers};
  abi::PlanHeader header{};
  header.generation = ++generation;
  header.num_rows = num_rows;
  header.num_items = arrays.items.size;
  header.num_block_rows = arrays.block_rows.size;
  header.num_launches = 1;
  header.num_queue_entries = arrays.queue.size;
  header.num_merges = arrays.merges.size;
  header.num_parts = arrays.parts.size;
  header.num_partial_rows = num_partial_rows;
  header.num_kv_heads = pack.num_kv_heads;
  header.group = tile.group;
  header.flags = packed.shared && !options.batch_invariant ? abi::kPlanShares : 0u;
  if (out.head_runs && !whole_pairs) header.flags |= abi::kPlanHeadRuns;
  for (std::uint32_t c = 0; c < abi::kMaxTileClasses; ++c) {
    const bool used = c == 0 || (kSmallestTile << c) <= tile.tile_rows;
    header.tile_rows[c] = used ? kSmallestTile << c : 0;
  }
  *arrays.header = header;
}

// Whether the packing itself depends on lengths: a window may leave a shared run behind, and a tree's tail moves.
bool Planner::Impl::repacks() const {
  return batch.mask == abi::MaskKind::kBits || (batch.mask == abi::MaskKind::kWindow && packed.shared);
}

// grow() there.
Status Planner::Impl::repack(const std::int32_t* kv_lens) {
  AttentionBatch again = batch;
  again.kv_lens = kv_lens;
  FOVEA_RETURN_IF_ERROR(check_batch(again, options));
  packed = pack_batch(again, pack, arrays);
  list_covers(arrays, num_rows);
  make_all_tiles();
  schedule(true);
  return ok_status();
}

std::int32_t most_tile_rows(const PlannerOptions& options) {
  const std::int32_t group = options.num_qo_heads / options.num_kv_heads;
  return options.tile_tokens > 0 ? std::min(options.tile_tokens * group, options.tile_rows) : options.tile_rows;
}

abi::CostModel cost_model(const PlannerOptions& options) {
  abi::CostModel cost{};
  cost.item = as_u32(options.cost_item_bytes);
  cost.row = 2 * as_u32(options.head_dim) * 2;                // a query and an output of 16-bit elements
  cost.partial_row = 2 * (as_u32(options.head_dim) * 4 + 4);  // output and log-sum-exp, written and read
  cost.token = std::max(1u, as_u32(std::int64_t{2} * options.head_dim * options.kv_element_bits / 8));
  cost.balance_rows = as_u32(options.cost_balance_rows);
  cost.least_part = as_u32(options.least_part_bytes);
  return cost;
}

Planner::Planner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;
Planner::~Planner() = default;

Result<Planner> Planner::create(const PlannerOptions& options) {
  auto impl = std::make_unique<Impl>();
  FOVEA_RETURN_IF_ERROR(impl->init(options));
  return Planner(std::move(impl));
}

Status Planner::plan(const AttentionBatch& batch) {
  Impl& p = *impl_;
  FOVEA_RETURN_IF_ERROR(check_batch(batch, p.options));
  p.batch = batch;
  p.from_block_rows = false;
  p.packed = pack_batch(batch, p.pack, p.arrays);
  p.batch.q_lens = p.arrays.q_lens.data;
  p.batch.kv_lens = p.arrays.kv_lens.data;
  p.num_rows = 0;
  for (const std::int32_t q_len : p.arrays.q_lens) p.num_rows += as_u32(q_len);
  list_covers(p.arrays, p.num_rows);
  p.make_all_tiles();
  p.schedule(true);
  return ok_status();
}

Status Planner::plan_block_rows(const BlockRowBatch& batch) {
  Impl& p = *impl_;
  p.from_block_rows = true;
  p.given = batch;
  p.packed = {};
  Status status = pack_block_rows(batch, p.options, p.arrays);
  p.num_rows = status.ok() ? as_u32(batch.num_rows) : 0;
  if (!status.ok()) p.arrays.block_rows.size = p.arrays.covers.size = 0;
  p.make_all_tiles();
  p.schedule(true);
  return status;
}

Status Planner::check_growth(const std::int32_t* kv_lens) const {
  const Impl& p = *impl_;
  const PlanArrays& a = p.arrays;
  if (p.from_block_rows) return unsupported("grow() after plan_block_rows(): plan the grown block rows again");
  if (a.kv_lens.size == 0) return ok_status();
  if (kv_lens == nullptr) return invalid_argument("grow() needs {} lengths", a.kv_lens.size);
  const std::int64_t most_tokens = most_tokens_per_request(p.batch, p.options);
  for (std::uint32_t i = 0; i < a.kv_lens.size; ++i) {
    if (kv_lens[i] < a.kv_lens[i]) {
      return invalid_argument("request {} shrank from {} to {} tokens; plan() again", i, a.kv_lens[i], kv_lens[i]);
    }
    if (kv_lens[i] > most_tokens) {
      return make_status(StatusCode::kOutOfRange, "request {} grew to {} tokens, its page table row holds {}", i,
                         kv_lens[i], most_tokens);
    }
  }
  return ok_status();
}

Status Planner::grow(const std::int32_t* kv_lens) {
  Impl& p = *impl_;
  PlanArrays& a = p.arrays;
  FOVEA_RETURN_IF_ERROR(check_growth(kv_lens));
  if (a.kv_lens.size == 0) return ok_status();
  if (p.repacks()) return p.repack(kv_lens);
  for (std::uint32_t i = 0; i < a.kv_lens.size; ++i) grow_request(a, i, kv_lens[i]);
  for (std::uint32_t k = p.num_rows; k < a.row_indices.size; ++k) a.q_pos[k] = a.q_pos[a.row_indices[k]];
  for (PlanTile& tile : a.tiles) {
    bound_tile(a.block_rows[tile.block_row], a.q_pos.data + tile.row_begin, p.tile, tile);
  }
  p.schedule(p.options.batch_invariant);  // there the number of chunks grows, and with it every slot
  return ok_status();
}

abi::PlanView Planner::view() const {
  const Impl& p = *impl_;
  const PlanArrays& a = p.arrays;
  abi::PlanView view{};
  view.header = a.header;
  view.items = a.items.data;
  view.block_rows = a.block_rows.data;
  view.launches = a.launches;
  view.queue_begin = a.queue_begin;
  view.queue = a.queue.data;
  view.row_indices = a.row_indices.data;
  view.q_pos = a.q_pos.data;
  view.merges = a.merges.data;
  view.merge_parts = a.parts.data;
  view.page_entries = p.from_block_rows ? p.given.page_entries : p.batch.page_table;
  view.kv_positions = p.from_block_rows ? p.given.kv_positions : nullptr;
  view.kv_lens = a.kv_lens.data;
  view.mask_bits = p.from_block_rows ? p.given.mask_bits : p.batch.mask_bits;
  return view;
}

PlanGrowth Planner::growth() const {
  const Impl& p = *impl_;
  const bool fixed = p.from_block_rows || p.options.batch_invariant || p.options.longest_first;
  if (fixed || p.arrays.kv_lens.size == 0 || p.repacks()) return {};
  PlanGrowth growth;
  growth.arrays = &p.arrays;
  growth.cost = p.tile.cost;
  growth.span_rounds = p.cut.span_rounds;
  growth.first_tiles = p.first_tiles;
  growth.num_spans = p.cut.num_spans;
  growth.block_tokens = p.tile.block_tokens;
  growth.tile_rows = p.tile.tile_rows;
  growth.tile_partial_rows = p.tile_partial_rows;
  growth.max_tokens = most_tokens_per_request(p.batch, p.options);
  return growth;
}

PlanStats Planner::stats() const {
  const Impl& p = *impl_;
  PlanStats stats;
  const std::uint64_t token_bytes = p.tile.cost.token;
  const std::span<const std::uint32_t> by_pool =
      p.from_block_rows ? p.given.pool_token_bytes : std::span<const std::uint32_t>();
  for (const PlanTile& tile : p.arrays.tiles) {
    const std::uint16_t pool = p.arrays.block_rows[tile.block_row].pool;
    const std::uint64_t bytes = pool < by_pool.size() ? by_pool[pool] : token_bytes;
    stats.kv_bytes += std::uint64_t{tile.tokens()} * tile.heads() * bytes;
  }
  const std::uint64_t saved =
      p.from_block_rows ? p.given.kv_bytes_saved : p.packed.tokens_saved * p.pack.num_kv_heads * token_bytes;
  stats.kv_bytes_unshared = stats.kv_bytes + saved;
  for (const abi::MergeEntry& merge : p.arrays.merges) {
    stats.partial_bytes += std::uint64_t{merge.num_parts} * p.tile.group * p.tile.cost.partial_row;
  }
  for (std::uint32_t w = 0; w < p.cut.num_workers; ++w) {
    stats.total_cost += p.arrays.worker_cost[w];
    stats.max_worker_cost = std::max(stats.max_worker_cost, p.arrays.worker_cost[w]);
  }
  stats.split_rows = p.arrays.splits.size;
  return stats;
}

std::uint32_t Planner::max_partial_rows() const { return static_cast<std::uint32_t>(impl_->capacity.partial_rows); }

const PlannerOptions& Planner::options() const { return impl_->options; }

}  // namespace fovea
