// Service: every path the server answers. It checks the key, finds the handler, parses, and starts Generations. Given
// to the HttpServer as its handler by Server.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fovea/engine.h"
#include "server/http/exchange.h"
#include "server/metrics/request_log.h"
#include "server/metrics/server_metrics.h"
#include "server/openai/api_request.h"
#include "server/openai/generation.h"
#include "server/page/live_view.h"

namespace fovea::server {

class OtlpExporter;

struct ServiceOptions {
  std::vector<std::string> served_names;   // in /v1/models, the first is shown in answers; empty: the engine's
  std::string tool_parser = "auto";        // how calls of tools are written: a ToolFormat's name; auto: by the template
  std::string reasoning_parser = "auto";   // a ReasoningFormat's name, "off", or auto: by the template
  bool lenient = false;                    // fields that this server does not do are logged and ignored, not refused
  std::vector<std::string> api_keys;       // at the start; any of them will do; empty: none asked for
  std::string cors_origin;                 // of web pages that may call, "*": any; empty: none
  bool loopback = false;                   // listens on a loopback address: Host must name this machine, or
  std::vector<std::string> allowed_hosts;  // one of these
  std::function<void(const RequestRecord&)>
      on_request;                    // told of each request at its end, from any thread; may be null
  OtlpExporter* traces = nullptr;    // gets them too, those that POST; outlives the service
  bool page = true;                  // the page at /
  std::int32_t stream_interval = 1;  // tokens that an event of a stream holds, after the first
  double stuck_seconds = 60.0;       // a forward that takes longer makes /health 503
};

class Service {
 public:
  // The engine must outlive the service.
  Service(Engine& engine, ServiceOptions options);

  void handle(HttpRequest request, const std::shared_ptr<Exchange>& exchange);
  // From now on /ready says 503 and new generations are refused.
  void drain() { draining_.store(true); }
  // In place of those of the options.
  void set_api_keys(std::vector<std::string> keys);
  ServerMetrics& metrics() { return metrics_; }
  // "post /tokenize", ...; one that ends with a slash stands for all below it. Those of the page are not among them.
  static std::vector<std::string> routes();

 private:
  struct Route;
  // What is kept of a request until its end, when that itself is gone.
  struct RequestStart {
    RequestRecord record;
    std::chrono::steady_clock::time_point arrival;
  };
  static RequestStart start_of(const HttpRequest& request);
  static const Route kRoutes[];

  void health(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void ready(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void metrics_text(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void openapi(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void version(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void model(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void models(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void server_info(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void engine_json(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void plan_svg(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void chat(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void responses(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void messages(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void count_tokens(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void generate_text(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void model_info(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void tokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void detokenize(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void tokenizer_info(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  void flush_cache(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);

  void reply(const std::shared_ptr<Exchange>& exchange, const HttpRequest& request, HttpResponse response);
  void reply_error(const std::shared_ptr<Exchange>& exchange, const HttpRequest& request, const ApiError& error);
  void preflight(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  // Counts the request, and tells options_.on_request of it.
  void record(const RequestStart& start, std::int32_t status, const GenerationReport& generation = {});
  bool authorized(const HttpRequest& request) const;
  // Why a browser may have been led here by a page that is none of ours; empty: it was not.
  std::string foreign(const HttpRequest& request) const;
  bool known_model(std::string_view name) const;
  std::string model_json(std::string_view name) const;
  bool unknown_model(std::string_view name, const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  // Why the engine would not take the prompt, or what was asked for does not fit behind it; none: all is well.
  // prompt_field: what the API calls the prompt.
  std::optional<ApiError> check(const GenerateRequest& request, const GenerationParams& params,
                                const std::string& prompt_field) const;
  // Tells the template of the request's tools, and the engine and the Generation what calls look like.
  std::optional<ApiError> use_tools(ChatRequest* request, const std::string& prompt_field, GenerationSpec* spec) const;
  // Looks for reasoning in the answer to this prompt.
  void use_reasoning(const std::vector<std::int32_t>& prompt, GenerationSpec* spec) const;
  // Renders the chat; system messages that the template does not take where they are are folded. prompt_field: as
  // check() has it.
  Result<std::vector<std::int32_t>> render(ChatRequest* request) const;
  // All of that: from a parsed chat to what the engine is asked.
  std::optional<ApiError> prepare(ChatRequest* request, const std::string& prompt_field, GenerationSpec* spec);
  // The form of the answer, if one is asked for, ready for the engine.
  std::optional<ApiError> compile_grammar(GenerationParams* params);
  void generate(GenerationSpec spec, const std::string& prompt_field, const HttpRequest& request,
                const std::shared_ptr<Exchange>& exchange);
  // True when the server shuts down; the request was told so.
  bool refuse_draining(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
  // prefix: with what parts it from the number, "cmpl-".
  std::string new_id(const char* prefix);
  RequestLimits limits() const;

  Engine& engine_;
  ServiceOptions options_;
  ServerMetrics metrics_;
  std::string name_;
  const ToolFormat* tool_format_;            // of the model; null: it takes no tools
  const ReasoningFormat* reasoning_format_;  // of the model; null: none is looked for
  LiveView live_view_;
  const std::int64_t created_;
  std::uint64_t id_salt_;
  std::atomic<std::uint64_t> next_id_{0};
  std::atomic<bool> draining_{false};
  mutable std::mutex keys_mutex_;
  std::shared_ptr<const std::vector<std::string>> keys_;
};

}  // namespace fovea::server
