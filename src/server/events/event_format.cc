// By way of JSON values, which the library writes as msgpack.
#include "server/events/event_format.h"

#include <nlohmann/json.hpp>

namespace fovea::server {
namespace {

using Json = nlohmann::json;

const char* medium_of(const KvEvent& event) { return event.gpu ? "GPU" : "CPU"; }

Json map_of(const KvEvent& event) {
  switch (event.kind) {
    case KvEvent::Kind::kRemoved:
      return {{"type", "BlockRemoved"}, {"block_hashes", event.blocks}, {"medium", medium_of(event)}, {"group_idx", 0}};
    case KvEvent::Kind::kCleared: return {{"type", "AllBlocksCleared"}};
    case KvEvent::Kind::kStored: break;
  }
  const Json salt = event.salt.empty() ? Json() : Json::array({event.salt});
  return {{"type", "BlockStored"},
          {"block_hashes", event.blocks},
          {"parent_block_hash", event.parent.has_value() ? Json(*event.parent) : Json()},
          {"token_ids", event.tokens},
          {"block_size", event.block_tokens},
          {"lora_id", nullptr},
          {"medium", medium_of(event)},
          {"lora_name", nullptr},
          {"extra_keys", Json(event.blocks.size(), salt)},
          {"group_idx", 0},
          {"kv_cache_spec_kind", "full_attention"}};
}

Json array_of(const KvEvent& event) {
  switch (event.kind) {
    case KvEvent::Kind::kRemoved: return Json::array({"BlockRemoved", event.blocks, medium_of(event)});
    case KvEvent::Kind::kCleared: return Json::array({"AllBlocksCleared"});
    case KvEvent::Kind::kStored: break;
  }
  return Json::array({"BlockStored", event.blocks, event.parent.has_value() ? Json(*event.parent) : Json(),
                      event.tokens, event.block_tokens, nullptr, medium_of(event), nullptr});
}

}  // namespace

std::string event_payload(std::span<const KvEvent> events, double unix_seconds, EventShape shape) {
  Json list = Json::array();
  for (const KvEvent& event : events) list.push_back(shape == EventShape::kMap ? map_of(event) : array_of(event));
  std::string payload;
  Json::to_msgpack(Json::array({unix_seconds, std::move(list), 0}), payload);
  return payload;
}

std::string event_sequence(std::uint64_t sequence) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[static_cast<std::size_t>(i)] = static_cast<char>(sequence >> (8 * (7 - i)));
  return bytes;
}

}  // namespace fovea::server
