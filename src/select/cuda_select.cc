#include "select/cuda_select.h"

#include <algorithm>

#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "jit/cache_spec.h"
#include "jit/kv_dtype.h"

namespace fovea {
namespace {

constexpr std::uint32_t kStaticBytes = 18 << 10;  // shared memory of the kernel itself, at most

// CTAs of a cluster, at most. Devices before sm_90 have none.
std::uint32_t most_splits(const cuda::Device& device) { return device.info().major < 9 ? 1 : abi::kMostSelectSplits; }

// CTAs that run at once, one an SM. Clusters of 4 and more leave some SMs of each group of SMs free: of an
// H200's 132, clusters of 4 and of 8 reach 120.
std::uint32_t room_for_ctas(const cuda::Device& device, std::uint32_t splits) {
  const auto sms = static_cast<std::uint32_t>(device.info().num_sms);
  return splits < 4 ? sms : sms * 9 / 10;
}

}  // namespace

std::uint32_t select_splits(const cuda::Device& device, std::uint32_t requests, std::uint32_t num_heads,
                            std::uint32_t max_units) {
  std::uint32_t splits = most_splits(device);
  while (splits > 1 && requests * num_heads * splits > room_for_ctas(device, splits)) splits /= 2;
  while (splits < most_splits(device) && abi::select_share(max_units, splits) > select_cached_keys(device)) splits *= 2;
  return splits;
}

std::uint32_t select_cached_keys(const cuda::Device& device) {
  const auto room = static_cast<std::uint32_t>(device.info().smem_optin_bytes) - kStaticBytes - abi::kSelectRingBytes;
  return room / 33 * 8 - 1;  // of every 33 words one is left free (select_key_words()); a word has 4 bytes
}

Result<cuda::Function> select_kernel(const cuda::Device& device, DType q_dtype) {
  const std::int64_t room = device.info().smem_optin_bytes - kStaticBytes - abi::kSelectRingBytes;
  if (room < 1024) {
    return unsupported("{} bytes of shared memory a CTA; page selection takes {}", device.info().smem_optin_bytes,
                       kStaticBytes + abi::kSelectRingBytes + 1024);
  }
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source,
                         jit::select_source(device.info().arch(), jit::kv_dtype_of(q_dtype)));
  FOVEA_ASSIGN_OR_RETURN(cuda::Function function, cuda_kernel(device, source, "fovea_select"));
  const cuda::ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  // The process has one such function, and graphs may hold launches of other sizes.
  FOVEA_RETURN_IF_ERROR(function.set_max_smem(static_cast<std::size_t>(device.info().smem_optin_bytes) - kStaticBytes));
  return function;
}

Result<cuda::Function> key_codes_kernel(const cuda::Device& device, DType dtype) {
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source,
                         jit::key_codes_source(device.info().arch(), jit::kv_dtype_of(dtype)));
  return cuda_kernel(device, source, "fovea_key_codes");
}

Result<CudaSelector> CudaSelector::create(const cuda::Device& device, const CudaSelectorOptions& options,
                                          std::span<const abi::KeyCode> codes) {
  if (options.group > static_cast<std::int32_t>(abi::kSelectGroup)) {
    return unsupported("{} query heads a KV head on CUDA; the selector takes 1 to {}", options.group,
                       abi::kSelectGroup);
  }
  FOVEA_ASSIGN_OR_RETURN(cuda::Function kernel, select_kernel(device, options.q_dtype));
  CudaSelector selector(device, options, std::move(kernel));
  FOVEA_RETURN_IF_ERROR(selector.allocate(codes));
  return selector;
}

Status CudaSelector::allocate(std::span<const abi::KeyCode> codes) {
  const auto heads = static_cast<std::size_t>(options_.num_kv_heads);
  const auto create = [&](cuda::DeviceBuffer& buffer, std::size_t bytes, bool zeroed = false) {
    Result<cuda::DeviceBuffer> made = cuda::DeviceBuffer::create(device_, bytes, zeroed);
    if (made.ok()) buffer = std::move(*made);
    return made.status();
  };
  if (options_.interval > 1) {
    const std::size_t all =
        static_cast<std::size_t>(options_.num_layers) * heads * static_cast<std::size_t>(options_.memories);
    FOVEA_RETURN_IF_ERROR(create(states_, all * sizeof(abi::SelectState), true));
    FOVEA_RETURN_IF_ERROR(create(candidates_, all * num_candidates() * sizeof(std::int32_t)));
  }
  const auto most = static_cast<std::uint32_t>(options_.max_units);
  const auto lists = static_cast<std::uint32_t>(options_.max_lists);
  const std::uint32_t splits = select_splits(device_, lists, static_cast<std::uint32_t>(heads), most);
  if (abi::select_share(most, splits) > select_cached_keys(device_)) {
    if (device_.info().major >= 9) {  // whose kernel has no other place for keys
      return unsupported("requests of {} pages; this device's shared memory has room for {}", most,
                         abi::kMostSelectSplits * select_cached_keys(device_));
    }
    FOVEA_RETURN_IF_ERROR(create(keys_, lists * heads * most * sizeof(std::uint32_t)));
  }
  FOVEA_RETURN_IF_ERROR(create(codes_, codes.size_bytes()));
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, codes_.data(), codes.data(), codes.size_bytes(), nullptr));
  return device_.synchronize();
}

Status CudaSelector::select(std::int32_t layer, std::int32_t head_begin, abi::SelectArgs args,
                            cuda::StreamHandle stream) const {
  const auto first = static_cast<std::size_t>(layer * options_.num_kv_heads + head_begin) *
                     static_cast<std::size_t>(options_.memories);
  args.keys = keys_.as<std::uint32_t>();
  if (options_.interval > 1) {
    args.candidates = candidates_.as<std::int32_t>() + first * num_candidates();
    args.states = states_.as<abi::SelectState>() + first;
  }
  args.sm_scale = options_.sm_scale;
  args.group = static_cast<std::uint32_t>(options_.group);
  args.splits = select_splits(device_, args.requests, args.num_heads, args.max_units);
  args.budget_units = static_cast<std::uint32_t>(options_.budget_units);
  args.budget_divisor = static_cast<std::uint32_t>(options_.budget_divisor);
  args.sink_tokens = static_cast<std::uint32_t>(options_.sink_tokens);
  args.recent_tokens = static_cast<std::uint32_t>(options_.recent_tokens);
  args.interval = static_cast<std::uint32_t>(options_.interval);
  args.num_candidates = static_cast<std::uint32_t>(num_candidates());
  if (abi::select_ctas(args) == 0) return ok_status();
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  const std::uint32_t share = abi::select_share(args.max_units, args.splits);
  // Of a rescoring everyone has all keys: those of the candidates and of the few units since.
  const std::uint32_t rescored = args.interval > 1 ? args.num_candidates + 64 : 0;
  args.cached_keys = std::min(std::max(share, rescored), select_cached_keys(device_));
  const auto room = static_cast<std::uint32_t>(device_.info().smem_optin_bytes) - kStaticBytes;
  args.cached_entries = std::min(share, (room - abi::select_smem_bytes(args.cached_keys, 0)) / 4);
  cuda::LaunchConfig config;
  config.grid[0] = abi::select_ctas(args);
  config.block[0] = abi::kSelectThreads;
  config.cluster[0] = args.splits;
  config.smem_bytes = abi::select_smem_bytes(args.cached_keys, args.cached_entries);
  config.programmatic_serialization = device_.info().major >= 9;
  config.stream = stream;
  void* const parameters[] = {&args};
  return cuda::launch(kernel_, config, parameters);
}

Status CudaSelector::forget(std::int32_t begin, std::int32_t end, cuda::StreamHandle stream) const {
  if (options_.interval == 1) return ok_status();
  const cuda::ScopedContext context(device_);
  FOVEA_RETURN_IF_ERROR(context.status());
  const auto heads = static_cast<std::size_t>(options_.num_kv_heads);
  const std::size_t bytes = static_cast<std::size_t>(end - begin) * heads * sizeof(abi::SelectState);
  for (std::int32_t layer = 0; layer < options_.num_layers; ++layer) {
    const std::size_t first =
        (static_cast<std::size_t>(layer) * static_cast<std::size_t>(options_.memories) + begin) * heads;
    FOVEA_RETURN_IF_ERROR(cuda::set_bytes(device_, states_.as<abi::SelectState>() + first, 0, bytes, stream));
  }
  return ok_status();
}

std::size_t CudaSelector::memory_bytes() const {
  return states_.size_bytes() + candidates_.size_bytes() + keys_.size_bytes() + codes_.size_bytes();
}

Status cuda_key_codes(const cuda::Device& device, const cuda::Function& kernel, abi::CodesArgs args,
                      cuda::StreamHandle stream) {
  if (abi::codes_ctas(args) == 0) return ok_status();
  const cuda::ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  cuda::LaunchConfig config;
  config.grid[0] = abi::codes_ctas(args);
  config.block[0] = abi::kCodesThreads;
  config.stream = stream;
  void* const parameters[] = {&args};
  return cuda::launch(kernel, config, parameters);
}

}  // namespace fovea
