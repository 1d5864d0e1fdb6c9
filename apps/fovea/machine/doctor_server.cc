// `fovea doctor --server URL`: whether a server that runs is well, from what it says of itself and from one token.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "base/quote.h"
#include "base/status.h"
#include "console.h"
#include "fovea/version.h"
#include "machine/findings.h"
#include "server/http/client.h"

namespace fovea::app {
namespace {

using nlohmann::json;

// Values of Prometheus' text by name with labels.
std::map<std::string, double> parse_metrics(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const std::size_t space = line.rfind(' ');
    if (line.starts_with('#') || space == std::string::npos) continue;
    values[line.substr(0, space)] = std::strtod(line.c_str() + space, nullptr);
  }
  return values;
}

// "12.3 ms" of a histogram, or "none yet".
std::string mean_ms(std::map<std::string, double>& values, const std::string& name) {
  const double count = values[name + "_count"];
  return count > 0.0 ? fmt::format("{:.1f} ms", 1e3 * values[name + "_sum"] / count) : "none yet";
}

void add_metrics(const std::string& text, std::vector<Finding>* findings) {
  auto values = parse_metrics(text);
  findings->push_back({"requests", fmt::format("{:.0f} running", values["fovea_requests_running"]),
                       fmt::format("{:.0f} wait, {:.0f} clients left", values["fovea_requests_queued"],
                                   values["fovea_client_disconnects_total"])});
  const double total = values["fovea_kv_pages{state=\"total\"}"];
  const double used = values["fovea_kv_usage_ratio"];
  findings->push_back({"KV pages", fmt::format("{:.0f} % held", 100.0 * used),
                       fmt::format("of {:.0f}; {:.0f} cached{}", total, values["fovea_kv_pages{state=\"cached\"}"],
                                   used > 0.95 ? "; requests wait for pages: raise --kv-cache-mib" : "")});
  if (const double retracted = values["fovea_retractions_total"]; retracted > 0.0) {
    findings->push_back(
        {"retractions", fmt::format("{:.0f}", retracted),
         "answers gave up their pages and were computed again: raise --kv-cache-mib or lower --max-running"});
  }
  const double prompts = values["fovea_prompt_tokens_total"];
  if (prompts > 0.0) {
    findings->push_back({"prefix cache", fmt::format("{:.0f} %", 100.0 * values["fovea_cached_tokens_total"] / prompts),
                         fmt::format("of {:.0f} prompt tokens were found", prompts)});
  }
  findings->push_back({"first token", mean_ms(values, "fovea_time_to_first_token_seconds"), "mean since the start"});
  findings->push_back({"between tokens", mean_ms(values, "fovea_inter_token_latency_seconds"), "mean since the start"});
}

// The model's name, empty where the server does not say.
std::string add_model(const server::HttpResponse& answer, std::vector<Finding>* findings) {
  const json models = json::parse(answer.body, nullptr, false);
  if (answer.status != 200 || !models.is_object() || !models.contains("data") || !models["data"].is_array() ||
      models["data"].empty() || !models["data"][0].is_object()) {
    findings->push_back({"model", "unknown",
                         answer.status == 401 ? "the server asks for a key: --api-key"
                                              : fmt::format("/v1/models answered {}", answer.status)});
    return "";
  }
  const json& model = models["data"][0];
  std::string id = model.value("id", "");
  findings->push_back({"model", id, fmt::format("{} tokens context", model.value("max_model_len", std::int64_t{0}))});
  return id;
}

}  // namespace

Result<std::vector<Finding>> server_findings(const std::string& url, const std::string& api_key,
                                             const std::string& ca_file, bool* well) {
  FOVEA_ASSIGN_OR_RETURN(server::Url address, server::parse_url(url));
  if (!ca_file.empty() && !address.tls)
    return invalid_argument("--ca-file is for https://, --server is {}", shorten(url));
  address.ca_file = ca_file;
  FOVEA_ASSIGN_OR_RETURN(auto client, server::HttpClient::connect(address, 10.0));
  if (!api_key.empty()) client->set_header("Authorization", "Bearer " + api_key);
  std::vector<Finding> findings;
  *well = true;
  for (const auto& [what, path, advice] :
       {std::tuple("healthy", "/health", "the engine stands still or failed; its log says why"),
        std::tuple("ready", "/ready", "it starts, drains or is not healthy: send requests elsewhere")}) {
    FOVEA_ASSIGN_OR_RETURN(const server::HttpResponse answer, client->get(path));
    *well = *well && answer.status == 200;
    findings.push_back({what, answer.status == 200 ? "yes" : "no", answer.status == 200 ? "" : advice});
  }
  FOVEA_ASSIGN_OR_RETURN(const server::HttpResponse version, client->get("/version"));
  const json parsed = json::parse(version.body, nullptr, false);
  const std::string theirs = parsed.is_object() ? parsed.value("version", "unknown") : "unknown";
  findings.push_back({"version", theirs, theirs == kVersion ? "" : fmt::format("this program is {}", kVersion)});
  FOVEA_ASSIGN_OR_RETURN(const server::HttpResponse models, client->get("/v1/models"));
  const std::string model = add_model(models, &findings);
  FOVEA_ASSIGN_OR_RETURN(const server::HttpResponse metrics, client->get("/metrics"));
  if (metrics.status == 200) add_metrics(metrics.body, &findings);
  if (!model.empty()) {
    const auto begin = std::chrono::steady_clock::now();
    const json body = {{"model", model}, {"prompt", "Hello"}, {"max_tokens", 1}, {"temperature", 0}};
    FOVEA_ASSIGN_OR_RETURN(const server::HttpResponse answer, client->post("/v1/completions", body.dump()));
    const bool right = answer.status == 200;
    *well = *well && right;
    findings.push_back({"one token", right ? fmt::format("{:.1f} ms", 1e3 * seconds_since(begin)) : "no",
                        right ? "" : fmt::format("answered {}: {}", answer.status, answer.body.substr(0, 200))});
  }
  return findings;
}

}  // namespace fovea::app
