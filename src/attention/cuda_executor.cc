#include "attention/cuda_executor.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <utility>

#include "attention/cuda_kernels.h"
#include "attention/cuda_paged_ops.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "cuda/tensor_map.h"
#include "jit/attention_spec.h"
#include "jit/cache_spec.h"
#include "jit/compiler.h"
#include "jit/kv_dtype.h"

namespace fovea {
namespace {

// What the choice is made by. The pool is not known yet: its strides are held to 16 bytes by every run.
tune::AttentionNeed need_of(const AttentionOptions& o, const VariantSpec& variant, const std::string& arch,
                            int num_sms) {
  tune::AttentionNeed need;
  need.arch = arch;
  need.num_sms = num_sms;
  need.head_dim = o.head_dim;
  need.q_dtype = jit::kv_dtype_of(o.q_dtype);
  need.kv_dtype = jit::kv_dtype_of(o.kv_dtype);
  need.page_tokens = o.page_tokens;
  need.group = o.num_qo_heads / std::max(o.num_kv_heads, 1);
  need.batch_invariant = o.batch_invariant;
  need.transforms_kv = jit::may_transform_kv(variant);
  need.transforms_q = jit::may_transform_q(variant);
  need.plain_logits = variant.source.empty() && (variant.name == "Plain" || variant.name == "Sinks");
  need.hooks_logits_alone = variant.source.empty() && variant.name != "Sigmoid";
  need.token_scales = o.kv_token_scales;
  need.checked = o.checked;
  return need;
}

// The source of the kernel `name` with the choice's header, or with that of plans which share runs.
Result<jit::KernelSource> source_of(const AttentionOptions& o, const tune::AttentionChoice& choice,
                                    const std::string& name, const std::string& header, const std::string& arch,
                                    const VariantSpec& variant) {
  jit::AttentionKernelSpec spec;
  spec.arch = arch;
  spec.header = header;
  spec.kind = name;
  spec.head_dim = o.head_dim;
  spec.q_dtype = jit::kv_dtype_of(o.q_dtype);
  spec.kv_dtype = jit::kv_dtype_of(o.kv_dtype);
  spec.loader = choice.tma ? jit::KvLoader::kTma : jit::KvLoader::kGather;
  spec.box_tokens = choice.box_tokens;
  spec.token_scales = o.kv_token_scales;
  spec.rotated = o.kv_rotated;
  spec.checked = o.checked;
  spec.variant = variant;
  spec.tuning = choice.tuning;
  return jit::attention_source(spec);
}

// Plans share runs where the planner looks for them and in cascades.
bool may_pack(const AttentionOptions& o) { return !o.batch_invariant && o.share_prefixes && o.max_requests > 1; }
bool may_share(const AttentionOptions& o) { return may_pack(o) || (!o.batch_invariant && o.max_cascade_levels > 0); }

// As many requests as the options declare, short ones: what most kernels for decode gain most by.
tune::PlanFacts most_facts(const AttentionOptions& o) {
  tune::PlanFacts most;
  most.decode = true;
  most.pairs = std::int64_t{o.max_requests} * o.num_kv_heads;
  most.requests = o.max_requests;
  most.most_rows = std::int64_t{o.max_rows} * o.num_qo_heads / std::max(o.num_kv_heads, 1);
  most.kv_bytes = o.max_requests * token_bytes(o);
  most.flops = std::numeric_limits<std::int64_t>::max();
  return most;
}

// What rules a kernel for decode out beside the kernel itself; empty: nothing.
std::string not_declared(tune::PlanKernel kernel, const AttentionOptions& o, const tune::KernelMenu& menu) {
  if (o.num_workers > 0) return "num_workers is given, which the general kernel keeps to";
  const bool teams = kernel == tune::PlanKernel::kWarpTeams;
  const int group = o.num_qo_heads / std::max(o.num_kv_heads, 1);
  if (teams && o.max_rows <= o.max_requests && group <= 8) return "no request has more than 8 rows under a KV head";
  if (o.decode_kernel != DecodeKernel::kAuto) {
    const tune::PlanKernel asked = plan_kernel(o.decode_kernel);
    const bool of_warps = teams && asked == tune::PlanKernel::kWarpPerWorker;
    return asked == kernel || of_warps ? "" : "decode_kernel asks for another";
  }
  tune::PlanFacts facts = most_facts(o);
  if (kernel == tune::PlanKernel::kLowBatch) facts.pairs = o.num_kv_heads;  // one request
  if (teams) {
    facts.most_rows = std::max(group, 9);
    facts.kv_bytes = facts.pairs << 20;  // they gain nothing by requests of a few tokens
  }
  return tune::is_profitable(kernel, menu, facts) ? "" : "no batch within the declared maxima would gain by it";
}

Result<CudaExecutor> make_executor(const cuda::Device& device, const AttentionConfig& config,
                                   const AllowedKernel& kernel) {
  const AttentionOptions& o = config.options;
  const tune::AttentionChoice& choice = kernel.choice;
  FOVEA_ASSIGN_OR_RETURN(Planner planner, Planner::create(planner_options(config, choice)));
  FOVEA_ASSIGN_OR_RETURN(cuda::Function function, cuda_kernel(device, kernel.source, "fovea_attention"));
  CudaExecutor executor{kernel.kind, choice, std::move(planner), std::move(function), {}, {}};
  FOVEA_RETURN_IF_ERROR(executor.function.set_max_smem(choice.smem_bytes));
  if (kernel.shared.has_value()) {
    FOVEA_ASSIGN_OR_RETURN(executor.shared, cuda_kernel(device, *kernel.shared, "fovea_attention"));
    FOVEA_RETURN_IF_ERROR(executor.shared->set_max_smem(choice.smem_bytes));
  }
  executor.launch.grid[0] = static_cast<std::uint32_t>(o.num_workers > 0 ? o.num_workers : choice.ctas);
  executor.launch.block[0] = static_cast<std::uint32_t>(choice.threads);
  executor.launch.smem_bytes = static_cast<std::uint32_t>(choice.smem_bytes);
  executor.launch.programmatic_serialization = choice.programmatic_launch;
  return executor;
}

// Rank of a kernel among those that are compiled together, by the time that it takes.
int compile_rank(tune::PlanKernel kind) {
  switch (kind) {
    case tune::PlanKernel::kPrefill: return 0;
    case tune::PlanKernel::kGeneral: return 1;
    case tune::PlanKernel::kWarpPerWorker: return 2;
    case tune::PlanKernel::kWarpTeams: return 2;
    case tune::PlanKernel::kLowBatch: return 3;
  }
  return 1;
}

// Compiles what is not cached, on every CPU, what takes longest first: were all begun at once, the longest would share
// its CPU with the others. Errors are found again by whoever asks for the kernel.
void compile(const std::vector<AllowedKernel>& kernels) {
  std::vector<const AllowedKernel*> order;
  for (const AllowedKernel& kernel : kernels) order.push_back(&kernel);
  std::stable_sort(order.begin(), order.end(), [](const AllowedKernel* a, const AllowedKernel* b) {
    return compile_rank(a->kind) < compile_rank(b->kind);
  });
  std::vector<const jit::KernelSource*> sources;
  for (const AllowedKernel* kernel : order) {
    sources.push_back(&kernel->source);
    if (kernel->shared.has_value()) sources.push_back(&*kernel->shared);
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < sources.size(); i = next++) (void)jit::Compiler::shared().get(*sources[i]);
  };
  std::vector<std::future<void>> others;
  const std::size_t threads = std::min(sources.size(), static_cast<std::size_t>(default_num_threads()));
  for (std::size_t t = 1; t < threads; ++t) others.push_back(std::async(std::launch::async, work));
  work();
  for (std::future<void>& one : others) one.wait();
}

Result<abi::TensorMap> encode(const cuda::Device& device, const AttentionOptions& o,
                              const tune::AttentionChoice& choice, const abi::KvPoolView& pool, void* address) {
  const tune::KvTensorMap map = tune::kv_tensor_map(choice, pool, o.num_kv_heads, o.head_dim);
  cuda::TensorMapSpec spec;
  spec.address = address;
  spec.type = o.kv_dtype == DType::kF16    ? cuda::TensorMapType::kF16
              : o.kv_dtype == DType::kBF16 ? cuda::TensorMapType::kBF16
                                           : cuda::TensorMapType::kU8;
  spec.rank = map.rank;
  std::copy_n(map.dims, 5, spec.dims);
  std::copy_n(map.strides, 5, spec.strides);
  std::copy_n(map.box, 5, spec.box);
  spec.swizzle = map.swizzle_bytes == 128  ? cuda::Swizzle::k128
                 : map.swizzle_bytes == 64 ? cuda::Swizzle::k64
                 : map.swizzle_bytes == 32 ? cuda::Swizzle::k32
                                           : cuda::Swizzle::kNone;
  return cuda::encode_tensor_map(device.driver(), spec);
}

}  // namespace

WorkerStarts worker_starts(tune::PlanKernel kernel) {
  const bool warps = kernel == tune::PlanKernel::kWarpPerWorker || kernel == tune::PlanKernel::kWarpTeams;
  return warps ? WorkerStarts::kWarps : WorkerStarts::kItems;
}

Status check_cuda_types(const AttentionOptions& o) {
  const bool q = o.q_dtype == DType::kF16 || o.q_dtype == DType::kBF16;
  const bool narrow = o.kv_dtype == DType::kF8E4M3 || o.kv_dtype == DType::kI8 || o.kv_dtype == DType::kI4;
  if (!q || (o.kv_dtype != o.q_dtype && !narrow)) {
    return unsupported(
        "q_dtype is {} and kv_dtype {}; on CUDA queries are f16 or bf16, and KV is of their type or "
        "fp8_e4m3, int8 or int4",
        dtype_name(o.q_dtype), dtype_name(o.kv_dtype));
  }
  return ok_status();
}

PlannerOptions planner_options(const AttentionConfig& config, const tune::AttentionChoice& choice) {
  PlannerOptions p = planner_options(config);
  p.num_workers = config.options.num_workers > 0 ? config.options.num_workers : choice.num_workers;
  // Rounds of their own ask for four times the partial states, whether or not a batch shares something.
  p.shared_rounds = may_pack(config.options) ? choice.shared_rounds : 1;
  p.shared_tile_rows = choice.shared_tile_rows;
  p.shared_part_bytes = choice.shared_part_bytes;
  p.shared_balance_rows = choice.shared_balance_rows;
  p.tile_rows = choice.tile_rows;
  p.tile_tokens = choice.tile_tokens;
  p.block_tokens = choice.block_tokens;
  p.cost_item_bytes = choice.cost_item_bytes;
  p.cost_balance_rows = choice.cost_balance_rows;
  p.cost_divide_bytes = choice.cost_divide_bytes;
  p.least_part_bytes = choice.least_part_bytes;
  p.longest_first = choice.longest_first;
  return p;
}

Result<AllowedKernels> allowed_kernels(const AttentionOptions& o, const VariantSpec& variant, const std::string& arch,
                                       int num_sms) {
  FOVEA_ASSIGN_OR_RETURN(tune::KernelChoices choices, tune::choose_kernels(need_of(o, variant, arch, num_sms)));
  AllowedKernels allowed{std::move(choices.menu), {}};
  allowed.menu.shared_kernel = allowed.menu.shared_kernel && may_share(o);
  for (auto& [kind, choice] : choices.kernels) {
    std::string name = "attention";
    if (kind != tune::PlanKernel::kGeneral) {
      std::string& why_not = allowed.menu.why_not(kind);
      why_not = not_declared(kind, o, allowed.menu);
      if (!why_not.empty()) continue;
      name += fmt::format("-{}", tune::kernel_name(kind));
    }
    AllowedKernel kernel{kind, std::move(choice), {}, {}};
    FOVEA_ASSIGN_OR_RETURN(kernel.source, source_of(o, kernel.choice, name, kernel.choice.header, arch, variant));
    if (!kernel.choice.shared_header.empty() && may_share(o)) {
      FOVEA_ASSIGN_OR_RETURN(kernel.shared, source_of(o, kernel.choice, "attention-prefix_forest",
                                                      kernel.choice.shared_header, arch, variant));
    }
    allowed.kernels.push_back(std::move(kernel));
  }
  return allowed;
}

Result<KvMaps> CudaExecutor::maps(const cuda::Device& device, const AttentionOptions& options,
                                  const abi::KvPoolView& pool) const {
  KvMaps made;
  if (!choice.tma || pool.num_pages == 0) return made;
  FOVEA_ASSIGN_OR_RETURN(made.k, encode(device, options, choice, pool, pool.k));
  FOVEA_ASSIGN_OR_RETURN(made.v, encode(device, options, choice, pool, pool.v));
  return made;
}

Result<CudaExecutors> make_executors(const cuda::Device& device, const AttentionConfig& config,
                                     const VariantSpec& variant) {
  FOVEA_ASSIGN_OR_RETURN(AllowedKernels allowed,
                         allowed_kernels(config.options, variant, device.info().arch(), device.info().num_sms));
  compile(allowed.kernels);
  CudaExecutors executors{std::move(allowed.menu), {}};
  for (const AllowedKernel& kernel : allowed.kernels) {
    FOVEA_ASSIGN_OR_RETURN(CudaExecutor executor, make_executor(device, config, kernel));
    executors.all.push_back(std::move(executor));
  }
  return executors;
}

Result<std::vector<jit::KernelSource>> attention_kernels(const AttentionOptions& options, const std::string& arch,
                                                         int num_sms) {
  FOVEA_RETURN_IF_ERROR(check_cuda_types(options));
  FOVEA_ASSIGN_OR_RETURN(const VariantSpec variant, variant_spec(options));
  FOVEA_ASSIGN_OR_RETURN(AllowedKernels allowed, allowed_kernels(options, variant, arch, num_sms));
  std::vector<jit::KernelSource> sources;
  for (AllowedKernel& kernel : allowed.kernels) {
    sources.push_back(std::move(kernel.source));
    if (kernel.shared.has_value()) sources.push_back(*std::move(kernel.shared));
  }
  FOVEA_ASSIGN_OR_RETURN(std::vector<jit::KernelSource> others,
                         paged_op_sources(arch, options.head_dim, options.q_dtype, options.kv_dtype));
  std::move(others.begin(), others.end(), std::back_inserter(sources));
  if (options.device_growth && !options.batch_invariant) {
    FOVEA_ASSIGN_OR_RETURN(jit::KernelSource reschedule, jit::reschedule_source(arch));
    sources.push_back(std::move(reschedule));
  }
  return sources;
}

}  // namespace fovea
