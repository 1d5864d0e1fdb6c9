// Which attention kernel runs a plan, and why: the one place that says so. attention_choice.h says how a kernel is
// configured for an object's options; this chooses among those that the options allow, batch by batch. Pure functions,
// called by attention/plan_chooser.h with every plan, and for words by Attention::explain() and `fovea plan explain`.
//
// Another kernel is a value of PlanKernel, its name in kernel_name(), its configuration in choose_kernel(), what it
// runs in can_run(), when it is faster in is_profitable(), and its place in the order of choose_apart().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tune/attention_choice.h"

namespace fovea::tune {

enum class PlanKernel : std::uint8_t {
  kGeneral = 1,  // kernels/attention/general: runs all plans; those that share runs by kernels/attention/prefix_forest
                 // where there is that
  kWarpPerWorker = 2,  // kernels/attention/warp_per_worker: large batches of decode
  kLowBatch = 3,       // kernels/attention/low_batch: few pairs of decode
  kPrefill = 4,        // kernels/attention/prefill: many query tokens a request; runs all plans
  kWarpTeams = 5,  // kernels/attention/warp_per_worker by two warps a worker: drafts, and more query heads a KV head
};
std::string_view kernel_name(PlanKernel kernel);

// What one object may choose from.
struct KernelMenu {
  abi::KvDType kv_dtype = abi::KvDType::kBF16;
  int num_sms = 132;
  int head_dim = 128;
  std::optional<PlanKernel> asked;     // wherever it can run the plan
  bool shared_kernel = false;          // plans that share runs have a kernel of their own
  std::array<std::string, 6> missing;  // by PlanKernel: why the options rule it out; empty: it is there

  std::string& why_not(PlanKernel kernel) { return missing[static_cast<std::size_t>(kernel)]; }
  const std::string& why_not(PlanKernel kernel) const { return missing[static_cast<std::size_t>(kernel)]; }
  bool has(PlanKernel kernel) const { return why_not(kernel).empty(); }
};

// The kernels that serve a need, that for all plans first. Without what declared maxima say; see is_profitable().
// kUnsupported: not even that for all plans does.
struct KernelChoices {
  KernelMenu menu;
  std::vector<std::pair<PlanKernel, AttentionChoice>> kernels;
};
Result<KernelChoices> choose_kernels(const AttentionNeed& need);

// What the choice looks at of a batch.
struct PlanFacts {
  bool decode = false;             // one query token a request, masks by position alone
  bool selected = false;           // the same over pages chosen for each KV head, as block rows
  bool bit_mask = false;           // some request has a mask of its own
  bool given = false;              // block rows as the caller made them
  std::int32_t most_q = 0;         // query tokens of a request, at most
  std::int64_t rows = 0;           // (query token, query head) rows of all requests
  std::int64_t most_rows = 0;      // such rows of a request, or of a block row, under one KV head, at most
  std::int64_t requests = 0;       // that see something
  std::int64_t pairs = 0;          // (request, KV head), of requests that see something
  std::int64_t flops = 0;          // of both products
  std::int64_t kv_bytes = 0;       // keys and values that requests see, each for itself
  std::int64_t longest_bytes = 0;  // of them, the longest request's
  // Of a plan that packed requests with common pages: what all of it reads. Nothing: not packed, or nothing in common.
  std::optional<std::int64_t> shared_bytes;
  std::optional<PlanKernel> captured;  // a graph captured it, and replays it whatever is planned
};

enum class PlanReason : std::uint8_t {
  kCaptured,      // a graph captured this kernel
  kCannotReplay,  // the kernel that a graph captured cannot run this plan: refuse it
  kAsked,         // decode_kernel says so
  kShares,        // runs of several requests are read once
  kGivenRows,     // block rows, which no kernel for decode runs, or low_batch alone
  kBitMask,       // a mask of bits, which no kernel for decode tests
  kLongQueries,   // several query tokens a request
  kFewPairs,      // pairs that a device runs at once: latency counts
  kFewRows,       // a few tiles of rows a request under a KV head: a team of warps each
  kManyPairs,     // enough pairs and bytes that every warp has work of its own
  kOneLong,       // one request has much of the work: its parts must be divided among CTAs
  kBetween,       // too few pairs for a warp each, and too many for low_batch
  kAlone,         // the options leave no other kernel
};

struct PlanChoice {
  PlanKernel kernel = PlanKernel::kGeneral;
  PlanReason reason = PlanReason::kAlone;
  bool share = true;  // false: requests with common pages are planned as if they had none, which is faster
};

// The choice. Where requests may have pages in common it is asked twice: before packing, and with shared_bytes after.
PlanChoice choose_plan_kernel(const KernelMenu& menu, const PlanFacts& facts);

// Whether a plan of decode had better go to the kernel. With an object's maxima: whether one of its plans ever may.
bool is_profitable(PlanKernel kernel, const KernelMenu& menu, const PlanFacts& facts);

// "warp_per_worker: decode of 512 (request, KV head) pairs over 1.0 GiB, enough for every warp to have work of its own"
std::string describe(const KernelMenu& menu, const PlanFacts& facts, const PlanChoice& choice);

}  // namespace fovea::tune
