#include "server/page/live_view.h"

#include <fmt/format.h>

#include <iterator>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "fovea/version.h"
#include "server/http/message.h"

namespace fovea::server {
namespace {

template <typename... Args>
void append(std::string* out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(*out), format, std::forward<Args>(args)...);
}

// "name":[a,b,...], each element written by `write`.
template <typename List, typename Write>
void append_list(std::string* out, std::string_view name, const List& list, Write write) {
  append(out, "\"{}\":[", name);
  bool first = true;
  for (const auto& element : list) {
    if (!first) out->push_back(',');
    first = false;
    write(element);
  }
  out->push_back(']');
}

void append_requests(std::string* out, const EngineView& view) {
  const EngineStats& stats = view.stats;
  append(out,
         "\"requests\":{{\"running\":{},\"waiting\":{},\"finished\":{},\"cancelled\":{},\"failed\":{},"
         "\"retractions\":{},",
         stats.running, stats.queued, stats.requests_finished, stats.requests_cancelled, stats.requests_failed,
         stats.retractions);
  append_list(out, "list", view.requests, [&](const RequestView& r) {
    append(out,
           "{{\"id\":{},\"choice\":{},\"state\":\"{}\",\"priority\":{},\"seconds\":{:.3f},\"prompt_tokens\":{},"
           "\"cached_tokens\":{},\"computed_tokens\":{},\"generated_tokens\":{},\"max_tokens\":{},\"pages\":{},"
           "\"shared_pages\":{},\"prefix\":{}}}",
           r.id, r.choice, r.running ? "running" : "waiting", r.priority, r.seconds, r.prompt_tokens, r.cached_tokens,
           r.computed_tokens, r.generated_tokens, r.max_tokens, r.pages, r.shared_pages, r.prefix);
  });
  append(out, ",\"left_out\":{}}}", view.requests_left_out);
}

void append_kv(std::string* out, const EngineView& view) {
  append(out, "\"kv\":{{\"page_tokens\":{},\"bytes_read\":{},\"bytes_unshared\":{},", view.page_tokens,
         view.stats.kv_bytes_read, view.stats.kv_bytes_unshared);
  append(out,
         "\"host\":{{\"pages\":{},\"bytes\":{}}},\"store\":{{\"pages\":{},\"bytes\":{},\"errors\":{}}},\"restored_"
         "pages\":{},",
         view.stats.kv_host_pages, view.stats.kv_host_bytes, view.stats.kv_store_pages, view.stats.kv_store_bytes,
         view.stats.kv_store_errors, view.stats.kv_pages_restored);
  append_list(out, "pools", view.pools, [&](const PoolView& p) {
    append(out,
           "{{\"window_tokens\":{},\"page_bytes\":{},\"total\":{},\"used\":{},\"shared\":{},\"cached\":{},\"free\":{}"
           "}}",
           p.window_tokens, p.page_bytes, p.total, p.used, p.shared, p.cached, p.free);
  });
  *out += "},\"prefixes\":{\"fields\":[\"id\",\"parent\",\"first_page\",\"pages\",\"sequences\",\"last_access\"],";
  append_list(out, "nodes", view.prefixes, [&](const PrefixView& p) {
    append(out, "[{},{},{},{},{},{}]", p.id, p.parent, p.first_page, p.pages, p.sequences, p.last_access);
  });
  append(out, ",\"left_out\":{}}}", view.prefixes_left_out);
}

void append_timeline(std::string* out, const TimelineView& t) {
  append(out,
         "\"timeline\":{{\"workers\":{},\"cost\":{},\"longest\":{},\"kv_bytes\":{},\"kv_bytes_unshared\":{},\"fields\":"
         "[\"worker\",\"begin\",\"cost\",\"request\",\"requests\",\"head\",\"query_tokens\",\"kv_tokens\"],",
         t.workers, t.cost, t.longest, t.kv_bytes, t.kv_bytes_unshared);
  append_list(out, "items", t.items, [&](const TimelineItem& i) {
    append(out, "[{},{},{},{},{},{},{},{}]", i.worker, i.begin, i.cost, i.request, i.requests, i.head, i.query_tokens,
           i.kv_tokens);
  });
  append(out, ",\"left_out\":{}}}", t.items_left_out);
}

// counts[i]: values up to bounds[i]; the last: larger ones.
void append_histogram(std::string* out, std::string_view name, const Histogram& histogram) {
  append(out, "\"{}\":{{", name);
  append_list(out, "bounds", histogram.bounds(), [&](double bound) { append(out, "{}", bound); });
  std::vector<std::uint64_t> counts(histogram.bounds().size() + 1);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = histogram.bucket(i);
  out->push_back(',');
  append_list(out, "counts", counts, [&](std::uint64_t count) { append(out, "{}", count); });
  append(out, ",\"sum\":{}}}", histogram.sum());
}

}  // namespace

std::string live_view_json(const EngineView& view, const Engine& engine, const std::string& model,
                           const ServerMetrics& metrics) {
  const EngineStats& stats = view.stats;
  std::string out = "{\"model\":";
  append_json_string(&out, model);
  append(&out,
         ",\"version\":\"{}\",\"max_model_len\":{},\"healthy\":{},\"seconds\":{:.6f},\"steps\":{},"
         "\"step_seconds\":{:.6f},\"tokens\":{{\"prompt\":{},\"cached\":{},\"generated\":{}}},",
         kVersion, engine.max_context(), stats.healthy, view.seconds, stats.steps, stats.step_seconds,
         stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens);
  append_histogram(&out, "time_to_first_token", metrics.time_to_first_token);
  out.push_back(',');
  append_histogram(&out, "inter_token_latency", metrics.inter_token_latency);
  out.push_back(',');
  append_requests(&out, view);
  out.push_back(',');
  append_kv(&out, view);
  out.push_back(',');
  append_timeline(&out, view.timeline);
  return out + "}";
}

struct LiveView::Waiting {
  std::mutex mutex;
  std::vector<Callback> callbacks;
};

LiveView::LiveView(Engine& engine, const ServerMetrics& metrics, std::string model)
    : engine_(engine), metrics_(metrics), model_(std::move(model)), waiting_(std::make_shared<Waiting>()) {}

void LiveView::ask(Callback callback) {
  {
    const std::scoped_lock lock(waiting_->mutex);
    waiting_->callbacks.push_back(std::move(callback));
    if (waiting_->callbacks.size() > 1) return;
  }
  engine_.view([this, waiting = waiting_](const EngineView& view) {
    std::vector<Callback> callbacks;
    {
      const std::scoped_lock lock(waiting->mutex);
      callbacks.swap(waiting->callbacks);
    }
    const std::string json = live_view_json(view, engine_, model_, metrics_);
    for (const Callback& answer : callbacks) answer(json);
  });
}

}  // namespace fovea::server
