// Device: what the engine asks of a device: memory, attention (src/attention), and the operators of a model, as coarse
// as a GPU needs them. The CPU fills it (cpu_device.cc), and CUDA devices do (cuda/). The engine sees this interface
// and nothing below it: tensors, copies and waiting go through it too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "abi/kv_pool.h"
#include "abi/op_args.h"
#include "abi/page_stats.h"
#include "abi/token_moves.h"
#include "attention/paged_attention.h"
#include "core/rope/rope.h"
#include "core/select/job.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"
#include "select/page_lists.h"

namespace fovea {

class ProcessGroup;

enum class Activation : std::uint8_t { kSilu, kGeluTanh, kGelu };

// What stands around a product; Device::fuse().
struct LinearFusion {
  TensorView norm;  // weights of the RMS norm of x, on the host: [in_features]; empty: none
  float norm_offset = 0.0f;
  float norm_eps = 0.0f;
  std::optional<Activation> gate;  // the first half of y, activated, multiplies the second
};

// y = x W^T + b, prepared once from weights [out_features, in_features].
class Linear {
 public:
  virtual ~Linear() = default;
  // x: [rows, in_features], y: [rows, out_features], activation dtype; rows may be strided.
  virtual Status forward(const TensorView& x, const TensorView& y) = 0;
  // With what Device::fuse() was told, where a device does all of it at once for so many rows; y has half as many
  // columns behind a gate. Else rms_norm(), forward() and gated_activation() are called for it one by one.
  virtual bool fuses(std::int64_t /*rows*/) const { return false; }
  virtual Status forward_fused(const TensorView& x, const TensorView& y);
  // y += x W^T + b, where a device adds at once; else forward() and add().
  virtual bool adds(std::int64_t /*rows*/) const { return false; }
  virtual Status forward_add(const TensorView& x, const TensorView& y);
  virtual std::int64_t in_features() const = 0;
  virtual std::int64_t out_features() const = 0;
};

// What a Linear multiplies with: parts stacked along out_features.
struct LinearWeights {
  // [out_features of the part, in_features] each, on the host, one type: bf16, f16, f32 or fp8_e4m3.
  std::span<const TensorView> parts;
  std::span<const TensorView>
      scales{};  // of fp8_e4m3: f32 [out_features of the part] each, which rows are multiplied by
  std::span<const TensorView> biases{};  // [out_features of the part] each, or none at all
  bool to_fp8 = false;                   // other types: kept as fp8_e4m3, with a scale a row
};

struct DeviceOptions {
  std::int32_t num_threads = 0;  // 0: what the machine and the cgroup allow
  bool batch_invariant = false;  // one fixed K order in matrix products, fixed chunks in attention
  // Where the machine multiplies bf16 faster, products with bf16 weights may round activations to bf16, and attention
  // over bf16 KV its queries and softmax weights. Off in batch-invariant mode.
  bool bf16_products = true;
  std::string_view simd;  // "", "avx512", "avx2" or "scalar": at most this instruction set
  // Of activations and weights on devices that compute in 16 bits: kBF16 or kF16.
  DType half_dtype = DType::kBF16;
  // The ranks that compute a model with this one, or null. Rank r takes the r-th device from the one that is named.
  std::shared_ptr<ProcessGroup> group;
};

// The heads of a layer's tokens between the projection and attention.
struct QkvHeads {
  TensorView qkv;  // activations [rows, num_qo_heads + 2 * num_kv_heads, head_dim]: q, then k, then v
  std::int32_t num_qo_heads = 0;
  std::int32_t num_kv_heads = 0;
  // Weights of RMS norms: [head_dim], of each head, or [heads * head_dim], of all heads of a token as one row; empty:
  // none.
  TensorView q_norm, k_norm;
  float norm_offset = 0.0f;  // added to norm weights
  float norm_eps = 0.0f;
  const std::int32_t* positions = nullptr;  // [rows]
  const RopeConfig* rope = nullptr;
};

// Where k and v of KV heads [head_begin, head_end) go.
struct KvTarget {
  std::int32_t head_begin = 0;
  std::int32_t head_end = 0;
  const std::int32_t* slots = nullptr;  // [rows] page * page_tokens + offset; negative: the row is skipped
  abi::KvPoolView pool;                 // its head h is KV head h
  // What is kept of the keys for the choice of pages, its head 0 the first of these; data null: nothing.
  abi::PageStatsView stats{};
};

// Names the launches of a step (Device::replay).
struct ReplayKey {
  std::uint64_t launches = 0;  // 0: they are nobody else's
  // One of more than a device keeps graphs of: it keeps the latest, which take no room from those of other keys.
  bool of_many = false;
};

// Captured steps that Device::replay keeps, and the device memory that they took.
struct DeviceGraphs {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;
  virtual std::string description() const { return std::string(name()); }  // for people
  virtual DevicePlace place() const = 0;
  virtual DType activation_dtype() const = 0;
  // What operators and copies are enqueued on, one after the other; attention of the engine too.
  virtual Stream stream() const = 0;

  // Device memory, 64-byte aligned, zeroed; freed with the last copy of the pointer.
  virtual Result<std::shared_ptr<void>> allocate(std::size_t bytes) = 0;
  // Bytes that are free now, and how many of them KV pools may take where nobody says.
  virtual std::size_t memory_available() const = 0;
  virtual std::size_t memory_for_kv() const { return memory_available() / 10 * 6; }
  // Whether operators read tensors of the host where they lie, so that these must stay.
  virtual bool reads_host_memory() const { return true; }
  // A contiguous view of memory of the device.
  template <typename... Dims>
  TensorView tensor(const void* data, DType dtype, Dims... dims) const {
    TensorView view = cpu_tensor(data, dtype, dims...);
    view.device = place().kind;
    view.device_index = place().index;
    return view;
  }
  // Room for so many bytes of upload(), so that a forward makes none.
  virtual Status reserve_upload(std::size_t bytes);
  // Whether the plans of its attention take block rows with bit masks: drafts may then be trees.
  virtual bool verifies_trees() const { return false; }
  // What a verify step of draft trees takes more, over the same of chains.
  virtual double tree_cost() const { return 0.0; }
  // K and V of tokens from one place of the cache to another. args.planes: as arrays that operators read.
  virtual Status move_tokens(const abi::MoveTokensArgs& args);
  // From one place of the device's memory to another.
  virtual Status copy(void* to, const void* from, std::size_t bytes) = 0;
  // Memory of the host that copies reach fast, freed with the last copy of the pointer; copies between it and the
  // device's, enqueued; and waiting for all that was. Where the host reads the device's memory as it lies, these are
  // plain.
  virtual Result<std::shared_ptr<void>> allocate_host(std::size_t bytes);
  virtual Status copy_to_host(void* to, const void* from, std::size_t bytes);
  virtual Status copy_from_host(void* to, const void* from, std::size_t bytes);
  virtual Status wait() { return {}; }
  // Asked after something failed: why nothing will be computed here any more until the process starts anew; ok where
  // the device goes on.
  virtual Status status() const { return {}; }
  // A tensor of the host as operators read it: the same memory, or a copy that lives as long as the device.
  virtual Result<TensorView> hold(const TensorView& host) = 0;
  // Arrays of the host as the operators of a forward read them: the same memory, or copies of all at once. Valid until
  // the next call.
  virtual Status upload(std::span<const std::span<const std::int32_t>> arrays,
                        std::vector<const std::int32_t*>& places) = 0;
  // Waits for what was enqueued; the elements of a contiguous tensor on the host, valid until the next call.
  virtual Result<const void*> read(const TensorView& tensor) = 0;
  // read() in two halves, with work enqueued between them; two may be open, of which the older one ends first. On
  // devices that do not read host memory.
  virtual Status begin_read(const TensorView& tensor);
  virtual Result<const void*> end_read();
  // Marks a place in what is enqueued, and says when the device got there, in seconds of the steady clock; nothing
  // until it has. kUnsupported: the host is the device, which has no times of its own.
  virtual Status mark_time(std::size_t mark);
  virtual std::optional<double> marked_time(std::size_t mark) const;

  // Attention with the device's threads and precision; q and out are activations.
  virtual Result<std::unique_ptr<PagedAttention>> create_attention(const AttentionConfig& config) = 0;
  // Weights must outlive the Linear where reads_host_memory(). Products with fp8_e4m3 are exact in the weights; a
  // device may round activations of many rows to fp8_e4m3 too, with a scale a row.
  virtual Result<std::unique_ptr<Linear>> create_linear(const LinearWeights& weights) = 0;
  // What stands around the products of a Linear of this device, before its first forward: for Linear::forward_fused().
  virtual Status fuse(Linear&, const LinearFusion&) { return ok_status(); }

  // Norms of q and k, rotary embedding of both, and k and v into the pools, converted to their formats, with the
  // statistics of the sub-pages that were written to. q is written back; what becomes of k in qkv is the device's
  // affair.
  virtual Status rope_append(const QkvHeads& heads, std::span<const KvTarget> targets) = 0;
  // Page selection. Where reads_host_memory(), select_pages fills the jobs' lists for queries q [rows, num_qo_heads,
  // head_dim] that have gone through RoPE; elsewhere the device makes lists in its own memory. kUnsupported says what a
  // device cannot.
  virtual Result<std::unique_ptr<PageLists>> create_page_lists(const PageListsOptions& options);
  virtual Status select_pages(const TensorView& q, float sm_scale, const abi::KvPoolView& pool,
                              const abi::PageStatsView& stats, std::span<const SelectJob> jobs);
  // out[i] = scale * table[ids[i]]; table [vocab, hidden] in its storage dtype. Also gathers rows of activations.
  virtual Status embed(const TensorView& table, const std::int32_t* ids, float scale, const TensorView& out) = 0;
  // out = x / rms(x) * (weight + weight_offset) over the last dim. In place allowed. When residual is not empty:
  // residual += x first, and the norm is of that sum.
  virtual Status rms_norm(const TensorView& x, const TensorView& weight, float weight_offset, float eps,
                          const TensorView& residual, const TensorView& out) = 0;
  // out[r, i] = act(gate_up[r, i]) * gate_up[r, width + i].
  virtual Status gated_activation(Activation activation, const TensorView& gate_up, const TensorView& out) = 0;
  // x += y
  virtual Status add(const TensorView& x, const TensorView& y) = 0;
  // x = cap * tanh(x / cap)
  virtual Status softcap(const TensorView& x, float cap) = 0;
  // best [rows] i32: the token of the largest of f32 logits [rows, vocab], the smallest of equals; -1 where the largest
  // is no finite number. So that the host need not read logits; kUnsupported where it reads them as they lie.
  virtual Status argmax(const TensorView& logits, const TensorView& best);
  // Behind argmax, of rows that draw: what engine/sampler draws from the same logits; abi::kDrawOnHost where the host
  // must. draws: [rows], as upload() left them.
  virtual Status draw(const TensorView& logits, const abi::DrawRow* draws, const TensorView& best);

  // Tensor parallelism: the ranks that compute with this one, or null, where the operators below have nothing to do.
  virtual ProcessGroup* group() const { return nullptr; }
  // x = the sum of all ranks' x, contiguous activations: the same bits on all.
  virtual Status all_reduce(const TensorView& x);
  // rows [., width] f32: rank r has columns [r * step, (r + 1) * step), and then each has all of them.
  virtual Status all_gather(const TensorView& rows, std::int64_t step);

  // Enqueues what `enqueue` does. A device that can captures it under the key, and replays that when the key
  // comes again, without a call: whoever gives a key says that the same operators follow with the same arguments, of
  // the same plans of attention or others of the same PagedAttention::run_kind().
  virtual Status replay(const ReplayKey& key, const std::function<Status()>& enqueue);
  virtual DeviceGraphs graphs() const { return {}; }
};

// What every create_linear asks of its argument: matrices of one type and width with contiguous rows on the host, as
// many scales and biases as parts where there are any, of the parts' sizes.
Status check_linear(const LinearWeights& weights);

// name: "cpu", "cuda" (device 0), "cuda:N", or "auto": a CUDA device where one can be used, else the CPU; the log says
// which and why. kNotFound lists the names there are; kUnavailable, kNotFound and kUnsupported say why a CUDA device
// cannot be used.
Result<std::unique_ptr<Device>> create_device(std::string_view name, const DeviceOptions& options);

}  // namespace fovea
