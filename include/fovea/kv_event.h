// KvEvent: which blocks (pages of tokens) the prefix cache holds, as routers that send requests where their prefix is
// want to know. EngineOptions::on_kv_events gets them; the server publishes them (--kv-events).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace fovea {

struct KvEvent {
  enum class Kind : std::uint8_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  // Names of blocks: of their tokens, all before them and the salt. Stable while the process lives, or as long as
  // kv_store.
  std::vector<std::uint64_t> blocks;
  // kStored:
  std::optional<std::uint64_t> parent;  // of the first block
  std::vector<std::int32_t> tokens;     // of all blocks
  std::int32_t block_tokens = 0;
  std::string salt;  // requests with another one do not see the blocks
  bool gpu = false;  // in memory of a GPU, else of the host
};

// Called on the engine's thread after a step that changed something; must return quickly.
using KvEventCallback = std::function<void(std::vector<KvEvent>)>;

}  // namespace fovea
