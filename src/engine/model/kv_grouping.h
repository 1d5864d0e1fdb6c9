// Which heads of a model keep the same tokens (KV groups), and which layers are planned alike (attention groups). Made
// once by Transformer from the model's windows and its head profile.
#pragma once

#include <vector>

#include "engine/model/head_profile.h"
#include "engine/model/model.h"

namespace fovea {

struct KvGrouping {
  std::vector<KvGroupSpec> groups;  // streaming heads last
  std::vector<AttentionGroupSpec> attention;
  std::vector<std::size_t> attention_of;  // [num_layers]
};

// streaming: null, or a profile that fits the model (check_head_profile).
KvGrouping make_kv_grouping(const ModelConfig& config, const HeadProfile* streaming);

}  // namespace fovea
