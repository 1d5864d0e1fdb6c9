#include "select/cuda_select.h"

#include <algorithm>

#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "jit/any_spec.h"
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

Status cuda_select(const cuda::Device& device, const cuda::Function& kernel, abi::SelectArgs args,
                   cuda::StreamHandle stream) {
  if (abi::select_ctas(args) == 0) return ok_status();
  const cuda::ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  const std::uint32_t share = abi::select_share(args.max_units, args.splits);
  // Of a rescoring everyone has all keys: those of the candidates and of the few units since.
  const std::uint32_t rescored = args.interval > 1 ? args.num_candidates + 64 : 0;
  args.cached_keys = std::min(std::max(share, rescored), select_cached_keys(device));
  const auto room = static_cast<std::uint32_t>(device.info().smem_optin_bytes) - kStaticBytes;
  args.cached_entries = std::min(share, (room - abi::select_smem_bytes(args.cached_keys, 0)) / 4);
  cuda::LaunchConfig config;
  config.grid[0] = abi::select_ctas(args);
  config.block[0] = abi::kSelectThreads;
  config.cluster[0] = args.splits;
  config.smem_bytes = abi::select_smem_bytes(args.cached_keys, args.cached_entries);
  config.programmatic_serialization = device.info().major >= 9;
  config.stream = stream;
  void* const parameters[] = {&args};
  return cuda::launch(kernel, config, parameters);
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
