// Engine: loads a model, batches requests continuously over a paged, prefix-sharing KV cache, and streams tokens back.
// Used by the server, the command line and C++ programs. Thread-safe: any thread may submit and cancel. A child of
// fork() makes its own: of its parent's it can encode and decode, and is refused the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/dtype.h"
#include "fovea/grammar.h"
#include "fovea/kv_event.h"
#include "fovea/status.h"

namespace fovea {

struct EngineOptions {
  std::string model;  // Hugging Face folder; empty: the embedded `needle`
  // "cpu", "cuda" (device 0), "cuda:N", or "auto": a CUDA device where one can be used, else the CPU. CUDA computes in
  // bf16 (f16 with that KV) and needs cuBLASLt.
  std::string device = "cpu";
  std::string load_format = "auto";  // "auto" or "dummy"
  std::uint64_t dummy_seed = 0;
  // "auto": as they are stored; "fp8": matrices of layers become e4m3 with a scale an output channel as they are
  // loaded.
  std::string weight_dtype = "auto";
  // Called by create() as weights are loaded: bytes that are there, of so many. None: nobody wants to know.
  std::function<void(std::int64_t done, std::int64_t total)> on_load;
  // kF32 (then products are fp32 too), kF16, kBF16, or quantized as keys and values are written, with a scale and a
  // zero for each token and head: kF8E4M3, kI8, kI4. Layers with a window stay in bf16 then.
  DType kv_dtype = DType::kBF16;
  bool kv_rotated = false;  // kI8 and kI4: quantize after a Hadamard rotation, which spreads outliers
  std::int32_t page_tokens = 16;
  std::int32_t max_running = 64;     // requests in one forward
  std::int32_t max_queued = 1024;    // more: kResourceExhausted at submit
  std::int32_t max_context = 0;      // tokens; 0: the model's
  std::int32_t chunk_tokens = 1024;  // most tokens a forward holds; long prompts are cut in chunks of it
  // Milliseconds that a step with tokens of running answers and of prompts should take at most: prompts get as much of
  // it as fits, and half of the step where the answers alone take longer. 0: chunks are full whoever waits.
  float itl_target_ms = 30.0f;
  // ..., and at most so many times what the answers alone take, 1.05 or more. 0: no such limit.
  float itl_stretch = 0.0f;
  std::int64_t kv_cache_bytes = 0;  // 0: what the machine leaves
  // Memory of the host for prefixes that have left the KV cache; they come back when a prompt begins with them. 0:
  // none.
  std::int64_t kv_spill_bytes = 0;
  // Folder where cached prefixes are kept, and found again after a restart; empty: none. Of one model it holds at most
  // kv_store_bytes; what was used longest ago goes first.
  std::string kv_store;
  std::int64_t kv_store_bytes = std::int64_t{16} << 30;
  std::int32_t num_threads = 0;  // 0: what the cgroup allows
  bool prefix_cache = true;
  KvEventCallback on_kv_events;  // told which blocks of tokens the prefix cache holds; may be null
  bool share_prefixes = true;    // attention reads a shared prefix once (prefix forest)
  bool batch_invariant = false;
  bool overlap_steps = true;  // a GPU gets its next step before the tokens of this one are read, where that can be
  std::string simd;           // "", "avx512", "avx2", "scalar"
  // KV heads that keep sinks and a window only (docs/long-contexts.md): "off"; "auto": the model folder's
  // head_profile.json, if there is one; else a profile's file or JSON, or a folder of DuoAttention ("FOLDER@0.5").
  std::string streaming = "off";
  // What policy "fovea" of `sparse` knows of the model's keys: "auto": the model folder's key_sketch.json, if there is
  // one; else a file that `fovea profile keys` wrote.
  std::string key_sketch = "auto";
  // Queries read selected pages instead of all: a policy ("auto", "quest", "lserve", ...; core/select/policy.h), or
  // "off". On, pages carry the statistics that the policy reads, and requests may choose otherwise for themselves.
  std::string sparse = "off";
  std::string kv_budget = "4096";  // tokens that a query reads, or "T/8" for an eighth of those it sees
  // Prompts too read selected pages, blocks of 64 tokens together: so many tokens each, as kv_budget says it; "off":
  // prompts read all. Needs `sparse`.
  std::string sparse_prefill = "off";
  std::vector<std::int32_t> dense_layers;  // layers that read all whatever the policy
  // "ngram": draft tokens from the request's own text are verified several in a step, which changes no answer, only how
  // fast it comes. Not beside `sparse`. "off": one token a step.
  std::string speculate = "off";
  std::int32_t sparse_interval = 1;    // steps from one scan of all statistics to the next; in between candidates of it
  std::int32_t sparse_candidates = 4;  // candidates kept, in budgets; 0: lists stay as they are until the next scan
  std::int32_t step_log = 0;           // latest steps whose times view() tells; 0: none
};

// What a request may ask for at most.
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopBytes = 1024;  // of each
inline constexpr std::int32_t kMaxTopLogprobs = 20;

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  std::int32_t top_k = 0;  // 0: off
  float min_p = 0.0f;
  float presence_penalty = 0.0f;    // -2..2, over generated tokens
  float frequency_penalty = 0.0f;   // -2..2, over generated tokens
  float repetition_penalty = 1.0f;  // > 0, over prompt and generated tokens
  std::uint64_t seed = 0;
  bool has_seed = false;        // false: seeded from the request id and the clock
  std::int32_t max_tokens = 0;  // 0: the rest of the context
  std::int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;  // cut from the text
  std::vector<std::int32_t> stop_token_ids;
  bool include_stop_text = false;
  bool skip_special_tokens = true;
  std::int32_t logprobs = -1;  // top alternatives a token to report; -1: none, 0: the chosen token alone
  std::vector<std::pair<std::int32_t, float>> logit_bias;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0.0f;  // natural log
};

enum class FinishReason : std::uint8_t { kNone = 0, kStop, kLength, kCancelled, kError };

// One step of one choice. Text is whole UTF-8 characters; a stop string never shows, not even in part.
struct GenerationEvent {
  std::int32_t choice = 0;             // 0 .. n-1
  std::string text;                    // new text, may be empty
  std::vector<std::int32_t> tokens;    // new tokens
  std::vector<TokenLogprob> logprobs;  // of the new tokens, when asked for
  std::vector<std::vector<TokenLogprob>> top_logprobs;
  // In the request's first event, when asked for: of the prompt's tokens but the first, which nothing foretells.
  std::vector<TokenLogprob> prompt_logprobs;
  std::vector<std::vector<TokenLogprob>> prompt_top_logprobs;
  std::vector<std::int32_t> prompt_ranks;  // 1: the likeliest of the vocabulary
  FinishReason finish = FinishReason::kNone;
  std::int32_t stop_token = -1;  // token that ended it, or -1
  TokenLogprob stop_logprob;     // of that token, when asked for
  std::vector<TokenLogprob> stop_top_logprobs;
  std::string stop_text;  // stop string that ended it, or empty
  Status error;           // with kError
  // Filled in each choice's last event.
  double queue_seconds = -1.0;  // from submit() to the prompt's first step; negative: it had none
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;  // prompt tokens found in the prefix cache
  std::int32_t completion_tokens = 0;
  std::int32_t draft_tokens = 0;     // verified (EngineOptions::speculate),
  std::int32_t accepted_tokens = 0;  // ..., and accepted: completion tokens that took no step of their own
};

// Called on the engine's thread, in order; must return quickly and must not call back into the engine except cancel().
using EventCallback = std::function<void(const GenerationEvent&)>;

struct GenerateRequest {
  std::vector<std::int32_t> prompt;  // token ids, at least one
  SamplingParams sampling;
  std::shared_ptr<const Grammar> grammar;  // of this engine; null: any text
  std::int32_t n = 1;                      // choices; they share the prompt's pages
  // Top alternatives to report of each token of the prompt, which is computed whole then, cached or not; 0: the tokens
  // alone, -1: none.
  std::int32_t prompt_logprobs = -1;
  bool prompt_only = false;   // ..., and nothing is generated: the answer ends with kLength
  std::string cache_salt;     // requests share cached prefixes only with equal salts
  std::int32_t priority = 0;  // lower is served first
  std::string sparse;         // selection policy or "off"; empty: the engine's
  std::string kv_budget;      // empty: the engine's
  // Tokens at the end of the prompt that select too; those before always read all. 0: generated tokens only.
  std::int32_t sparse_prompt_tokens = 0;
};

using RequestId = std::uint64_t;

struct EngineStats {
  std::int64_t running = 0, queued = 0;                            // requests now
  std::int64_t pages_total = 0, pages_free = 0, pages_cached = 0;  // first KV group; cached: evictable
  std::int64_t page_bytes = 0;                                     // all layers of the group
  std::int64_t weight_bytes = 0;                                   // of the model, as a decode step reads them
  std::int32_t layers = 0, kv_heads = 0, streaming_heads = 0;      // of the model; KV heads of a layer; of all layers
  // KV pages of all groups that requests hold, with their statistics, now and at most.
  std::int64_t kv_bytes_in_use = 0, kv_bytes_peak = 0;
  std::int64_t dense_token_bytes = 0;  // what a token of all layers and KV heads takes in bf16
  std::uint64_t step_kv_bytes = 0;     // read by attention and selection of the latest forward, statistics included
  std::uint64_t requests_finished = 0, requests_cancelled = 0, requests_failed = 0, retractions = 0;
  std::int64_t prompt_tokens_pending = 0;  // of prompts of open requests: neither computed nor found in the cache yet
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, steps = 0;
  std::uint64_t steps_ahead = 0;                        // launched before the tokens of the step before were read
  std::uint64_t draft_tokens = 0, accepted_tokens = 0;  // verified, and of those accepted
  std::uint64_t accepted_branches = 0;  // of the latter, those that were not the likeliest in their place
  std::uint64_t kv_bytes_read = 0, kv_bytes_unshared = 0;  // by plans; the second as if nothing were shared
  // Page selection; a page is 16 tokens of one layer, KV head and query.
  std::uint64_t sparse_heads = 0;                              // KV heads of all layers that can select
  std::int32_t sparse_record_bytes = 0;                        // statistics of a page (one KV head) that they read
  std::uint64_t sparse_queries = 0;                            // that selected, once for each layer and KV head
  std::uint64_t sparse_pages_read = 0, sparse_pages_kept = 0;  // by them; and what they would have read densely
  std::uint64_t sparse_prompt_pages_read = 0, sparse_prompt_pages_kept = 0;      // by blocks of prompts that selected
  std::uint64_t sparse_records_read = 0;                                         // statistics of pages that were scored
  std::uint64_t sparse_refreshes = 0, sparse_rescorings = 0, sparse_reuses = 0;  // how their lists were made
  // KV beyond the cache (kv_spill_bytes, kv_store): what the host's memory and files hold now; pages copied to the
  // host, back to the cache, from files and into them; and what went wrong with files. A page is of one KV group.
  std::int64_t kv_host_bytes = 0, kv_host_pages = 0, kv_store_bytes = 0, kv_store_pages = 0;
  std::uint64_t kv_pages_spilled = 0, kv_pages_restored = 0, kv_pages_read = 0, kv_pages_written = 0;
  std::uint64_t kv_store_errors = 0;
  double step_seconds = 0.0;             // spent in forwards
  std::int32_t prompt_chunk_tokens = 0;  // prompt tokens that the latest step with prompts could hold
  double seconds_since_step = 0.0;       // heartbeat of the engine thread while it has work
  std::int64_t device_graphs = 0;        // steps that a GPU repeats as they were captured
  std::int64_t device_graph_bytes = 0;   // device memory that capturing them took
  bool healthy = true;
  std::string failure;  // not healthy: why nothing is computed any more
};

struct ChatMessage {
  std::string role;
  std::string content;
  // More members that the template sees, as a JSON object: tool_calls, tool_call_id, name.
  std::string extra_json{};
  bool unfinished = false;  // of the last: the answer goes on where its content ends
};

struct EngineView;  // fovea/engine_view.h
using ViewCallback = std::function<void(const EngineView&)>;

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  virtual ~Engine() = default;

  // Whether submit() would take the request if there is room in the queue. Where one member of it is wrong, *parameter
  // (may be null) becomes its name: "prompt", "temperature", "kv_budget", ...
  virtual Status check(const GenerateRequest& request, std::string* parameter) const = 0;
  // Checks the request, queues it and returns; events follow. kInvalidArgument: malformed; kOutOfRange: prompt longer
  // than the context; kResourceExhausted: queue full; kUnavailable: shutting down.
  virtual Result<RequestId> submit(GenerateRequest request, EventCallback callback) = 0;
  // The request's pages are free within a step; its choices end with kCancelled. Unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;
  // Drops every cached prefix that no request uses.
  virtual void flush_cache() = 0;
  // Refuses new requests, waits up to `seconds` for running ones, cancels the rest.
  virtual void shutdown(double seconds) = 0;
  virtual EngineStats stats() const = 0;
  // Calls back once, under the rules of EventCallback: between two steps, on the engine's thread; at once, with stats
  // alone, after shutdown().
  virtual void view(ViewCallback callback) = 0;

  virtual const std::string& model_name() const = 0;
  virtual std::int32_t max_context() const = 0;  // tokens, prompt and completion together
  virtual std::int32_t vocab_size() const = 0;
  virtual const std::vector<std::int32_t>& eos_tokens() const = 0;
  // Sampling defaults of the model's generation_config.json over SamplingParams' own.
  virtual SamplingParams default_sampling() const = 0;

  // Takes from milliseconds to seconds; the latest grammars are kept. kInvalidArgument: it is wrong, too large, or asks
  // for what could not be kept to; kUnsupported: this build or this model has none.
  virtual Result<std::shared_ptr<const Grammar>> compile_grammar(const GrammarSpec& spec) = 0;

  virtual Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special_tokens) const = 0;
  virtual std::string decode(const std::vector<std::int32_t>& tokens, bool skip_special_tokens) const = 0;
  // Bytes of one token as they stand in the text (may be part of a character).
  virtual std::string token_bytes(std::int32_t token) const = 0;
  // Source of the model's chat template; empty: it has none.
  virtual std::string chat_template() const = 0;
  // Renders the chat template and encodes it. extra_json: an object of further template variables ("" for
  // none), `tools` among them.
  virtual Result<std::vector<std::int32_t>> encode_chat(const std::vector<ChatMessage>& messages,
                                                        bool add_generation_prompt,
                                                        const std::string& extra_json) const = 0;
  // The plan of the latest forward that ran attention over at least two requests (else of the latest), as SVG and
  // words.
  virtual std::string explain_plan_svg() const = 0;
  virtual std::string explain_plan_text() const = 0;
};

}  // namespace fovea
