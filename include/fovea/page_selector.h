// Page selection for decode: which pages of its KV a query reads under each KV head, on the CPU or on a CUDA device.
// For who builds an engine on fovea::Attention (fovea/attention.h); the engine of this project has its own stage.
//
//   auto selector = fovea::PageSelector::create({.key_codes = codes, .budget_tokens = 4096, .num_pages = pages});
//   fovea::append_paged_kv(k, v, places, kv, stream);          // for every layer: new tokens,
//   selector->append(layer, k, places, kv, stream);            // what is kept of their keys,
//   selector->select(layer, q, step, stream);                  // lists of pages for these queries,
//   selector->plan(*attention, kv_lens, step, stream);         // (CUDA: once a step, before or after; CPU: here)
//   attention->run(q, kv, out, {}, stream);                    // and attention over them.
//
// Statistics of the keys of every page, and what is remembered of requests across steps, are the object's; lists are
// the caller's, so that layers may share them. On a CUDA device calls enqueue on the stream given and return, allocate
// nothing and use fixed addresses, so append() and select() can be captured in a graph: lengths, phases and queries are
// read when the graph is replayed. Both devices make the same lists. Tested on sm_90a; devices before have no clusters.
//
// Conventions are those of fovea/attention.h. A page is 16 tokens of one layer; larger NHD pages are seen as several
// (page p of 64 tokens is pages 4p to 4p + 3). Sources: Quest (arXiv:2406.10774), LServe (arXiv:2502.14866); the key
// codes are this project's (docs/research/page-selection.md). One call on an object at a time; calls for one layer in
// the order of their streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "fovea/dtype.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea {

inline constexpr std::int32_t kSelectPageTokens = 16;  // of the pages that lists name
inline constexpr std::int32_t kKeyCodeChannels = 32;

// What policy "fovea" keeps of the keys of one layer and KV head, learned once a model: 32 channels in 4 bits. Code n
// of a token stands for mean + (n - 7.5) * step in its channel, of the key after RoPE.
struct KeyCode {
  std::uint8_t channel[kKeyCodeChannels];  // below head_dim
  float mean[kKeyCodeChannels];
  float step[kKeyCodeChannels];  // above 0
};

// Learns them for one layer. keys [tokens, num_kv_heads, head_dim] after RoPE and queries [rows, num_qo_heads,
// head_dim] of the same text (a few thousand tokens suffice; queries of the kind that will select are best), f32, f16
// or bf16 on the CPU, the last dim contiguous; queries may be empty. Channels are those of the largest rms(q) *
// deviation(k), best first, or of deviation(k) where queries say nothing; steps are .335 deviations. Non-finite
// elements are left out. Returns [num_kv_heads]; kInvalidArgument for shapes that do not fit and head_dim below 32 or
// above 256.
Result<std::vector<KeyCode>> learn_key_codes(const TensorView& keys, const TensorView& queries);

// What is fixed for the life of a PageSelector. Memory follows from it alone: num_layers * num_pages *
// statistics_bytes_per_page(), and with interval > 1 num_layers * max_requests * num_kv_heads * candidates * 4 bytes.
struct PageSelectorOptions {
  std::string device = "cpu";  // "cpu", "cuda" (device 0) or "cuda:N"
  std::int32_t num_qo_heads = 32;
  std::int32_t num_kv_heads = 8;  // divides num_qo_heads; CUDA: at most 8 query heads a KV head
  std::int32_t head_dim = 128;    // a multiple of 16, 32..256
  DType q_dtype = DType::kBF16;   // of queries: kF32, kF16, kBF16
  float sm_scale = 0.0f;          // multiplies q.k; 0: 1/sqrt(head_dim)

  // How pages are scored; bytes a token and KV head:
  //   "fovea"       key codes, learned: 16. On CUDA there is this one alone.
  //   "fovea-local" codes of the 32 slowest channels, nothing learned: 20
  //   "quest"       min/max of the keys of a page: head_dim / 4; "quest-f8": half of that
  //   "mean-dev"    their mean and deviation: head_dim / 4
  // Other policies of the engine (lserve, mass, oracle, random) make lists that Attention::plan_selected() does not
  // take, or are for evaluation.
  std::string policy = "fovea";
  std::vector<KeyCode> key_codes;  // "fovea": [num_layers * num_kv_heads], layer by layer
  std::int32_t rotary_dim = -1;    // "fovea-local": leading channels that RoPE turns, even; -1: all

  // Tokens that a query reads: budget_tokens, a multiple of 16, 256 or more; with a divisor n the n-th part of the
  // tokens it sees, from 256 up to budget_tokens. Up to its budget a query reads all.
  std::int32_t budget_tokens = 4096;
  std::int32_t budget_divisor = 0;
  std::int32_t sink_tokens = 16;    // the first tokens, always in a list
  std::int32_t recent_tokens = 16;  // the newest tokens, always in a list; 1 or more
  // All pages are scored every `interval` steps of a request; in between candidate_factor * budget_tokens of them, the
  // best of that step, and what was written since (choices are made anew in every step). 1: all, always.
  std::int32_t interval = 1;
  std::int32_t candidate_factor = 4;  // 2..64

  // Declared maxima; what is beyond them fails with kOutOfRange.
  std::int32_t num_layers = 1;
  std::int32_t num_pages = 0;  // of the KV pools; must be given
  std::int32_t max_requests = 256;
  std::int32_t max_pages_per_request = 2048;  // up to 65535

  std::int32_t num_threads = 0;  // CPU only; 0: one pool of the process
};

// A decode step, one query token a request. All on the object's device; on CUDA the addresses are part of a graph.
// Requests keep their row from step to step, or are forgotten (PageSelector::forget).
struct SelectStep {
  TensorView kv_lens;     // i32 [requests]: tokens that the query sees, its own included; 0: the row is idle
  TensorView page_table;  // i32 [requests, pages]: page j holds tokens [16j, 16j + 16); rows as far apart as they like
  // Written. i32 [requests, num_kv_heads, budget_tokens / 16 or more], contiguous: page numbers as in the table,
  // ascending by token, the newest page last; entries behind those chosen are left alone. For plan() in one array with
  // page_table, in any order.
  TensorView lists;
  TensorView list_tokens;  // written: i32 [requests], tokens in each list of the request
  // i32 [requests], 0 or more, or empty: 0. With an interval all pages are scored where (tokens + phase) % interval is
  // 0, so that requests take turns; also in a request's first step, and where it has not 1 to interval - 1 tokens more
  // than when they were scored last.
  TensorView phases;
};

class PageSelector {
 public:
  // kInvalidArgument: options that make no sense, with a budget below what is always in a list. kUnsupported: what this
  // device has no kernel for. kOutOfRange: sizes beyond what lists may name. kUnavailable, kNotFound: no such device,
  // driver or compiler. kResourceExhausted: memory. On a CUDA device this compiles the kernels, or takes them from the
  // cache.
  static Result<PageSelector> create(const PageSelectorOptions& options);
  PageSelector(PageSelector&&) noexcept;
  PageSelector& operator=(PageSelector&&) noexcept;
  ~PageSelector();

  // Statistics of new keys k [rows, num_kv_heads, head_dim] (f32, f16, bf16; after RoPE, as append_paged_kv() took
  // them), which now stand at `places`. Prompts as well as decode steps. Policy "fovea" reads k and not kv, which may
  // be empty; the others read the pages, of each that was written to the keys up to the last one written, and need
  // num_pages of them. On the CPU kOutOfRange names the first place outside of the pool, and nothing was written; on a
  // CUDA device such rows are skipped.
  Status append(std::int32_t layer, const TensorView& k, const AppendPlaces& places, const PagedKv& kv = {},
                Stream stream = {});
  // Writes step.lists and step.list_tokens for q [requests, num_qo_heads, head_dim] of q_dtype (after RoPE, the last
  // dim contiguous). One launch on a CUDA device, where lengths are cut to the pages that the table and the maxima have
  // room for, and pages outside of the pool count as page 0; on the CPU both are kOutOfRange, and nothing was written.
  Status select(std::int32_t layer, const TensorView& q, const SelectStep& step, Stream stream = {});
  // Attention::plan_selected() for lists that select() writes for this step. kv_lens: host, [requests], 1 or more, as
  // step.kv_lens will be, which is not looked at. The attention has pages of 16 tokens, the same heads and device, and
  // max_selected. On a CUDA device lists may be written later, and one plan serves all layers and replays; on the CPU
  // it reads the lists of now.
  Status plan(Attention& attention, std::span<const std::int32_t> kv_lens, const SelectStep& step, Stream stream = {});

  // Rows [begin, end) remember nothing: their next selection scores all pages. For rows that hold another request now,
  // and for requests whose tokens were taken back. Nothing to do where interval is 1.
  Status forget(std::int32_t begin, std::int32_t end, Stream stream = {});
  // Statistics of a page that was copied, in every layer.
  Status copy_page(std::int32_t from, std::int32_t to, Stream stream = {});

  const PageSelectorOptions& options() const;
  std::size_t statistics_bytes_per_page() const;  // of one layer, all KV heads
  // u8 [num_pages, num_kv_heads, bytes of a record] of a layer, on the device: to save pages, move or share them.
  // Records of CUDA have their bytes in another order than those of the CPU.
  Result<TensorView> statistics(std::int32_t layer) const;
  // Bytes of all of the object's buffers on its device.
  std::size_t workspace_bytes() const;

  class Impl;

 private:
  explicit PageSelector(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea
