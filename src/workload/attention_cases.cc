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
#include "workload/prefill_cases.h"

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

// Shapes at which kernels or the choice among them once fell far below their speed next door.
Cases cliffs() {
  Cases cases;
  const auto add = [&](std::string name, Heads heads, std::vector<std::int32_t> kv_lens, std::int32_t q_len = 1,
                       DType dtype = DType::kBF16, std::int32_t head_dim = 128) -> MeasuredCase& {
    MeasuredCase c = decode_case("cliffs", std::move(name), heads, std::move(kv_lens));
    c.q_lens.assign(c.kv_lens.size(), q_len);
    c.kv_dtype = dtype;
    c.head_dim = head_dim;
    c.causal = true;
    return cases.emplace_back(std::move(c));
  };
  constexpr Heads kUsual{32, 8};
  for (const auto& [requests, tokens] : {std::pair{1024, 128}, {512, 256}, {256, 512}, {64, 2048}}) {
    add(fmt::format("fp8/B{}/S{}", requests, tokens), kUsual, constant_lengths(requests, tokens), 1, DType::kF8E4M3);
  }
  for (const std::int32_t requests : {63, 64}) {
    add(fmt::format("int4/B{}/S8192", requests), kUsual, constant_lengths(requests, 8192), 1, DType::kI4);
  }
  add("decodes255/S2048", kUsual, constant_lengths(255, 2048));
  for (const std::int32_t chunk : {16, 256}) {
    add(fmt::format("decodes255/S2048+q{}", chunk), kUsual, constant_lengths(256, 2048)).q_lens[100] = chunk;
  }
  for (const std::int32_t q_len : {1, 8, 9, 16, 64}) {
    add(fmt::format("q{}/B16/S4096", q_len), kUsual, constant_lengths(16, 4096), q_len);
  }
  for (const std::int32_t head_dim : {80, 96, 112, 128}) {
    add(fmt::format("D{}/B32/S2048", head_dim), kUsual, constant_lengths(32, 2048), 1, DType::kBF16, head_dim);
  }
  add("48x4/B8/S8192", {48, 4}, constant_lengths(8, 8192));
  add("32x2/B1/S32768", {32, 2}, constant_lengths(1, 32768));
  add("64x2/B16/S8192", {64, 2}, constant_lengths(16, 8192));
  add("71x1/B32/S8192", {71, 1}, constant_lengths(32, 8192));
  add("128x1/B32/S8192", {128, 1}, constant_lengths(32, 8192));
  add("B1/S1048576", kUsual, constant_lengths(1, 1 << 20));
  std::vector<std::int32_t> some_empty = uniform_lengths(40, 100, 1500, 1);
  for (std::size_t i = 0; i < some_empty.size(); i += 3) some_empty[i] = 0;
  add("B40/some_empty", kUsual, some_empty);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    add(fmt::format("28x4/{}/B37/S3001", dtype_name(dtype)), {28, 4}, constant_lengths(37, 3001), 1, dtype);
  }
  // One run shared by all, or by pairs, before the requests' own tokens.
  const auto shared = [](MeasuredCase& c, std::int32_t tokens, std::int32_t requests_a_run) {
    const auto requests = static_cast<std::int32_t>(c.kv_lens.size());
    for (std::int32_t i = 0; i < requests; ++i) {
      const std::int32_t run = requests_a_run > 0 ? i / requests_a_run : 0;
      if (run == static_cast<std::int32_t>(c.runs.size())) c.runs.push_back({-1, tokens});
      c.run_of.push_back(run);
      c.kv_lens[static_cast<std::size_t>(i)] += tokens;
    }
  };
  const std::vector<std::int32_t> own = uniform_lengths(64, 200, 500, 2);
  shared(add("document/bf16", kUsual, own), 16384, 0);
  shared(add("document/fp8", kUsual, own, 1, DType::kF8E4M3), 16384, 0);
  MeasuredCase& capped = add("document/softcap", kUsual, own);
  capped.softcap = 30.0f;
  shared(capped, 16384, 0);
  shared(add("document/D96", kUsual, own, 1, DType::kBF16, 96), 16384, 0);
  shared(add("prompt3k", kUsual, uniform_lengths(64, 50, 400, 3)), 3072, 0);
  shared(add("pairs/B128", kUsual, uniform_lengths(128, 2000, 3000, 4)), 48, 2);
  return cases;
}

struct Suite {
  std::string_view name;
  Cases (*make)();
};
constexpr Suite kSuites[] = {{"decode", decode},   {"skew", skew},         {"single", single},
                             {"fp8", fp8},         {"integers", integers}, {"page", page},
                             {"variant", variant}, {"append", append},     {"prefix", prefix},
                             {"quarter", quarter}, {"cliffs", cliffs},     {"prefill", prefill_cases}};

}  // namespace

namespace {

// Tokens that some request sees: of a run, those behind the first that one of its requests sees.
std::int64_t forest_tokens(const MeasuredCase& c) {
  std::vector<std::int32_t> begins, ends, seen_from, seen_to;  // by run
  for (const SharedRun& run : c.runs) {
    begins.push_back(run.parent >= 0 ? ends[static_cast<std::size_t>(run.parent)] : 0);
    ends.push_back(begins.back() + run.tokens);
    seen_from.push_back(ends.back());
    seen_to.push_back(begins.back());
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < c.kv_lens.size(); ++i) {
    const std::int32_t first = c.window > 0 ? std::max(0, c.kv_lens[i] - c.window - c.q_lens[i] + 1) : 0;
    std::int32_t own = 0;
    for (std::int32_t r = c.run_of[i]; r >= 0; r = c.runs[static_cast<std::size_t>(r)].parent) {
      const auto run = static_cast<std::size_t>(r);
      own = std::max(own, ends[run]);
      seen_from[run] = std::min(seen_from[run], std::max(first, begins[run]));
      seen_to[run] = std::max(seen_to[run], std::min(c.kv_lens[i], ends[run]));
    }
    total += std::max(0, c.kv_lens[i] - std::max(own, first));
  }
  for (std::size_t r = 0; r < c.runs.size(); ++r) total += std::max(0, seen_to[r] - seen_from[r]);
  return total;
}

}  // namespace

std::int64_t MeasuredCase::unique_kv_tokens() const {
  std::int64_t total = 0;
  if (!tree.empty()) {
    const PrefixTree parsed = *parse_prefix_tree(tree);
    for (std::size_t i = 0; i < parsed.nodes.size(); ++i) total += std::int64_t{parsed.nodes[i]} * parsed.tokens[i];
    return total;
  }
  if (!runs.empty()) return forest_tokens(*this);
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

double MeasuredCase::flops() const {
  double pairs = 0.0;
  if (!blocks.empty()) {  // whose edges may be narrower
    for (std::size_t row = 0; row + 1 < blocks.indptr.size(); ++row) {
      const std::int32_t first = static_cast<std::int32_t>(row) * blocks.rows;
      for (std::int32_t i = blocks.indptr[row]; i < blocks.indptr[row + 1]; ++i) {
        const std::int32_t column = blocks.indices[static_cast<std::size_t>(i)] * blocks.tokens;
        pairs += static_cast<double>(std::min(blocks.rows, q_lens[0] - first)) *
                 std::min(blocks.tokens, kv_lens[0] - column);
      }
    }
    return 4.0 * qo_heads * head_dim * pairs;
  }
  for (std::size_t i = 0; i < kv_lens.size(); ++i) {
    for (std::int32_t token = 0; token < q_lens[i]; ++token) {
      const std::int32_t before = kv_lens[i] - q_lens[i] + token + 1;
      const std::int32_t seen = window > 0 ? std::min(before, window) : causal ? before : kv_lens[i];
      pairs += std::max(seen, 0);
    }
  }
  return 4.0 * qo_heads * head_dim * pairs;
}

AttentionOptions MeasuredCase::options() const {
  AttentionOptions o;
  o.num_qo_heads = qo_heads;
  o.num_kv_heads = kv_heads;
  o.head_dim = head_dim;
  o.q_dtype = q_dtype;
  o.kv_dtype = kv_dtype;
  o.page_tokens = page_tokens;
  o.softcap = softcap;
  return o;
}

PagedBatch MeasuredCase::batch(std::uint64_t seed) const {
  PagedBatch batch = !runs.empty() ? forest_batch(q_lens, kv_lens, runs, run_of, page_tokens, PageOrder::kRandom, seed)
                     : tree.empty()
                         ? flat_batch(q_lens, kv_lens, page_tokens, PageOrder::kRandom, seed)
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
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const SharedRun& run : c.runs) runs.push_back({run.parent, run.tokens});
    nlohmann::ordered_json blocks;  // null
    if (!c.blocks.empty()) {
      blocks = {{"rows", c.blocks.rows},
                {"tokens", c.blocks.tokens},
                {"indptr", c.blocks.indptr},
                {"indices", c.blocks.indices}};
    }
    list.push_back({{"suite", c.suite},
                    {"id", c.id()},
                    {"qo_heads", c.qo_heads},
                    {"kv_heads", c.kv_heads},
                    {"head_dim", c.head_dim},
                    {"page", c.page_tokens},
                    {"q_dtype", dtype_name(c.q_dtype)},
                    {"kv_dtype", dtype_name(c.kv_dtype)},
                    {"q_lens", c.q_lens},
                    {"kv_lens", c.kv_lens},
                    {"causal", c.causal},
                    {"window", c.window},
                    {"softcap", c.softcap},
                    {"contiguous", c.contiguous},
                    {"blocks", blocks},
                    {"sinks", c.sinks},
                    {"tree", c.tree},
                    {"runs", runs},
                    {"run_of", c.run_of},
                    {"floor_us", optional(c.floor_us)},
                    {"unshared_floor_us", optional(c.unshared_floor_us)},
                    {"kv_bytes", c.kv_bytes()},
                    {"qo_bytes", c.qo_bytes()},
                    {"flops", c.flops()}});
  }
  return nlohmann::ordered_json{{"cases", list}}.dump();
}

}  // namespace fovea
