// Selection: the stage between append and attention of layers whose queries read selected pages only. Says which
// queries select, has a list made for each of them and each KV head (core/select/list_maker.h), and runs the layer as
// one plan of block rows, dense queries of the same forward and streaming heads of the layer among them. Owned by
// ModelRunner; called by the model, layer by layer.
//
// With a scan every few steps, which queries scan depends on their position, the prompt's length and the request's own
// phase alone: tokens that are computed again after a retraction, in chunks, get the lists that they had.
//
// A forward in which no query selects goes through the group's own plan, untouched: below its budget a request's result
// has the bits of dense attention.
//
// A device with memory of its own makes the lists there (select/page_lists.h), after the plan and in the graph of the
// step: lists have as many pages as the budget, so the plan knows their places and lengths. Which queries scan is
// decided here for it too, by the same rule; only where several generated tokens of a request stand in one forward
// (drafts, or tokens that are computed again) those behind a scan scan too, for a launch reads no scan that it makes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/select/list_maker.h"
#include "device/device.h"
#include "engine/cache/page_stats.h"
#include "engine/cache/req_to_token_pool.h"
#include "engine/model/key_codes.h"
#include "engine/model/model.h"
#include "engine/runner/head_batch.h"
#include "engine/scheduler/scheduler.h"

namespace fovea {

struct SelectionOptions {
  abi::StatKind stat = abi::StatKind::kNone;  // what pages carry
  std::vector<std::int32_t> layers;           // those that select
  KeyCodes codes;                             // of the layers, where `stat` needs them
  std::int32_t rotary_dim = 0;                // leading channels of a head that RoPE turns
  ReuseRule reuse;
  std::int32_t sink_tokens = 16;    // always read
  std::int32_t recent_tokens = 16;  // always read
  // Queries of prompts that select do so together, those of a block at a multiple of prompt_block: sinks, the
  // prompt_recent tokens before the block, its own up to each query, and the best units by means of prompt_mean
  // neighbouring queries. A block that two forwards share chooses in two parts.
  std::int32_t prompt_block = SparseSetting::kPromptBlock;
  std::int32_t prompt_recent = 64;
  std::int32_t prompt_mean = 16;
  std::int32_t list_units = 0;  // devices that make lists in their own memory: room of each
};

// Since the engine began; a page is 16 tokens of one layer, KV head and query.
struct SelectionCounts {
  std::uint64_t queries = 0;       // that selected, once for each layer and KV head
  std::uint64_t pages_read = 0;    // by their attention
  std::uint64_t pages_kept = 0;    // that dense attention would have read for them
  std::uint64_t records_read = 0;  // statistics scored
  std::uint64_t refreshes = 0;     // full scans
  std::uint64_t rescorings = 0;    // of candidates
  std::uint64_t reuses = 0;        // of lists as they were
  // By blocks of prompts, a page once for all queries of a block.
  std::uint64_t prompt_pages_read = 0, prompt_pages_kept = 0;
};

// Layers of which some heads keep every token: those heads select; heads that stream or have a window never do.
std::vector<std::int32_t> layers_that_can_select(const Model& model);
// KV heads of these layers that select.
std::int32_t heads_that_select(const Model& model, std::span<const std::int32_t> layers);

class Selection final : public LayerSelection {
 public:
  // All must outlive it. attention: of each attention group, as ModelRunner made it (heads, limits, workers).
  static Result<std::unique_ptr<Selection>> create(Device& device, const Model& model, const KvPool& pool,
                                                   const ReqToTokenPool& rows,
                                                   const std::vector<AttentionConfig>& attention,
                                                   const KvFormat& format, const SelectionOptions& options);

  // A page of a KV group was copied.
  Status copy_page(std::size_t kv_group, std::int32_t from, std::int32_t to);
  // Before a forward. positions: of its tokens; borrowed until the forward ends.
  Status begin(const Step& step, std::span<const std::int32_t> positions);
  // Of forwards of as many rows that may be repeated (Device::replay); 0: this one may not.
  std::uint64_t replay_key() const;
  abi::PageStatsView statistics(std::int32_t layer, std::size_t range) const override;
  Result<bool> attend(std::int32_t layer, const TensorView& q, const TensorView& out) override;

  // After a forward.
  void count_page_lists();
  const SelectionCounts& counts() const { return counts_; }
  std::int64_t stats_page_bytes(std::size_t kv_group) const { return stats_->page_bytes(kv_group); }
  // Of the latest forward: layers of an attention group that selected, KV bytes that their plans read, and statistics
  // that were scored.
  std::size_t layers_selected(std::size_t group) const { return groups_[group].layers_selected; }
  std::uint64_t kv_bytes() const { return kv_bytes_; }
  std::uint64_t kv_bytes_unshared() const { return kv_bytes_unshared_; }
  std::uint64_t statistics_read() const { return statistics_read_; }  // bytes

 private:
  // Neighbouring heads of a layer that keep all.
  struct FullHeads {
    HeadRange heads;
    std::size_t range = 0;  // of the attention group: index of the pool
  };
  // An attention group.
  struct Group {
    std::vector<FullHeads> full;
    AttentionConfig config;
    std::unique_ptr<PagedAttention> attention;  // null: its layers never select
    std::unique_ptr<HeadBatch> head_rows;       // of what reads no selected pages
    BlockRowBatch unselected;                   // of the forward
    std::size_t layers_selected = 0;
  };
  // A query of the forward that selects, or several of a prompt.
  struct Query {
    const Sequence* sequence = nullptr;
    std::int32_t row = 0;
    std::int32_t tokens = 0;  // it sees, or the last of them
    std::int32_t rows = 1;
    bool prompt = false;  // a block of a prompt
    SelectWork work = SelectWork::kScan;
    std::int32_t scan = -1;   // kRescore, kKeep: the query of this forward whose scan it goes by; -1: an earlier one
    bool kept = false;        // a scan whose candidates are asked for
    bool remembered = false;  // ..., after this forward
    // Where the device makes the lists: what its row says, and statistics that it scores under each head.
    std::size_t item = 0;
    std::uint32_t reads = abi::kNone, writes = abi::kNone;
    std::uint32_t records = 0;
  };
  // By slot of the request: what it remembers, and for whom.
  struct Memory {
    std::uint64_t sequence = 0;
    std::int32_t selected_tokens = 0;  // seen by the last query that selected
    std::int32_t scanned_tokens = 0;   // seen by the last that scanned, or 0
    // Of the two that a device has: where the last scan is, what it kept, and the tokens that it saw.
    std::uint32_t bank = 0, candidates = 0, last_scan = 0;
  };

  Selection(const KvPool& pool, const ReqToTokenPool& rows, const KvFormat& format, std::size_t kv_groups,
            const SelectionOptions& options)
      : pool_(pool), rows_(rows), options_(options), format_(format), tables_(kv_groups, 0, 0) {}
  Status add_group(const Model& model, const AttentionGroupSpec& spec, const AttentionConfig& config);
  Status create_page_lists(const Model& model, const std::vector<AttentionConfig>& attention,
                           const std::vector<std::int32_t>& layers);
  // The pool of some heads of a layer, its head 0 the first of them.
  abi::KvPoolView pool_of(std::int32_t layer, const FullHeads& full) const;
  bool selects(std::int32_t layer) const { return layer_index_[static_cast<std::size_t>(layer)] >= 0; }
  Group& group_of(std::int32_t layer) {
    return groups_[static_cast<std::size_t>(layer_group_[static_cast<std::size_t>(layer)])];
  }
  ChooseRule rule_of(const Sequence& sequence, std::int32_t tokens) const;
  ChooseRule prompt_rule(const Sequence& sequence, std::int32_t tokens) const;
  std::int32_t begin_prompt(const StepItem& item, std::int32_t row);
  std::int32_t begin_item(const StepItem& item, std::int32_t row);
  void say_memories(Memory& memory, std::size_t first_query, std::int32_t scan);
  void copy_tables(const Step& step);
  ListQuery list_query(const Query& query, const FullHeads& full) const;
  Status make_lists(std::int32_t layer, const Group& group, const TensorView& q);
  static TensorView queries_of(const TensorView& q, const HeadRange& heads, const Group& of);
  void add_selected(const FullHeads& full, std::size_t index);
  Status run_plan(std::int32_t layer, Group& group, const TensorView& q, const TensorView& out);
  Status run_attention(std::int32_t layer, Group& group, const TensorView& q, const TensorView& out);
  Status plan_page_lists(const Step& step);
  void add_listed(const FullHeads& full, const Query& query, std::size_t list);
  Result<bool> attend_page_lists(std::int32_t layer, Group& group, const TensorView& q, const TensorView& out);

  // What an entry of page lists names here.
  static constexpr std::int32_t kEntryTokens = abi::kSubPageTokens;

  const KvPool& pool_;
  const ReqToTokenPool& rows_;
  SelectionOptions options_;
  KvFormat format_;
  Device* device_ = nullptr;
  std::unique_ptr<PageStats> stats_;
  std::unique_ptr<ListMaker> list_maker_;  // of lists in the host's memory, else null
  std::unique_ptr<PageLists> page_lists_;  // of lists in the device's, else null
  bool decodes_ = false;                   // page_lists_: every item of the forward is one token
  std::vector<abi::SelectRow> select_rows_;
  std::vector<Group> groups_;
  std::vector<std::int32_t> layer_group_;  // by layer
  std::vector<std::int32_t> layer_index_;  // by layer: among those that select, or -1
  std::size_t heads_a_layer_ = 0;          // KV heads, of every layer
  std::int32_t head_dim_ = 0;
  std::vector<bool> full_group_;  // by KV group: it keeps all, so that queries which select need no list of it
  std::vector<Memory> memory_;    // by slot
  SelectionCounts counts_;
  std::uint64_t kv_bytes_ = 0;
  std::uint64_t kv_bytes_unshared_ = 0;
  std::uint64_t statistics_read_ = 0;

  // Of the forward.
  std::vector<Query> queries_;
  std::vector<std::int32_t> selecting_;  // by item of the step: queries of it that select
  PageTables tables_;                    // in entries of 16 tokens; behind them the layer's lists
  std::size_t num_entries_ = 0;          // of the tables

  // Of the layer.
  std::vector<ListQuery> list_queries_;
  std::vector<std::int32_t> positions_;  // parallel to the entries
  std::vector<abi::BlockRow> block_rows_;
  std::vector<abi::KvPoolView> pools_;
};

}  // namespace fovea
