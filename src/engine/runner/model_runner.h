// ModelRunner: runs a step of the scheduler: lays out tokens, positions, slots and page tables, plans attention once
// for each attention group, runs the model. Owned by the engine; single-threaded, but for explain_*().
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "engine/cache/kv_pool.h"
#include "engine/cache/req_to_token_pool.h"
#include "engine/model/model.h"
#include "engine/ranks/step_record.h"
#include "engine/runner/head_batch.h"
#include "engine/runner/selection.h"
#include "engine/scheduler/scheduler.h"
#include "fovea/engine_view.h"

namespace fovea {

class KeyProfiler;
class StepClock;
class StepLog;

struct ModelRunnerOptions {
  std::int32_t max_requests = 64;  // in a step
  std::int32_t max_forward_tokens = 1024;
  std::int32_t max_logit_rows = 64;
  KvFormat kv_format;
  bool share_prefixes = true;
  bool batch_invariant = false;
  std::optional<SelectionOptions> selection;  // none: sequences must not ask for it
  KeyProfiler* profiler = nullptr;            // sees all layers, where nothing selects; outlives the runner
  StepLog* log = nullptr;                     // told what a step does; outlives the runner
  StepClock* clock = nullptr;                 // ends the parts of chunks; outlives the runner; null: there are none
  bool repeats_steps = true;                  // by what a device captured, where it can; else every step is enqueued
  std::int32_t max_tree_rows = 0;             // in a step, of sequences whose draft is a tree; 0: all are chains
};

class ModelRunner {
 public:
  // All must outlive the runner.
  static Result<std::unique_ptr<ModelRunner>> create(Device& device, Model& model, KvPool& pool,
                                                     const ReqToTokenPool& rows, const ModelRunnerOptions& options);

  // After it, logits(i) is row i of what the items give, in their order: a row for each of their scores, and where they
  // `sample` one more, and one for each draft token after it.
  // With other ranks (Device::group), rank 0's run makes theirs, which give no results; what fails ends all.
  // Where the device's logits are not the host's memory, rows of sequences whose tokens are `greedy` or drawn by the
  // device may be left there, and best(i) is the token of row i.
  Status run(const Step& step);
  // The two halves of run(). A second step may be launched before the first is collected, where why_not_ahead() is
  // null: its i-th token is what row token_rows[i] of the first gives, where that is not -1; what stands for it in the
  // sequence does not count. The first is then collected without logits: they are the second's. An item without a
  // sequence is one whose results nobody wants any more.
  const char* why_not_ahead() const;
  Status launch(const Step& step, std::span<const std::int32_t> token_rows);
  Status collect(std::span<const StepItem> items, bool logits_there);
  // Whether the latest launch came to the end of the chunk that may be left.
  bool chunk_is_whole() const { return chunk_is_whole_; }
  // Whether drafts may be trees: elsewhere they are chains.
  bool verifies_trees() const { return options_.max_tree_rows > 0; }
  // Behind a run, before the sequence's pages change: node `node` of an item's draft is accepted, as the `place`-th.
  // Its KV goes where that token's belongs, before anything reads it there.
  void keep_accepted(const StepItem& item, std::int32_t node, std::int32_t place);
  // Waits for what was launched and not collected, and leaves it.
  void forget();
  std::span<const float> logits(std::size_t row) const;  // empty where it was left
  std::int32_t best(std::size_t row) const;              // -1: not known, or the largest is no finite number
  // Of the latest run, all groups and layers together.
  std::uint64_t kv_bytes() const { return kv_bytes_; }
  std::uint64_t kv_bytes_unshared() const { return kv_bytes_unshared_; }
  // Statistics of pages that selection scored in it.
  std::uint64_t statistics_read() const { return selection_ == nullptr ? 0 : selection_->statistics_read(); }
  // Bytes of the statistics of a KV group's page.
  std::int64_t stats_page_bytes(std::size_t kv_group) const {
    return selection_ == nullptr ? 0 : selection_->stats_page_bytes(kv_group);
  }
  // Statistics of pages, as the layers' heads have them; null: none are kept.
  const LayerSelection* selection() const { return selection_.get(); }
  // Since the runner was made.
  SelectionCounts selection_counts() const { return selection_ == nullptr ? SelectionCounts() : selection_->counts(); }

  // The latest plan over two requests or more, else the latest plan, of the first attention group. Thread-safe.
  std::string explain_svg() const;
  std::string explain_text() const;
  // The latest plan of the first attention group, with `limit` items at most. On the engine's thread.
  TimelineView timeline(std::size_t limit) const;

 private:
  // A KV group: where its tokens go, and its part of the page tables.
  struct Group {
    std::vector<std::int32_t> slots;     // [max_forward_tokens]
    std::vector<std::int32_t> copied;    // [max_requests] leading entries of the table's row that are up to date,
    std::vector<std::uint64_t> version;  // ..., for the row at this version
    bool changed = false;                // entries that were planned before have changed
  };
  struct AttentionGroup {
    std::size_t num_layers = 0;
    AttentionConfig config;
    std::unique_ptr<PagedAttention> op;
    PlannerOptions planner;    // of op
    std::size_t kv_group = 0;  // where requests are planned:
    std::int32_t window_left = -1;
    bool by_request = true;
    std::unique_ptr<HeadBatch> head_rows;  // else, and where drafts may be trees; null: neither comes
  };
  // A batch that was planned, kept so that it can be planned again and drawn: requests, or block rows.
  struct Snapshot {
    std::vector<std::int32_t> q_lens;
    std::vector<std::int32_t> kv_lens;
    std::vector<std::int32_t> page_table;
    std::int32_t stride = 0;
    std::int32_t window_left = -1;
    std::vector<abi::BlockRow> block_rows;
    std::vector<std::uint32_t> row_indices;
    std::vector<std::int32_t> q_pos;
  };

  ModelRunner(Device& device, Model& model, KvPool& pool, const ReqToTokenPool& rows, const ModelRunnerOptions& options)
      : options_(options),
        device_(device),
        model_(model),
        pool_(pool),
        rows_(rows),
        tables_(model.kv_groups().size(), static_cast<std::size_t>(options.max_requests),
                static_cast<std::size_t>(rows.stride())) {}

  void lay_out(const Step& step);
  // Where the KV of a sequence's token at a place in its page lists stands.
  std::int32_t slot_of(const Sequence& sequence, std::size_t group, std::int32_t at) const {
    const std::int32_t page_tokens = pool_.page_tokens();
    return rows_.row(sequence.slot, static_cast<std::int32_t>(group))[at / page_tokens] * page_tokens +
           at % page_tokens;
  }
  // Brings the group's page table up to date.
  void copy_tables(const Step& step, std::size_t group);
  Status plan(const Step& step);
  Status plan_attention(const Step& step, AttentionGroup& attention, bool same_requests);
  // What the latest forward read: layers that selected have plans of their own.
  void count_bytes();
  // Of the forward, where a device may repeat the launches of an earlier one.
  ReplayKey replay_key() const;
  Status launch_here(const Step& step, std::span<const std::int32_t> token_rows);
  Status forward(const Step& step, std::span<const std::int32_t> token_rows);
  // The chunk that may be left, on the runner of chunks: false, it was. Its logits stand behind those of first_row
  // rows.
  Result<bool> forward_part(const StepItem& item, std::size_t first_row, StepClock& clock);
  ForwardBatch make_batch() const;
  TensorView logits_of_step(std::size_t first_row) const;
  Status collect_here(std::span<const StepItem> items, bool logits_there);
  // Brings rows of logits that the host samples from.
  Status read_logits(std::span<const StepItem> items);
  // Ranks that are not in step any more would wait for each other.
  Status end_ranks(Status status);
  bool gives_results() const { return device_.group() == nullptr || others_.has_value(); }
  RequestBatch batch_of(const AttentionGroup& attention) const;
  void keep_snapshot(const AttentionGroup& attention, const BlockRowBatch* head_rows);
  Result<Planner> plan_snapshot() const;

  static std::uint64_t next_number();

  const std::uint64_t number_ = next_number();  // of all runners of the process
  ModelRunnerOptions options_;
  Device& device_;
  Model& model_;
  KvPool& pool_;
  const ReqToTokenPool& rows_;
  std::optional<StepWriter> others_;  // rank 0 of several
  std::vector<Group> groups_;
  std::vector<AttentionGroup> attention_;
  std::unique_ptr<Selection> selection_;  // or null
  PageTables tables_;
  std::vector<abi::TokenMove> moves_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<abi::DrawRow> draws_;  // of logit_rows_, where the device finds tokens
  bool some_draw_ = false;
  std::size_t draft_tokens_ = 0;  // of tokens_
  std::vector<std::int32_t> q_lens_;
  std::vector<std::int32_t> kv_lens_;
  std::vector<RequestId> row_requests_;     // of the latest plan, by query token; empty when there is none
  std::vector<std::uint64_t> planned_;      // ids of the sequences of the last plan when each had one token, else empty
  std::vector<std::int32_t> planned_lens_;  // of their KV
  std::shared_ptr<void> logits_;            // [max_logit_rows, vocab] f32
  // Of what was collected last, on the host: rows of logits from logits_begin_ on, and best tokens where the device
  // finds them.
  const float* host_logits_ = nullptr;
  std::size_t logits_begin_ = 0, logits_end_ = 0;
  std::shared_ptr<void> best_memory_;  // [max_logit_rows] i32
  std::vector<std::int32_t> best_;
  int open_reads_ = 0;                  // of best_memory_, begun by launch()
  std::unique_ptr<ModelRunner> chunk_;  // what a chunk needs that is not over while other forwards run; or null
  bool chunk_is_whole_ = false;
  std::uint64_t kv_bytes_ = 0;
  std::uint64_t kv_bytes_unshared_ = 0;

  mutable std::mutex snapshot_mutex_;
  Snapshot snapshot_;
};

}  // namespace fovea
