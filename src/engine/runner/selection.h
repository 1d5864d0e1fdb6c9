// Selection: the stage between append and attention of layers whose queries read selected pages only. Keeps the pages'
// statistics up to date, makes a list for each query that selects and each KV head, and runs the layer as one plan of
// block rows, dense queries of the same forward among them. Owned by ModelRunner; called by the model, layer by layer.
//
// A forward in which no query selects goes through the group's own plan, untouched: below its budget a request's result
// has the bits of dense attention.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/select/reuse.h"
#include "engine/cache/page_stats.h"
#include "engine/cache/req_to_token_pool.h"
#include "engine/model/model.h"
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
};

// Layers whose heads keep every token; those of which some heads stream, or all have a window, never select.
std::vector<std::int32_t> layers_that_can_select(const Model& model);

class Selection final : public LayerSelection {
 public:
  // All must outlive it. attention: of each attention group, as ModelRunner made it (heads, limits, workers).
  static Result<std::unique_ptr<Selection>> create(Backend& backend, const Model& model, const KvPool& pool,
                                                   const ReqToTokenPool& rows,
                                                   const std::vector<AttentionConfig>& attention,
                                                   const SelectionOptions& options);

  // A page of a KV group was copied.
  void copy_page(std::size_t kv_group, std::int32_t from, std::int32_t to);
  // Before a forward. slots: where the tokens go, by group, borrowed until the forward ends.
  void begin(const Step& step, std::span<const std::span<const std::int32_t>> slots);
  Status appended(std::int32_t layer) override;
  Result<bool> attend(std::int32_t layer, const TensorView& q, const TensorView& out) override;

  const SelectionCounts& counts() const { return counts_; }
  std::int64_t stats_bytes() const { return stats_->bytes(); }
  // Of the latest forward: layers of an attention group that selected, and KV bytes that their plans read.
  std::size_t layers_selected(std::size_t group) const { return groups_[group].layers_selected; }
  std::uint64_t kv_bytes() const { return kv_bytes_; }

 private:
  // An attention group.
  struct Group {
    std::vector<std::int32_t> layers;
    std::int32_t num_kv_heads = 0;
    std::size_t kv_group = 0;
    AttentionConfig config;
    std::unique_ptr<AttentionOp> attention;  // null: its layers never select
    std::vector<abi::BlockRow> dense_rows;   // of the forward
    std::vector<std::int32_t> dense_entries;
    std::size_t layers_selected = 0;
  };
  // A query of the forward that selects.
  struct Query {
    const Sequence* sequence = nullptr;
    std::int32_t row = 0;
    std::int32_t tokens = 0;  // it sees
    bool decodes = false;     // alone in its request
    bool newest = false;      // of its request
  };
  // By slot of the request: what each (layer, head) remembers, and for whom.
  struct Memory {
    std::uint64_t sequence = 0;
    std::vector<SelectMemory> heads;  // [layers][KV heads]
  };

  Selection(const KvPool& pool, const ReqToTokenPool& rows, const SelectionOptions& options)
      : pool_(pool), rows_(rows), options_(options) {}
  const abi::KvPoolView& view_of(std::int32_t layer) const {
    return pool_.layer_views()[static_cast<std::size_t>(layer)][0];
  }
  bool selects(std::int32_t layer) const { return layer_index_[static_cast<std::size_t>(layer)] >= 0; }
  ChooseRule rule_of(const Sequence& sequence, std::int32_t tokens) const;
  SelectMemory& memory_of(const Query& query, std::int32_t layer, std::int32_t head);
  void lay_out_dense(const Step& step);
  void make_jobs(std::int32_t layer, const Group& group);
  Status run_plan(std::int32_t layer, Group& group, std::int32_t num_rows, const TensorView& q, const TensorView& out);

  const KvPool& pool_;
  const ReqToTokenPool& rows_;
  SelectionOptions options_;
  Backend* backend_ = nullptr;
  std::unique_ptr<PageStats> stats_;
  std::vector<Group> groups_;
  std::vector<std::int32_t> layer_group_;  // by layer
  std::vector<std::int32_t> layer_index_;  // by layer: among those that select, or -1
  std::size_t heads_a_layer_ = 0;          // room in Memory
  std::vector<Memory> memory_;             // by slot
  SelectionCounts counts_;
  std::uint64_t kv_bytes_ = 0;

  // Of the forward.
  std::span<const std::span<const std::int32_t>> slots_;
  std::vector<Query> queries_;
  std::vector<std::uint32_t> row_indices_;
  std::vector<std::int32_t> q_pos_;

  // Of the layer.
  struct List {
    std::vector<std::int32_t> units, chosen, candidates;
    SelectWork work = SelectWork::kScan;
    SelectMemory* memory = nullptr;  // to be filled, or null
  };
  std::vector<std::int32_t> all_units_;  // 0, 1, ..
  std::vector<List> lists_;              // [queries][KV heads]
  std::vector<SelectJob> jobs_;
  std::vector<std::int32_t> entries_, positions_;
  std::vector<abi::BlockRow> block_rows_;
};

}  // namespace fovea
