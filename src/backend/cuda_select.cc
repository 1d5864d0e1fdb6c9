#include "backend/cuda_select.h"

#include <algorithm>

#include "backend/cuda_kernels.h"
#include "base/status.h"
#include "jit/any_spec.h"

namespace fovea {
namespace {

constexpr std::uint32_t kStaticBytes = 24 << 10;  // shared memory of the kernel itself, at most

// CTAs of a cluster, at most. Devices before sm_90 have none.
std::uint32_t most_splits(const cuda::Device& device) { return device.info().major < 9 ? 1 : abi::kMostSelectSplits; }

// CTAs that run at once, one an SM. Clusters of 4 and more leave some SMs of each group of SMs free: of an
// H200's 132, clusters of 4 and of 8 reach 120.
std::uint32_t room_for_ctas(const cuda::Device& device, std::uint32_t splits) {
  const auto sms = static_cast<std::uint32_t>(device.info().num_sms);
  return splits < 4 ? sms : sms * 9 / 10;
}

abi::KvDType type_of(DType dtype) { return static_cast<abi::KvDType>(dtype); }  // the values are the same

Status check(const abi::PageStatsView& stats) {
  if (stats.kind != abi::StatKind::kCodes || stats.codes == nullptr) {
    return unsupported("statistics of kind {}; on CUDA pages are selected by codes alone",
                       static_cast<int>(stats.kind));
  }
  if (stats.page_stride % 16 != 0 || stats.head_stride % 16 != 0 || stats.subs_per_page < 1) {
    return invalid_argument(
        "statistics with pages {} and heads {} bytes apart and {} units a page, expected multiples "
        "of 16 and at least one",
        stats.page_stride, stats.head_stride, stats.subs_per_page);
  }
  return ok_status();
}

Status check(const abi::SelectArgs& args, std::uint32_t most_splits) {
  FOVEA_RETURN_IF_ERROR(check(args.stats));
  if (args.group < 1 || args.group > abi::kSelectGroup) {
    return unsupported("{} query heads a KV head; the selector takes 1 to {}", args.group, abi::kSelectGroup);
  }
  if (args.max_units < 1 || args.max_units > abi::kMostSelectUnits) {
    return out_of_range("requests of {} units, expected 1 to {}", args.max_units, abi::kMostSelectUnits);
  }
  const std::uint32_t forced =
      (args.sink_tokens + abi::kSubPageTokens - 1) / abi::kSubPageTokens + args.recent_tokens / abi::kSubPageTokens + 2;
  const std::uint32_t least = args.budget_divisor != 0 ? abi::kLeastSelectTokens / abi::kSubPageTokens : forced;
  if (args.budget_units < std::max(forced, least) || least < forced) {
    return invalid_argument("a budget of {} units, sinks and newest tokens alone are up to {}", args.budget_units,
                            forced);
  }
  constexpr std::uint32_t kMostBudget = abi::kSelectRingBytes / 4;
  if (args.budget_units > kMostBudget) {
    return out_of_range("a budget of {} units, expected up to {}", args.budget_units, kMostBudget);
  }
  if (args.list_stride < args.budget_units) {
    return invalid_argument("lists {} entries apart for {} units", args.list_stride, args.budget_units);
  }
  if (args.interval > 1 &&
      (args.candidates == nullptr || args.states == nullptr || args.num_candidates <= args.budget_units)) {
    return invalid_argument("reuse across {} steps needs states and more candidates than the budget's {} units",
                            args.interval, args.budget_units);
  }
  if (args.splits < 1 || args.splits > most_splits) {
    return invalid_argument("{} CTAs a list, expected 1 to {}: select_splits()", args.splits, most_splits);
  }
  return ok_status();
}

}  // namespace

std::uint32_t select_splits(const cuda::Device& device, std::uint32_t requests, std::uint32_t num_heads) {
  std::uint32_t splits = most_splits(device);
  while (splits > 1 && requests * num_heads * splits > room_for_ctas(device, splits)) splits /= 2;
  return splits;
}

Status cuda_select(const cuda::Device& device, abi::SelectArgs args, DType q_dtype, cuda::StreamHandle stream) {
  FOVEA_RETURN_IF_ERROR(check(args, most_splits(device)));
  if (abi::select_ctas(args) == 0) return ok_status();
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::select_source(device.info().arch(), type_of(q_dtype)));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function function, cuda_kernel(device, source, "fovea_select"));
  const cuda::ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  const auto room = static_cast<std::uint32_t>(device.info().smem_optin_bytes) - kStaticBytes - abi::kSelectRingBytes;
  // Of every 33 words one is left free (select_smem_bytes()); a word has 4 bytes.
  args.cached_keys = std::min(abi::select_share(args.max_units, args.splits), room / 33 * 8 - 1);
  cuda::LaunchConfig config;
  config.grid[0] = abi::select_ctas(args);
  config.block[0] = abi::kSelectThreads;
  config.cluster[0] = args.splits;
  config.smem_bytes = abi::select_smem_bytes(args.cached_keys);
  config.programmatic_serialization = device.info().major >= 9;
  // The process has one such function, and graphs may hold launches of other sizes.
  FOVEA_RETURN_IF_ERROR(function.set_max_smem(static_cast<std::size_t>(device.info().smem_optin_bytes) - kStaticBytes));
  config.stream = stream;
  void* const parameters[] = {&args};
  return cuda::launch(function, config, parameters);
}

Status cuda_key_codes(const cuda::Device& device, abi::CodesArgs args, DType dtype, cuda::StreamHandle stream) {
  FOVEA_RETURN_IF_ERROR(check(args.stats));
  if (abi::codes_ctas(args) == 0) return ok_status();
  FOVEA_ASSIGN_OR_RETURN(const jit::KernelSource source, jit::key_codes_source(device.info().arch(), type_of(dtype)));
  FOVEA_ASSIGN_OR_RETURN(const cuda::Function function, cuda_kernel(device, source, "fovea_key_codes"));
  const cuda::ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  cuda::LaunchConfig config;
  config.grid[0] = abi::codes_ctas(args);
  config.block[0] = abi::kCodesThreads;
  config.stream = stream;
  void* const parameters[] = {&args};
  return cuda::launch(function, config, parameters);
}

}  // namespace fovea
