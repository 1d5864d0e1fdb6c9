// Device over cpu/: checks shapes and types, then calls the operators.
#include "device/cpu_device.h"

#include <cstring>
#include <vector>

#include "base/cgroup.h"
#include "base/half.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "cpu/append.h"
#include "cpu/ops/aligned_buffer.h"
#include "cpu/ops/elementwise.h"
#include "cpu/ops/fp8_rows.h"
#include "cpu/ops/matmul.h"
#include "cpu/ops/rope.h"
#include "cpu/select/select.h"
#include "cpu/select/stats.h"
#include "cpu/simd.h"
#include "device/group/process_group.h"

namespace fovea {
namespace {

std::string shape_of(const TensorView& view) {
  return fmt::format("{} [{}]", dtype_name(view.dtype),
                     fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "));
}

// Activations of the CPU device: f32 of that rank, elements of a row side by side.
Status check_activation(std::string_view name, const TensorView& view, int rank) {
  if (view.rank == rank && view.dtype == DType::kF32 && view.device == DeviceKind::kCpu &&
      view.strides[view.rank - 1] == 1) {
    return ok_status();
  }
  return invalid_argument("{} is {}, expected f32 of rank {} on the CPU with contiguous rows", name, shape_of(view),
                          rank);
}

Status check_same_shape(std::string_view name, const TensorView& view, const TensorView& like) {
  if (view.rank == like.rank && view.shape == like.shape) return ok_status();
  return invalid_argument("{} is {}, expected the shape of {}", name, shape_of(view), shape_of(like));
}

bool is_weight_type(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32; }

// [rows, dim] or [rows, heads, dim] as rows of heads.
cpu::HeadRows head_rows(const TensorView& view) {
  return {static_cast<float*>(view.data), view.strides[0], view.rank == 3 ? view.strides[1] : 0};
}
std::int64_t num_heads(const TensorView& view) { return view.rank == 3 ? view.shape[1] : 1; }

// Heads of a token, which stand side by side, as one row: [rows, heads * head_dim].
TensorView as_row(TensorView heads) {
  heads.rank = 2;
  heads.shape[1] *= heads.shape[2];
  heads.strides[1] = 1;
  return heads;
}

// Heads [first, first + count) of activations [rows, heads, head_dim].
TensorView heads_of(const TensorView& all, std::int32_t first, std::int32_t count) {
  TensorView part = all;
  part.shape[1] = count;
  part.data = static_cast<float*>(all.data) + first * all.strides[1];
  return part;
}

class CpuLinear : public Linear {
 public:
  CpuLinear(cpu::PackedWeight weight, std::vector<float> bias, cpu::MatmulPrecision precision,
            const cpu::MatmulScratch& scratch, ThreadPool& pool)
      : weight_(std::move(weight)), bias_(std::move(bias)), precision_(precision), scratch_(scratch), pool_(pool) {}

  Status forward(const TensorView& x, const TensorView& y) override {
    FOVEA_RETURN_IF_ERROR(check_activation("x", x, 2));
    FOVEA_RETURN_IF_ERROR(check_activation("y", y, 2));
    if (x.shape[0] != y.shape[0] || x.shape[1] != in_features() || y.shape[1] != out_features()) {
      return invalid_argument("x is {} and y {}, expected [rows, {}] and [rows, {}]", shape_of(x), shape_of(y),
                              in_features(), out_features());
    }
    cpu::matmul(static_cast<const float*>(x.data), x.strides[0], x.shape[0], weight_,
                bias_.empty() ? nullptr : bias_.data(), static_cast<float*>(y.data), y.strides[0], precision_, scratch_,
                pool_);
    return ok_status();
  }
  std::int64_t in_features() const override { return weight_.in_features(); }
  std::int64_t out_features() const override { return weight_.out_features(); }

 private:
  cpu::PackedWeight weight_;
  std::vector<float> bias_;
  cpu::MatmulPrecision precision_;
  const cpu::MatmulScratch& scratch_;
  ThreadPool& pool_;
};

class CpuDevice : public Device {
 public:
  CpuDevice(int num_threads, cpu::MatmulPrecision precision, std::shared_ptr<ProcessGroup> group)
      : threads_(std::make_shared<ThreadPool>(num_threads)),
        pool_(*threads_),
        precision_(precision),
        group_(std::move(group)) {}

  std::string_view name() const override { return "cpu"; }
  DType activation_dtype() const override { return DType::kF32; }
  DevicePlace place() const override { return {}; }
  bool verifies_trees() const override { return true; }
  Stream stream() const override { return {}; }

  Result<std::shared_ptr<void>> allocate(std::size_t bytes) override {
    auto buffer = std::make_shared<cpu::AlignedBuffer>(std::max<std::size_t>(bytes, 1));
    if (buffer->data() == nullptr) return resource_exhausted("no memory for {} MB", bytes >> 20);
    return std::shared_ptr<void>(buffer, buffer->data());
  }
  std::size_t memory_available() const override { return available_memory_bytes(); }
  std::size_t memory_for_kv() const override { return Device::memory_for_kv() / num_ranks(); }

  Result<std::unique_ptr<PagedAttention>> create_attention(const AttentionConfig& config) override {
    const bool bf16 = precision_ == cpu::MatmulPrecision::kBf16;
    return create_cpu_paged_attention(config, bf16 ? AttentionProducts::kBF16 : AttentionProducts::kF32, threads_);
  }

  Result<std::unique_ptr<Linear>> create_linear(const LinearWeights& weights) override {
    FOVEA_RETURN_IF_ERROR(check_linear(weights));
    std::vector<float> scales;
    for (const TensorView& part : weights.scales) {
      const auto* const first = static_cast<const float*>(part.data);
      scales.insert(scales.end(), first, first + part.shape[0]);
    }
    std::vector<TensorView> parts(weights.parts.begin(), weights.parts.end());
    std::vector<cpu::AlignedBuffer> codes;  // packed from, then dropped
    if (weights.to_fp8 && parts[0].dtype != DType::kF8E4M3) {
      for (TensorView& part : parts) {
        codes.emplace_back(static_cast<std::size_t>(part.num_elements()));
        if (codes.back().data() == nullptr) return resource_exhausted("no memory for {}", shape_of(part));
        const std::size_t begin = scales.size();
        scales.resize(begin + static_cast<std::size_t>(part.shape[0]));
        cpu::quantize_rows(part, codes.back().as<std::uint8_t>(), scales.data() + begin, pool_);
        part = cpu_tensor(codes.back().data(), DType::kF8E4M3, part.shape[0], part.shape[1]);
      }
    }
    FOVEA_ASSIGN_OR_RETURN(cpu::PackedWeight packed, cpu::PackedWeight::create(parts, precision_, pool_, scales));
    FOVEA_RETURN_IF_ERROR(scratch_.reserve(packed.in_features(), pool_.size()));
    const std::span<const TensorView> biases = weights.biases;
    std::vector<float> bias;
    for (std::size_t i = 0; i < biases.size(); ++i) {
      const std::size_t begin = bias.size();
      bias.resize(begin + static_cast<std::size_t>(biases[i].shape[0]));
      const std::int32_t first = 0;
      cpu::embed(biases[i].data, biases[i].dtype, 0, &first, 1, biases[i].shape[0], 1.0f, bias.data() + begin, 0,
                 pool_);
    }
    return std::unique_ptr<Linear>(
        std::make_unique<CpuLinear>(std::move(packed), std::move(bias), precision_, scratch_, pool_));
  }

  // Operators read what lies on the host where it is, and are done when they return.
  Status copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }
  Result<TensorView> hold(const TensorView& host) override { return host; }
  Status upload(std::span<const std::span<const std::int32_t>> arrays,
                std::vector<const std::int32_t*>& places) override {
    places.clear();
    for (const std::span<const std::int32_t> array : arrays) places.push_back(array.data());
    return ok_status();
  }
  Result<const void*> read(const TensorView& tensor) override { return static_cast<const void*>(tensor.data); }

  Status rope_append(const QkvHeads& heads, std::span<const KvTarget> targets) override {
    const std::int32_t num_qo = heads.num_qo_heads, num_kv = heads.num_kv_heads;
    FOVEA_RETURN_IF_ERROR(check_activation("qkv", heads.qkv, 3));
    if (num_qo < 1 || num_kv < 1 || heads.qkv.shape[1] != num_qo + 2 * num_kv) {
      return invalid_argument("qkv is {}, expected {} query heads and 2 x {} KV heads", shape_of(heads.qkv), num_qo,
                              num_kv);
    }
    const TensorView q = heads_of(heads.qkv, 0, num_qo), k = heads_of(heads.qkv, num_qo, num_kv);
    for (const auto& [x, weight] : {std::pair{q, heads.q_norm}, std::pair{k, heads.k_norm}}) {
      if (weight.data == nullptr) continue;
      const TensorView normed = weight.shape[0] == x.shape[2] ? x : as_row(x);
      FOVEA_RETURN_IF_ERROR(rms_norm(normed, weight, heads.norm_offset, heads.norm_eps, {}, normed));
    }
    // Query and key heads stand side by side, so one call rotates both.
    FOVEA_RETURN_IF_ERROR(rope(heads_of(heads.qkv, 0, num_qo + num_kv), heads.positions, *heads.rope));
    for (const KvTarget& target : targets) {
      const std::int32_t first = target.head_begin, count = target.head_end - first;
      if (first < 0 || count < 1 || target.head_end > num_kv) {
        return invalid_argument("KV heads [{}, {}) of {}", first, target.head_end, num_kv);
      }
      FOVEA_RETURN_IF_ERROR(cpu::append_kv(heads_of(heads.qkv, num_qo + first, count),
                                           heads_of(heads.qkv, num_qo + num_kv + first, count), target.slots,
                                           abi::shift_heads(target.pool, -first), pool_));
      if (target.stats.data == nullptr) continue;
      FOVEA_RETURN_IF_ERROR(cpu::update_page_stats(target.slots, heads.qkv.shape[0],
                                                   abi::shift_heads(target.pool, -first), target.stats, pool_));
    }
    return ok_status();
  }

  Status select_pages(const TensorView& q, float sm_scale, const abi::KvPoolView& pool, const abi::PageStatsView& stats,
                      std::span<const SelectJob> jobs) override {
    return select_.select(q, sm_scale, pool, stats, jobs, pool_);
  }

  Status embed(const TensorView& table, const std::int32_t* ids, float scale, const TensorView& out) override {
    FOVEA_RETURN_IF_ERROR(check_activation("out", out, 2));
    if (table.rank != 2 || !is_weight_type(table.dtype) || table.shape[1] != out.shape[1] || table.strides[1] != 1) {
      return invalid_argument("table is {}, expected [., {}] of bf16, f16 or f32", shape_of(table), out.shape[1]);
    }
    cpu::embed(table.data, table.dtype, table.strides[0], ids, out.shape[0], out.shape[1], scale,
               static_cast<float*>(out.data), out.strides[0], pool_);
    return ok_status();
  }

  Status rms_norm(const TensorView& x, const TensorView& weight, float weight_offset, float eps,
                  const TensorView& residual, const TensorView& out) override {
    FOVEA_RETURN_IF_ERROR(check_activation("x", x, x.rank == 3 ? 3 : 2));
    FOVEA_RETURN_IF_ERROR(check_activation("out", out, x.rank));
    FOVEA_RETURN_IF_ERROR(check_same_shape("out", out, x));
    const std::int64_t dim = x.shape[x.rank - 1];
    if (weight.rank != 1 || weight.shape[0] != dim || !is_weight_type(weight.dtype)) {
      return invalid_argument("weight is {}, expected [{}] of bf16, f16 or f32", shape_of(weight), dim);
    }
    cpu::RmsNorm norm{head_rows(x), {},          head_rows(out), x.shape[0],    num_heads(x),
                      dim,          weight.data, weight.dtype,   weight_offset, eps};
    if (residual.data != nullptr) {
      FOVEA_RETURN_IF_ERROR(check_activation("residual", residual, x.rank));
      FOVEA_RETURN_IF_ERROR(check_same_shape("residual", residual, x));
      norm.residual = head_rows(residual);
    }
    cpu::rms_norm(norm, pool_);
    return ok_status();
  }

  Status gated_activation(Activation activation, const TensorView& gate_up, const TensorView& out) override {
    FOVEA_RETURN_IF_ERROR(check_activation("gate_up", gate_up, 2));
    FOVEA_RETURN_IF_ERROR(check_activation("out", out, 2));
    if (gate_up.shape[0] != out.shape[0] || gate_up.shape[1] != 2 * out.shape[1]) {
      return invalid_argument("gate_up is {} and out {}, expected [rows, 2 width] and [rows, width]", shape_of(gate_up),
                              shape_of(out));
    }
    const auto kind = activation == Activation::kSilu       ? cpu::GateKind::kSilu
                      : activation == Activation::kGeluTanh ? cpu::GateKind::kGeluTanh
                                                            : cpu::GateKind::kGelu;
    cpu::gated_activation(kind, static_cast<const float*>(gate_up.data), gate_up.strides[0], out.shape[0], out.shape[1],
                          static_cast<float*>(out.data), out.strides[0], pool_);
    return ok_status();
  }

  Status add(const TensorView& x, const TensorView& y) override {
    FOVEA_RETURN_IF_ERROR(check_activation("x", x, 2));
    FOVEA_RETURN_IF_ERROR(check_activation("y", y, 2));
    FOVEA_RETURN_IF_ERROR(check_same_shape("y", y, x));
    cpu::add(static_cast<float*>(x.data), x.strides[0], static_cast<const float*>(y.data), y.strides[0], x.shape[0],
             x.shape[1], pool_);
    return ok_status();
  }

  Status softcap(const TensorView& x, float cap) override {
    FOVEA_RETURN_IF_ERROR(check_activation("x", x, 2));
    if (!(cap > 0.0f)) return invalid_argument("cap is {}, expected a positive number", cap);
    cpu::softcap(static_cast<float*>(x.data), x.strides[0], x.shape[0], x.shape[1], cap, pool_);
    return ok_status();
  }

  ProcessGroup* group() const override { return group_.get(); }
  Status all_reduce(const TensorView& x) override {
    if (group_ == nullptr) return ok_status();
    FOVEA_RETURN_IF_ERROR(check_activation("x", x, 2));
    if (x.strides[0] != x.shape[1]) return invalid_argument("x is {}, expected contiguous rows", shape_of(x));
    return group_->all_reduce(static_cast<float*>(x.data), x.num_elements(), pool_);
  }
  Status all_gather(const TensorView& rows, std::int64_t step) override {
    if (group_ == nullptr) return ok_status();
    FOVEA_RETURN_IF_ERROR(check_activation("rows", rows, 2));
    return group_->all_gather(static_cast<float*>(rows.data), rows.shape[0], rows.strides[0], rows.shape[1], step);
  }

 private:
  // Rotates x [rows, heads, head_dim] in place.
  Status rope(const TensorView& x, const std::int32_t* positions, const RopeConfig& config) {
    FOVEA_RETURN_IF_ERROR(check_activation("x", x, 3));
    if (config.kind == RopeKind::kNone) return ok_status();
    if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0 || config.rotary_dim > x.shape[2]) {
      return invalid_argument("rotary_dim is {}, expected an even number up to head_dim {}", config.rotary_dim,
                              x.shape[2]);
    }
    if (config.kind == RopeKind::kLongRope &&
        config.frequency_divisors.size() != static_cast<std::size_t>(config.rotary_dim / 2)) {
      return invalid_argument("{} frequency divisors for rotary_dim {}, expected half as many",
                              config.frequency_divisors.size(), config.rotary_dim);
    }
    const float* table = rope_.prepare(positions, x.shape[0], config, pool_);
    cpu::rotate(head_rows(x), table, x.shape[0], x.shape[1], config.rotary_dim / 2, pool_);
    return ok_status();
  }

  // That share this machine's memory and CPUs.
  std::size_t num_ranks() const { return group_ == nullptr ? 1 : static_cast<std::size_t>(group_->size()); }

  std::shared_ptr<ThreadPool> threads_;
  ThreadPool& pool_;  // of threads_
  cpu::MatmulPrecision precision_;
  cpu::MatmulScratch scratch_;
  cpu::RopeCache rope_;
  cpu::SelectWorkspace select_;
  std::shared_ptr<ProcessGroup> group_;  // or null
};

}  // namespace

Result<std::unique_ptr<Device>> create_cpu_device(const DeviceOptions& options) {
  if (options.num_threads < 0 || options.num_threads > 4096) {
    return invalid_argument("num_threads is {}, expected 0 (as many as the machine allows) to 4096",
                            options.num_threads);
  }
  FOVEA_RETURN_IF_ERROR(cpu::set_simd_cap(options.simd));
  const int ranks = options.group == nullptr ? 1 : options.group->size();
  const int threads = options.num_threads == 0 ? std::max(1, default_num_threads() / ranks) : options.num_threads;
  if (threads > 4 * usable_cpus()) {
    log_warning("num_threads is {} where {} CPUs may be used: threads that wait for each other make it slower", threads,
                usable_cpus());
  }
  const auto precision =
      options.bf16_products && !options.batch_invariant ? cpu::MatmulPrecision::kBf16 : cpu::MatmulPrecision::kF32;
  return std::unique_ptr<Device>(std::make_unique<CpuDevice>(threads, precision, options.group));
}

}  // namespace fovea
