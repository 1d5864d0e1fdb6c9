// Sampling options as flags, for generate and chat. What is not given keeps the model's default.
#pragma once

#include <string>
#include <vector>

#include "fovea/engine.h"
#include "options.h"

namespace fovea::app {

struct SamplingFlags {
  float temperature = 0.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  std::int32_t top_k = 0;
  std::int32_t max_tokens = 256;
  std::uint64_t seed = 0;
  std::vector<std::string> stop;

  void declare(Options& table) {
    table.section("Sampling");
    table.add("max-tokens", max_tokens, "Most tokens of an answer; 0: the rest of the context");
    table.add("temperature", temperature, "0: always the likeliest token");
    table.add("top-p", top_p, "Sample from the likeliest tokens of this total probability");
    table.add("top-k", top_k, "Sample from this many of the likeliest tokens; 0: off");
    table.add("min-p", min_p, "Drop tokens less likely than this share of the likeliest");
    table.add("repetition-penalty", repetition_penalty, "Above 1: tokens seen before become less likely");
    table.add("seed", seed, "Seed of the sampler");
    table.add("stop", stop, "Text that ends the answer; may be repeated");
  }
  SamplingParams params(const Engine& engine) const {
    SamplingParams out = engine.default_sampling();
    out.temperature = temperature;
    out.top_p = top_p;
    out.min_p = min_p;
    out.repetition_penalty = repetition_penalty;
    out.top_k = top_k;
    out.max_tokens = max_tokens;
    out.seed = seed;
    out.has_seed = true;
    out.stop = stop;
    return out;
  }
};

}  // namespace fovea::app
