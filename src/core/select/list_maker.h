// ListMaker: from queries to lists of units, for one layer after the other, on a device that scores in the host's
// memory: which jobs there are, in which order, and what scans leave for later steps. Both the engine's selection stage
// (engine/runner) and the public selector on the CPU (select/) make their lists with it; who says which queries scan
// are its callers, by select_work(). Scores are the caller's function.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/select/job.h"
#include "core/select/reuse.h"
#include "fovea/status.h"

namespace fovea {

// A query, or neighbouring ones that share a list, under every head that is asked for.
struct ListQuery {
  SelectJob job;            // all but head, seed, units and what is written
  std::int32_t seen = 0;    // tokens that it sees, or the last of them
  std::int32_t memory = 0;  // whose scans it goes by
  SelectWork work = SelectWork::kScan;
  std::int32_t scan = -1;           // kRescore, kKeep: the query of this call whose scan it goes by; -1: the memory's
  std::int32_t num_candidates = 0;  // kScan: units that are kept of it, or 0: none
  bool remembered = false;          // ..., for later calls
};

struct ListCounts {
  std::uint64_t scans = 0, rescorings = 0, reuses = 0;
  std::uint64_t records = 0, record_bytes = 0;  // of statistics that were scored
};

class ListMaker {
 public:
  // memories: of each layer and head.
  ListMaker(std::int32_t num_layers, std::int32_t num_heads, std::int32_t memories, std::int32_t head_dim);

  // The lists of heads [head_begin, head_end) of a layer; jobs count heads from head_begin on. seed: of the layer.
  // Memories follow once all lists are there.
  using Score = std::function<Status(std::span<const SelectJob>)>;
  Status make(std::int32_t layer, std::uint64_t seed, std::int32_t head_begin, std::int32_t head_end,
              std::span<const ListQuery> queries, const Score& score);

  // Of the last make() of these heads: units, ascending. Valid until the next one.
  std::span<const std::int32_t> chosen(std::size_t query, std::int32_t head) const {
    return lists_[query * num_heads_ + static_cast<std::size_t>(head)].chosen;
  }
  const SelectMemory& memory(std::int32_t layer, std::int32_t number, std::int32_t head) const {
    return memory_[index(layer, number, head)];
  }
  void forget(std::int32_t begin, std::int32_t end);    // memories of all layers and heads
  const ListCounts& counts() const { return counts_; }  // since it was made
  std::size_t memory_bytes() const;

 private:
  struct List {
    std::vector<std::int32_t> units, chosen;
    SelectMemory scan;
  };
  std::size_t index(std::int32_t layer, std::int32_t number, std::int32_t head) const {
    return (static_cast<std::size_t>(layer) * memories_ + static_cast<std::size_t>(number)) * num_heads_ +
           static_cast<std::size_t>(head);
  }
  void add_job(std::int32_t layer, std::uint64_t seed, std::int32_t head_begin, std::int32_t head,
               const ListQuery& query, std::size_t number);

  std::size_t num_heads_, memories_;
  std::int32_t head_dim_;
  std::vector<SelectMemory> memory_;     // [layers][memories][heads]
  std::vector<List> lists_;              // [queries][heads]
  std::vector<std::int32_t> all_units_;  // 0, 1, ..
  std::vector<SelectJob> jobs_;
  ListCounts counts_;
};

}  // namespace fovea
