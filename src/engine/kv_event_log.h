// Collects what the prefix cache says of its pages as KV events, for EngineOptions::on_kv_events. Used by EngineCore.
#pragma once

#include <utility>
#include <vector>

#include "engine/cache/page_keeper.h"
#include "fovea/kv_event.h"

namespace fovea {

class KvEventLog final : public PrefixObserver {
 public:
  KvEventLog(std::int32_t page_tokens, bool gpu) : page_tokens_(page_tokens), gpu_(gpu) {}

  void on_stored(const PrefixRun& run) override {
    KvEvent& event = add(KvEvent::Kind::kStored);
    for (const PageKey& key : run.keys) event.blocks.push_back(key.low);
    if (run.first_page > 0) event.parent = run.before.low;
    event.tokens.assign(run.tokens.begin(), run.tokens.end());
    event.block_tokens = page_tokens_;
    event.salt = run.salt;
  }
  void on_removed(const PageKey& key) override {
    const bool goes_on = !events_.empty() && events_.back().kind == KvEvent::Kind::kRemoved;
    (goes_on ? events_.back() : add(KvEvent::Kind::kRemoved)).blocks.push_back(key.low);
  }
  void on_cleared() override { add(KvEvent::Kind::kCleared); }

  std::vector<KvEvent> take() { return std::exchange(events_, {}); }

 private:
  KvEvent& add(KvEvent::Kind kind) {
    KvEvent& event = events_.emplace_back();
    event.kind = kind;
    event.gpu = gpu_;
    return event;
  }

  std::int32_t page_tokens_;
  bool gpu_;
  std::vector<KvEvent> events_;
};

}  // namespace fovea
