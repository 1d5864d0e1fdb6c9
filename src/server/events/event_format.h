// KV events as routers read them: vLLM's payload of msgpack, [time, [event...], rank], its events maps, or arrays as
// before 2026-06 and as SGLang sends them. Used by EventPublisher.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "fovea/kv_event.h"

namespace fovea::server {

enum class EventShape : std::uint8_t { kMap, kArray };

std::string event_payload(std::span<const KvEvent> events, double unix_seconds, EventShape shape);

// Of a message: the number of a batch, 8 bytes, the highest first.
std::string event_sequence(std::uint64_t sequence);

}  // namespace fovea::server
