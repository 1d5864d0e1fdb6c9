// The picture of the engine that others ask for: see fovea/engine_view.h.
#include "engine/engine_core.h"

namespace fovea {

void EngineCore::view(ViewCallback callback) {
  EngineView ended;
  {
    const std::lock_guard lock(mutex_);
    if (!stop_) {
      views_.push_back(std::move(callback));
      wake_.notify_one();
      return;
    }
    ended.stats = stats_;
  }
  callback(ended);
}

void EngineCore::answer_views(std::unique_lock<std::mutex>& lock) {
  if (views_.empty()) return;
  std::vector<ViewCallback> callbacks;
  callbacks.swap(views_);
  EngineView view;
  view.stats = stats_;
  lock.unlock();
  fill_view(view);
  for (const ViewCallback& callback : callbacks) callback(view);
  lock.lock();
}

void EngineCore::fill_view(EngineView& view) const {
  view.seconds = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  view.page_tokens = parts_.options.page_tokens;
  for (const SequenceState state : {SequenceState::kRunning, SequenceState::kWaiting}) {
    for (const auto& [id, request] : active_) {
      for (const auto& choice : request->choices) {
        if (choice->state != state) continue;
        if (view.requests.size() < EngineView::kMaxRequests) {
          view.requests.push_back(view_of(*choice));
        } else {
          ++view.requests_left_out;
        }
      }
    }
  }
  for (std::size_t g = 0; g < pool_->num_groups(); ++g) {
    const PageAllocator& pages = pool_->pages(g);
    view.pools.push_back({parts_.model->kv_groups()[g].window_tokens, pool_->page_bytes(g), pages.total(),
                          pool_->pages_in_use(g), pages.count_shared(), pages.num_idle(), pages.num_free()});
  }
  view.prefixes = scheduler_->cache().view(EngineView::kMaxPrefixes);
  view.prefixes_left_out = scheduler_->cache().num_nodes() - view.prefixes.size();
  view.timeline = runner_->timeline(EngineView::kMaxItems);
  if (step_log_ != nullptr) view.spans = step_log_->spans();
}

RequestView EngineCore::view_of(const Choice& choice) const {
  RequestView view;
  view.id = choice.request->id;
  view.choice = choice.index;
  view.priority = choice.priority;
  view.running = choice.state == SequenceState::kRunning;
  view.seconds = std::chrono::duration<double>(Clock::now() - choice.request->arrival).count();
  view.prompt_tokens = choice.prompt_length;
  view.cached_tokens = choice.cached_tokens;
  view.computed_tokens = choice.computed;
  view.generated_tokens = choice.length() - choice.prompt_length;
  view.max_tokens = choice.max_tokens;
  view.prefix = RadixCache::id_of(choice.node);
  if (choice.slot == ReqToTokenPool::kNoSlot) return view;
  const std::span<const std::int32_t> row = std::as_const(*rows_).row(choice.slot, 0);
  for (const std::int32_t page : row.first(static_cast<std::size_t>(rows_->length(choice.slot, 0)))) {
    if (page == kDummyPage) continue;
    ++view.pages;
    view.shared_pages += pool_->pages(0).is_shared(page) ? 1 : 0;
  }
  return view;
}

}  // namespace fovea
