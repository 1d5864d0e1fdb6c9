#include "engine/ranks/agreement.h"

#include <algorithm>
#include <vector>

#include "base/hash.h"
#include "base/status.h"

namespace fovea {

Status check_same_engine(ProcessGroup& group, const EngineOptions& options, std::uint64_t model) {
  const std::string said = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", options.weight_dtype, options.load_format, options.dummy_seed,
      static_cast<int>(options.kv_dtype), options.kv_rotated, options.page_tokens, options.max_running,
      options.max_context, options.chunk_tokens, options.share_prefixes, options.batch_invariant, options.streaming,
      options.sparse, options.kv_budget, options.speculate, options.kv_cache_bytes);
  const std::uint64_t mine[] = {hash_string(said), model};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()) * 2);
  FOVEA_RETURN_IF_ERROR(group.all_gather(mine, sizeof mine, all.data()));
  for (int rank = 1; rank < group.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank) * 2;
    if (all[at] == all[0] && all[at + 1] == all[1]) continue;
    return invalid_argument("rank {} has {} than rank 0; start all ranks alike", rank,
                            all[at] != all[0] ? "other options" : "another model or another kind of device");
  }
  return ok_status();
}

Status take_least(ProcessGroup& group, std::span<std::int64_t> values) {
  std::vector<std::int64_t> all(values.size() * static_cast<std::size_t>(group.size()));
  FOVEA_RETURN_IF_ERROR(group.all_gather(values.data(), values.size_bytes(), all.data()));
  for (std::size_t i = 0; i < all.size(); ++i) {
    values[i % values.size()] = std::min(values[i % values.size()], all[i]);
  }
  return ok_status();
}

}  // namespace fovea
