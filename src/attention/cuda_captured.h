// Runs of one Attention that graphs captured, and what they ask of later plans: a replay launches the kernel that it
// captured over whatever plan lies in device memory by then. Owned by cuda_attention.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>

#include "attention/cuda_executor.h"
#include "base/status.h"

namespace fovea {

class CapturedRuns {
 public:
  // by_rows: AttentionOptions::graphs_by_rows.
  explicit CapturedRuns(bool by_rows) : by_rows_(by_rows) {}

  bool empty() const { return runs_.empty(); }

  // A run of `rows` rows with tensors of `most_rows`. shared: by the kernel for plans that share runs.
  void add(std::uint32_t rows, std::int64_t most_rows, CudaExecutor* executor, bool shared) {
    runs_.try_emplace(rows, Run{executor, shared});
    most_rows_ = std::max(most_rows_, most_rows);
  }

  // Whose plan one of `rows` rows must be; null: any.
  CudaExecutor* executor(std::uint32_t rows) const {
    if (by_rows_ || runs_.empty()) {
      const auto run = runs_.find(rows);
      return run == runs_.end() ? nullptr : run->second.executor;
    }
    return runs_.begin()->second.executor;  // as all of them are
  }

  // Which kernel of the executor a run of `rows` rows takes, so that a replay gives its bits; nothing: as the plan
  // says.
  std::optional<bool> shared(std::uint32_t rows) const {
    const auto run = runs_.find(rows);
    return run == runs_.end() ? std::nullopt : std::optional(run->second.shared);
  }

  // kOutOfRange: no replay could run a plan of so many rows.
  Status check_rows(std::int64_t rows) const {
    if (by_rows_ || runs_.empty() || rows <= most_rows_) return ok_status();
    return out_of_range(
        "a plan of {} rows, but graphs captured run() with tensors of {} rows at most, which their replays read and "
        "write; use another Attention, or set graphs_by_rows and replay each graph for as many rows as it captured",
        rows, most_rows_);
  }

  // The batch is not for the kernel that was captured.
  Status refusal(std::uint32_t rows) const {
    return unsupported(
        "a graph captured run() with a kernel for decode, which cannot run this plan of {} rows (block rows or bit "
        "masks); capture it with decode_kernel kGeneral, use another Attention, or set graphs_by_rows and replay each "
        "graph for as many rows as it captured",
        rows);
  }

 private:
  struct Run {
    CudaExecutor* executor;
    bool shared;
  };
  bool by_rows_;
  std::map<std::uint32_t, Run> runs_;  // by rows
  std::int64_t most_rows_ = 0;
};

}  // namespace fovea
