#include "engine_flags.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "command.h"
#include "console.h"
#include "core/select/policy.h"
#include "engine/engine_core.h"
#include "model_hint.h"
#include "ranks.h"

namespace fovea::app {

void EngineFlags::declare(Options& table) {
  table.section("Model and machine");
  table.add_model(options.model, "Hugging Face folder; without it, the embedded model needle");
  table.add("device", options.device, "Where to run: cpu, cuda:N, or auto: a GPU where there is one");
  table.add("tp", tp_,
            "Processes that compute the model together, a GPU each from --device on: tensor parallel. They are started "
            "here, or by torchrun or mpirun");
  before_run(table, [this] { return follow(); });
  table.add_choice("load-format", options.load_format, {"auto", "dummy"},
                   "dummy: random weights of the model's config.json");
  table.add("dummy-seed", options.dummy_seed, "Seed of dummy weights");
  table.add_choice("weight-dtype", options.weight_dtype, {"auto", "fp8"},
                   "fp8: layers' matrices become e4m3, a scale a channel, as they load; auto: as stored");
  table.add_choice("simd", options.simd, {"", "avx512", "avx2", "scalar"}, "SIMD target; empty: the best");
  table.add("num-threads", options.num_threads, "Threads; 0: what the cgroup allows");
  table.section("KV cache and batches");
  table.add_choice("kv-dtype", kv_dtype_, {"bf16", "f16", "f32", "fp8", "int8", "int4", "int4-hadamard"},
                   "Element type of the KV cache; fp8, int8 and int4 with a scale a token and head, int4-hadamard "
                   "rotated before it is rounded");
  table.add("kv-cache-mib", kv_cache_mib_, "Memory for KV pages, MiB; 0: what the machine leaves");
  table.add(
      "kv-spill-gib", kv_spill_gib_,
      "Memory for cached prefixes that have left the KV cache, GiB; they come back when a prompt begins with them");
  table.add("kv-store", options.kv_store, "Folder where cached prefixes survive a restart; one may serve many models");
  table.add("kv-store-gib", kv_store_gib_, "Most of it that one model may fill, GiB; what was used longest ago goes");
  table.add("page-tokens", options.page_tokens, "Tokens of a KV page");
  table.add("max-running", options.max_running, "Most requests in one forward");
  table.add("max-queued", options.max_queued, "Most requests that wait; more are refused (HTTP 429)");
  table.add("max-context", options.max_context, "Tokens of prompt and answer together; 0: the model's");
  table.add("chunk-tokens", options.chunk_tokens, "Most tokens in one forward; longer prompts are cut");
  table.add("itl-target-ms", options.itl_target_ms,
            "Milliseconds between tokens of running answers while prompts are read; 0: chunks are always full");
  table.add("itl-stretch", options.itl_stretch,
            "Steps with prompts take at most so many times what answers alone take, such as 1.5; 0: no such limit");
  table.add_choice("speculate", options.speculate, {"off", "ngram"},
                   "ngram: verify several draft tokens a step, from the request's own text or forced by its grammar; "
                   "the same answers");
  table.add_flag("prefix-cache", options.prefix_cache, "Keep prompts' KV pages for later requests");
  table.add_flag("share-prefixes", options.share_prefixes, "Attention reads a prefix that requests share once");
  table.add_flag("batch-invariant", options.batch_invariant, "The same answer bits whoever shares the batch");
  table.add_flag("overlap-steps", options.overlap_steps, "Give a GPU its next step before this one's tokens are read");
  table.section("Reading less of long contexts");
  table.add(
      "streaming", options.streaming,
      "KV heads that keep sinks and a window only: off, auto (the model's own profile), or a profile (a JSON file, "
      "or FOLDER@0.5 of DuoAttention)");
  table.add("sparse", options.sparse,
            "Queries read selected KV pages: auto, " + select_policy_names() + "; off: all of them");
  table.add(
      "key-sketch", options.key_sketch,
      "What policy fovea knows of the model's keys: auto (key_sketch.json in its folder), or a file of `fovea profile "
      "keys`");
  table.add("kv-budget", options.kv_budget,
            "Tokens a query reads then: a number, or T/8 for an eighth of those it sees");
  table.add("sparse-prefill", options.sparse_prefill,
            "With --sparse: tokens that prompts read, in blocks that select together, as --kv-budget; off: all");
  table.add("dense-layers", options.dense_layers, "Layers that read all whatever the policy");
  table.add("sparse-interval", options.sparse_interval,
            "Steps from one scan of all pages' statistics to the next; in between its candidates are scored");
  table.add("sparse-candidates", options.sparse_candidates,
            "Candidates kept, in budgets; 0: lists stay as they are between scans");
}

void EngineFlags::declare_for_one(Options& table) {
  declare(table);
  table.hide({"max-running", "max-queued", "share-prefixes", "batch-invariant", "overlap-steps", "itl-target-ms",
              "itl-stretch"});
}

std::string select_policy_names() {
  std::string names;
  for (const SelectPolicy& policy : select_policies()) {
    names += std::string(names.empty() ? "" : ", ") + std::string(policy.name);
  }
  return names;
}

bool set_kv_type(std::string_view name, EngineOptions* options) {
  static const std::map<std::string_view, DType> kTypes = {
      {"f32", DType::kF32}, {"f16", DType::kF16}, {"bf16", DType::kBF16},        {"fp8", DType::kF8E4M3},
      {"int8", DType::kI8}, {"int4", DType::kI4}, {"int4-hadamard", DType::kI4},
  };
  const auto found = kTypes.find(name);
  if (found == kTypes.end()) return false;
  options->kv_dtype = found->second;
  options->kv_rotated = name == "int4-hadamard";
  return true;
}

EngineOptions EngineFlags::resolved() const {
  EngineOptions out = options;
  set_kv_type(kv_dtype_, &out);
  // A negative size stays negative, for the engine to refuse.
  if (kv_cache_mib_ != 0) out.kv_cache_bytes = std::int64_t{kv_cache_mib_} * (1 << 20);
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const auto bytes = [&](double gib) { return static_cast<std::int64_t>(std::clamp(gib, -1.0, 1e6) * kGib); };
  out.kv_spill_bytes = bytes(kv_spill_gib_);
  out.kv_store_bytes = bytes(kv_store_gib_);
  return out;
}

std::optional<int> EngineFlags::follow() {
  if (tp_ == 1) return std::nullopt;
  if (tp_ < 1 || tp_ > GroupMemory::kMostRanks) {
    return fail(invalid_argument("--tp is {}, expected 1 to {}", tp_, GroupMemory::kMostRanks));
  }
  const Result<RankPlace> place = find_rank_place(tp_);
  if (!place.ok()) return fail(place.status());
  if (place->rank == 0) return std::nullopt;
  auto group = join_ranks(*place);
  if (!group.ok()) return fail(group.status());
  if (log_level() == LogLevel::kWarning) set_log_level(LogLevel::kError);  // rank 0 has said it
  // Rank 0 says what went wrong.
  return follow_engine(resolved(), *group).ok() ? kExitOk : kExitFailure;
}

Result<std::unique_ptr<Engine>> EngineFlags::create() {
  if (tp_ > 1) {
    group_.reset();  // of an engine that was made before, whose ranks have left
    FOVEA_ASSIGN_OR_RETURN(const RankPlace place, find_rank_place(tp_));
    FOVEA_ASSIGN_OR_RETURN(group_, lead_ranks(place));
  }
  EngineOptions all = resolved();
  std::optional<Progress> bar;
  all.on_load = [&bar](std::int64_t done, std::int64_t total) {
    if (!bar) bar.emplace("loading the weights", total >> 20, "MB");
    bar->set(done >> 20);
  };
  auto engine = create_engine(all, group_);
  return engine.ok() ? std::move(engine)
                     : Result<std::unique_ptr<Engine>>(with_model_hint(engine.status(), options.model));
}

std::vector<std::string> EngineFlags::arguments() const {
  const EngineOptions defaults;
  std::vector<std::string> out;
  const auto add = [&](const char* flag, const auto& value, const auto& fallback) {
    if (value == fallback) return;
    out.emplace_back(flag);
    if constexpr (std::is_convertible_v<decltype(value), std::string>) {
      out.push_back(value);
    } else {
      out.push_back(std::to_string(value));
    }
  };
  const auto flag = [&](const char* name, bool value, bool fallback) {
    if (value != fallback) out.push_back(std::string(value ? "--" : "--no-") + name);
  };
  add("--model", options.model, defaults.model);
  add("--device", options.device, defaults.device);
  add("--tp", tp_, 1);
  add("--load-format", options.load_format, defaults.load_format);
  add("--dummy-seed", options.dummy_seed, defaults.dummy_seed);
  add("--weight-dtype", options.weight_dtype, defaults.weight_dtype);
  add("--kv-dtype", kv_dtype_, std::string("bf16"));
  add("--kv-cache-mib", kv_cache_mib_, 0);
  add("--kv-spill-gib", kv_spill_gib_, 0.0);
  add("--kv-store", options.kv_store, defaults.kv_store);
  add("--kv-store-gib", kv_store_gib_, 16.0);
  add("--page-tokens", options.page_tokens, defaults.page_tokens);
  add("--max-running", options.max_running, defaults.max_running);
  add("--max-queued", options.max_queued, defaults.max_queued);
  add("--max-context", options.max_context, defaults.max_context);
  add("--chunk-tokens", options.chunk_tokens, defaults.chunk_tokens);
  add("--itl-target-ms", options.itl_target_ms, defaults.itl_target_ms);
  add("--itl-stretch", options.itl_stretch, defaults.itl_stretch);
  add("--num-threads", options.num_threads, defaults.num_threads);
  flag("prefix-cache", options.prefix_cache, defaults.prefix_cache);
  flag("share-prefixes", options.share_prefixes, defaults.share_prefixes);
  flag("batch-invariant", options.batch_invariant, defaults.batch_invariant);
  flag("overlap-steps", options.overlap_steps, defaults.overlap_steps);
  add("--streaming", options.streaming, defaults.streaming);
  add("--sparse", options.sparse, defaults.sparse);
  add("--key-sketch", options.key_sketch, defaults.key_sketch);
  add("--kv-budget", options.kv_budget, defaults.kv_budget);
  add("--sparse-prefill", options.sparse_prefill, defaults.sparse_prefill);
  for (const std::int32_t layer : options.dense_layers) add("--dense-layers", layer, -1);
  add("--sparse-interval", options.sparse_interval, defaults.sparse_interval);
  add("--sparse-candidates", options.sparse_candidates, defaults.sparse_candidates);
  add("--speculate", options.speculate, defaults.speculate);
  add("--simd", options.simd, defaults.simd);
  return out;
}

}  // namespace fovea::app
