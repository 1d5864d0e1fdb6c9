// The measured cases as tables; see attention_cases.h.
#include "workload/attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/quote.h"
#include "base/status.h"
#include "workload/lengths.h"

namespace fovea {
namespace {

using Cases = std::vector<MeasuredCase>;

struct Heads {
  std::int32_t qo, kv;
};

MeasuredCase decode_case(std::string suite, std::string name, Heads heads, std::vector<std::int32_t> kv_lens) {
  MeasuredCase c;
  c.suite = std::move(suite);
  c.name = std::move(name);
  c.qo_heads = heads.qo;
  c.kv_heads = heads.kv;
  c.q_lens = constant_lengths(static_cast<std::int32_t>(kv_lens.size()), 1);
  c.kv_lens = std::move(kv_lens);
  return c;
}

Cases decode() {
  const Heads all_heads[] = {{32, 32}, {32, 8}, {64, 8}, {32, 4}};
  const std::pair<std::int32_t, std::int32_t> shapes[] = {{16, 1024},  {64, 1024},  {16, 8192}, {64, 4096},
                                                          {128, 2048}, {1, 131072}, {4, 32768}};
  Cases cases;
  for (const Heads heads : all_heads) {
    for (const auto& [requests, tokens] : shapes) {
      cases.push_back(decode_case("decode", fmt::format("{}x{}/B{}/S{}", heads.qo, heads.kv, requests, tokens), heads,
                                  constant_lengths(requests, tokens)));
    }
  }
  return cases;
}

Cases skew() {
  return {decode_case("skew", "uniform", {32, 8}, constant_lengths(64, 4096)),
          decode_case("skew", "zipf", {32, 8}, zipf_lengths(64, 64 * 4096, 1.2, 1)),
          decode_case("skew", "one_long", {32, 8}, one_long_lengths(64, 64 * 4096))};
}

Cases single() {
  Cases cases;
  for (const std::int32_t tokens : {256, 1024, 4096, 8192, 32768}) {
    cases.push_back(decode_case("single", fmt::format("S{}", tokens), {32, 8}, {tokens}));
  }
  return cases;
}

Cases fp8() {
  Cases cases = {decode_case("fp8", "B16/S8192", {32, 8}, constant_lengths(16, 8192)),
                 decode_case("fp8", "B64/S4096", {32, 8}, constant_lengths(64, 4096))};
  for (MeasuredCase& c : cases) c.kv_dtype = DType::kF8E4M3;
  return cases;
}

Cases integers() {
  Cases cases;
  for (const DType dtype : {DType::kI8, DType::kI4}) {
    const auto name = std::string(dtype_name(dtype));
    cases.push_back(decode_case("integers", name + "/B16/S8192", {32, 8}, constant_lengths(16, 8192)));
    cases.back().kv_dtype = dtype;
    cases.push_back(decode_case("integers", name + "/B64/S4096", {32, 8}, constant_lengths(64, 4096)));
    cases.back().kv_dtype = dtype;
  }
  return cases;
}

Cases page() {
  Cases cases;
  for (const std::int32_t tokens : {1, 16, 64}) {
    cases.push_back(decode_case("page", fmt::format("page{}", tokens), {32, 8}, constant_lengths(64, 4096)));
    cases.back().page_tokens = tokens;
  }
  return cases;
}

Cases variant() {
  Cases cases;
  for (const char* name : {"plain", "softcap30", "window1024"}) {
    cases.push_back(decode_case("variant", name, {32, 8}, constant_lengths(64, 4096)));
  }
  cases[1].softcap = 30.0f;
  cases[2].window = 1024;
  return cases;
}

Cases append() {
  Cases cases = {decode_case("append", "chunk512_on_32k_B4", {32, 8}, constant_lengths(4, 32768)),
                 decode_case("append", "prefill2048_plus_63_decodes_4096", {32, 8}, constant_lengths(64, 4096))};
  cases[0].q_lens = constant_lengths(4, 512);
  cases[1].q_lens[0] = cases[1].kv_lens[0] = 2048;
  for (MeasuredCase& c : cases) c.causal = true;
  return cases;
}

// Microseconds by tree and heads: unique KV, queries, outputs and partial states of the best packing at 4.8 TB/s, or
// its matrix products at 989 TFLOP/s where those take longer; and the same for a kernel that shares nothing.
struct TreeFloors {
  std::array<double, 4> shared, unshared;
};
constexpr std::array<Heads, 4> kTreeHeads = {{{32, 32}, {16, 8}, {32, 8}, {64, 8}}};
constexpr TreeFloors kTreeFloors[] = {
    {{28.4, 7.1, 7.2, 7.4}, {154, 39, 39, 39}},
    {{33.2, 9.4, 11.6, 16}, {253, 63, 64, 65}},
    {{136.4, 38.5, 47.3, 70.5}, {7274, 1819, 1821, 1825}},
    {{62.7, 16.1, 16.8, 18.4}, {336, 84, 84, 84}},
    {{36.3, 10.2, 12.4, 16.8}, {280, 70, 71, 72}},
    {{471, 120, 124.4, 133.1}, {1400, 350, 351, 353}},
    {{513, 130.4, 134.8, 143.6}, {4084, 1021, 1022, 1024}},
    {{475.4, 121.9, 127.6, 136.4}, {2239, 560, 561, 563}},
    {{45, 12.8, 15.1, 19.5}, {504, 126, 127, 128}},
    {{85.7, 25.4, 32.4, 44.7}, {2518, 630, 631, 633}},
    {{992.1, 257.4, 273.3, 301.4}, {3135, 785, 786, 790}},
    {{193.3, 56.3, 71.8, 96.4}, {1905, 477, 479, 482}},
    {{207.4, 61.3, 77.1, 103.4}, {1905, 477, 479, 482}},
    {{189.9, 56, 69.2, 93.8}, {2017, 505, 507, 510}},
    {{203.9, 60.4, 76.2, 104.3}, {2017, 505, 507, 510}},
    {{46.4, 13.6, 17.1, 23.2}, {504, 126, 127, 128}},
    {{192.3, 52, 60, 74}, {1232, 308, 309, 311}},
    {{105.8, 28.4, 32.4, 40.3}, {1147, 287, 287, 288}},
    {{895.7, 224.1, 224.6, 225.4}, {896, 224, 225, 225}},
    {{3580, 895.2, 895.7, 896.5}, {3580, 895, 896, 897}},
};

Cases prefix() {
  Cases cases;
  for (std::size_t i = 0; i < pat_trees().size(); ++i) {
    const PrefixTree tree = *parse_prefix_tree(pat_trees()[i]);
    std::int32_t tokens = 0;
    for (const std::int32_t n : tree.tokens) tokens += n;
    for (std::size_t h = 0; h < kTreeHeads.size(); ++h) {
      const Heads heads = kTreeHeads[h];
      MeasuredCase c = decode_case("prefix", fmt::format("{:02}/{}x{}", i + 1, heads.qo, heads.kv), heads,
                                   constant_lengths(tree.num_requests(), tokens));
      c.page_tokens = 32;
      c.tree = pat_trees()[i];
      c.floor_us = kTreeFloors[i].shared[h];
      c.unshared_floor_us = kTreeFloors[i].unshared[h];
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

Cases quarter() {
  Cases cases;
  const Cases all = prefix();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i % 4 == i / 4 % 4) cases.push_back(all[i]);
  }
  return cases;
}

struct Suite {
  std::string_view name;
  Cases (*make)();
};
constexpr Suite kSuites[] = {{"decode", decode},     {"skew", skew},      {"single", single},   {"fp8", fp8},
                             {"integers", integers}, {"page", page},      {"variant", variant}, {"append", append},
                             {"prefix", prefix},     {"quarter", quarter}};

}  // namespace

std::int64_t MeasuredCase::unique_kv_tokens() const {
  std::int64_t total = 0;
  if (!tree.empty()) {
    const PrefixTree parsed = *parse_prefix_tree(tree);
    for (std::size_t i = 0; i < parsed.nodes.size(); ++i) total += std::int64_t{parsed.nodes[i]} * parsed.tokens[i];
    return total;
  }
  for (std::size_t i = 0; i < kv_lens.size(); ++i) {
    total += window > 0 ? std::min(kv_lens[i], window + q_lens[i] - 1) : kv_lens[i];
  }
  return total;
}

namespace {

// Of a token of a KV head: K and V, and a scale and a zero of each where they are integers.
int kv_token_bytes(const MeasuredCase& c) {
  const bool integers = c.kv_dtype == DType::kI8 || c.kv_dtype == DType::kI4;
  return 2 * (c.head_dim * dtype_bits(c.kv_dtype) / 8 + (integers ? 4 : 0));
}

}  // namespace

double MeasuredCase::kv_bytes() const {
  return static_cast<double>(unique_kv_tokens()) * kv_heads * kv_token_bytes(*this);
}

double MeasuredCase::qo_bytes() const {
  std::int64_t rows = 0;
  for (const std::int32_t n : q_lens) rows += n;
  return static_cast<double>(rows) * qo_heads * head_dim * 2 * 2;
}

PagedBatch MeasuredCase::batch(std::uint64_t seed) const {
  PagedBatch batch = tree.empty() ? flat_batch(q_lens, kv_lens, page_tokens, PageOrder::kRandom, seed)
                                  : tree_batch(*parse_prefix_tree(tree), page_tokens, 1, PageOrder::kSequential, seed);
  // A single query sees its whole request either way.
  batch.mask = causal ? abi::MaskKind::kCausal : abi::MaskKind::kNone;
  if (window > 0) set_window(batch, window - 1);
  return batch;
}

const std::vector<std::string_view>& measured_suites() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> made;
    for (const Suite& suite : kSuites) made.push_back(suite.name);
    return made;
  }();
  return names;
}

Result<std::vector<MeasuredCase>> measured_cases(std::string_view suites) {
  Cases cases;
  if (suites == "all") suites = "decode,skew,single,fp8,page,variant,append,prefix";
  for (std::size_t begin = 0; begin <= suites.size();) {
    const std::size_t end = std::min(suites.find(',', begin), suites.size());
    const std::string_view name = suites.substr(begin, end - begin);
    const auto* const found =
        std::find_if(std::begin(kSuites), std::end(kSuites), [&](const Suite& suite) { return suite.name == name; });
    if (found == std::end(kSuites)) {
      return invalid_argument("--suite names {}, expected all or some of {}, separated by commas", quote(name),
                              fmt::join(measured_suites(), ", "));
    }
    Cases more = found->make();
    std::move(more.begin(), more.end(), std::back_inserter(cases));
    begin = end + 1;
  }
  return cases;
}

std::string measured_cases_json(const std::vector<MeasuredCase>& cases) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const auto optional = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  for (const MeasuredCase& c : cases) {
    list.push_back({{"suite", c.suite},
                    {"id", c.id()},
                    {"qo_heads", c.qo_heads},
                    {"kv_heads", c.kv_heads},
                    {"head_dim", c.head_dim},
                    {"page", c.page_tokens},
                    {"kv_dtype", dtype_name(c.kv_dtype)},
                    {"q_lens", c.q_lens},
                    {"kv_lens", c.kv_lens},
                    {"causal", c.causal},
                    {"window", c.window},
                    {"softcap", c.softcap},
                    {"tree", c.tree},
                    {"floor_us", optional(c.floor_us)},
                    {"unshared_floor_us", optional(c.unshared_floor_us)},
                    {"kv_bytes", c.kv_bytes()},
                    {"qo_bytes", c.qo_bytes()}});
  }
  return nlohmann::ordered_json{{"cases", list}}.dump();
}

}  // namespace fovea
