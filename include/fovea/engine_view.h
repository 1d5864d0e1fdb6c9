// EngineView: what an engine is doing, as one picture: requests, KV pages, the tree of cached prefixes, and how the
// latest plan gives attention to workers. Engine::view() fills it between two steps, only when somebody asks, and never
// with more than the limits below whatever the load. The server's GET /engine.json shows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fovea/engine.h"

namespace fovea {

// A choice of a request.
struct RequestView {
  RequestId id = 0;
  std::int32_t choice = 0;
  std::int32_t priority = 0;
  bool running = false;  // else it waits
  double seconds = 0.0;  // since it was submitted
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;    // of the prompt, found in the prefix cache
  std::int32_t computed_tokens = 0;  // whose KV is in pages
  std::int32_t generated_tokens = 0;
  std::int32_t max_tokens = 0;  // that it may generate
  // Of the first KV group: pages that it holds, and those of them that other requests hold too.
  std::int32_t pages = 0, shared_pages = 0;
  std::uint64_t prefix = 0;  // PrefixView::id of the cached prefix it stands on; 0: none
};

// The pages of a KV group: used + cached + free = total.
struct PoolView {
  std::int32_t window_tokens = 0;  // 0: tokens of the group stay as long as their request
  std::int64_t page_bytes = 0;
  std::int32_t total = 0;
  std::int32_t used = 0;    // held by requests
  std::int32_t shared = 0;  // ..., by two at least
  std::int32_t cached = 0;  // held by the prefix cache alone: evictable
  std::int32_t free = 0;
};

// A node of the prefix cache: a run of whole pages behind its parent's. Parents come before their children.
struct PrefixView {
  std::uint64_t id = 0;      // not 0
  std::uint64_t parent = 0;  // 0: it begins at the first token
  std::int32_t first_page = 0, pages = 0;
  std::int32_t sequences = 0;     // that stand on it or below
  std::uint64_t last_access = 0;  // larger is later
};

// What a worker does from `begin` on: an item of the plan under one KV head.
struct TimelineItem {
  std::int32_t worker = 0;
  std::uint64_t begin = 0, cost = 0;  // of the cost model, in bytes read
  RequestId request = 0;              // 0: of several
  std::int32_t requests = 0;          // that read it together
  std::int32_t head = 0;              // KV head
  std::int32_t query_tokens = 0, kv_tokens = 0;
};

// The latest plan of the first attention group. No workers: there is none yet.
struct TimelineView {
  std::int32_t workers = 0;
  std::uint64_t cost = 0, longest = 0;                // of all workers together, and of the one with most
  std::uint64_t kv_bytes = 0, kv_bytes_unshared = 0;  // read, of one layer; and if nothing were shared
  std::vector<TimelineItem> items;                    // by worker, then by time; the largest where they are too many
  std::size_t items_left_out = 0;
};

// What the host or the device did of a step, in seconds of EngineView::seconds' clock.
struct StepSpan {
  std::string name;  // of the host: "schedule", "plan", "enqueue", "wait", "sample"
  bool device = false;
  double begin = 0.0, end = 0.0;
  std::int32_t sequences = 0, tokens = 0;  // of the device's
};

struct EngineView {
  static constexpr std::size_t kMaxRequests = 200, kMaxPrefixes = 400, kMaxItems = 2000;

  EngineStats stats;
  double seconds = 0.0;  // of a clock that never goes back, for rates between two views
  std::int32_t page_tokens = 0;
  std::vector<RequestView> requests;  // those that run first, each in the order of arrival
  std::size_t requests_left_out = 0;
  std::vector<PoolView> pools;       // by KV group
  std::vector<PrefixView> prefixes;  // the latest ones where they are too many
  std::size_t prefixes_left_out = 0;
  TimelineView timeline;
  std::vector<StepSpan> spans;  // of the latest steps (EngineOptions::step_log), by lane and in order
};

}  // namespace fovea
