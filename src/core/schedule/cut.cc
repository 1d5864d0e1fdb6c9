#include "core/schedule/cut.h"

#include <algorithm>

namespace fovea {
namespace {

// Makes the items of one tile: what they have in common is worked out once.
class ItemMaker {
 public:
  ItemMaker(const abi::BlockRow& block_row, const PlanTile& tile, std::uint32_t open_end,
            FixedVector<abi::WorkItem>& items)
      : block_row_(block_row),
        tile_(tile),
        items_(items),
        masked_(may_mask(block_row, tile, tile.kv_begin, tile.kv_end)),
        open_end_(open_end) {}

  void push(std::uint32_t kv_begin, std::uint32_t kv_end, std::uint8_t flags, std::uint32_t partial_slot) {
    FOVEA_CHECK(items_.size < items_.capacity);
    abi::fill_item(block_row_, tile_, kv_begin, kv_end, flags, partial_slot,
                   masked_ && may_mask(block_row_, tile_, kv_begin, kv_end), open_end_, items_.data[items_.size++]);
  }

 private:
  const abi::BlockRow& block_row_;
  const PlanTile& tile_;
  FixedVector<abi::WorkItem>& items_;
  bool masked_;
  std::uint32_t open_end_;  // the end that the request's length moves, or kNone
};

// Takes partial rows for an item of the tile under `heads` heads.
std::uint32_t take_partial(const PlanTile& tile, std::uint32_t heads, const CutConfig& config, ScheduleOutput& out) {
  const std::uint32_t slot = out.num_partial_rows;
  out.num_partial_rows += heads * tile.row_count * config.group;
  return slot;
}

void reset(ScheduleOutput& out) {
  out.items->clear();
  out.splits->clear();
  out.queue->clear();
  out.queue_begin[0] = 0;
}

}  // namespace

std::uint64_t total_cost(const FixedVector<PlanTile>& tiles) {
  std::uint64_t total = 0;
  for (const PlanTile& tile : tiles) total += tile.cost() * tile.heads();
  return total;
}

namespace {

// One pass of cutting: cut k goes where `target(k)` of the cost of undivided work is behind it. What each worker then
// costs beyond undivided work goes to overhead[0 .. W); returns what the slowest costs in all.
// Without kWeigh only the cuts are made.
template <bool kWeigh, typename Target>
std::uint64_t cut_once(const abi::TileSpan& tiles, const CutConfig& config, std::uint64_t total, const Target& target,
                       CutPoint* cuts, std::uint64_t* overhead) {
  std::uint32_t t = 0;
  std::uint64_t base = 0;  // cost of the tiles before t
  CutPoint previous{0, 0, abi::kNone};
  std::uint64_t previous_at = 0;  // cost of undivided work before it
  std::uint64_t slowest = 0;
  for (std::uint32_t k = 1; k < config.num_workers + (kWeigh ? 1u : 0u); ++k) {
    const bool last = k == config.num_workers;
    const std::uint64_t wanted = last ? total : target(k);
    while (t < tiles.size && base + tiles[t].cost() * tiles[t].heads() <= wanted) {
      base += tiles[t].cost() * tiles[t].heads();
      ++t;
    }
    const CutPoint cut = abi::next_cut(tiles, t, base, wanted, previous, config);
    if constexpr (kWeigh) {
      std::uint64_t at = previous_at;
      if (abi::precedes(previous, cut)) {
        at = base;
        if (t < tiles.size) at += cut.tile == t ? abi::cost_before(tiles[t], cut) : tiles[t].cost() * tiles[t].heads();
      }
      overhead[k - 1] = abi::dividing_cost(tiles, previous, cut, config);
      slowest = std::max(slowest, at - previous_at + overhead[k - 1]);
      previous_at = at;
    }
    previous = cut;
    if (!last) cuts[k - 1] = cut;
  }
  return slowest;
}

}  // namespace

void cut_tiles(const FixedVector<PlanTile>& all_tiles, const CutConfig& config, CutPoint* cuts, CutPoint* other_cuts,
               std::uint64_t* overhead) {
  const abi::TileSpan tiles{all_tiles.data, all_tiles.size};
  const std::uint64_t workers = config.num_workers;
  const std::uint64_t total = total_cost(all_tiles);
  std::uint32_t most_tokens = 0;
  for (const PlanTile& tile : all_tiles) most_tokens = std::max<std::uint32_t>(most_tokens, tile.row_count);
  const auto target = [&](std::uint64_t k) { return abi::cut_target(config, total, k); };
  // Where dividing is nothing beside a span, the plain cut is as good as any.
  if (!abi::dividing_counts(config, most_tokens, total)) {
    cut_once<false>(tiles, config, total, target, cuts, overhead);
    return;
  }
  const std::uint64_t slowest = cut_once<true>(tiles, config, total, target, cuts, overhead);
  // Where the parts themselves weigh (few tokens a worker, tall tiles), shares of the whole cost are less even than
  // they could be: cut once more, each worker getting an even share of everything less what dividing costs it.
  std::uint64_t all = total;
  for (std::uint64_t w = 0; w < workers; ++w) all += overhead[w];
  if (!abi::cut_is_uneven(slowest, all, workers)) return;
  std::uint64_t sum = 0;
  for (std::uint64_t w = 0; w < workers; ++w) {
    const std::uint64_t part = abi::share_of(all, w + 1, workers) - abi::share_of(all, w, workers);
    sum += part - std::min(part, overhead[w]);
    overhead[w] = std::min(sum, total);
  }
  // The targets are read one ahead of where overheads are written.
  const std::uint64_t again = cut_once<true>(
      tiles, config, total, [&](std::uint64_t k) { return overhead[k - 1]; }, other_cuts, overhead);
  if (again < slowest) std::copy(other_cuts, other_cuts + workers - 1, cuts);
}

namespace {

// The state of one emit_spans() call.
class SpanEmitter {
 public:
  SpanEmitter(const abi::BlockRow* block_rows, const CutPoint* cuts, const CutConfig& config, ScheduleOutput& out)
      : block_rows_(block_rows), cuts_(cuts), num_cuts_(config.num_workers - 1), config_(config), out_(out) {
    next_tile_ = num_cuts_ == 0 ? abi::kNone : cuts[0].tile;
  }

  void emit(PlanTile& tile, std::uint32_t t) {
    const abi::BlockRow& block_row = block_rows_[tile.block_row];
    tile.first_item = out_.items->size;
    tile.first_split = out_.splits->size;
    tile.num_splits = next_tile_ == t ? count_divided(t) : 0;
    tile.num_items = tile.num_splits < tile.heads() ? 1 : 0;
    ItemMaker maker(block_row, tile, abi::open_end_of(block_row, config_.tokens_per_tile), *out_.items);
    if (tile.num_items != 0) {
      maker.push(tile.kv_begin, tile.kv_end, 0, tile.partial_slot);
    }
    std::uint32_t head = tile.head_begin;
    while (next_tile_ == t) {
      const CutPoint cut = cuts_[next_];
      push_undivided(tile, head, cut.head);
      head = cut.head;
      if (cut.token == abi::kNone) {
        close_worker();
      } else {
        push_divided(maker, tile, t, head);
        ++head;
      }
    }
    push_undivided(tile, head, tile.head_end);
  }

  void finish() {
    while (next_ < num_cuts_) close_worker();
    close_worker();
  }

 private:
  // Heads of tile t that some cut divides: whether an undivided item is needed at all depends on it.
  std::uint32_t count_divided(std::uint32_t t) const {
    std::uint32_t divided = 0;
    std::uint32_t last_head = abi::kNone;
    for (std::uint32_t c = next_; c < num_cuts_ && cuts_[c].tile == t; ++c) {
      if (cuts_[c].token == abi::kNone || cuts_[c].head == last_head) continue;
      ++divided;
      last_head = cuts_[c].head;
    }
    return divided;
  }

  void close_worker() {
    out_.worker_cost[next_] = cost_;
    cost_ = 0;
    out_.queue_begin[++next_] = out_.queue->size;
    next_tile_ = next_ < num_cuts_ ? cuts_[next_].tile : abi::kNone;
  }

  void push_undivided(const PlanTile& tile, std::uint32_t head_begin, std::uint32_t head_end) {
    cost_ += tile.cost() * (head_end - head_begin);
    FixedVector<std::uint32_t>& queue = *out_.queue;
    if (out_.head_runs) {
      if (head_begin != head_end) queue.push(abi::queue_entry(tile.first_item, head_begin));
      return;
    }
    FOVEA_CHECK(queue.size + (head_end - head_begin) <= queue.capacity);
    std::uint32_t* const entries = queue.data + queue.size;
    const std::uint32_t first = abi::queue_entry(tile.first_item, head_begin);
    const std::uint32_t count = head_end - head_begin;
    for (std::uint32_t i = 0; i < count; ++i) entries[i] = first + i;
    queue.size += count;
  }

  // Parts of pair (t, head), and the ends of the workers that they belong to.
  void push_divided(ItemMaker& maker, const PlanTile& tile, std::uint32_t t, std::uint32_t head) {
    SplitPair& split = out_.splits->push({head, out_.items->size, 0});
    const std::uint32_t rows = tile.row_count * config_.group;
    std::uint32_t begin = tile.kv_begin;
    const auto push_part = [&](std::uint32_t end) {
      out_.queue->push(abi::queue_entry(out_.items->size, head));
      maker.push(begin, end, abi::kItemSingleHead, out_.num_partial_rows);
      out_.num_partial_rows += rows;
      cost_ += abi::item_cost(config_.cost, rows, end - begin, true);
      begin = end;
      ++split.num_items;
    };
    for (; next_tile_ == t && cuts_[next_].head == head; close_worker()) {
      if (cuts_[next_].token > begin) push_part(cuts_[next_].token);
    }
    push_part(tile.kv_end);
  }

  const abi::BlockRow* block_rows_;
  const CutPoint* cuts_;
  std::uint32_t num_cuts_;
  const CutConfig& config_;
  ScheduleOutput& out_;
  std::uint32_t next_ = 0;       // cut, and the worker that it ends
  std::uint32_t next_tile_ = 0;  // of that cut; kNone after the last
  std::uint64_t cost_ = 0;       // of that worker so far
};

}  // namespace

void emit_spans(const abi::BlockRow* block_rows, FixedVector<PlanTile>& tiles, const CutPoint* cuts,
                const CutConfig& config, ScheduleOutput& out) {
  reset(out);
  SpanEmitter emitter(block_rows, cuts, config, out);
  for (std::uint32_t t = 0; t < tiles.size; ++t) emitter.emit(tiles[t], t);
  emitter.finish();
}

void emit_chunks(const abi::BlockRow* block_rows, FixedVector<PlanTile>& tiles, const CutConfig& config,
                 ScheduleOutput& out) {
  reset(out);
  const std::uint32_t chunk = config.invariant_chunk;
  std::uint64_t total = 0;
  for (PlanTile& tile : tiles) {
    const abi::BlockRow& block_row = block_rows[tile.block_row];
    const std::uint32_t offset = static_cast<std::uint32_t>(block_row.position_base) % chunk;
    tile.first_item = out.items->size;
    tile.first_split = tile.num_splits = 0;
    const bool direct =
        tile.solo && (tile.kv_begin + offset) / chunk == (tile.kv_end + offset - (tile.tokens() != 0)) / chunk;
    std::uint32_t begin = tile.kv_begin;
    ItemMaker maker(block_row, tile, abi::kNone, *out.items);
    do {
      const std::uint32_t bound = ((begin + offset) / chunk + 1) * chunk - offset;
      const std::uint32_t end = std::min(bound, tile.kv_end);
      const std::uint32_t slot = direct ? abi::kNone : take_partial(tile, tile.heads(), config, out);
      maker.push(begin, end, 0, slot);
      total += abi::item_cost(config.cost, tile.row_count * config.group, end - begin, !direct) * tile.heads();
      begin = end;
    } while (begin < tile.kv_end);
    tile.num_items = out.items->size - tile.first_item;
  }
  std::uint32_t worker = 0;
  std::uint64_t done = 0;
  out.worker_cost[0] = 0;
  for (const PlanTile& tile : tiles) {
    for (std::uint32_t head = tile.head_begin; head < tile.head_end; ++head) {
      for (std::uint32_t i = tile.first_item; i < tile.first_item + tile.num_items; ++i) {
        const abi::WorkItem& item = (*out.items)[i];
        const std::uint64_t cost = abi::item_cost(config.cost, tile.row_count * config.group,
                                                  item.kv_end - item.kv_begin, item.partial_slot != abi::kNone);
        // An entry goes to the worker in whose span its middle lies.
        const std::uint64_t owner = (done + cost / 2) * config.num_workers / std::max<std::uint64_t>(total, 1);
        while (worker < owner && worker + 1 < config.num_workers) {
          out.queue_begin[++worker] = out.queue->size;
          out.worker_cost[worker] = 0;
        }
        out.queue->push(abi::queue_entry(i, head));
        out.worker_cost[worker] += cost;
        done += cost;
      }
    }
  }
  while (worker + 1 < config.num_workers) {
    out.queue_begin[++worker] = out.queue->size;
    out.worker_cost[worker] = 0;
  }
  out.queue_begin[config.num_workers] = out.queue->size;
}

}  // namespace fovea
