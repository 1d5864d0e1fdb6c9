// fovea_reschedule: cuts a plan in device memory again, where it lies, for lengths that grew: what the host's
// Planner::grow() and pack_device_plan() would write, byte for byte (docs/plan.md). Launched by
// attention/cuda_reschedule.h before the attention kernel, in a captured graph too.
//
//   Grid: one CTA of kRescheduleThreads. Prefix sums over tiles, cut points by binary search, and everything that is
//   written in parallel. Only cuts that fall in one pair are placed one after another.
#pragma once

#include "abi/reschedule_args.h"
#include "kernels/plan/cta.cuh"

namespace fovea::kernels {

template <typename Cta>
class Rescheduler {
 public:
  __forceinline__ Rescheduler(const Cta& cta, const abi::RescheduleArgs& args, uint8_t* smem)
      : cta_(cta), plan_(args.plan) {
    header_ = at<abi::DevicePlanHeader>(0);
    kv_lens_ = args.kv_lens;
    if (header_->growth == abi::kNone) return;
    growth_ = at<abi::GrowthHeader>(header_->growth);
    const auto& g = *growth_;
    grown_tiles_ = at<abi::GrowthTile>(header_->growth + sizeof(abi::GrowthHeader));
    rows_ = reinterpret_cast<const abi::GrowthRow*>(grown_tiles_ + g.num_tiles);
    covers_ = reinterpret_cast<const abi::GrowthCover*>(rows_ + header_->counts.num_rows + 1);
    block_rows_ = at<abi::BlockRow>(header_->block_rows);
    row_indices_ = at<uint32_t>(header_->row_indices);
    q_pos_ = at<int32_t>(header_->q_pos);
    workers_ = header_->num_workers;
    heads_ = header_->counts.num_kv_heads;
    group_ = header_->counts.group;
    tile_ = {group_, g.tile_rows, g.block_tokens, false, g.cost};
    cut_ = {workers_, g.span_rounds, group_, g.block_tokens, 0, g.cost, tile_.tokens_per_tile(), g.num_spans};
    const bool fits = abi::reschedule_scratch_bytes(g.num_tiles, workers_, g.most_tokens) <= args.smem_bytes;
    s_ = abi::carve_reschedule_scratch(fits ? smem : args.scratch, g.num_tiles, workers_, g.most_tokens);
    sums_ = {s_.thread_sums, s_.group_sums};
    tiles_ = {s_.tiles, g.num_tiles};
  }

  __forceinline__ void run() {
    if (growth_ == nullptr) {
      for_each(cta_, 1, [&](uint32_t) { header_->reschedule_error = abi::kNone; });
      return;
    }
    if (!check_lengths()) return;
    move_rows();
    bound_tiles();
    const abi::CutPoint* cuts = cut_tiles();
    list_divided(cuts);
    count_items();
    if (warps()) {
      place_warp_sections();
      write_whole_tiles();
      write_warp_starts(cuts);
      return;
    }
    count_parts();
    count_entries(cuts);
    place_sections();
    write_items();
    write_queue(cuts);
    write_shared_merges();
    write_cut_merges();
    write_starts(cuts);
  }

 private:
  template <typename T>
  __forceinline__ T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(plan_ + offset);
  }
  static __forceinline__ uint32_t low(uint64_t both) { return static_cast<uint32_t>(both); }
  static __forceinline__ uint32_t high(uint64_t both) { return static_cast<uint32_t>(both >> 32); }
  static __forceinline__ uint64_t both(uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; }

  __forceinline__ bool check_lengths() {
    for_each(cta_, 1, [&](uint32_t) { header_->reschedule_error = 0; });
    for_each(cta_, header_->counts.num_block_rows, [&](uint32_t b) {
      const abi::BlockRow& block_row = block_rows_[b];
      if (block_row.length_slot == abi::kNone) return;
      const long long kv_len = kv_lens_[block_row.length_slot];
      const long long planned = static_cast<long long>(block_row.position_base) + block_row.num_tokens;
      if (kv_len < planned || kv_len > growth_->max_tokens) header_->reschedule_error = block_row.length_slot + 1;
    });
    return header_->reschedule_error == 0;
  }

  // Positions and ends of the requests' own rows; then the positions of the copies of rows, by the way of
  // bound_tiles().
  __forceinline__ void move_rows() {
    for_each(cta_, header_->counts.num_block_rows, [&](uint32_t b) {
      abi::BlockRow& block_row = block_rows_[b];
      if (block_row.length_slot == abi::kNone) return;
      const int32_t kv_len = kv_lens_[block_row.length_slot];
      block_row.num_tokens = static_cast<uint32_t>(kv_len - block_row.position_base);
      const int32_t first = kv_len - static_cast<int32_t>(block_row.row_count);
      for (uint32_t j = 0; j < block_row.row_count; ++j) {
        q_pos_[block_row.row_begin + j] = first + static_cast<int32_t>(j);
      }
    });
  }

  __forceinline__ void bound_tiles() {
    for_each(cta_, tiles_.size, [&](uint32_t t) {
      const abi::GrowthTile& grown = grown_tiles_[t];
      const abi::BlockRow& block_row = block_rows_[grown.block_row];
      abi::PlanTile& tile = s_.tiles[t];
      abi::make_tile(block_row, grown.block_row, grown.row, tile_, tile);
      abi::bound_tile(block_row, q_pos_ + tile.row_begin, tile_, tile);
      tile.partial_slot = grown.partial_slot;
      s_.cost_before[t] = tile.cost() * tile.heads();
    });
    // Masked tiles read positions of the first copy only.
    for_each(cta_, growth_->num_row_indices - header_->counts.num_rows, [&](uint32_t i) {
      const uint32_t k = header_->counts.num_rows + i;
      q_pos_[k] = q_pos_[row_indices_[k]];
    });
    exclusive_scan(cta_, sums_, s_.cost_before, tiles_.size);
  }

  // Cuts 1 .. workers - 1 of one pass. A cut depends on the one before it only where both fall in one pair: the thread
  // of the first such cut places them all. (Cuts into a later pair never come before those into an earlier one.)
  __forceinline__ void place_cuts(abi::CutPoint* cuts) {
    const uint32_t count = workers_ - 1;
    for_each(cta_, count, [&](uint32_t i) {
      const uint64_t wanted = s_.targets[i + 1];
      const uint32_t t = first_where(tiles_.size, [&](uint32_t k) { return s_.cost_before[k + 1] > wanted; });
      s_.fell[i] = t;
      s_.pair_of[i] = t < tiles_.size ? static_cast<uint32_t>((wanted - s_.cost_before[t]) / tiles_[t].cost()) : 0;
    });
    for_each(cta_, count, [&](uint32_t i) {
      const uint32_t t = s_.fell[i];
      const uint32_t pair = s_.pair_of[i];
      if (i > 0 && s_.fell[i - 1] == t && s_.pair_of[i - 1] == pair) return;
      abi::CutPoint cut{0, 0, abi::kNone};
      for (uint32_t k = i; k < count && s_.fell[k] == t && s_.pair_of[k] == pair; ++k) {
        cut = abi::next_cut(tiles_, t, s_.cost_before[t], s_.targets[k + 1], cut, cut_);
        cuts[k] = cut;
      }
    });
  }

  __forceinline__ abi::CutPoint cut_at(const abi::CutPoint* cuts, uint32_t k) const {
    if (k == 0) return {0, 0, abi::kNone};
    return k == workers_ ? abi::CutPoint{tiles_.size, 0, abi::kNone} : cuts[k - 1];
  }
  __forceinline__ uint64_t cost_at(const abi::CutPoint& cut) const {
    return s_.cost_before[cut.tile] + (cut.tile < tiles_.size ? abi::cost_before(tiles_[cut.tile], cut) : 0);
  }

  // What dividing adds to each worker, into overhead; its sum and the cost of the slowest worker into result[0] and
  // [1].
  __forceinline__ void weigh(const abi::CutPoint* cuts) {
    for_each(cta_, workers_, [&](uint32_t w) {
      s_.overhead[w] = abi::dividing_cost(tiles_, cut_at(cuts, w), cut_at(cuts, w + 1), cut_);
    });
    const auto sum = [](uint64_t a, uint64_t b) { return a + b; };
    const auto largest = [](uint64_t a, uint64_t b) { return abi::larger_of(a, b); };
    const auto cost = [&](uint32_t w) {
      return cost_at(cut_at(cuts, w + 1)) - cost_at(cut_at(cuts, w)) + s_.overhead[w];
    };
    reduce(
        cta_, sums_, workers_, [&](uint32_t w) { return s_.overhead[w]; }, sum, s_.result[0]);
    reduce(cta_, sums_, workers_, cost, largest, s_.result[1]);
  }

  __forceinline__ const abi::CutPoint* cut_tiles() {
    const uint64_t total = s_.cost_before[tiles_.size];
    cut_.first_cost = s_.cost_before[growth_->first_tiles];  // shared runs do not grow
    for_each(cta_, workers_, [&](uint32_t k) { s_.targets[k] = abi::cut_target(cut_, total, k); });
    abi::CutPoint* const cuts = s_.cuts;
    place_cuts(cuts);
    if (!abi::dividing_counts(cut_, growth_->most_tokens, total)) return cuts;
    weigh(cuts);
    const uint64_t slowest = s_.result[1];
    const uint64_t all = total + s_.result[0];
    if (!abi::cut_is_uneven(slowest, all, workers_)) return cuts;
    for_each(cta_, workers_, [&](uint32_t w) {
      const uint64_t part = abi::share_of(all, w + 1, workers_) - abi::share_of(all, w, workers_);
      s_.targets[w] = part - abi::smaller_of(part, s_.overhead[w]);
    });
    exclusive_scan(cta_, sums_, s_.targets, workers_);
    for_each(cta_, workers_, [&](uint32_t k) { s_.targets[k] = abi::smaller_of(s_.targets[k], total); });
    abi::CutPoint* const again = s_.cuts + workers_;
    place_cuts(again);
    weigh(again);
    return s_.result[1] < slowest ? again : cuts;
  }

  // The cuts that divide pairs, and the pairs: both ascend.
  __forceinline__ void list_divided(const abi::CutPoint* cuts) {
    const auto divides = [&](uint32_t i) { return abi::divides(cuts[i]) && abi::precedes(cut_at(cuts, i), cuts[i]); };
    const auto first = [&](uint32_t i) {
      const abi::CutPoint previous = cut_at(cuts, i);
      return !(abi::divides(previous) && abi::same_pair(previous, cuts[i]));
    };
    const uint32_t count = workers_ - 1;
    for_each(cta_, count, [&](uint32_t i) {
      const bool counts = divides(i);
      s_.parts_before[i] = both(counts, counts && first(i));
    });
    exclusive_scan(cta_, sums_, s_.parts_before, count);
    num_dividing_ = low(s_.parts_before[count]);
    num_pairs_ = high(s_.parts_before[count]);
    for_each(cta_, count, [&](uint32_t i) {
      if (!divides(i)) return;
      const uint32_t e = low(s_.parts_before[i]);
      const uint32_t pair = high(s_.parts_before[i + 1]) - 1;
      s_.dividing[e] = cuts[i];
      s_.pair_of[e] = pair;
      if (first(i)) s_.first_cut[pair] = e;
    });
    for_each(cta_, 1, [&](uint32_t) { s_.first_cut[num_pairs_] = num_dividing_; });
  }

  // (tile, head) pairs by number.
  __forceinline__ uint32_t number_of(const abi::CutPoint& cut) const { return cut.tile * heads_ + cut.head; }
  // Divided pairs before pair `number`, and a divided pair's number.
  __forceinline__ uint32_t divided_before(uint32_t number) const {
    return first_where(num_pairs_, [&](uint32_t d) { return divided(d) >= number; });
  }
  __forceinline__ uint32_t divided(uint32_t d) const { return number_of(s_.dividing[s_.first_cut[d]]); }
  __forceinline__ uint32_t num_parts(uint32_t d) const { return s_.first_cut[d + 1] - s_.first_cut[d] + 1; }
  __forceinline__ const abi::PlanTile& tile_of(uint32_t d) const { return tiles_[s_.dividing[s_.first_cut[d]].tile]; }

  // Items and partial rows before each tile.
  __forceinline__ void count_items() {
    for_each(cta_, tiles_.size, [&](uint32_t t) {
      abi::PlanTile& tile = s_.tiles[t];
      tile.first_split = divided_before(t * heads_);
      tile.num_splits = divided_before((t + 1) * heads_) - tile.first_split;
      tile.num_items = tile.num_splits < heads_ ? 1 : 0;
      const uint32_t parts =
          s_.first_cut[tile.first_split + tile.num_splits] - s_.first_cut[tile.first_split] + tile.num_splits;
      s_.items_before[t] = both(tile.num_items + parts, parts * tile.row_count * group_);
    });
    exclusive_scan(cta_, sums_, s_.items_before, tiles_.size);
    for_each(cta_, tiles_.size, [&](uint32_t t) { s_.tiles[t].first_item = low(s_.items_before[t]); });
  }

  // Part j of divided pair d, counted from the tile's first part.
  __forceinline__ uint32_t part_of_tile(uint32_t d, uint32_t j) const {
    const uint32_t first = tile_of(d).first_split;
    return s_.first_cut[d] - s_.first_cut[first] + (d - first) + j;
  }
  __forceinline__ uint32_t item_of_part(uint32_t d, uint32_t j) const {
    const abi::PlanTile& tile = tile_of(d);
    return tile.first_item + tile.num_items + part_of_tile(d, j);
  }
  __forceinline__ uint32_t slot_of_part(uint32_t d, uint32_t j) const {
    const uint32_t t = s_.dividing[s_.first_cut[d]].tile;
    return growth_->tile_partial_rows + high(s_.items_before[t]) + part_of_tile(d, j) * tiles_[t].row_count * group_;
  }

  // The divided pair (tile, head), or kNone.
  __forceinline__ uint32_t find_divided(uint32_t tile, uint32_t head) const {
    const abi::PlanTile& of = tiles_[tile];
    if (of.num_splits == 0) return abi::kNone;
    const uint32_t number = tile * heads_ + head;
    const uint32_t i = first_where(of.num_splits, [&](uint32_t d) { return divided(of.first_split + d) >= number; });
    return i < of.num_splits && divided(of.first_split + i) == number ? of.first_split + i : abi::kNone;
  }

  // Row i of all rows of divided pairs: pair d, row nth of its tile.
  struct DividedRow {
    uint32_t d;
    uint32_t nth;
    uint32_t tile;
    uint32_t head;
    uint32_t row;  // of the output
  };
  __forceinline__ DividedRow divided_row(uint32_t i) const {
    const uint32_t d = first_where(num_pairs_, [&](uint32_t p) { return low(s_.rows_before[p + 1]) > i; });
    const abi::CutPoint& cut = s_.dividing[s_.first_cut[d]];
    const uint32_t nth = i - low(s_.rows_before[d]);
    return {d, nth, cut.tile, cut.head, row_indices_[tiles_[cut.tile].row_begin + nth]};
  }

  // Merge entries and parts that the cut adds: a solo tile's rows are new entries, the others' are listed anew at the
  // first tile of theirs that was divided.
  __forceinline__ void count_parts() {
    for_each(cta_, num_pairs_, [&](uint32_t d) {
      const abi::PlanTile& tile = tile_of(d);
      s_.rows_before[d] = both(tile.row_count, tile.solo ? tile.row_count : 0);
    });
    exclusive_scan(cta_, sums_, s_.rows_before, num_pairs_);
    num_rows_ = low(s_.rows_before[num_pairs_]);
    for_each(cta_, num_rows_, [&](uint32_t i) {
      const DividedRow row = divided_row(i);
      uint32_t parts = 0;
      if (tiles_[row.tile].solo) {
        parts = num_parts(row.d);
      } else {
        for (uint32_t c = rows_[row.row].cover_begin; c < rows_[row.row + 1].cover_begin; ++c) {
          const uint32_t d = find_divided(covers_[c].tile, row.head);
          if (d != abi::kNone && covers_[c].tile < row.tile) {
            parts = 0;
            break;
          }
          parts += d == abi::kNone ? 1 : num_parts(d);
        }
      }
      s_.row_parts[i] = parts;
    });
    exclusive_scan(cta_, sums_, s_.row_parts, num_rows_);
  }

  __forceinline__ bool warps() const { return (header_->counts.flags & abi::kPlanWarpStarts) != 0; }
  // Merges are numbered by row and head, and not found by their parts.
  __forceinline__ bool shares() const { return (header_->counts.flags & abi::kPlanShares) != 0; }
  __forceinline__ uint32_t shared_parts() const { return growth_->num_covers * heads_; }
  __forceinline__ uint32_t shared_merges() const {
    return growth_->num_covers == 0 ? 0 : rows_[header_->counts.num_rows].first_merge;
  }

  // counts: but for partial rows, which stand behind those of undivided tiles.
  __forceinline__ void place_sections_for(uint32_t items, uint32_t queue, uint32_t merges, uint32_t parts) {
    abi::PlanHeader& counts = header_->counts;
    ++counts.generation;
    counts.num_items = items;
    counts.num_queue_entries = queue;
    if (!shares()) counts.num_merges = merges;
    counts.num_parts = parts;
    counts.num_partial_rows = growth_->tile_partial_rows + high(s_.items_before[tiles_.size]);
    const uint64_t growth_bytes = abi::growth_bytes(tiles_.size, counts.num_rows, growth_->num_covers);
    const abi::DevicePlanSections sections =
        abi::place_device_plan({abi::start_bytes(workers_, warps()), counts.num_block_rows, growth_->num_row_indices,
                                growth_bytes, items, warps() ? 0 : queue + uint64_t{1}, counts.num_merges, parts,
                                warps() || shares() ? 0 : counts.num_partial_rows / group_});
    abi::set_sections(sections, *header_);
  }
  __forceinline__ void place_sections() {
    for_each(cta_, 1, [&](uint32_t) {
      place_sections_for(low(s_.items_before[tiles_.size]), tiles_.size + low(s_.entries_before[workers_ - 1]),
                         shared_merges() + high(s_.rows_before[num_pairs_]),
                         shared_parts() + low(s_.row_parts[num_rows_]));
    });
  }
  __forceinline__ void place_warp_sections() {
    for_each(cta_, 1, [&](uint32_t) { place_sections_for(tiles_.size, 0, 0, 0); });
  }

  __forceinline__ void write_item(uint32_t index, const abi::PlanTile& tile, uint32_t kv_begin, uint32_t kv_end,
                                  uint8_t flags, uint32_t slot) {
    const abi::BlockRow& block_row = block_rows_[tile.block_row];
    abi::fill_item(block_row, tile, kv_begin, kv_end, flags, slot, abi::may_mask(block_row, tile, kv_begin, kv_end),
                   abi::open_end_of(block_row, cut_.tokens_per_tile), at<abi::WorkItem>(header_->items)[index]);
  }

  __forceinline__ void write_whole_tiles() {
    for_each(cta_, tiles_.size, [&](uint32_t t) {
      write_item(t, tiles_[t], tiles_[t].kv_begin, tiles_[t].kv_end, 0, tiles_[t].partial_slot);
    });
  }

  __forceinline__ void write_items() {
    for_each(cta_, tiles_.size, [&](uint32_t t) {
      const abi::PlanTile& tile = tiles_[t];
      if (tile.num_items != 0) write_item(tile.first_item, tile, tile.kv_begin, tile.kv_end, 0, tile.partial_slot);
    });
    for_each(cta_, num_dividing_, [&](uint32_t e) {
      const uint32_t d = s_.pair_of[e];
      const uint32_t j = e - s_.first_cut[d];
      const abi::PlanTile& tile = tile_of(d);
      const uint32_t end = s_.dividing[e].token;
      const auto write_part = [&](uint32_t part, uint32_t from, uint32_t to) {
        write_item(item_of_part(d, part), tile, from, to, abi::kItemSingleHead, slot_of_part(d, part));
      };
      write_part(j, j == 0 ? tile.kv_begin : s_.dividing[e - 1].token, end);
      if (j + 2 == num_parts(d)) write_part(j + 1, end, tile.kv_end);
    });
  }

  // Queue entries: a tile has one, a run of its heads or the first part of its first pair, and cuts add the others.

  // Entries that cut k adds: where a run begins with its worker; or a part of its pair, where it is the first one the
  // other part too, and where it is the last one the run behind the pair, unless that begins with a worker.
  __forceinline__ uint32_t added_entries(const abi::CutPoint* cuts, uint32_t k) const {
    const abi::CutPoint cut = cuts[k];
    if (cut.tile == tiles_.size || !abi::precedes(cut_at(cuts, k), cut)) return 0;
    if (!abi::divides(cut)) return cut.head != 0 && is_whole(cut.tile, cut.head) ? 1 : 0;
    const uint32_t d = high(s_.parts_before[k + 1]) - 1;
    const uint32_t e = low(s_.parts_before[k]);
    const bool is_first = e == s_.first_cut[d];
    const bool is_last = e + 1 == s_.first_cut[d + 1];
    return 1 + (is_first && cut.head != 0 ? 1 : 0) + (is_last && begins_run(cuts, k) ? 1 : 0);
  }
  // Whether a run that is no worker's first entry begins behind the pair that cut k divides.
  __forceinline__ bool begins_run(const abi::CutPoint* cuts, uint32_t k) const {
    const abi::CutPoint cut = cuts[k];
    if (cut.head + 1 == heads_ || !is_whole(cut.tile, cut.head + 1)) return false;
    const uint32_t number = number_of(cut);
    const uint32_t next = first_where(workers_ - 1, [&](uint32_t i) { return number_of(cuts[i]) > number; });
    return next == workers_ - 1 || number_of(cuts[next]) != number + 1;
  }
  __forceinline__ bool is_whole(uint32_t tile, uint32_t head) const { return find_divided(tile, head) == abi::kNone; }

  __forceinline__ void count_entries(const abi::CutPoint* cuts) {
    for_each(cta_, workers_ - 1, [&](uint32_t k) { s_.entries_before[k] = added_entries(cuts, k); });
    exclusive_scan(cta_, sums_, s_.entries_before, workers_ - 1);
  }
  // Entries before the pair where cut k falls.
  __forceinline__ uint32_t entries_before_pair(const abi::CutPoint* cuts, uint32_t k) const {
    const uint32_t number = number_of(cuts[k]);
    const uint32_t first = first_where(k, [&](uint32_t i) { return number_of(cuts[i]) >= number; });
    return cuts[k].tile + (cuts[k].head != 0 ? 1 : 0) + low(s_.entries_before[first]);
  }

  __forceinline__ void write_queue(const abi::CutPoint* cuts) {
    uint32_t* const queue = at<uint32_t>(header_->queue);
    const uint32_t count = workers_ - 1;
    for_each(cta_, tiles_.size + 1, [&](uint32_t t) {
      const uint32_t first = first_where(count, [&](uint32_t k) { return cuts[k].tile >= t; });
      const uint32_t place = t + low(s_.entries_before[first]);
      if (t == tiles_.size) {
        queue[place] = 0;
      } else if (is_whole(t, 0)) {
        queue[place] = abi::queue_entry(tiles_[t].first_item, 0);
      }
    });
    for_each(cta_, count, [&](uint32_t k) {
      if (s_.entries_before[k] == s_.entries_before[k + 1]) return;
      const abi::CutPoint cut = cuts[k];
      const uint32_t before = entries_before_pair(cuts, k);
      if (!abi::divides(cut)) {
        queue[before] = abi::queue_entry(tiles_[cut.tile].first_item, cut.head);
        return;
      }
      const uint32_t d = high(s_.parts_before[k + 1]) - 1;
      const uint32_t j = low(s_.parts_before[k]) - s_.first_cut[d];
      queue[before + j] = abi::queue_entry(item_of_part(d, j), cut.head);
      if (j + 2 != num_parts(d)) return;
      queue[before + j + 1] = abi::queue_entry(item_of_part(d, j + 1), cut.head);
      if (begins_run(cuts, k)) {
        queue[before + j + 2] = abi::queue_entry(tiles_[cut.tile].first_item, cut.head + 1);
      }
    });
  }

  // Partial row of an undivided tile's row.
  __forceinline__ uint32_t undivided_row(const abi::GrowthCover& cover, uint32_t head) const {
    const abi::PlanTile& tile = tiles_[cover.tile];
    return tile.partial_slot + (head * tile.row_count + cover.nth) * group_;
  }

  // Entries of rows under block rows that are not solo, as if nothing were divided.
  __forceinline__ void write_shared_merges() {
    if (growth_->num_covers == 0) return;
    abi::DeviceMerge* const merges = at<abi::DeviceMerge>(header_->merges);
    uint32_t* const parts = at<uint32_t>(header_->merge_parts);
    uint32_t* const merge_of_partial = at<uint32_t>(header_->merge_of_partial);
    for_each(cta_, header_->counts.num_rows * heads_, [&](uint32_t i) {
      const uint32_t row = i / heads_;
      const uint32_t head = i % heads_;
      const uint32_t begin = rows_[row].cover_begin;
      const uint32_t count = rows_[row + 1].cover_begin - begin;
      if (count == 0) {
        if (shares()) merges[i] = {0, 0};
        return;
      }
      const uint32_t m = shares() ? i : rows_[row].first_merge + head;
      const uint32_t parts_begin = begin * heads_ + head * count;
      merges[m] = {parts_begin, count};
      for (uint32_t c = 0; c < count; ++c) {
        const abi::GrowthCover& cover = covers_[begin + c];
        const uint32_t partial = undivided_row(cover, head);
        parts[parts_begin + c] = partial;
        if (shares()) continue;
        merge_of_partial[partial / group_] = find_divided(cover.tile, head) == abi::kNone ? m : abi::kNone;
      }
    });
  }

  __forceinline__ void write_cut_merges() {
    abi::DeviceMerge* const merges = at<abi::DeviceMerge>(header_->merges);
    uint32_t* const merge_of_partial = at<uint32_t>(header_->merge_of_partial);
    for_each(cta_, num_rows_, [&](uint32_t i) {
      const uint32_t begin = low(s_.row_parts[i]);
      const uint32_t count = low(s_.row_parts[i + 1]) - begin;
      if (count == 0) return;
      const DividedRow row = divided_row(i);
      const uint32_t parts_begin = shared_parts() + begin;
      uint32_t* part = at<uint32_t>(header_->merge_parts) + parts_begin;
      const uint32_t m = shares()                ? abi::merge_number(header_->counts, row.row, row.head)
                         : tiles_[row.tile].solo ? shared_merges() + high(s_.rows_before[row.d]) + row.nth
                                                 : rows_[row.row].first_merge + row.head;
      const auto add_divided = [&](uint32_t d, uint32_t nth) {
        for (uint32_t j = 0; j < num_parts(d); ++j) {
          const uint32_t partial = slot_of_part(d, j) + nth * group_;
          *part++ = partial;
          if (!shares()) merge_of_partial[partial / group_] = m;
        }
      };
      if (tiles_[row.tile].solo) {
        add_divided(row.d, row.nth);
      } else {
        for (uint32_t c = rows_[row.row].cover_begin; c < rows_[row.row + 1].cover_begin; ++c) {
          const uint32_t d = find_divided(covers_[c].tile, row.head);
          if (d != abi::kNone) {
            add_divided(d, covers_[c].nth);
          } else {
            *part++ = undivided_row(covers_[c], row.head);
          }
        }
      }
      merges[m] = {parts_begin, count};
    });
  }

  // Where a worker's queue begins: behind the entries before the pair of its cut, and the pair's parts up to it.
  __forceinline__ uint32_t queue_begin(const abi::CutPoint* cuts, uint32_t w) const {
    if (w == 0) return 0;
    if (w == workers_) return header_->counts.num_queue_entries;
    const uint32_t before = entries_before_pair(cuts, w - 1);
    if (!abi::divides(cuts[w - 1])) return before;
    return before + low(s_.parts_before[w]) - s_.first_cut[high(s_.parts_before[w]) - 1];
  }

  __forceinline__ void write_starts(const abi::CutPoint* cuts) {
    const uint32_t* const queue = at<uint32_t>(header_->queue);
    const abi::WorkItem* const items = at<abi::WorkItem>(header_->items);
    for_each(cta_, workers_, [&](uint32_t w) {
      at<abi::WorkerStart>(abi::kWorkerStartOffset)[w] =
          abi::worker_start(header_->counts, queue_begin(cuts, w), queue_begin(cuts, w + 1), queue, items);
    });
  }

  // Where the worker behind a cut begins.
  __forceinline__ abi::WarpStart warp_start(const abi::CutPoint& cut) const {
    if (cut.tile == tiles_.size) return abi::warp_end(tiles_.size);
    const abi::PlanTile& tile = tiles_[cut.tile];
    abi::WarpStart start{abi::queue_entry(cut.tile, cut.head),
                         block_rows_[tile.block_row].list_begin,
                         tile.kv_begin,
                         tile.kv_end,
                         tile.partial_slot,
                         0,
                         0};
    const uint32_t d = find_divided(cut.tile, cut.head);
    if (d == abi::kNone) return start;
    const abi::CutPoint* const inner = s_.dividing + s_.first_cut[d];  // cuts of the pair: each ends a part
    const uint32_t parts = num_parts(d);
    uint32_t part = 0;
    if (abi::divides(cut)) part = 1 + first_where(parts - 1, [&](uint32_t j) { return inner[j].token >= cut.token; });
    if (part > 0) start.kv_begin = inner[part - 1].token;
    if (part + 1 < parts) start.kv_end = inner[part].token;
    start.partial_slot = slot_of_part(d, part);
    start.part = static_cast<uint16_t>(part);
    start.num_parts = static_cast<uint16_t>(parts);
    return start;
  }
  __forceinline__ void write_warp_starts(const abi::CutPoint* cuts) {
    for_each(cta_, workers_ + 1,
             [&](uint32_t w) { at<abi::WarpStart>(abi::kWorkerStartOffset)[w] = warp_start(cut_at(cuts, w)); });
  }

  const Cta& cta_;
  uint8_t* plan_;
  abi::DevicePlanHeader* header_ = nullptr;
  const int32_t* kv_lens_ = nullptr;
  const abi::GrowthHeader* growth_ = nullptr;
  const abi::GrowthTile* grown_tiles_ = nullptr;
  const abi::GrowthRow* rows_ = nullptr;
  const abi::GrowthCover* covers_ = nullptr;
  abi::BlockRow* block_rows_ = nullptr;
  const uint32_t* row_indices_ = nullptr;
  int32_t* q_pos_ = nullptr;
  uint32_t workers_ = 0;
  uint32_t heads_ = 0;
  uint32_t group_ = 0;
  uint32_t num_dividing_ = 0;  // cuts that divide pairs
  uint32_t num_pairs_ = 0;     // that they divide
  uint32_t num_rows_ = 0;      // of all divided pairs together
  abi::TileConfig tile_{};
  abi::CutConfig cut_{};
  abi::TileSpan tiles_{};
  abi::RescheduleScratch s_{};
  CtaSums sums_{};
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_RESCHEDULE)
extern "C" __global__ void __launch_bounds__(fovea::abi::kRescheduleThreads)
    fovea_reschedule(const __grid_constant__ fovea::abi::RescheduleArgs args) {
  extern __shared__ uint4 smem[];
  const fovea::kernels::DeviceCta cta;
  fovea::kernels::Rescheduler<fovea::kernels::DeviceCta> reschedule(cta, args, reinterpret_cast<uint8_t*>(smem));
  reschedule.run();
}
#endif
