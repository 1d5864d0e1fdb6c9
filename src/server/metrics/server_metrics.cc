#include "server/metrics/server_metrics.h"

#include <fmt/format.h>

#include "fovea/version.h"
#include "server/trace/otlp_exporter.h"

namespace fovea::server {
namespace {

constexpr const char* kPaths[] = {"/v1/chat/completions",
                                  "/v1/completions",
                                  "/v1/responses",
                                  "/v1/messages",
                                  "/v1/models",
                                  "/generate",
                                  "/tokenize",
                                  "/health",
                                  "other"};
constexpr std::int32_t kStatuses[] = {200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 503, 0};

std::vector<double> time_bounds() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0};
}
std::vector<double> token_bounds() { return {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 131072}; }

std::string request_key(std::string_view path, std::int32_t status) { return fmt::format("{} {}", path, status); }

}  // namespace

ServerMetrics::ServerMetrics(const Engine& engine, const OtlpExporter* traces)
    : time_to_first_token(registry_.histogram("fovea_time_to_first_token_seconds",
                                              "From a request's arrival to its first token", time_bounds())),
      inter_token_latency(registry_.histogram("fovea_inter_token_latency_seconds",
                                              "Between successive tokens of one choice", time_bounds())),
      request_latency(registry_.histogram("fovea_request_latency_seconds", "From a request's arrival to its last token",
                                          time_bounds())),
      prompt_tokens(registry_.histogram("fovea_request_prompt_tokens", "Prompt tokens of a request", token_bounds())),
      completion_tokens(registry_.histogram("fovea_request_completion_tokens",
                                            "Generated tokens of a request, all choices", token_bounds())),
      disconnects(registry_.counter("fovea_client_disconnects_total",
                                    "Clients that left or were cut before their answer ended")) {
  for (const char* path : kPaths) {
    for (const std::int32_t status : kStatuses) {
      const std::string code = status == 0 ? "other" : std::to_string(status);
      requests_[request_key(path, status)] = &registry_.counter("fovea_http_requests_total", "HTTP requests answered",
                                                                fmt::format("path=\"{}\",code=\"{}\"", path, code));
    }
  }
  const auto gauge = [&](const char* name, const char* help, auto value, const std::string& labels = "") {
    registry_.callback(
        name, help, "gauge", [&engine, value] { return static_cast<double>(value(engine.stats())); }, labels);
  };
  const auto counter = [&](const char* name, const char* help, auto value, const std::string& labels = "") {
    registry_.callback(
        name, help, "counter", [&engine, value] { return static_cast<double>(value(engine.stats())); }, labels);
  };
  using Stats = const EngineStats&;
  gauge("fovea_requests_running", "Requests in the running batch", [](Stats s) { return s.running; });
  gauge("fovea_requests_queued", "Requests that wait", [](Stats s) { return s.queued; });
  gauge("fovea_kv_usage_ratio", "Share of the KV pages that running requests hold", [](Stats s) {
    const std::int64_t used = s.pages_total - s.pages_free - s.pages_cached;
    return s.pages_total > 0 ? static_cast<double>(used) / static_cast<double>(s.pages_total) : 0.0;
  });
  const char* pages_help = "KV pages by state; cached ones can be evicted";
  gauge(
      "fovea_kv_pages", pages_help, [](Stats s) { return s.pages_total; }, "state=\"total\"");
  gauge(
      "fovea_kv_pages", pages_help, [](Stats s) { return s.pages_free; }, "state=\"free\"");
  gauge(
      "fovea_kv_pages", pages_help, [](Stats s) { return s.pages_cached; }, "state=\"cached\"");
  gauge("fovea_kv_page_bytes", "Bytes of one KV page, all layers", [](Stats s) { return s.page_bytes; });
  const char* tier_help =
      "Pages of KV groups beyond the cache: in the host's memory, in files (--kv-spill-gib, --kv-store)";
  gauge(
      "fovea_kv_tier_pages", tier_help, [](Stats s) { return s.kv_host_pages; }, "tier=\"host\"");
  gauge(
      "fovea_kv_tier_pages", tier_help, [](Stats s) { return s.kv_store_pages; }, "tier=\"store\"");
  const char* tier_bytes_help = "Their bytes";
  gauge(
      "fovea_kv_tier_bytes", tier_bytes_help, [](Stats s) { return s.kv_host_bytes; }, "tier=\"host\"");
  gauge(
      "fovea_kv_tier_bytes", tier_bytes_help, [](Stats s) { return s.kv_store_bytes; }, "tier=\"store\"");
  const char* moves_help = "Pages of KV groups copied: out of the cache, back into it, from files, into files";
  counter(
      "fovea_kv_tier_moves_total", moves_help, [](Stats s) { return s.kv_pages_spilled; }, "move=\"spilled\"");
  counter(
      "fovea_kv_tier_moves_total", moves_help, [](Stats s) { return s.kv_pages_restored; }, "move=\"restored\"");
  counter(
      "fovea_kv_tier_moves_total", moves_help, [](Stats s) { return s.kv_pages_read; }, "move=\"read\"");
  counter(
      "fovea_kv_tier_moves_total", moves_help, [](Stats s) { return s.kv_pages_written; }, "move=\"written\"");
  counter("fovea_kv_store_errors_total", "Files of the KV store that could not be read, written or believed",
          [](Stats s) { return s.kv_store_errors; });
  gauge("fovea_prompt_chunk_tokens", "Prompt tokens that the latest step with prompts could hold",
        [](Stats s) { return s.prompt_chunk_tokens; });
  gauge("fovea_device_graphs", "Steps that the GPU repeats as they were captured",
        [](Stats s) { return s.device_graphs; });
  gauge("fovea_device_graph_bytes", "GPU memory that capturing them took",
        [](Stats s) { return s.device_graph_bytes; });
  gauge("fovea_healthy", "1 while the engine is healthy", [](Stats s) { return s.healthy ? 1 : 0; });
  const char* requests_help = "Requests that ended, by outcome";
  counter(
      "fovea_requests_total", requests_help, [](Stats s) { return s.requests_finished; }, "outcome=\"finished\"");
  counter(
      "fovea_requests_total", requests_help, [](Stats s) { return s.requests_cancelled; }, "outcome=\"cancelled\"");
  counter(
      "fovea_requests_total", requests_help, [](Stats s) { return s.requests_failed; }, "outcome=\"failed\"");
  counter("fovea_retractions_total", "Requests set back because KV pages ran out",
          [](Stats s) { return s.retractions; });
  counter("fovea_prompt_tokens_total", "Prompt tokens of all requests", [](Stats s) { return s.prompt_tokens; });
  counter("fovea_cached_tokens_total", "Prompt tokens found in the prefix cache",
          [](Stats s) { return s.cached_tokens; });
  counter("fovea_generated_tokens_total", "Tokens generated", [](Stats s) { return s.generated_tokens; });
  counter("fovea_draft_tokens_total", "Draft tokens verified (--speculate)", [](Stats s) { return s.draft_tokens; });
  counter("fovea_accepted_draft_tokens_total", "Draft tokens accepted", [](Stats s) { return s.accepted_tokens; });
  counter("fovea_accepted_draft_branches_total", "Accepted draft tokens that were not the likeliest in their place",
          [](Stats s) { return s.accepted_branches; });
  counter("fovea_steps_total", "Forwards", [](Stats s) { return s.steps; });
  counter("fovea_steps_ahead_total", "Forwards launched before the tokens of the one before were read",
          [](Stats s) { return s.steps_ahead; });
  counter("fovea_step_seconds_total", "Time spent in forwards", [](Stats s) { return s.step_seconds; });
  counter("fovea_kv_bytes_read_total", "KV bytes that attention read", [](Stats s) { return s.kv_bytes_read; });
  counter("fovea_kv_bytes_unshared_total", "KV bytes attention would have read without prefix sharing",
          [](Stats s) { return s.kv_bytes_unshared; });
  const char* pages_help_sparse = "Pages (16 tokens of one layer, KV head and query) of queries that selected";
  counter(
      "fovea_sparse_pages_total", pages_help_sparse, [](Stats s) { return s.sparse_pages_read; }, "state=\"read\"");
  counter(
      "fovea_sparse_pages_total", pages_help_sparse, [](Stats s) { return s.sparse_pages_kept; }, "state=\"kept\"");
  const char* prompt_help = "Pages (16 tokens of one layer and KV head) of blocks of prompts that selected";
  counter(
      "fovea_sparse_prompt_pages_total", prompt_help, [](Stats s) { return s.sparse_prompt_pages_read; },
      "state=\"read\"");
  counter(
      "fovea_sparse_prompt_pages_total", prompt_help, [](Stats s) { return s.sparse_prompt_pages_kept; },
      "state=\"kept\"");
  counter("fovea_sparse_queries_total", "Queries that selected, once for each layer and KV head",
          [](Stats s) { return s.sparse_queries; });
  counter("fovea_sparse_records_total", "Statistics of pages that were scored",
          [](Stats s) { return s.sparse_records_read; });
  const char* lists_help = "Page lists by how they were made";
  counter(
      "fovea_sparse_lists_total", lists_help, [](Stats s) { return s.sparse_refreshes; }, "by=\"scan\"");
  counter(
      "fovea_sparse_lists_total", lists_help, [](Stats s) { return s.sparse_rescorings; }, "by=\"rescoring\"");
  counter(
      "fovea_sparse_lists_total", lists_help, [](Stats s) { return s.sparse_reuses; }, "by=\"reuse\"");
  if (traces != nullptr) {
    registry_.callback("fovea_trace_spans_total", "Spans that the collector of --otlp-endpoint took", "counter",
                       [traces] { return static_cast<double>(traces->sent()); });
    registry_.callback("fovea_trace_requests_dropped_total", "Requests whose spans it did not get", "counter",
                       [traces] { return static_cast<double>(traces->dropped()); });
  }
  registry_.callback(
      "fovea_build_info", "Version of the server", "gauge", [] { return 1.0; },
      fmt::format("version=\"{}\"", kVersion));
}

void ServerMetrics::count_request(std::string_view path, std::int32_t status) {
  auto found = requests_.find(request_key(path, status));
  if (found == requests_.end()) found = requests_.find(request_key(path, 0));
  if (found == requests_.end()) found = requests_.find(request_key("other", status));
  if (found == requests_.end()) found = requests_.find(request_key("other", 0));
  found->second->add();
}

}  // namespace fovea::server
