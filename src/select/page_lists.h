// PageLists: lists of pages that a device makes in its own memory (a list a query and KV head), for an engine whose
// attention is planned before they are written and whose steps are captured in graphs: plans name places, which stay
// where they are. Made by Device::create_page_lists for the engine's selection stage (engine/runner/selection.h), which
// decides which queries select, which of them scan, and what they remember. Devices that read the host's memory make
// lists there instead (Device::select_pages).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "abi/page_stats.h"
#include "abi/select_args.h"
#include "attention/attention_checks.h"
#include "fovea/attention.h"
#include "fovea/status.h"

namespace fovea {

struct PageListsOptions {
  DType q_dtype = DType::kBF16;
  float sm_scale = 1.0f;
  std::int32_t head_dim = 128;
  std::int32_t num_layers = 1;          // that select
  std::int32_t num_kv_heads = 8;        // of a layer
  std::int32_t group = 1;               // query heads a KV head
  std::span<const abi::KeyCode> codes;  // [num_layers, num_kv_heads]; read by create() alone
  std::int32_t max_rows = 1;            // queries of a forward
  std::int32_t max_units = 1;           // of 16 tokens, of a request
  std::int64_t max_entries = 0;         // of the page tables of a forward
  std::int32_t budget_units = 16;       // of a list, at most
  std::int32_t memories = 1;            // of candidates, for each layer and KV head
  std::int32_t sink_tokens = 16;
  std::int32_t recent_tokens = 16;
  std::int32_t interval = 1;  // 1: nothing is remembered
  std::int32_t candidate_factor = 4;
};

class PageLists {
 public:
  virtual ~PageLists() = default;
  // [num_layers, num_kv_heads], where the device reads them.
  virtual const abi::KeyCode* codes() const = 0;
  // What page lists of block rows are taken from: the tables of begin() from entry 0 on, and the lists.
  virtual const std::int32_t* entries() const = 0;
  // The list of row `row` under a KV head; one after the other for neighbouring heads.
  virtual std::int64_t list_begin(std::size_t row, std::int32_t head) const = 0;
  // Before a forward, outside of graphs: page tables, in entries of 16 tokens, and the queries that select.
  virtual Status begin(std::span<const std::int32_t> tables, std::span<const abi::SelectRow> rows) = 0;
  // Writes the lists of all rows of begin() under neighbouring KV heads of a layer, the first of them head_begin: as
  // many as q [tokens of the forward, query heads of these heads, head_dim] has.
  virtual Status select(std::int32_t layer, std::int32_t head_begin, const TensorView& q,
                        const abi::PageStatsView& stats) = 0;
  virtual std::size_t memory_bytes() const = 0;
};

// kUnsupported: what the kernels do not take.
Result<std::unique_ptr<PageLists>> create_cuda_page_lists(const PageListsOptions& options, DevicePlace place,
                                                          Stream stream);

}  // namespace fovea
