// Load on a server that speaks the completions API, ours or another one's: a connection a client, one thread each.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/status.h"
#include "bench/serve/load.h"
#include "client/api_client.h"
#include "console.h"

namespace fovea::app {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostConnections = 1024;
constexpr double kTimeoutSeconds = 600.0;

std::string body_of(const LoadRequest& request, std::int32_t choices) {
  json body = {{"prompt", request.prompt}, {"max_tokens", request.max_tokens},
               {"temperature", 0},         {"ignore_eos", true},
               {"stream", true},           {"stream_options", {{"include_usage", true}}}};
  if (choices > 1) body["n"] = choices;
  return body.dump();
}

RequestTimes times_of(const ApiAnswer& answer, double sent_s, std::int32_t choices) {
  RequestTimes times;
  times.sent_s = sent_s;
  times.prompt_tokens = answer.prompt_tokens;
  times.cached_tokens = answer.cached_tokens;
  times.choices.resize(static_cast<std::size_t>(choices));
  for (std::size_t i = 0; i < answer.chunk_s.size(); ++i) {
    const auto choice = static_cast<std::size_t>(std::clamp(answer.chunk_choice[i], 0, choices - 1));
    times.choices[choice].chunk_s.push_back(sent_s + answer.chunk_s[i]);
  }
  // All have max_tokens; the usage counts them together.
  for (ChoiceTimes& choice : times.choices) choice.tokens = answer.completion_tokens / choices;
  return times;
}

class HttpTarget final : public LoadTarget {
 public:
  HttpTarget(server::Url address, std::int32_t vocab_size, std::int32_t max_context)
      : address_(std::move(address)), vocab_size_(vocab_size), max_context_(max_context) {}

  LoadResult run(std::span<const LoadRequest> requests, const LoadShape& shape) override;
  void forget_prefixes() override {
    // Other makes have another name for it, or none: then what is cached stays.
    (void)post_body(address_, "/flush_cache", "{}");
  }
  std::int32_t vocab_size() const override { return vocab_size_; }
  std::int32_t max_context() const override { return max_context_; }

 private:
  server::Url address_;
  std::int32_t vocab_size_;
  std::int32_t max_context_;
};

LoadResult HttpTarget::run(std::span<const LoadRequest> requests, const LoadShape& shape) {
  std::vector<std::string> bodies;
  for (const LoadRequest& request : requests) bodies.push_back(body_of(request, shape.choices));
  LoadResult result;
  result.requests.resize(requests.size());
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  std::int64_t done = 0;
  Progress progress("bench serve", static_cast<std::int64_t>(requests.size()));
  const auto begin = Clock::now();
  const auto client_loop = [&] {
    std::unique_ptr<server::HttpClient> client;
    for (std::size_t i = next.fetch_add(1); i < bodies.size(); i = next.fetch_add(1)) {
      if (shape.clients == 0) {
        const auto arrival = std::chrono::duration<double>(requests[i].arrival_s);
        std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(arrival));
      }
      RequestTimes times;
      if (!client) {
        auto connected = server::HttpClient::connect(address_, kTimeoutSeconds);
        if (connected.ok()) client = std::move(*connected);
        if (!connected.ok()) times.error = connected.status();
      }
      times.sent_s = seconds_since(begin);
      if (client) {
        const Result<ApiAnswer> answer = stream_request(*client, "/v1/completions", bodies[i]);
        if (answer.ok()) times = times_of(*answer, times.sent_s, shape.choices);
        if (!answer.ok()) {
          times.error = answer.status();
          client.reset();
        }
      }
      const std::scoped_lock lock(mutex);
      result.requests[i] = std::move(times);
      progress.set(++done);
    }
  };
  const std::size_t wanted = shape.clients > 0 ? static_cast<std::size_t>(shape.clients) : requests.size();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < std::min({wanted, requests.size(), kMostConnections}); ++i) {
    threads.emplace_back(client_loop);
  }
  for (std::thread& thread : threads) thread.join();
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace

Result<std::unique_ptr<LoadTarget>> http_target(const server::Url& address) {
  FOVEA_RETURN_IF_ERROR(server::HttpClient::connect(address).status());
  // Of a server that does not say: numbers that every model has.
  std::int32_t vocab_size = 1000, max_context = 0;
  if (auto info = get_body(address, "/server_info"); info.ok()) {
    const json parsed = json::parse(*info, nullptr, false);
    const auto read = [&](const char* key, std::int32_t* to) {
      if (parsed.is_object() && parsed.contains(key) && parsed[key].is_number_integer()) *to = parsed[key];
    };
    read("vocab_size", &vocab_size);
    read("max_model_len", &max_context);
  }
  return std::unique_ptr<LoadTarget>(
      std::make_unique<HttpTarget>(address, std::max(vocab_size, 17), std::max(max_context, 0)));
}

}  // namespace fovea::app
