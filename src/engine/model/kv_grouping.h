// Which heads of a model keep the same tokens (KV groups), and which layers are planned alike (attention groups). Made
// once by Transformer from the model's windows and its head profile.
#pragma once

#include <vector>

#include "engine/model/head_profile.h"
#include "engine/model/model.h"
#include "engine/model/shard.h"

namespace fovea {

struct KvGrouping {
  std::vector<KvGroupSpec> groups;  // streaming heads last
  std::vector<AttentionGroupSpec> attention;
  std::vector<std::size_t> attention_of;  // [num_layers]
};

// heads: the KV heads of this rank, whose first is head 0 of the result. KV groups are the same on all ranks, though
// one of them may have no heads in some. streaming: null, or a profile that fits the model (check_head_profile).
KvGrouping make_kv_grouping(const ModelConfig& config, const ShardRange& heads, const HeadProfile* streaming);

}  // namespace fovea
