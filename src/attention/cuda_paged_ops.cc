#include "attention/cuda_paged_ops.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "abi/append_args.h"
#include "abi/merge_args.h"
#include "attention/cuda_kernels.h"
#include "base/per_process.h"
#include "base/status.h"
#include "jit/cache_spec.h"
#include "jit/kv_dtype.h"

namespace fovea {
namespace {

std::uint32_t element_bytes(DType dtype) { return static_cast<std::uint32_t>(dtype_bits(dtype) / 8); }

// But for the architecture, whose name a call need not make.
jit::AppendKernelSpec append_spec(std::int64_t head_dim, DType dtype, abi::KvDType pool_dtype,
                                  const abi::AppendArgs& args) {
  jit::AppendKernelSpec spec;
  spec.head_dim = static_cast<int>(head_dim);
  spec.q_dtype = jit::kv_dtype_of(dtype);
  spec.pool_dtype = pool_dtype;
  spec.token_scales = args.pool.granularity == abi::ScaleGranularity::kTokenHead;
  spec.rotated = args.pool.rotated != 0;
  spec.vec = abi::append_vec(args, static_cast<std::uint32_t>(head_dim), element_bytes(dtype),
                             std::max(1u, element_bytes(static_cast<DType>(pool_dtype))));
  return spec;
}

jit::MergeKernelSpec merge_spec(std::int64_t head_dim, DType dtype, const abi::MergeArgs& args) {
  jit::MergeKernelSpec spec;
  spec.head_dim = static_cast<int>(head_dim);
  spec.v_dtype = spec.out_dtype = jit::kv_dtype_of(dtype);
  spec.vec = abi::merge_vec(args, static_cast<std::uint32_t>(head_dim), element_bytes(dtype), element_bytes(dtype));
  return spec;
}

// Kernels by what they are made for, so that a call builds no source to look one up. Never destroyed: the driver may be
// gone when static objects go.
template <typename Key, typename Make>
Result<const cuda::Function*> kept_kernel(const Key& key, Make make) {
  struct Kept {
    std::mutex mutex;
    std::map<Key, cuda::Function> functions;
  };
  Kept& kept = per_process<Kept>();
  {
    const std::lock_guard lock(kept.mutex);
    if (const auto found = kept.functions.find(key); found != kept.functions.end()) return &found->second;
  }
  FOVEA_ASSIGN_OR_RETURN(cuda::Function function, make());
  const std::lock_guard lock(kept.mutex);
  return &kept.functions.emplace(key, std::move(function)).first->second;
}

template <typename Args>
Status launch(const cuda::Device& device, const cuda::Function& function, Args& args, std::uint64_t ctas,
              std::uint32_t threads, Stream stream) {
  if (ctas == 0) return ok_status();
  if (ctas >= (1u << 24)) return out_of_range("{} CTAs in one launch, at most 2^24; split the rows", ctas);
  const cuda::ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  cuda::LaunchConfig config;
  config.grid[0] = static_cast<std::uint32_t>(ctas);
  config.block[0] = threads;
  config.stream = stream.handle;
  void* const parameters[] = {&args};
  return cuda::launch(function, config, parameters);
}

abi::StateView state_view(const cpu::AttentionState& s) {
  return {s.v, s.lse, s.row_stride, s.head_stride, s.lse_row_stride, s.lse_head_stride};
}

}  // namespace

void set_places(const AppendPlaces& places, abi::AppendArgs& args) {
  args.slots = static_cast<const std::int32_t*>(places.slots.data);
  args.batch_indices = static_cast<const std::int32_t*>(places.batch_indices.data);
  args.positions = static_cast<const std::int32_t*>(places.positions.data);
  args.page_entries = static_cast<const std::int32_t*>(places.page_indices.data);
  args.list_begin = static_cast<const std::int32_t*>(places.page_indptr.data);
  args.num_lists = is_empty(places.page_indptr) ? 0 : static_cast<std::uint32_t>(places.page_indptr.shape[0] - 1);
  args.num_page_entries = static_cast<std::uint32_t>(places.page_indices.num_elements());
}

Status cuda_append_paged_kv(const TensorView& k, const TensorView& v, const AppendPlaces& places,
                            const abi::KvPoolView& pool, Stream stream) {
  FOVEA_ASSIGN_OR_RETURN(const cuda::Device device, cuda_device(k.device_index));
  abi::AppendArgs args{};
  args.k = k.data;
  args.v = v.data;
  args.k_row_stride = k.strides[0];
  args.k_head_stride = k.strides[1];
  args.v_row_stride = v.strides[0];
  args.v_head_stride = v.strides[1];
  set_places(places, args);
  args.attention_factor = 1.0f;
  args.rows = static_cast<std::uint32_t>(k.shape[0]);
  args.num_kv_heads = static_cast<std::uint32_t>(k.shape[1]);
  args.pool = pool;
  const auto head_dim = static_cast<std::uint32_t>(k.shape[2]);
  jit::AppendKernelSpec spec = append_spec(k.shape[2], k.dtype, pool.dtype, args);
  const auto key = std::tuple(device.index(), spec.head_dim, spec.q_dtype, spec.pool_dtype, spec.vec, spec.token_scales,
                              spec.rotated);
  const auto make = [&]() -> Result<cuda::Function> {
    spec.arch = device.info().arch();
    FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::append_source(spec));
    return cuda_kernel(device, source, "fovea_append");
  };
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function, kept_kernel(key, make));
  const std::uint64_t ctas =
      spec.token_scales ? abi::quantizing_ctas(args) : abi::append_ctas(args, spec.vec, head_dim);
  return launch(device, *function, args, ctas, abi::kAppendThreads, stream);
}

Status cuda_merge_states(const MergeStates& merge, bool pair, DevicePlace place, Stream stream) {
  FOVEA_ASSIGN_OR_RETURN(const cuda::Device device, cuda_device(place.index));
  abi::MergeArgs args{};
  if (merge.num_states > 0) args.a = state_view(merge.states[0]);
  if (pair) args.b = state_view(merge.states[1]);
  args.v_out = merge.out;
  args.s_out = merge.lse_out;
  args.mask = merge.mask;
  args.v_out_row_stride = merge.out_row_stride;
  args.v_out_head_stride = merge.out_head_stride;
  args.s_out_row_stride = merge.heads;
  args.s_out_head_stride = 1;
  if (!pair && merge.num_states > 1) {
    const cpu::AttentionState* const s = merge.states;
    args.v_state_stride =
        (static_cast<const char*>(s[1].v) - static_cast<const char*>(s[0].v)) / element_bytes(merge.dtype);
    args.s_state_stride = s[1].lse - s[0].lse;
  }
  args.rows = static_cast<std::uint32_t>(merge.rows);
  args.heads = static_cast<std::uint32_t>(merge.heads);
  args.num_states = static_cast<std::uint32_t>(merge.num_states);
  const auto head_dim = static_cast<std::uint32_t>(merge.head_dim);
  jit::MergeKernelSpec spec = merge_spec(merge.head_dim, merge.dtype, args);
  const auto key = std::tuple(device.index(), spec.head_dim, spec.v_dtype, spec.vec, pair);
  const auto make_kernel = [&]() -> Result<cuda::Function> {
    spec.arch = device.info().arch();
    FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::merge_source(spec));
    return cuda_kernel(device, source, pair ? "fovea_merge_state" : "fovea_merge_states");
  };
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function* const function, kept_kernel(key, make_kernel));
  return launch(device, *function, args, abi::merge_ctas(args, head_dim, spec.vec), abi::kMergeThreads, stream);
}

Result<std::vector<jit::KernelSource>> paged_op_sources(const std::string& arch, int head_dim, DType dtype,
                                                        DType kv_dtype) {
  abi::AppendArgs append{};
  append.pool.page_stride = append.pool.token_stride = append.pool.head_stride = head_dim;
  append.k_row_stride = append.k_head_stride = append.v_row_stride = append.v_head_stride = head_dim;
  abi::MergeArgs merge{};
  merge.a.v_row_stride = merge.a.v_head_stride = merge.b.v_row_stride = merge.b.v_head_stride = head_dim;
  merge.v_state_stride = merge.v_out_row_stride = merge.v_out_head_stride = head_dim;
  std::vector<jit::KernelSource> sources;
  jit::AppendKernelSpec append_kernel_spec = append_spec(head_dim, dtype, jit::kv_dtype_of(kv_dtype), append);
  jit::MergeKernelSpec merge_kernel_spec = merge_spec(head_dim, dtype, merge);
  append_kernel_spec.arch = merge_kernel_spec.arch = arch;
  FOVEA_ASSIGN_OR_RETURN(jit::KernelSource append_kernel, jit::append_source(append_kernel_spec));
  sources.push_back(std::move(append_kernel));
  FOVEA_ASSIGN_OR_RETURN(jit::KernelSource merge_kernel, jit::merge_source(merge_kernel_spec));
  sources.push_back(std::move(merge_kernel));
  return sources;
}

}  // namespace fovea
