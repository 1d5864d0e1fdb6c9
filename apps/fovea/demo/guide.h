// The document of `fovea demo`: a guide to the houses of a harbour town, written anew from a seed, in sentences that a
// person can read, with one fact about each house to ask about. Used by demo.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::app {

struct GuideFact {
  std::string question, value;
  std::string sentence;    // as it stands in the guide
  std::size_t offset = 0;  // of the sentence
};

struct Guide {
  std::string text;
  std::vector<GuideFact> facts;  // in order of the text
};

// houses: entries, each with a heading, a fact and a share of `sentences` others. The same arguments give the same
// guide.
Guide write_guide(std::uint64_t seed, std::int32_t houses, std::int32_t sentences);

// The guide nearest below max_tokens by `count`; houses are left out where they alone are longer.
Guide fit_guide(std::uint64_t seed, std::int32_t houses, std::size_t max_tokens,
                const std::function<std::size_t(std::string_view)>& count);

// `count` facts of different places in the guide, spread over its length, in an order of their own.
std::vector<GuideFact> choose_facts(const Guide& guide, std::uint64_t seed, std::size_t count);

}  // namespace fovea::app
