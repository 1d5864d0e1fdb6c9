// KeyCodes: what was learned of a model's keys for the selection policy "fovea", as key_sketch.json in its folder or
// another file keeps it. Learned by KeyProfiler (`fovea profile keys`) or tools/research, loaded by Engine::create,
// used by the statistics of pages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "abi/page_stats.h"
#include "engine/model/config.h"
#include "fovea/status.h"

namespace fovea {

inline constexpr const char* kKeyCodesFile = "key_sketch.json";

struct KeyCodes {
  std::vector<abi::KeyCode> codes;  // [layers][KV heads], or nothing
  std::int32_t num_kv_heads = 0;

  bool empty() const { return codes.empty(); }
  const abi::KeyCode* of_layer(std::int32_t layer) const {
    return codes.data() + static_cast<std::size_t>(layer) * static_cast<std::size_t>(num_kv_heads);
  }
};

// Nothing where the folder has no such file; kDataLoss names what is wrong in one.
Result<KeyCodes> load_key_codes(const std::string& folder, const ModelConfig& config);
Result<KeyCodes> read_key_codes(const std::string& file, const ModelConfig& config);
// model: its name, for people.
std::string to_json(const KeyCodes& codes, std::string_view model);

}  // namespace fovea
