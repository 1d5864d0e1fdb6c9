// `fovea warmup`: compiles ahead what a server of a model launches, on a machine with or without a GPU, so that a
// server never compiles while it serves. The list of kernels is the one that the CUDA backend itself asks for.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "attention/cuda_executor.h"
#include "base/log.h"
#include "base/quote.h"
#include "base/thread_pool.h"
#include "commands.h"
#include "console.h"
#include "device/cuda/cuda_linear.h"
#include "device/cuda/cuda_ops.h"
#include "engine/model/config.h"
#include "engine/model/shard.h"
#include "engine_flags.h"
#include "jit/cache_spec.h"
#include "jit/compiler.h"
#include "jit/op_spec.h"
#include "model_hint.h"

namespace fovea::app {
namespace {

struct WarmupState {
  std::string model;
  std::vector<std::string> archs = {"sm_90a"};
  std::string kv_dtype = "auto";
  std::string weight_dtype = "auto";
  std::int32_t tp = 1;
  std::int32_t page_tokens = 16;
  bool batch_invariant = false;
  bool select = false;
  std::int32_t jobs = 0;
  std::string json;
};

struct Compiled {
  jit::Origin origin = jit::Origin::kMemory;
  double seconds = 0.0;
  Status status;
  jit::CubinPtr cubin;
};

AttentionOptions attention_of(const ModelConfig& model, const Shard& shard, const WarmupState& state) {
  AttentionOptions options;
  options.device = "cuda";
  options.num_qo_heads = static_cast<std::int32_t>(shard.qo_heads.count);
  options.num_kv_heads = static_cast<std::int32_t>(shard.kv_heads.count);
  options.head_dim = model.head_dim;
  options.q_dtype = model.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
  EngineOptions stored;
  stored.kv_dtype = options.q_dtype;
  set_kv_type(state.kv_dtype, &stored);  // "auto" is no type
  options.kv_dtype = stored.kv_dtype;
  options.kv_rotated = stored.kv_rotated;
  options.kv_token_scales = options.kv_dtype == DType::kF8E4M3;  // as servers keep it
  options.page_tokens = state.page_tokens;
  options.softcap = model.attention_softcap;
  options.batch_invariant = state.batch_invariant;
  return options;
}

Result<std::vector<jit::KernelSource>> kernels_of(const WarmupState& state) {
  const Result<ModelConfig> model = load_model_config(state.model);
  if (!model.ok()) return with_model_hint(model.status(), state.model);
  std::vector<jit::KernelSource> all;
  const Result<Shard> shard = make_shard(*model, 0, state.tp);
  if (!shard.ok()) return shard.status();
  const AttentionOptions attention = attention_of(*model, *shard, state);
  const auto q_type = static_cast<abi::KvDType>(attention.q_dtype);  // the values are the same
  for (const std::string& arch : state.archs) {
    Result<std::vector<jit::KernelSource>> kernels = attention_kernels(attention, arch);
    if (!kernels.ok()) return kernels.status();
    for (jit::KernelSource& kernel : *kernels) all.push_back(std::move(kernel));
    const int rotary = model->rope.kind == RopeKind::kNone ? 0 : model->rope.rotary_dim;
    kernels = op_kernels(arch, attention.q_dtype, model->hidden_size, model->head_dim, rotary);
    if (!kernels.ok()) return kernels.status();
    for (jit::KernelSource& kernel : *kernels) all.push_back(std::move(kernel));
    const bool fp8 = state.weight_dtype == "fp8";
    const ProductSizes sizes = {model->hidden_size, shard->qo_heads.count * model->head_dim, shard->intermediate.count};
    kernels = product_kernels(arch, attention.q_dtype, fp8, sizes, model->activation);
    if (!kernels.ok()) return kernels.status();
    for (jit::KernelSource& kernel : *kernels) all.push_back(std::move(kernel));
    if (fp8) {
      Result<jit::KernelSource> rows = jit::fp8_rows_source(arch, q_type, 8);
      if (!rows.ok()) return rows.status();
      all.push_back(*std::move(rows));
    }
    if (state.tp > 1) {
      Result<jit::KernelSource> sums = jit::all_reduce_source(arch, q_type);
      if (!sums.ok()) return sums.status();
      all.push_back(*std::move(sums));
    }
    if (!state.select) continue;
    for (Result<jit::KernelSource> kernel : {jit::select_source(arch, q_type), jit::key_codes_source(arch, q_type)}) {
      if (!kernel.ok()) return kernel.status();
      all.push_back(*std::move(kernel));
    }
  }
  return all;
}

// Registers and spills of the entry functions, for people.
std::string describe(const jit::Cubin& cubin) {
  std::string text;
  for (const jit::KernelResources& kernel : cubin.kernels) {
    text +=
        fmt::format("{}{} {} registers{}", text.empty() ? "" : ", ", kernel.name, kernel.registers,
                    kernel.spill_store_bytes > 0 ? fmt::format(" ({} bytes spilled)", kernel.spill_store_bytes) : "");
  }
  return text;
}

std::vector<Compiled> compile_all(const std::vector<jit::KernelSource>& sources, int jobs) {
  std::vector<Compiled> results(sources.size());
  std::atomic<std::size_t> next{0};
  std::mutex printing;
  std::size_t done = 0;
  const auto work = [&] {
    for (std::size_t i; (i = next.fetch_add(1)) < sources.size();) {
      const auto begin = std::chrono::steady_clock::now();
      Result<jit::CubinPtr> cubin = jit::Compiler::shared().get(sources[i], &results[i].origin);
      results[i].seconds = seconds_since(begin);
      results[i].status = cubin.status();
      if (cubin.ok()) results[i].cubin = *std::move(cubin);
      const std::lock_guard lock(printing);
      fmt::print(stderr, "[{}/{}] {} {}: {}\n", ++done, sources.size(), sources[i].name, sources[i].arch,
                 results[i].status.ok() ? fmt::format("{} in {}; {}", jit::origin_name(results[i].origin),
                                                      format_seconds(results[i].seconds), describe(*results[i].cubin))
                                        : "failed");
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < jobs; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return results;
}

nlohmann::json to_json(const std::vector<jit::KernelSource>& sources, const std::vector<Compiled>& results) {
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    nlohmann::json row = {{"kernel", sources[i].name},
                          {"arch", sources[i].arch},
                          {"origin", jit::origin_name(results[i].origin)},
                          {"seconds", results[i].seconds}};
    if (!results[i].status.ok()) row["error"] = results[i].status.to_string();
    if (results[i].cubin != nullptr) {
      row["cubin_bytes"] = results[i].cubin->bytes.size();
      for (const jit::KernelResources& kernel : results[i].cubin->kernels) {
        row["functions"].push_back({{"name", kernel.name},
                                    {"registers", kernel.registers},
                                    {"stack_bytes", kernel.stack_bytes},
                                    {"spill_store_bytes", kernel.spill_store_bytes},
                                    {"spill_load_bytes", kernel.spill_load_bytes},
                                    {"static_smem_bytes", kernel.static_smem_bytes}});
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

int run_warmup(const WarmupState& state) {
  if (state.jobs < 0) {
    return fail(Status(StatusCode::kInvalidArgument, fmt::format("--jobs is {}, expected 0 or more", state.jobs)));
  }
  if (state.tp < 1) {
    return fail(Status(StatusCode::kInvalidArgument, fmt::format("--tp is {}, expected 1 or more", state.tp)));
  }
  if (log_level() > LogLevel::kWarning) set_log_level(LogLevel::kWarning);
  const auto begin = std::chrono::steady_clock::now();
  const Result<std::vector<jit::KernelSource>> sources = kernels_of(state);
  if (!sources.ok()) return fail(sources.status());
  const int jobs = std::min(state.jobs > 0 ? state.jobs : default_num_threads(), static_cast<int>(sources->size()));
  const std::vector<Compiled> results = compile_all(*sources, jobs);
  const double seconds = seconds_since(begin);

  int compiled = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].status.ok()) return fail(results[i].status);
    compiled += results[i].origin == jit::Origin::kCompiled;
    if (!jit::Compiler::shared().is_stored((*sources)[i])) {
      return fail(Status(StatusCode::kResourceExhausted,
                         fmt::format("{} was compiled but could not be kept in {}; let FOVEA_CACHE_DIR name a folder "
                                     "that can be written and has room",
                                     (*sources)[i].name, quote(jit::Compiler::shared().folder()))));
    }
  }
  const std::string summary = fmt::format("{} kernels compiled, {} found, in {}: {}", compiled,
                                          results.size() - static_cast<std::size_t>(compiled),
                                          jit::Compiler::shared().folder(), format_seconds(seconds));
  if (state.json.empty()) {
    fmt::print("{}\n", summary);
    return kExitOk;
  }
  const nlohmann::json document = {
      {"folder", jit::Compiler::shared().folder()}, {"seconds", seconds}, {"kernels", to_json(*sources, results)}};
  const Status status = write_output(state.json, document.dump(2) + "\n");
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace

RunFunction declare_warmup(Options& options) {
  auto state = std::make_shared<WarmupState>();
  options.add_model(state->model, "Hugging Face folder of the model, or its config.json");
  options.add("arch", state->archs, "GPU architecture to compile for; repeatable (sm_80, sm_89, sm_90a)");
  options.add_choice("kv-dtype", state->kv_dtype, {"auto", "fp8", "int8", "int4", "int4-hadamard"},
                     "How KV is stored; auto: as the model computes");
  options.add_choice("weight-dtype", state->weight_dtype, {"auto", "fp8"},
                     "How weights are kept; fp8 also for checkpoints that are stored so");
  options.add("tp", state->tp, "For servers with this --tp: the kernels of a rank");
  options.add("page-tokens", state->page_tokens, "Tokens a page");
  options.add_flag("batch-invariant", state->batch_invariant, "Also for servers with --batch-invariant");
  options.add_flag("select", state->select, "Also the kernels of PageSelector");
  options.add("jobs", state->jobs, "Kernels compiled at a time; 0: one a CPU");
  options.add("json", state->json, "Write what was compiled as JSON here; - is stdout");
  options.examples(
      "  fovea warmup --model models/Llama-3.1-8B --arch sm_90a\n"
      "  FOVEA_CACHE_DIR=cache fovea warmup --model config.json --arch sm_80 --arch sm_90a --json -");
  return [state] {
    if (state->model.empty()) {
      return fail(
          Status(StatusCode::kInvalidArgument, "--model is missing: the folder of a model, or its config.json"));
    }
    return run_warmup(*state);
  };
}

}  // namespace fovea::app
