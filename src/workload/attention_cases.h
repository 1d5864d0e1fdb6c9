// The attention cases that Fovea and its peers are measured on, as data: `fovea bench attention --device cuda:0` runs
// them, `--list` prints them as JSON for bench/peers_gpu.py, so that every engine gets the same work.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/attention.h"
#include "fovea/dtype.h"
#include "fovea/status.h"
#include "workload/paged_batch.h"

namespace fovea {

// Blocks of `rows` query tokens and `tokens` KV tokens that are seen whole; those of block row i are columns
// indices[indptr[i] .. indptr[i + 1]). Nothing: no pattern.
struct BlockPattern {
  std::int32_t rows = 0, tokens = 0;
  std::vector<std::int32_t> indptr, indices;

  bool empty() const { return indptr.empty(); }
};

struct MeasuredCase {
  std::string suite;  // "decode", "skew", ...
  std::string name;   // "32x8/B64/S4096": query heads x KV heads, requests, KV tokens
  std::int32_t qo_heads = 32;
  std::int32_t kv_heads = 8;
  std::int32_t head_dim = 128;
  std::int32_t page_tokens = 16;
  DType q_dtype = DType::kBF16;       // of queries and outputs
  DType kv_dtype = DType::kBF16;      // that of the queries, kF8E4M3, kI8 or kI4
  std::vector<std::int32_t> q_lens;   // the queries are a request's last tokens
  std::vector<std::int32_t> kv_lens;  // of every request, its queries' tokens included
  bool causal = false;
  std::int32_t window = 0;  // KV tokens that a query sees, itself counted; 0: all
  float softcap = 0.0f;     // 0: off
  // KV of one request behind the other's, for engines that take that; pages are for those that do not.
  bool contiguous = false;
  BlockPattern blocks;  // of one request with contiguous KV
  bool sinks = false;   // a logit a query head that takes weight and gives no value
  std::string tree;     // prefixes shared as parse_prefix_tree() reads them; empty: see runs
  // Prefixes shared unevenly, as forest_batch() takes them; empty: nothing is shared.
  std::vector<SharedRun> runs;
  std::vector<std::int32_t> run_of;  // by request
  // Prefix cells: microseconds that an H200 needs at least (bytes at 4.8 TB/s or flops at 989 TFLOP/s): with perfect
  // sharing, and for a kernel that shares nothing.
  std::optional<double> floor_us;
  std::optional<double> unshared_floor_us;

  std::string id() const { return suite + "/" + name; }
  // Shared prefixes once; tokens outside of every window not at all.
  std::int64_t unique_kv_tokens() const;
  double kv_bytes() const;  // K and V of unique_kv_tokens(), as stored
  double qo_bytes() const;  // queries read and outputs written
  double flops() const;     // of both products, over the pairs that the mask lets through
  // Pages in random order (in a prefix tree: sequential inside a node).
  PagedBatch batch(std::uint64_t seed) const;
  // What an Attention is made with but for its maxima and the tensor of sinks.
  AttentionOptions options() const;
};

// The suites there are, in the order in which they run.
const std::vector<std::string_view>& measured_suites();
// "decode": heads x shapes of uniform batches. "skew": the same total, unevenly spread. "single": one request. "fp8":
// e4m3 KV. "integers": int8 and int4 KV. "page": page sizes. "variant": plain, soft-cap, window. "append": long queries
// over a cache. "prefix": the 20 x 4 grid of PAT (ASPLOS'26). "quarter": every tree of it once, the heads taking turns.
// "cliffs": where speed once fell off. "prefill": prompts and all else with many query tokens. kInvalidArgument lists
// the names; `suites` separates them by commas, "all" is all but "quarter", "integers", "cliffs" and "prefill".
Result<std::vector<MeasuredCase>> measured_cases(std::string_view suites);

// {"cases":[{"suite","id","qo_heads","kv_heads","head_dim","page","q_dtype","kv_dtype","q_lens","kv_lens","causal",
//  "window","softcap","contiguous","blocks","sinks","tree","runs","run_of","floor_us","unshared_floor_us","kv_bytes","qo_bytes","flops"}]};
// runs: [[parent, tokens], ..]; blocks: {"rows","tokens","indptr","indices"} or null
std::string measured_cases_json(const std::vector<MeasuredCase>& cases);

}  // namespace fovea
