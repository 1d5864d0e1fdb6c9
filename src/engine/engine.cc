// Engine::create: finds and loads the model, sizes the KV cache, starts the engine's thread.
#include "fovea/engine.h"

#include <algorithm>
#include <filesystem>

#include "base/env.h"
#include "base/hash.h"
#include "base/quote.h"
#include "base/status.h"
#include "engine/embedded_model.h"
#include "engine/engine_core.h"
#include "engine/process_engine.h"
#include "engine/ranks/agreement.h"
#include "engine/store/kv_space.h"

namespace fovea {
namespace {

constexpr std::int64_t kMinKvBytes = std::int64_t{16} << 20;

template <typename T>
Status check_option(const char* name, T value, T low, T high) {
  if (value >= low && value <= high) return ok_status();
  return invalid_argument("{} is {}; expected {} to {}", name, value, low, high);
}

std::string name_of(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  const std::string last = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  return last.empty() ? "model" : last;
}

// Where to load from, and for as long as it lives the folder that was made for it.
struct ModelSource {
  std::string folder;
  std::string name;
  std::unique_ptr<EmbeddedFolder> unpacked;
};

Result<ModelSource> find_model(const EngineOptions& options) {
  ModelSource source;
  if (!options.model.empty()) {
    source.folder = options.model;
    source.name = name_of(options.model);
    return source;
  }
  const std::string folder = env_string(EnvVar::kModelDir);
  if (!folder.empty()) {
    source.folder = folder;
    source.name = name_of(folder);
    return source;
  }
  FOVEA_ASSIGN_OR_RETURN(source.unpacked, EmbeddedFolder::create(embedded_needle()));
  source.folder = source.unpacked->path();
  source.name = "needle";
  return source;
}

// The profile that EngineOptions::streaming names, if any. One that lies in the model's own folder is the model's.
Result<std::optional<HeadProfile>> find_head_profile(const std::string& streaming, const ModelSource& model) {
  std::optional<HeadProfile> profile;
  if (streaming.empty() || streaming == "off") return profile;
  const std::string own = model.folder + "/head_profile.json";
  std::error_code error;
  if (streaming == "auto") {
    if (!std::filesystem::is_regular_file(own, error)) return profile;
    FOVEA_ASSIGN_OR_RETURN(profile, load_head_profile(own));
    return profile;
  }
  FOVEA_ASSIGN_OR_RETURN(profile, load_head_profile(streaming));
  if (!profile->model.empty() && profile->model != model.name) {
    return invalid_argument(
        "the head profile is of the model {}, this is {}; find one with `fovea profile heads`, or take "
        "\"model\" out of the profile if both are the same",
        quote(profile->model), quote(model.name));
  }
  return profile;
}

}  // namespace

Status check_engine_options(const EngineOptions& options) {
  FOVEA_RETURN_IF_ERROR(check_option("page_tokens", options.page_tokens, 1, 256));
  FOVEA_RETURN_IF_ERROR(check_option("max_running", options.max_running, 1, 4096));
  FOVEA_RETURN_IF_ERROR(check_option("max_queued", options.max_queued, 0, 1 << 20));
  FOVEA_RETURN_IF_ERROR(check_option("step_log", options.step_log, 0, 4096));
  FOVEA_RETURN_IF_ERROR(check_option("max_context", options.max_context, 0, 1 << 24));
  if (options.max_context == 1) return invalid_argument("max_context is 1; a prompt and an answer need 2 or more");
  FOVEA_RETURN_IF_ERROR(check_option("chunk_tokens", options.chunk_tokens, 2, 1 << 16));
  FOVEA_RETURN_IF_ERROR(check_option("itl_target_ms", options.itl_target_ms, 0.0f, 1e6f));
  if (options.itl_stretch != 0.0f) {
    if (!(options.itl_stretch >= 1.05f && options.itl_stretch <= 1e6f)) {
      return invalid_argument("itl_stretch is {}; expected 0, which bounds nothing, or 1.05 to 1000000",
                              options.itl_stretch);
    }
  }
  FOVEA_RETURN_IF_ERROR(check_option("num_threads", options.num_threads, 0, 4096));
  FOVEA_RETURN_IF_ERROR(check_option<std::int64_t>("kv_cache_bytes", options.kv_cache_bytes, 0, std::int64_t{1} << 46));
  FOVEA_RETURN_IF_ERROR(check_tier_options(options));
  if (options.load_format != "auto" && options.load_format != "dummy") {
    return invalid_argument("load_format is {}; expected \"auto\" or \"dummy\"", quote(options.load_format));
  }
  if (options.weight_dtype != "auto" && options.weight_dtype != "fp8") {
    return invalid_argument("weight_dtype is {}; expected \"auto\" or \"fp8\"", quote(options.weight_dtype));
  }
  if (options.speculate != "off" && options.speculate != "ngram") {
    return invalid_argument("speculate is {}; expected \"off\" or \"ngram\"", quote(options.speculate));
  }
  if (options.speculate != "off" && options.sparse != "off") {
    return unsupported("speculate is \"{}\" and sparse \"{}\": statistics of pages would hold draft tokens; choose one",
                       options.speculate, options.sparse);
  }
  return ok_status();
}

std::int32_t effective_max_running(const EngineOptions& options) {
  // Half of a step at least is left to prompts.
  return std::min(options.max_running, std::max(1, options.chunk_tokens / 2));
}

std::int32_t max_draft_tokens(const EngineOptions& options) {
  if (options.speculate == "off") return 0;
  // Beside more sequences a step has work enough without draft tokens.
  constexpr std::int32_t kSequences = 8;
  return std::min(kSequences * NgramDrafter::kMostTokens, options.chunk_tokens / 2);
}

std::int32_t max_scores(const EngineOptions& options) {
  constexpr std::int32_t kRows = 128;  // 64 MB of logits where the vocabulary is large
  return std::min(kRows, options.chunk_tokens);
}

std::int32_t max_logit_rows(const EngineOptions& options) {
  return effective_max_running(options) + max_draft_tokens(options) + max_scores(options);
}

namespace {

// group: null, or this process among several.
Result<EngineParts> load_parts(const EngineOptions& options, const std::shared_ptr<ProcessGroup>& group) {
  FOVEA_RETURN_IF_ERROR(check_engine_options(options));
  if (group != nullptr && options.sparse != "off") {
    return unsupported(
        "sparse is {} beside {} ranks of tensor parallelism, which do not tell each other what they "
        "select; choose one",
        quote(options.sparse), group->size());
  }
  if (group != nullptr && (options.kv_spill_bytes > 0 || !options.kv_store.empty())) {
    return unsupported(
        "kv_spill or kv_store beside {} ranks of tensor parallelism, of which each has its own part of every page; "
        "choose one",
        group->size());
  }
  FOVEA_ASSIGN_OR_RETURN(const ModelSource source, find_model(options));
  EngineParts parts;
  parts.options = options;
  parts.options.on_load = nullptr;  // it may not live as long
  parts.name = source.name;
  DeviceOptions device;
  device.num_threads = options.num_threads;
  device.batch_invariant = options.batch_invariant;
  device.bf16_products = options.kv_dtype != DType::kF32;  // f32 KV asks for fp32 throughout
  device.simd = options.simd;
  device.group = group;
  if (options.kv_dtype == DType::kF16) device.half_dtype = DType::kF16;
  FOVEA_ASSIGN_OR_RETURN(parts.device, create_device(options.device, device));
  ModelLoadOptions load;
  load.format = options.load_format == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  load.dummy_seed = options.dummy_seed;
  load.fp8_weights = options.weight_dtype == "fp8";
  load.on_load = options.on_load;
  load.max_forward_tokens = options.chunk_tokens;
  load.max_logit_rows = max_logit_rows(options);
  load.max_context = options.max_context;
  FOVEA_ASSIGN_OR_RETURN(load.streaming, find_head_profile(options.streaming, source));
  FOVEA_ASSIGN_OR_RETURN(parts.model, load_model(source.folder, *parts.device, load));
  FOVEA_ASSIGN_OR_RETURN(parts.key_codes, options.key_sketch == "auto"
                                              ? load_key_codes(source.folder, parts.model->config())
                                              : read_key_codes(options.key_sketch, parts.model->config()));
  if (!options.kv_store.empty()) {
    FOVEA_ASSIGN_OR_RETURN(parts.model_hash, hash_model(source.folder));
  }
  // Random weights need no text, nor do ranks that only compute.
  std::error_code ignored;
  if (group != nullptr && group->rank() != 0) return parts;
  if (load.format == LoadFormat::kAuto || std::filesystem::exists(source.folder + "/tokenizer.json", ignored)) {
    FOVEA_ASSIGN_OR_RETURN(parts.tokenizer, Tokenizer::load(source.folder));
    if (parts.tokenizer->vocab_size() > parts.model->config().vocab_size) {
      return invalid_argument("{}: tokenizer.json has {} tokens, the model only {}", shorten(source.folder),
                              parts.tokenizer->vocab_size(), parts.model->config().vocab_size);
    }
    if (const std::string* chat = parts.tokenizer->chat_template()) {
      FOVEA_ASSIGN_OR_RETURN(parts.chat_template, ChatTemplate::parse(*chat));
    }
  }
  return parts;
}

Result<std::unique_ptr<EngineCore>> load_engine(const EngineOptions& options,
                                                const std::shared_ptr<ProcessGroup>& group) {
  FOVEA_ASSIGN_OR_RETURN(EngineParts parts, load_parts(options, group));
  return EngineCore::create(std::move(parts));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options) { return create_engine(options, nullptr); }

Result<std::unique_ptr<Engine>> create_engine(const EngineOptions& options, std::shared_ptr<ProcessGroup> group) {
  FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<EngineCore> engine, load_engine(options, group));
  return make_process_engine(std::move(engine));
}

Result<ProfilingEngine> create_profiling_engine(const EngineOptions& options) {
  if (KvFormat{options.kv_dtype, options.kv_rotated}.quantized()) {
    return unsupported("keys are learned as they are; kv_dtype is {}, expected bf16, f16 or f32",
                       dtype_name(options.kv_dtype));
  }
  if (options.sparse != "off") {
    return unsupported("sparse is {}; text that keys are learned of is read whole", quote(options.sparse));
  }
  ProfilingEngine made;
  FOVEA_ASSIGN_OR_RETURN(EngineParts parts, load_parts(options, nullptr));
  FOVEA_ASSIGN_OR_RETURN(parts.profiler, KeyProfiler::create(*parts.device, *parts.model));
  made.profiler = parts.profiler;
  FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, EngineCore::create(std::move(parts)));
  made.engine = make_process_engine(std::move(engine));
  return made;
}

Status follow_engine(const EngineOptions& options, std::shared_ptr<ProcessGroup> group) {
  const Result<std::unique_ptr<EngineCore>> engine = load_engine(options, group);
  const Status status = engine.ok() ? (*engine)->follow() : engine.status();
  if (!status.ok()) group->end(make_status(status.code(), "rank {}: {}", group->rank(), status.message()));
  return status;
}

Status EngineCore::set_up() {
  ProcessGroup* const group = parts_.device->group();
  if (group != nullptr) {
    const ModelConfig& config = parts_.model->config();
    const std::uint64_t model = hash_string(fmt::format(
        "{} {} {} {} {} {} {}", config.model_type, config.num_layers, config.hidden_size, config.num_qo_heads,
        config.num_kv_heads, config.vocab_size, static_cast<int>(parts_.device->place().kind)));
    FOVEA_RETURN_IF_ERROR(check_same_engine(*group, parts_.options, model));
  }
  FOVEA_ASSIGN_OR_RETURN(sparse_, sparse_config(parts_.options, *parts_.model, parts_.key_codes));
  const bool lists_on_device = sparse_.policy != nullptr && !parts_.device->reads_host_memory();
  if (lists_on_device) FOVEA_RETURN_IF_ERROR(check_page_lists(sparse_, parts_.options, parts_.device->name()));
  FOVEA_RETURN_IF_ERROR(set_up_memory());
  sparse_.max_context = max_context_;
  if (lists_on_device) sparse_.list_units = page_list_units(sparse_.budget, max_context_);
  FOVEA_RETURN_IF_ERROR(set_up_tier());
  if (parts_.tokenizer.has_value()) {
    grammars_ = std::make_unique<GrammarCompiler>([this] { return grammar_vocabulary(); }, eos_tokens());
  }
  const EngineOptions& options = parts_.options;
  const std::int32_t max_running = effective_max_running(options);
  const std::vector<KvGroupSpec>& specs = parts_.model->kv_groups();
  rows_ = std::make_unique<ReqToTokenPool>(max_running, static_cast<std::int32_t>(specs.size()),
                                           (max_context_ + options.page_tokens - 1) / options.page_tokens);
  std::vector<RadixCache::Group> groups;
  for (std::size_t g = 0; g < specs.size(); ++g) {
    groups.push_back({&pool_->pages(g), specs[g].window_tokens, specs[g].sink_tokens, specs[g].prompt_window_tokens});
  }
  SchedulerOptions scheduler;
  scheduler.max_running = max_running;
  scheduler.chunk_tokens = options.chunk_tokens;
  scheduler.page_tokens = options.page_tokens;
  scheduler.prefix_cache = options.prefix_cache;
  scheduler.max_draft_tokens = max_draft_tokens(options);
  scheduler.max_scores = max_scores(options);
  scheduler.tier = tier_.get();
  const bool in_parts = parts_.model->may_pause() && sparse_.policy == nullptr &&
                        (options.itl_target_ms > 0.0f || options.itl_stretch > 0.0f);
  scheduler.chunks_in_parts = in_parts;
  scheduler.target_seconds = 1e-3 * static_cast<double>(options.itl_target_ms);
  scheduler.stretch = static_cast<double>(options.itl_stretch);
  scheduler_ = std::make_unique<Scheduler>(scheduler, std::move(groups), *rows_);
  set_up_listeners();
  ModelRunnerOptions runner;
  runner.max_requests = max_running;
  runner.max_forward_tokens = options.chunk_tokens;
  runner.max_logit_rows = max_logit_rows(options);
  runner.kv_format = {options.kv_dtype, options.kv_rotated};
  runner.share_prefixes = options.share_prefixes;
  runner.batch_invariant = options.batch_invariant;
  // A tree's tokens stand where they would not without it, so that parts of attention begin elsewhere: other bits.
  // Ranks are told of steps, not of what becomes of them.
  const bool trees = parts_.device->verifies_trees() && parts_.device->group() == nullptr && !options.batch_invariant;
  if (trees && options.speculate != "off") runner.max_tree_rows = 2 * max_draft_tokens(options);
  runner.profiler = parts_.profiler.get();
  runner.repeats_steps = parts_.profiler == nullptr;  // what is repeated comes by no profiler
  if (in_parts) runner.clock = &clock_;
  if (options.step_log > 0) {
    step_log_ = std::make_unique<StepLog>(*parts_.device, static_cast<std::size_t>(options.step_log));
    runner.log = step_log_.get();
  }
  if (sparse_.policy != nullptr) {
    runner.selection.emplace();
    runner.selection->stat = sparse_.policy->stat;
    runner.selection->layers = sparse_.layers;
    runner.selection->reuse = sparse_.reuse;
    runner.selection->codes = parts_.key_codes;
    runner.selection->list_units = sparse_.list_units;
    const RopeConfig& rope = parts_.model->config().rope;
    runner.selection->rotary_dim = rope.kind == RopeKind::kNone ? 0 : rope.rotary_dim;
    counters_.sparse_record_bytes = abi::stat_bytes(sparse_.policy->stat, parts_.model->config().head_dim);
    counters_.sparse_heads = static_cast<std::uint64_t>(heads_that_select(*parts_.model, sparse_.layers));
  }
  FOVEA_ASSIGN_OR_RETURN(runner_, ModelRunner::create(*parts_.device, *parts_.model, *pool_, *rows_, runner));
  counters_.layers = parts_.model->config().num_layers;
  counters_.kv_heads = parts_.model->config().num_kv_heads;
  counters_.dense_token_bytes =
      std::int64_t{counters_.layers} * counters_.kv_heads * kv_token_bytes({}, parts_.model->config().head_dim);
  for (const KvGroupSpec& spec : specs) {
    for (std::size_t i = 0; i < spec.layers.size() && spec.streaming; ++i)
      counters_.streaming_heads += spec.heads_of(i);
  }
  counters_.weight_bytes = static_cast<std::int64_t>(parts_.model->weight_bytes());
  publish_stats();
  if (group != nullptr && group->rank() != 0) return ok_status();
  thread_ = std::thread([this] { loop(); });
  return ok_status();
}

Status EngineCore::set_up_memory() {
  const EngineOptions& options = parts_.options;
  const std::vector<KvGroupSpec>& specs = parts_.model->kv_groups();
  const std::int32_t model_context = parts_.model->config().max_position;
  if (options.max_context > model_context) {
    return out_of_range("max_context is {}; the model's context holds {} tokens", options.max_context, model_context);
  }
  max_context_ = options.max_context > 0 ? options.max_context : model_context;

  KvPoolOptions pool;
  pool.format = {options.kv_dtype, options.kv_rotated};
  pool.page_tokens = options.page_tokens;
  pool.max_running = effective_max_running(options);
  pool.max_forward_tokens = options.chunk_tokens;
  pool.bytes = without_page_stats(options.kv_cache_bytes, specs, options, sparse_);
  if (pool.bytes == 0) {
    // What all running requests can fill, within what the device leaves.
    std::int64_t token_bytes = 0;
    for (const KvGroupSpec& spec : specs) {
      std::int64_t heads = 0;
      for (std::size_t i = 0; i < spec.layers.size(); ++i) heads += spec.heads_of(i);
      token_bytes += heads * kv_token_bytes(KvPool::format_of(spec, pool.format), spec.head_dim);
    }
    const auto most = static_cast<std::int64_t>(parts_.device->memory_for_kv());
    const std::int64_t room = without_page_stats(most, specs, options, sparse_);
    const std::int64_t useful = token_bytes * (std::int64_t{pool.max_running} * max_context_ + 2 * options.page_tokens);
    pool.bytes = std::min(std::max(useful, kMinKvBytes), room);
  }
  FOVEA_ASSIGN_OR_RETURN(pool_, KvPool::create(*parts_.device, specs, parts_.model->attention_groups(), pool));
  // One sequence alone must be able to run to the end of the context.
  for (std::size_t g = 0; g < specs.size(); ++g) {
    const std::int64_t tokens = std::int64_t{pool_->pages(g).total()} * options.page_tokens;
    const std::int32_t window = specs[g].most_window() + specs[g].sink_tokens;
    if (specs[g].window_tokens == 0 || tokens >= max_context_) {
      max_context_ = static_cast<std::int32_t>(std::min<std::int64_t>(max_context_, tokens));
    } else if (tokens < window + 2 * options.page_tokens) {
      return resource_exhausted("the KV cache of {} bytes holds {} tokens of layers with a window of {}; give it more",
                                pool.bytes, tokens, window);
    }
  }
  if (max_context_ < options.max_context) {
    return resource_exhausted(
        "max_context is {}, but a KV cache of {} bytes holds {} tokens; give it more (kv_cache_bytes), or ask for a "
        "shorter context",
        options.max_context, pool.bytes, max_context_);
  }
  if (max_context_ < 2) return resource_exhausted("the KV cache of {} bytes holds no sequence", pool.bytes);
  return ok_status();
}

}  // namespace fovea
