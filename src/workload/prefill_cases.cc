// The table of prefill as data; see prefill_cases.h.
#include "workload/prefill_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/random.h"
#include "workload/lengths.h"

namespace fovea {
namespace {

struct Heads {
  std::int32_t qo, kv;
};
constexpr Heads kAlike{32, 32}, kGrouped{32, 8};
constexpr std::int32_t kTokens = 16384;  // of all prompts together

MeasuredCase prefill_case(std::string name, Heads heads, std::vector<std::int32_t> q_lens,
                          std::vector<std::int32_t> kv_lens, std::int32_t head_dim = 128) {
  MeasuredCase c;
  c.suite = "prefill";
  c.name = std::move(name);
  c.qo_heads = heads.qo;
  c.kv_heads = heads.kv;
  c.head_dim = head_dim;
  c.q_lens = std::move(q_lens);
  c.kv_lens = std::move(kv_lens);
  c.causal = true;
  return c;
}

MeasuredCase prompts(std::string name, Heads heads, std::int32_t tokens, std::int32_t head_dim = 128) {
  const std::vector<std::int32_t> lens = constant_lengths(kTokens / tokens, tokens);
  MeasuredCase c = prefill_case(std::move(name), heads, lens, lens, head_dim);
  c.contiguous = true;
  c.page_tokens = 64;
  return c;
}

// `prompt` tokens, and 63 requests of `decodes`.
std::vector<std::int32_t> prompt_and_decodes(std::int32_t prompt, std::int32_t decodes) {
  std::vector<std::int32_t> lens = constant_lengths(64, decodes);
  lens[0] = prompt;
  return lens;
}

MeasuredCase block_sparse(Heads heads, std::int32_t block, std::int32_t percent) {
  constexpr std::int32_t kSide = 8192;
  const std::string heads_text = fmt::format("{}x{}", heads.qo, heads.kv);
  const std::string name =
      percent < 100 ? fmt::format("blocks{}/{}/{}%", block, heads_text, percent) : "dense/" + heads_text;
  MeasuredCase c = prefill_case(name, heads, {kSide}, {kSide});
  c.contiguous = true;
  c.page_tokens = 64;
  c.causal = false;
  if (percent < 100) c.blocks = random_blocks(kSide, block, percent, static_cast<std::uint64_t>(block + percent));
  return c;
}

}  // namespace

BlockPattern random_blocks(std::int32_t tokens, std::int32_t block, std::int32_t percent, std::uint64_t seed) {
  const std::int32_t side = (tokens + block - 1) / block;
  const std::int32_t live = std::clamp(side * percent / 100, 1, side);
  PhiloxRng rng(seed, 0);
  BlockPattern made{block, block, {0}, {}};
  std::vector<std::int32_t> columns(static_cast<std::size_t>(side));
  for (std::int32_t row = 0; row < side; ++row) {
    std::iota(columns.begin(), columns.end(), 0);
    for (std::int32_t i = 0; i < live; ++i) {
      const auto j = i + static_cast<std::int32_t>(rng.next_below(static_cast<std::uint32_t>(side - i)));
      std::swap(columns[static_cast<std::size_t>(i)], columns[static_cast<std::size_t>(j)]);
    }
    std::sort(columns.begin(), columns.begin() + live);
    made.indices.insert(made.indices.end(), columns.begin(), columns.begin() + live);
    made.indptr.push_back(static_cast<std::int32_t>(made.indices.size()));
  }
  return made;
}

std::vector<MeasuredCase> prefill_cases() {
  std::vector<MeasuredCase> cases;
  for (const Heads heads : {kAlike, kGrouped}) {
    for (const std::int32_t tokens : {1024, 2048, 4096, 8192, 16384}) {
      cases.push_back(prompts(fmt::format("{}x{}/D128/S{}", heads.qo, heads.kv, tokens), heads, tokens));
    }
  }
  for (const std::int32_t head_dim : {64, 256}) {
    cases.push_back(prompts(fmt::format("32x32/D{}/S8192", head_dim), kAlike, 8192, head_dim));
  }
  for (const std::int32_t page : {1, 16, 64}) {
    cases.push_back(prompts(fmt::format("32x8/D128/S8192/page{}", page), kGrouped, 8192));
    cases.back().page_tokens = page;
    cases.back().contiguous = false;
  }
  cases.push_back(prefill_case("append512_on_32k_B4", kGrouped, constant_lengths(4, 512), constant_lengths(4, 32768)));

  // One prompt beside decodes; chunks beside decodes, and both parts alone.
  cases.push_back(
      prefill_case("mixed/prompt2048+63x4096", kGrouped, prompt_and_decodes(2048, 1), prompt_and_decodes(2048, 4096)));
  cases.push_back(
      prefill_case("mixed/chunks8x512_on_2k", kGrouped, constant_lengths(8, 512), constant_lengths(8, 2560)));
  cases.push_back(prefill_case("mixed/decodes56x3072", kGrouped, constant_lengths(56, 1), constant_lengths(56, 3072)));
  std::vector<std::int32_t> q_lens = constant_lengths(8, 512), kv_lens = constant_lengths(8, 2560);
  q_lens.resize(64, 1);
  kv_lens.resize(64, 3072);
  cases.push_back(prefill_case("mixed/chunks+decodes", kGrouped, q_lens, kv_lens));
  for (const std::int32_t q_len : {16, 64, 128}) {
    cases.push_back(prefill_case(fmt::format("q{}/B16/S4096", q_len), kGrouped, constant_lengths(16, q_len),
                                 constant_lengths(16, 4096)));
  }
  cases.push_back(prompts("32x8/D128/S8192/softcap30", kGrouped, 8192));
  cases.back().softcap = 30.0f;
  cases.push_back(prompts("32x8/D128/S8192/window1024", kGrouped, 8192));
  cases.back().window = 1024;
  // KV that is converted.
  for (const DType dtype : {DType::kF8E4M3, DType::kI8, DType::kI4}) {
    const auto add = [&](MeasuredCase c) {
      c.kv_dtype = dtype;
      c.contiguous = false;
      c.page_tokens = 16;
      c.name = fmt::format("{}/{}", dtype_name(dtype), c.name);
      cases.push_back(std::move(c));
    };
    add(prompts("32x8/D128/S8192", kGrouped, 8192));
    add(prompts("32x8/D64/S8192", kGrouped, 8192, 64));
    add(prompts("32x8/D256/S8192", kGrouped, 8192, 256));
    add(prefill_case("append512_on_32k_B4", kGrouped, constant_lengths(4, 512), constant_lengths(4, 32768)));
    add(prefill_case("q16/B16/S4096", kGrouped, constant_lengths(16, 16), constant_lengths(16, 4096)));
    add(prefill_case("q4/B64/S8192", kGrouped, constant_lengths(64, 4), constant_lengths(64, 8192)));
    add(prefill_case("mixed/prompt2048+63x4096", kGrouped, prompt_and_decodes(2048, 1),
                     prompt_and_decodes(2048, 4096)));
  }
  const std::vector<std::int32_t> ragged = uniform_lengths(8, 17, 4095, 3);
  cases.push_back(prefill_case("32x8/D128/ragged17-4095", kGrouped, ragged, ragged));
  cases.back().contiguous = true;
  cases.back().page_tokens = 64;

  for (const Heads heads : {kGrouped, kAlike}) {
    for (const std::int32_t percent : {100, 50, 25, 10}) {
      for (const std::int32_t block : {64, 128}) {
        if (percent < 100 || block == 64) cases.push_back(block_sparse(heads, block, percent));
      }
    }
  }
  return cases;
}

}  // namespace fovea
