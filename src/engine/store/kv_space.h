// What KV depends on besides the tokens, as a hash: pages of one space are never read in another. Called where an
// engine with a KV store is made.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/hash128.h"
#include "engine/model/model.h"
#include "fovea/engine.h"

namespace fovea {

// Of config.json and weights of a model's folder, or of a config.json alone. Of large weights a sixteenth is read, some
// of each megabyte.
Result<Hash128> hash_model(const std::string& folder);

// model: hash_model(), or whatever else tells models apart.
Hash128 kv_space(const Hash128& model, const EngineOptions& options, std::string_view device,
                 const std::vector<KvGroupSpec>& groups);

}  // namespace fovea
