// Attention over paged KV: plan a batch, then run it once a layer, on the CPU or on a CUDA device. For who builds an
// engine of their own; the engine of this project is in fovea/engine.h.
//
//   auto attention = fovea::Attention::create({.device = "cuda:0", .num_qo_heads = 32, .num_kv_heads = 8});
//   attention->plan({.num_requests = 2, .q_lens = ..., .kv_lens = ..., .page_indices = ..., .page_stride = ...},
//   stream); attention->run(q, {.k = k, .v = v}, out, {}, stream);   // for every layer
//
// Conventions: shapes are in elements, strides too; intervals are half-open; lengths and positions are tokens. Masks
// align bottom-right: the query tokens of a request are the last of its tokens. A row that sees nothing gives output 0
// and log-sum-exp -inf; one that sees NaN in its query or in keys gives NaN for both. Log-sum-exps are base 2. Tails of
// pages may hold anything, NaN included. Sources: FlashInfer (arXiv:2501.01005) for plan/run over block-sparse rows,
// PAT (ASPLOS'26) for shared prefixes.
//
// Threads: one call on an object at a time, and one of its runs on the device at a time: order the streams that you
// give it, for its runs share partial results. On a CUDA device calls enqueue on the stream given and return; what they
// read must stay as it is until the stream is past them. run() makes one launch at fixed addresses and allocates
// nothing, so it can be captured in a CUDA graph: plan() again outside of the graph (in its stream), then replay. From
// the first captured run() on, page lists stay where they are, all in host memory or at one address of the device, and
// plans are those that the captured kernel runs (AttentionOptions::graphs_by_rows).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fovea/dtype.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"
#include "fovea/variant.h"

namespace fovea {

// A CUDA stream (CUstream or cudaStream_t); null is the device's default stream. Not looked at on the CPU.
struct Stream {
  void* handle = nullptr;
};

enum class AttentionMask : std::uint8_t {
  kNone = 0,    // every token of the request
  kCausal = 1,  // tokens up to the query's own position
  kWindow = 2,  // causal, and at most window_left tokens before the query
  kBits = 3,    // a bit for each (query token, KV token)
};

// Which of the CUDA kernels runs plans. kWarpPerWorker and kLowBatch are for decode and take query tokens of a draft
// one by one, kWarpPerWorker in tiles of 32 rows where there are more than 8 under a KV head; they have no shared
// prefixes and no mask of bits. kPrefill reads 16-bit KV, and fp8 where it is asked for.
enum class DecodeKernel : std::uint8_t {
  kAuto = 0,           // by requests, heads and lengths; from the first run on that a graph captured, that run's
  kGeneral = 1,        // the one that runs all other plans
  kWarpPerWorker = 2,  // the one for large batches
  kLowBatch = 3,       // the one for few requests, which also takes those over chosen pages
  kPrefill = 4,        // the one for many query tokens a request (H100, H200), which also runs all other plans
};

// What is fixed for the life of an Attention. Memory follows from the maxima alone.
struct AttentionOptions {
  std::string device = "cpu";  // "cpu", "cuda" (device 0) or "cuda:N"
  std::int32_t num_qo_heads = 32;
  std::int32_t num_kv_heads = 8;  // divides num_qo_heads
  std::int32_t head_dim = 128;    // a multiple of 16: 16..256 on the CPU, 32..256 on CUDA
  DType q_dtype = DType::kBF16;   // of q and out. CUDA: kF16, kBF16; CPU also kF32
  DType kv_dtype = DType::kBF16;  // CUDA: that of q, kF8E4M3, kI8 or kI4; CPU: these and kF32
  std::int32_t page_tokens = 16;  // tokens a page, 1..256
  bool kv_token_scales = false;   // kF8E4M3 with a scale for each token and head; kI8 and kI4 have one in any case
  bool kv_rotated = false;        // kI8, kI4: see PagedKv::rotated; head_dim is a power of two

  float sm_scale = 0.0f;    // multiplies q.k; 0: 1/sqrt(head_dim)
  float softcap = 0.0f;     // logits become softcap * tanh(logit / softcap); 0: off
  TensorView sinks;         // f32 [num_qo_heads] logits that take weight and give no value; empty: none
  TensorView alibi_slopes;  // f32 [num_qo_heads], times (kv position - q position); empty: none
  bool sigmoid = false;     // weights are sigmoid(logit + sigmoid_bias), without softmax; log-sum-exps are 0
  float sigmoid_bias = 0.0f;
  // Sinks and slopes lie on the device and must outlive the object. They do not combine with each other or sigmoid.

  // A variant of your own instead, where it has a name (docs/variants.md). Each of its parameters needs a value;
  // tensors must outlive the object. It may also read softcap, sinks, alibi_slopes and sigmoid_bias, which then choose
  // nothing.
  VariantSpec variant;
  std::vector<VariantValue> variant_values;

  // Declared maxima; a batch beyond them fails with kOutOfRange.
  std::int32_t max_requests = 256;
  std::int32_t max_rows = 4096;  // query tokens of a batch
  std::int32_t max_pages_per_request = 2048;
  std::int64_t max_page_entries = 0;      // of host page lists; 0: max_requests * max_pages_per_request
  std::int32_t max_cascade_levels = 0;    // of plan_cascade() over max_rows; 0: smaller cascades only
  std::int32_t max_selected = 0;          // requests of plan_selected() that read lists a KV head
  std::int32_t max_block_rows = 0;        // of plan_blocks(): block rows, those of every KV head where heads differ
  std::int64_t max_mask_bytes = 1 << 20;  // of AttentionMask::kBits; CUDA only

  bool share_prefixes = true;    // requests whose leading pages are the same read them once (host page lists only)
  bool batch_invariant = false;  // a request's bits do not depend on who shares its batch
  bool device_growth = true;     // CUDA: grow() with page lists on the device, and grow_on_device(), cut the plan again
                                 // there; plans carry what that takes (12 bytes a tile). No effect if batch_invariant
  bool checked = false;          // CUDA: kernels compare page indices with the pool's pages, at the cost of a look at
                                 // each (those of host lists are compared in any case), and what would hang for good
                                 // ends the launch with an error after ten seconds
  // CUDA graphs. false: plan() refuses what the kernel of the captured runs cannot run, and more rows than their
  // tensors have. true: the caller replays a graph only under plans of as many rows as it captured; each has its own
  // kernel.
  bool graphs_by_rows = false;
  DecodeKernel decode_kernel = DecodeKernel::kAuto;  // CUDA only
  std::int32_t num_threads = 0;                      // CPU only; 0: one pool of the process
  std::int32_t num_workers = 0;                      // tasks that the work is cut into; 0: what the device has
};

// A batch of requests. Everything is borrowed for the length of the call but page_indices and mask_bits, which are read
// until the next plan: by grow(), by runs on the CPU, and where they lie on a CUDA device by graph replays too, at the
// same address.
struct RequestBatch {
  std::int32_t num_requests = 0;
  // Host, [num_requests]. Query tokens of request i are rows [sum q_lens[<i], + q_lens[i]) of q.
  const std::int32_t* q_lens = nullptr;
  const std::int32_t* kv_lens = nullptr;  // the query tokens included
  // Pages of request i: page_indices[list(i) + j] holds tokens [j * page_tokens, (j + 1) * page_tokens); list(i) is
  // list_begins[i], else i * page_stride.
  const std::int32_t* page_indices = nullptr;
  DeviceKind page_indices_device = DeviceKind::kCpu;  // host lists are copied to a CUDA device by plan()
  std::int64_t num_page_indices = 0;                  // entries in page_indices; 0: not known, not checked
  const std::int64_t* list_begins = nullptr;          // host, [num_requests]
  std::int64_t page_stride = 0;
  const std::int64_t* list_ends = nullptr;  // host, [num_requests]: the entry behind list i, which plan() and grow()
                                            // keep to; null: not known. grow_on_device() keeps to the longest list
  AttentionMask mask = AttentionMask::kCausal;
  std::int32_t window_left = -1;  // kWindow: 0 or more
  // kBits: the bit of (query token r, KV token t) of request i is number mask_offsets[i] + r * kv_lens[i] + t; bit 0 is
  // the lowest of byte 0. Host.
  const std::uint8_t* mask_bits = nullptr;
  std::int64_t mask_bytes = 0;
  const std::int64_t* mask_offsets = nullptr;  // bits, [num_requests]
};

// One level of a cascade: groups of consecutive rows that share a run of KV. Levels go from what most rows share to the
// rows' own. Host arrays.
struct CascadeLevel {
  std::int32_t num_groups = 0;
  const std::int32_t* row_begins = nullptr;    // [num_groups + 1], ascending: rows of group i
  const std::int32_t* kv_lens = nullptr;       // [num_groups]
  const std::int32_t* page_indices = nullptr;  // as in RequestBatch, copied
  DeviceKind page_indices_device = DeviceKind::kCpu;
  std::int64_t num_page_indices = 0;          // must be given
  const std::int64_t* list_begins = nullptr;  // [num_groups]
  bool causal = false;  // last level only: rows of a group are the last tokens of its run; else they see all of it
};

// A decode step (one query token a request) in which long requests read, under each KV head, pages that a selector
// chose. What is read of a request does not depend on who shares its batch: up to the budget all of its pages, as
// plan() has it, beyond it budget_tokens / page_tokens of them by list. Lists of both kinds are slices of one array and
// ascend, the newest page last. On a CUDA device they may be written after plan_selected(), also by a kernel in a graph
// ahead of run(); on the CPU lists and lengths are those of the time of the plan.
struct SelectedBatch {
  std::int32_t num_requests = 0;
  const std::int32_t* kv_lens = nullptr;       // host, [num_requests]; the query is the last of them, and row i of q
  std::int32_t budget_tokens = 4096;           // a multiple of page_tokens
  std::int32_t budget_divisor = 0;             // 2 or more: kv_lens / this, from 256 up to budget_tokens
  const std::int32_t* page_indices = nullptr;  // on the object's device, not copied
  std::int64_t num_page_indices = 0;           // must be given
  const std::int64_t* list_begins = nullptr;   // host, [num_requests]: where all pages of a request stand, in order
  // Host, [num_requests]: where the chosen pages stand, those of KV head h selected_stride * h entries further.
  // Negative: the request reads all pages whatever its length.
  const std::int64_t* selected_begins = nullptr;
  std::int64_t selected_stride = 0;
  // i32 [num_requests] on the object's device: tokens in the list or lists of a request, at least those of kv_lens, as
  // they are when run() comes there (not read on the CPU, where plans hold lists and lengths); so one plan serves every
  // step of a request beyond the budget, and those below it that its list has room for. Null: as kv_lens say. At one
  // address from the first captured run() on.
  const std::int32_t* list_tokens = nullptr;
};

// Requests whose keys and values lie as tokens one behind the other, without pages: run() takes k and v of rank 3.
// Host arrays, borrowed for the length of the call but mask_bits, which are read until the next plan. A request may
// begin anywhere. In units of page_tokens, which kernels read KV by (64 is fastest for prompts), a request that begins
// inside of one takes one more of max_pages_per_request.
struct RaggedBatch {
  std::int32_t num_requests = 0;
  const std::int32_t* q_lens = nullptr;   // [num_requests], as in RequestBatch
  const std::int32_t* kv_lens = nullptr;  // [num_requests], the query tokens included
  // [num_requests]: request i's are tokens [kv_begins[i], kv_begins[i] + kv_lens[i]) of k and v. Requests may share
  // tokens, and leave tokens between them.
  const std::int32_t* kv_begins = nullptr;
  AttentionMask mask = AttentionMask::kCausal;
  std::int32_t window_left = -1;
  const std::uint8_t* mask_bits = nullptr;  // as in RequestBatch
  std::int64_t mask_bytes = 0;
  const std::int64_t* mask_offsets = nullptr;
};

// Block-sparse attention (BSR) of num_rows query tokens over num_tokens KV tokens without pages: run() takes k and v of
// rank 3. Block row i is query tokens [i * block_rows, ..), block column j KV tokens [j * block_tokens, ..), those at
// the ends shorter where sizes do not divide. Host arrays, borrowed for the length of the call. A block row without
// blocks sees nothing. Source: FlashInfer (arXiv:2501.01005).
struct BlockSparseBatch {
  std::int32_t num_rows = 0;
  std::int32_t num_tokens = 0;
  std::int32_t block_rows = 0;    // any number from 1 on
  std::int32_t block_tokens = 0;  // a multiple of AttentionOptions::page_tokens
  // Columns of block row i are indices[indptr[i] .. indptr[i + 1]), ascending. Where heads differ, the block rows of KV
  // head h stand behind those of head h - 1: indptr has num_kv_heads times as many block rows, and one entry more.
  const std::int32_t* indptr = nullptr;
  const std::int32_t* indices = nullptr;
  bool heads_differ = false;
  // kNone: blocks are seen whole. kCausal: of them, tokens up to the query's own position, the queries being the last
  // of the tokens. kBits: bit (i * block_rows + r) * block_tokens + t of mask_bits is row r and token t of the block
  // that indices[i] names; bit 0 is the lowest of byte 0.
  AttentionMask mask = AttentionMask::kNone;
  const std::uint8_t* mask_bits = nullptr;
  std::int64_t mask_bytes = 0;
};

enum class KvLayout : std::uint8_t {
  kNHD = 0,  // [pages, page_tokens, num_kv_heads, head_dim]
  kHND = 1,  // [pages, num_kv_heads, page_tokens, head_dim]
};

// The KV of one layer. k and v have equal shapes and strides; the last dim is contiguous, the others are free. After
// plan_ragged() and plan_blocks() they have no pages: [tokens, num_kv_heads, head_dim], kHND [num_kv_heads, tokens,
// head_dim].
struct PagedKv {
  TensorView k;
  TensorView v;
  KvLayout layout = KvLayout::kNHD;
  // kF8E4M3: f32 [num_kv_heads] that stored keys are multiplied by; empty: 1.
  // kI8 and kI4: f16 [pages, num_kv_heads, page_tokens, 2], scale and zero of each token and head: a stored number u
  // stands for scale * (u - 128) + zero (kI4: u - 8; element d in byte d / 2 of its row, even d in the low half).
  // kF8E4M3 with a scale for each token and head: of the same shape, zeros 0.
  TensorView k_scale;
  TensorView v_scale;
  // kI8, kI4: rows of keys and values went through a Hadamard rotation before they were stored, which evens out
  // channels that stand out; H / sqrt(head_dim), H the Hadamard matrix in Sylvester's order. append_paged_kv() does
  // that, and attention rotates queries alike and outputs back, so callers see nothing of it.
  bool rotated = false;
};

// What runs of one plan may differ in. A graph keeps what it captured.
struct RunValues {
  float logit_scale = 1.0f;  // times AttentionOptions::sm_scale: the scales of q and k
  TensorView sinks;          // instead of AttentionOptions::sinks, where those were given; empty: those
};

// What the last plan reads and how even it is.
struct AttentionStats {
  std::uint64_t kv_bytes = 0;           // K and V that the plan reads, each shared run once
  std::uint64_t kv_bytes_unshared = 0;  // if every request read its own
  std::uint64_t partial_bytes = 0;      // of partial states, written and read again
  std::uint64_t plan_bytes = 0;         // copied to the device by plan()
  std::uint32_t num_workers = 0;
  std::uint32_t num_items = 0;
  double imbalance = 1.0;  // most loaded worker over the mean, by the cost model; 1 where workers claim their queues
};

class PagedAttention;  // src/attention

class Attention {
 public:
  // kInvalidArgument: options that make no sense. kUnsupported: ones this device has no kernel for, with the reason.
  // kUnavailable or kNotFound: no such device, driver or compiler, with what to do. kResourceExhausted: memory.
  // On a CUDA device this compiles the kernel, or takes it from the cache.
  static Result<Attention> create(const AttentionOptions& options);
  Attention(Attention&&) noexcept;
  Attention& operator=(Attention&&) noexcept;
  ~Attention();

  // Plans a batch; later runs follow it. Takes microseconds, waits for nothing but the copy of the plan before last.
  // After a failure the object holds no plan. kOutOfRange: beyond the declared maxima.
  Status plan(const RequestBatch& batch, Stream stream = {});
  // Plans rows that share KV by levels, in one launch. num_rows: rows of q.
  Status plan_cascade(std::int32_t num_rows, std::span<const CascadeLevel> levels, Stream stream = {});
  // Plans a decode step over chosen pages. kUnsupported for slopes and variants that look at positions and for
  // batch_invariant (shared prefixes are not looked for). Requests up to the budget give the bits of plan() with
  // DecodeKernel::kGeneral.
  Status plan_selected(const SelectedBatch& batch, Stream stream = {});
  // Plans requests without pages. kUnsupported for batch_invariant, for KV with a scale for each token, and, where a
  // request begins inside of a unit of page_tokens, for variants of your own.
  Status plan_ragged(const RaggedBatch& batch, Stream stream = {});
  // Plans block-sparse rows without pages. kUnsupported as above, and for slopes, windows and variants of your own.
  Status plan_blocks(const BlockSparseBatch& batch, Stream stream = {});
  // The same requests with lengths that grew (host, [num_requests], each by 0 or more): cheaper than plan(). Page lists
  // must hold the new pages already; host lists are read again. Where page lists lie on a CUDA device, a kernel there
  // cuts the plan again and the host only launches it. kUnsupported but after plan(), and for bit masks. Lengths
  // that are refused leave the plan as it was; kOutOfRange: more pages than a request's list has.
  Status grow(std::span<const std::int32_t> kv_lens, Stream stream = {});

  // grow() for lengths that only the device knows: i32 [num_requests] there (on the CPU: here). On a CUDA device one
  // launch, which a graph may capture ahead of run(): a replay then follows the lengths as they are by that time.
  // Lengths that shrank, or outgrew max_pages_per_request, leave the plan as it was. stats() and explain() do not
  // follow; growth_status() does. Needs options.device_growth; kUnsupported for batch_invariant and after plans that
  // grow() would pack anew (bit masks, windows over shared prefixes, cascades).
  Status grow_on_device(const TensorView& kv_lens, Stream stream = {});
  // What became of the last grow_on_device() or replay of one: kOutOfRange names a request whose lengths it refused.
  // Waits for the stream.
  Status growth_status(Stream stream = {}) const;

  // out = attention of q over kv by the last plan. q, out: [rows, num_qo_heads, head_dim] of q_dtype, the last dim
  // contiguous; rows beyond the planned ones are left alone. lse: f32 [rows, num_qo_heads], contiguous, or empty. CUDA:
  // q, out and kv start at 16 bytes, and rows, heads and pages are multiples of 16 bytes apart.
  Status run(const TensorView& q, const PagedKv& kv, const TensorView& out, const TensorView& lse = {},
             Stream stream = {}, const RunValues& values = {});
  // Whether a graph captured a run: then the object must outlive the graph.
  bool captured() const;

  // Bytes of the object's buffers on its device (partial states, plan, page lists).
  std::size_t workspace_bytes() const;
  AttentionStats stats() const;
  const AttentionOptions& options() const;
  // The last plan in words.
  std::string explain() const;

 private:
  explicit Attention(std::unique_ptr<PagedAttention> impl);
  std::unique_ptr<PagedAttention> impl_;
};

// Which places of the pages new rows go to: slots, or a request and a position for each row. All on the pool's device.
struct AppendPlaces {
  TensorView slots;  // i32 [rows], page * page_tokens + token in the page; negative: the row is skipped
  // No slots: row i is token positions[i] of request batch_indices[i], whose pages are page_indices[page_indptr[b] ..].
  TensorView batch_indices;  // i32 [rows]
  TensorView positions;      // i32 [rows]
  TensorView page_indices;   // i32
  TensorView page_indptr;    // i32 [requests + 1]
};

// Writes k, v [rows, num_kv_heads, head_dim] (f16, bf16; CPU: f32 too) to the pages, converted to their storage type.
// On the CPU kOutOfRange names the first place outside of the pool, and then nothing was written; on a CUDA device such
// rows are skipped.
Status append_paged_kv(const TensorView& k, const TensorView& v, const AppendPlaces& places, const PagedKv& kv,
                       Stream stream = {});

// Attention states (out, base-2 log-sum-exp) over disjoint sets of KV make the state over their union.
// v: [rows, states, heads, head_dim] (f32, f16 or bf16), lse: f32 [rows, states, heads], contiguous. out: [rows, heads,
// head_dim] of v's type, lse_out: f32 [rows, heads] or empty.
Status merge_states(const TensorView& v, const TensorView& lse, const TensorView& out, const TensorView& lse_out,
                    Stream stream = {});
// Two states: v_a, v_b, out [rows, heads, head_dim]; lse_a, lse_b, lse_out f32 [rows, heads]. out may be v_a, and
// lse_out lse_a. mask: u8 [rows] or empty; rows with 0 there keep state a.
Status merge_state(const TensorView& v_a, const TensorView& lse_a, const TensorView& v_b, const TensorView& lse_b,
                   const TensorView& out, const TensorView& lse_out, const TensorView& mask = {}, Stream stream = {});

}  // namespace fovea
