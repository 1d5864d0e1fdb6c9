// HeadProfile: which KV heads of a model stream, that is, look at the first tokens (sinks) and recent ones only. Read
// from a JSON file or a folder of DuoAttention (arXiv 2410.10819); written by `fovea profile heads`. Used by
// load_model.
//
//   {"model": "needle", "layers": 4, "kv_heads": 2, "sink_tokens": 64, "local_tokens": 256,
//    "prefill_local_tokens": 1024, "streaming": [[0, 1], ...]}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config.h"
#include "fovea/status.h"

namespace fovea {

struct ModelHead {
  std::int32_t layer = 0;
  std::int32_t kv_head = 0;
  friend auto operator<=>(const ModelHead&, const ModelHead&) = default;
};

struct HeadProfile {
  // Sinks are whole blocks of so many tokens, so that batches may be invariant.
  static constexpr std::int32_t kSinkMultiple = 64;

  std::string model;  // that it was found on; for people
  std::int32_t sink_tokens = 64;
  std::int32_t local_tokens = 256;        // a query sees itself and local_tokens - 1 before it
  std::int32_t prefill_local_tokens = 0;  // of prompt tokens, where it is larger; 0: the same
  std::vector<ModelHead> streaming;       // ascending
  // Of the model that it was found on; 0: not known.
  std::int32_t num_layers = 0;
  std::int32_t num_kv_heads = 0;

  bool streams(std::int32_t layer, std::int32_t kv_head) const;
};

// where: what opens the messages of errors. Keys that are not among those above are refused.
Result<HeadProfile> parse_head_profile(std::string_view json, std::string_view where);
std::string to_json(const HeadProfile& profile);

// spec: a JSON file, the JSON itself, or a folder of DuoAttention (config.json and full_attention_heads.tsv) with the
// share of heads that are to stream behind an @ ("patterns/llama@0.5", which is the default). Of heads in the folder's
// table, those with the lowest values stream, as many as lie below the quantile of the share.
Result<HeadProfile> load_head_profile(const std::string& spec);

// kOutOfRange when the profile is of a model of other layers or KV heads, or names some that the model has not;
// kUnsupported for layers with a sliding window.
Status check_head_profile(const HeadProfile& profile, const ModelConfig& config);

}  // namespace fovea
