// One draw after another: heads, types and pages, then queries, lengths and what is shared; see sweep_cases.h.
#include "workload/sweep_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "base/random.h"

namespace fovea {
namespace {

constexpr std::int32_t kMostTokens = 1 << 20;  // of a request
constexpr std::int32_t kMostRequests = 1024;
constexpr std::int64_t kMostEntries = 1 << 24;  // of a page table

class Draw {
 public:
  Draw(std::uint64_t seed, std::uint64_t stream) : rng_(seed, stream) {}

  std::int32_t below(std::int32_t bound) {
    return bound <= 1 ? 0 : static_cast<std::int32_t>(rng_.next_below(static_cast<std::uint32_t>(bound)));
  }
  bool one_in(std::int32_t n) { return below(n) == 0; }
  double unit() { return rng_.next_double(); }
  double normal() { return static_cast<double>(rng_.next_normal()); }
  // Every factor of size as likely as any other.
  double log_uniform(double low, double high) { return low * std::pow(high / low, unit()); }

  template <typename T, std::size_t kCount>
  const T& of(const std::pair<int, T> (&weighted)[kCount]) {
    int sum = 0;
    for (const auto& [weight, value] : weighted) sum += weight;
    int at = below(sum);
    for (const auto& [weight, value] : weighted) {
      if ((at -= weight) < 0) return value;
    }
    return weighted[0].second;
  }

 private:
  PhiloxRng rng_;
};

struct Heads {
  std::int32_t qo, kv;
};
// Models and their shards: multi-head, grouped, one KV head.
constexpr std::pair<int, Heads> kHeads[] = {
    {6, {32, 8}},  {4, {64, 8}},  {3, {28, 4}}, {3, {32, 4}}, {3, {40, 8}}, {3, {32, 32}}, {2, {16, 16}},
    {2, {8, 8}},   {2, {24, 8}},  {2, {14, 2}}, {2, {12, 2}}, {2, {16, 2}}, {2, {8, 1}},   {2, {4, 1}},
    {1, {40, 40}}, {1, {10, 10}}, {1, {12, 1}}, {2, {16, 1}}, {1, {48, 4}}, {1, {96, 8}},  {1, {64, 4}},
    {1, {32, 1}},  {1, {64, 2}},  {1, {71, 1}}, {1, {64, 1}}, {1, {128, 1}}};
constexpr std::pair<int, std::int32_t> kHeadDims[] = {{14, 128}, {4, 64},  {2, 80}, {2, 96},
                                                      {1, 112},  {1, 192}, {2, 256}};
constexpr std::pair<int, std::int32_t> kPages[] = {{10, 16}, {4, 64}, {3, 32}, {2, 1}, {1, 8}, {2, 128}, {1, 256}};
constexpr std::pair<int, std::pair<DType, DType>> kTypes[] = {{10, {DType::kBF16, DType::kBF16}},
                                                              {2, {DType::kF16, DType::kF16}},
                                                              {5, {DType::kBF16, DType::kF8E4M3}},
                                                              {2, {DType::kBF16, DType::kI8}},
                                                              {2, {DType::kBF16, DType::kI4}}};
enum class Queries { kOne, kFew, kMany, kChunks };
constexpr std::pair<int, Queries> kQueries[] = {
    {12, Queries::kOne}, {4, Queries::kFew}, {2, Queries::kMany}, {2, Queries::kChunks}};
enum class Lengths { kEqual, kUniform, kLogNormal, kOneLong, kSomeEmpty };
constexpr std::pair<int, Lengths> kLengths[] = {{3, Lengths::kEqual},
                                                {4, Lengths::kUniform},
                                                {5, Lengths::kLogNormal},
                                                {2, Lengths::kOneLong},
                                                {2, Lengths::kSomeEmpty}};

std::string short_number(double n) {
  if (n >= 1e6) return fmt::format("{:.1f}M", n / 1e6);
  return n >= 1e4 ? fmt::format("{:.0f}k", n / 1e3) : fmt::format("{:.0f}", n);
}

// Own tokens of the requests, `mean` on average.
std::string draw_lengths(Draw& draw, std::int32_t requests, double mean, std::vector<std::int32_t>& lengths) {
  const auto tokens = [](double n) {
    return static_cast<std::int32_t>(std::llround(std::clamp(n, 1.0, static_cast<double>(kMostTokens))));
  };
  lengths.assign(static_cast<std::size_t>(requests), tokens(mean));
  if (requests == 1) return "";
  switch (draw.of(kLengths)) {
    case Lengths::kEqual: return "equal";
    case Lengths::kUniform:
      for (std::int32_t& n : lengths) n = tokens(mean * (0.25 + 1.5 * draw.unit()));
      return "uniform";
    case Lengths::kLogNormal:
      for (std::int32_t& n : lengths) n = tokens(mean * std::exp(draw.normal() - 0.5));
      return "lognormal";
    case Lengths::kOneLong:
      for (std::int32_t& n : lengths) n = tokens(mean * 0.5 * (0.5 + draw.unit()));
      lengths[static_cast<std::size_t>(draw.below(requests))] = tokens(mean * 0.5 * requests);
      return "onelong";
    case Lengths::kSomeEmpty:
      for (std::int32_t& n : lengths) n = draw.one_in(3) ? 0 : tokens(mean * (0.25 + 2.0 * draw.unit()));
      lengths[0] = tokens(mean);
      return "someempty";
  }
  return "";
}

// One document, a system prompt over several, pairs, or a tree: tokens of whole pages, taken off what requests own.
std::string draw_prefixes(Draw& draw, double mean, MeasuredCase& c) {
  const auto requests = static_cast<std::int32_t>(c.q_lens.size());
  const double most = std::min(mean * requests, 0.5 * kMostTokens);
  const auto pages = [&](double tokens) {
    return std::max(1, static_cast<std::int32_t>(std::min(tokens, most) / c.page_tokens)) * c.page_tokens;
  };
  const auto run = [&](std::int32_t parent, double tokens) { c.runs.push_back({parent, pages(tokens)}); };
  std::string name;
  std::int32_t groups = 1;
  switch (draw.below(4)) {
    case 0:
      run(-1, mean * draw.log_uniform(0.5, 20.0));
      name = "document";
      break;
    case 1:
      run(-1, mean * draw.log_uniform(0.1, 2.0));
      groups = std::min(requests, 2 + draw.below(15));
      for (std::int32_t g = 0; g < groups; ++g) run(0, mean * draw.log_uniform(0.1, 4.0));
      name = fmt::format("system+{}", groups);
      break;
    case 2:
      groups = (requests + 1) / 2;
      for (std::int32_t g = 0; g < groups; ++g) run(-1, std::min(mean, draw.log_uniform(16.0, 4096.0)));
      name = "pairs";
      break;
    default: {
      run(-1, mean * 0.3);
      std::int32_t level = 0, width = 1;
      for (std::int32_t depth = 0; depth < 2; ++depth) {
        const auto first = static_cast<std::int32_t>(c.runs.size());
        const std::int32_t children = 2 + draw.below(4);
        for (std::int32_t n = 0; n < width * children; ++n)
          run(level + n / children, mean * draw.log_uniform(0.1, 1.0));
        level = first;
        width *= children;
      }
      groups = width;
      name = fmt::format("tree{}", width);
      break;
    }
  }
  const auto leaves = static_cast<std::int32_t>(c.runs.size()) - groups;
  for (std::int32_t i = 0; i < requests; ++i) {
    const bool apart = name == "document" && requests > 4 && draw.one_in(8);
    const std::int32_t leaf = leaves + (name == "pairs" ? i / 2 : draw.below(groups));
    c.run_of.push_back(apart ? -1 : leaf);
    std::int32_t& tokens = c.kv_lens[static_cast<std::size_t>(i)];
    for (std::int32_t r = c.run_of.back(); r >= 0; r = c.runs[static_cast<std::size_t>(r)].parent) {
      tokens += c.runs[static_cast<std::size_t>(r)].tokens;
    }
  }
  return name;
}

std::string draw_queries(Draw& draw, MeasuredCase& c) {
  const Queries kind = draw.of(kQueries);
  const bool ragged = draw.one_in(3);
  const std::int32_t most = kind == Queries::kFew ? 2 + draw.below(7) : kind == Queries::kMany ? 9 + draw.below(8) : 1;
  for (std::int32_t& n : c.q_lens) n = ragged ? 1 + draw.below(most) : most;
  std::string name = most == 1 ? "q1" : fmt::format("q{}{}", ragged ? "1-" : "", most);
  if (kind == Queries::kChunks) {  // one prefill, or some, among decodes
    const std::int32_t chunk = 32 << draw.below(6);
    const std::int32_t chunks = 1 + draw.below(std::min<std::int32_t>(4, static_cast<std::int32_t>(c.q_lens.size())));
    for (std::int32_t i = 0; i < chunks; ++i) {
      const auto at = static_cast<std::size_t>(draw.below(static_cast<std::int32_t>(c.q_lens.size())));
      c.q_lens[at] = chunk;
      c.kv_lens[at] = std::max(c.kv_lens[at], chunk);
    }
    name = fmt::format("q1+{}x{}", chunks, chunk);
  }
  return name;
}

MeasuredCase draw_case(std::uint64_t seed, std::int32_t index, double most_kv_bytes) {
  Draw draw(seed, static_cast<std::uint64_t>(index));
  MeasuredCase c;
  c.suite = "sweep";
  const Heads heads = draw.of(kHeads);
  c.qo_heads = heads.qo;
  c.kv_heads = heads.kv;
  c.head_dim = draw.of(kHeadDims);
  c.page_tokens = draw.of(kPages);
  std::tie(c.q_dtype, c.kv_dtype) = draw.of(kTypes);
  if (c.kv_dtype == DType::kI4 && c.head_dim % 32 != 0) c.head_dim = 128;
  const auto requests = static_cast<std::int32_t>(draw.log_uniform(1.0, kMostRequests + 0.5));
  const double token_bytes = 2.0 * c.kv_heads * c.head_dim * dtype_bits(c.kv_dtype) / 8;
  const double mean =
      std::clamp(draw.log_uniform(most_kv_bytes / 40, most_kv_bytes) / token_bytes / requests, 1.0, 1e6);
  std::string lengths = draw_lengths(draw, requests, mean, c.kv_lens);
  c.q_lens.assign(c.kv_lens.size(), 1);
  std::string shared;
  if (requests > 1 && mean >= 32 && lengths != "onelong" && draw.one_in(5)) shared = draw_prefixes(draw, mean, c);
  const std::string queries = draw_queries(draw, c);
  for (std::size_t i = 0; i < c.q_lens.size(); ++i) c.q_lens[i] = std::min(c.q_lens[i], std::max(c.kv_lens[i], 1));
  const std::int64_t longest = *std::max_element(c.kv_lens.begin(), c.kv_lens.end());
  if (longest / c.page_tokens * requests > kMostEntries && c.runs.empty()) c.page_tokens = 256;
  c.causal = true;
  std::string variant;
  const std::int32_t option = draw.below(12);
  if (option == 0) c.window = 128 << draw.below(6);
  if (option == 1) c.softcap = 30.0f;
  c.sinks = option == 2 && c.softcap == 0.0f;
  if (c.window > 0) variant = fmt::format(" w{}", c.window);
  if (c.softcap > 0.0f) variant = " cap";
  if (c.sinks) variant = " sinks";
  c.name = fmt::format("{} {}/{} d{} p{} {} {} B{}x{}{}{}{}{}", index, c.qo_heads, c.kv_heads, c.head_dim,
                       c.page_tokens, dtype_name(c.kv_dtype), queries, requests, short_number(mean),
                       lengths.empty() ? "" : " ", lengths, shared.empty() ? "" : " " + shared, variant);
  return c;
}

}  // namespace

std::vector<MeasuredCase> sweep_cases(std::uint64_t seed, std::int32_t count, double most_kv_bytes) {
  std::vector<MeasuredCase> cases;
  for (std::int32_t i = 0; i < count; ++i) cases.push_back(draw_case(seed, i, most_kv_bytes));
  return cases;
}

std::int32_t most_q_tokens(const MeasuredCase& c) {
  return c.q_lens.empty() ? 0 : *std::max_element(c.q_lens.begin(), c.q_lens.end());
}

}  // namespace fovea
