// Steps as rank 0 of tensor parallelism tells them to the others: what the runner reads of items and page lists, as
// words. Lists are sent once, and then what was added to them. Written by rank 0's ModelRunner, read by
// EngineCore::follow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/req_to_token_pool.h"
#include "engine/scheduler/scheduler.h"
#include "fovea/status.h"

namespace fovea {

class StepWriter {
 public:
  explicit StepWriter(const ReqToTokenPool& rows)
      : rows_(rows), sent_(static_cast<std::size_t>(rows.num_slots()) * static_cast<std::size_t>(rows.num_groups())) {}

  // Valid until the next call.
  std::vector<std::int32_t>& write(const Step& step);
  // What ends the others.
  static std::vector<std::int32_t> stop();

 private:
  void write_item(const StepItem& item);
  void write_list(std::int32_t slot, std::int32_t group);

  struct Sent {
    std::uint64_t version = 0;
    std::int32_t length = -1;  // never
  };
  const ReqToTokenPool& rows_;
  std::vector<Sent> sent_;  // [slot, group]
  std::vector<std::int32_t> words_;
};

class StepReader {
 public:
  // rows: becomes what the writer's rows are, as far as steps need them.
  explicit StepReader(ReqToTokenPool& rows) : rows_(rows), sequences_(static_cast<std::size_t>(rows.num_slots())) {}

  // Null: rank 0 has stopped. Valid until the next call. kDataLoss: these are no words of a writer.
  Result<const Step*> read(std::span<const std::int32_t> words);

 private:
  Status read_item();
  Status read_list(std::int32_t slot, std::int32_t group);
  std::int32_t next() { return at_ < words_.size() ? words_[at_++] : (short_ = true, 0); }
  std::uint64_t next64();
  float next_float();
  Result<std::span<const std::int32_t>> next_span(std::int32_t count);

  ReqToTokenPool& rows_;
  std::vector<Sequence> sequences_;  // by slot
  Step step_;
  std::span<const std::int32_t> words_;
  std::size_t at_ = 0;
  bool short_ = false;  // there were fewer words than asked for
};

}  // namespace fovea
