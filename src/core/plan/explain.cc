#include "core/plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace fovea {
namespace {

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < std::size(kUnits); ++unit) value /= 1024.0;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string_view mask_name(abi::MaskKind mask) {
  switch (mask) {
    case abi::MaskKind::kNone: return "none";
    case abi::MaskKind::kCausal: return "causal";
    case abi::MaskKind::kWindow: return "window";
    case abi::MaskKind::kBits: return "bits";
  }
  return "?";
}

std::string flag_names(std::uint8_t flags) {
  std::string names;
  const auto add = [&](abi::ItemFlags flag, const char* name) {
    if ((flags & flag) == 0) return;
    if (!names.empty()) names += ' ';
    names += name;
  };
  add(abi::kItemDirect, "direct");
  add(abi::kItemSingleHead, "single-head");
  add(abi::kItemMasked, "masked");
  add(abi::kItemOpenEnd, "open-end");
  return names;
}

std::string more_line(std::uint32_t total, std::uint32_t shown) {
  return total > shown ? fmt::format("  ... {} more\n", total - shown) : std::string();
}

}  // namespace

std::string explain_plan(const Planner& planner) {
  const abi::PlanView v = planner.view();
  const abi::PlanHeader& h = *v.header;
  const PlanStats stats = planner.stats();
  const PlannerOptions& o = planner.options();
  std::uint32_t shared = 0;
  std::uint32_t widest = 0;
  for (std::uint32_t b = 0; b < h.num_block_rows; ++b) {
    shared += v.block_rows[b].num_requests > 1;
    widest = std::max(widest, v.block_rows[b].num_requests);
  }
  std::uint32_t direct = 0;
  for (std::uint32_t i = 0; i < h.num_items; ++i) direct += (v.items[i].flags & abi::kItemDirect) != 0;
  const std::uint32_t queues = v.launches[0].num_workers;
  const double even = static_cast<double>(stats.total_cost) / queues;
  const double saved =
      static_cast<double>(stats.kv_bytes_unshared) / static_cast<double>(std::max<std::uint64_t>(stats.kv_bytes, 1));
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<26}{}\n", name, value);
  };
  line("query tokens", fmt::format("{} x {} query heads, {} KV heads, head dim {}", h.num_rows, o.num_qo_heads,
                                   o.num_kv_heads, o.head_dim));
  line("block rows",
       shared == 0 ? fmt::format("{}, none shared", h.num_block_rows)
                   : fmt::format("{}, {} of them shared, by up to {} requests", h.num_block_rows, shared, widest));
  line("items", fmt::format("{} ({} write directly) in {} queue entries for {} workers", h.num_items, direct,
                            h.num_queue_entries, o.num_workers) +
                    (queues > static_cast<std::uint32_t>(o.num_workers)
                         ? fmt::format(", which claim {} queues, long ones first", queues)
                         : std::string()));
  line("KV bytes to read", bytes_text(stats.kv_bytes));
  line("if nothing were shared", fmt::format("{} ({:.2f} x)", bytes_text(stats.kv_bytes_unshared), saved));
  line("partial states", fmt::format("{} rows of the workspace, {} written and read again; {} merges",
                                     h.num_partial_rows, bytes_text(stats.partial_bytes), h.num_merges));
  line("split (tile, head) pairs",
       fmt::format("{}{}", stats.split_rows,
                   o.batch_invariant ? fmt::format(" (batch invariant: chunks of {} tokens)", o.invariant_chunk)
                                     : fmt::format(", at most {}", queues - 1)));
  line("makespan", fmt::format("{:.3f} x an even share of the cost",
                               even > 0 ? static_cast<double>(stats.max_worker_cost) / even : 1.0));
  return text;
}

std::string explain_steps(const Planner& planner, std::uint32_t max_lines) {
  const abi::PlanView v = planner.view();
  const abi::PlanHeader& h = *v.header;
  const abi::CostModel cost = cost_model(planner.options());
  std::string text = "1. pack: block rows\n";
  text += fmt::format("  {:>5} {:>8} {:>9} {:>16} {:>9} {:>7} {:>7}\n", "row", "requests", "queries", "positions",
                      "tokens", "list", "mask");
  for (std::uint32_t b = 0; b < std::min(h.num_block_rows, max_lines); ++b) {
    const abi::BlockRow& r = v.block_rows[b];
    text += fmt::format("  {:>5} {:>8} {:>9} {:>16} {:>9} {:>7} {:>7}\n", b, r.num_requests, r.row_count,
                        fmt::format("[{}, {})", r.position_base + static_cast<std::int64_t>(r.first_token),
                                    r.position_base + static_cast<std::int64_t>(r.num_tokens)),
                        r.num_tokens - r.first_token, r.list_begin, mask_name(r.mask));
  }
  text += more_line(h.num_block_rows, max_lines);

  text += "2. tile, 3. cut: items\n";
  text += fmt::format("  {:>5} {:>9} {:>8} {:>6} {:>18} {:>9} {}\n", "item", "block row", "queries", "class",
                      "run tokens", "partial", "flags");
  for (std::uint32_t i = 0; i < std::min(h.num_items, max_lines); ++i) {
    const abi::WorkItem& item = v.items[i];
    text += fmt::format("  {:>5} {:>9} {:>8} {:>6} {:>18} {:>9} {}\n", i, item.block_row, item.row_count,
                        h.tile_rows[item.tile_class], fmt::format("[{}, {})", item.kv_begin, item.kv_end),
                        item.partial_slot == abi::kNone ? std::string("-") : std::to_string(item.partial_slot),
                        flag_names(item.flags));
  }
  text += more_line(h.num_items, max_lines);

  text += "   workers\n";
  for (std::uint32_t w = 0; w < std::min(v.launches[0].num_workers, max_lines); ++w) {
    std::uint64_t total = 0;
    std::string entries;
    std::uint32_t shown = 0;
    for (std::uint32_t q = v.queue_begin[w]; q < v.queue_begin[w + 1]; ++q) {
      const abi::WorkItem& item = v.items[abi::queue_item(v.queue[q])];
      const std::uint32_t head = abi::queue_head(v.queue[q]);
      const std::uint32_t end = v.queue_head_end(q);
      total += (end - head) * abi::item_cost(cost, item.row_count * h.group, item.kv_end - item.kv_begin,
                                             item.partial_slot != abi::kNone);
      if (++shown > 8) continue;
      entries += fmt::format(" {}/{}", abi::queue_item(v.queue[q]), head);
      if (end - head > 1) entries += fmt::format("-{}", end - 1);
    }
    if (shown > 8) entries += fmt::format(" ... {} more", shown - 8);
    text += fmt::format("  {:>5} {:>12} cost; item/heads:{}\n", w, total, entries);
  }
  text += more_line(v.launches[0].num_workers, max_lines);

  text += "4. merge list\n";
  for (std::uint32_t m = 0; m < std::min(h.num_merges, max_lines); ++m) {
    const abi::MergeEntry& merge = v.merges[m];
    std::string parts;
    for (std::uint32_t i = 0; i < merge.num_parts; ++i)
      parts += fmt::format(" {}", v.merge_parts[merge.parts_begin + i]);
    text += fmt::format("  query {:>5} head {:>3}: partial rows{}\n", merge.row, merge.head, parts);
  }
  text += more_line(h.num_merges, max_lines);
  return text;
}

}  // namespace fovea
