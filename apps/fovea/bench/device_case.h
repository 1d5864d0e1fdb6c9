// A measured case on a CUDA device, planned and ready to run: copies of the KV under one page table, queries, outputs.
// Used by bench/attention_cuda.cc, bench/cuda_host.cc and bench/sweep.cc.
#pragma once

#include <optional>

#include "bench/cuda.h"
#include "bench/report.h"
#include "fovea/attention.h"
#include "workload/attention_cases.h"

namespace fovea::app {

// What an Attention for the case alone is made with, but for the device and sinks.
AttentionOptions options_of(const MeasuredCase& c, const PagedBatch& batch);

class DeviceCase {
 public:
  static Result<DeviceCase> create(const CudaBench& bench, const MeasuredCase& c, bool heads_first);

  // Another Attention over the same tensors, planned.
  Status use(AttentionOptions options);
  const AttentionOptions& options() const { return attention_->options(); }
  Status plan();
  // Every request one token longer.
  Status grow();
  // grow() by nothing, for lengths that lie on the device: what the kernel that cuts again takes, as a graph replays
  // it.
  Result<double> reschedule_us();
  // Requests become `tokens` shorter, so that they may grow within their lists. Plan again.
  void shorten(std::int32_t tokens);
  // From now on page lists are those on the device, where nothing looks for shared prefixes.
  Status keep_lists_on_device();
  // Over copy number `set` of the KV.
  Status run(int set);
  // The queries' bits as new rows of keys and values, to the slots i32 [rows] of copy 0.
  Status append(const cuda::DeviceBuffer& slots);
  // Median microseconds of a run, by graph replays. kInternal when the output cannot be right.
  Result<double> time_us();
  Result<CudaBench::BurstAndSoaked> burst_and_soaked_us();
  AttentionStats stats() const { return attention_->stats(); }

 private:
  DeviceCase(const CudaBench& bench, MeasuredCase c, bool heads_first)
      : bench_(bench), case_(std::move(c)), heads_first_(heads_first) {}

  int calls() const;  // of a graph
  std::size_t pool_bytes() const;
  std::size_t scale_bytes() const;  // of K and V of a set: two halves a token and head each
  std::size_t row_bytes() const;
  TensorView on_device(TensorView view) const;
  TensorView pool(const void* data) const;
  TensorView rows(const cuda::DeviceBuffer& buffer) const;
  Status check_output() const;

  const CudaBench& bench_;
  MeasuredCase case_;
  bool heads_first_;
  PagedBatch batch_;
  int sets_ = 1;
  cuda::DeviceBuffer k_, v_, q_, out_, pages_, scales_, sinks_;
  std::optional<Attention> attention_;
};

// How long planning takes on the host, and compiling a kernel.
Status bench_cuda_host(const CudaBench& bench, BenchReport& report);

}  // namespace fovea::app
