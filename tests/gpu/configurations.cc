// What the agreement tests spread their cases over; see agreement.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <span>

#include "tests/gpu/agreement.h"

namespace fovea::gpu_test {
namespace {

constexpr int kMaxTokens = 700;

struct HeadCounts {
  int kv, group;
};

// Every group size from 1 to 8 and 16.
constexpr std::array<HeadCounts, 10> kHeads = {
    {{2, 4}, {3, 1}, {2, 2}, {1, 3}, {2, 5}, {1, 6}, {2, 7}, {2, 8}, {1, 16}, {1, 12}}};

Configuration make(int head_dim, DType q_dtype, DType kv_dtype, int page, HeadCounts heads, bool heads_first) {
  Configuration c;
  AttentionOptions& o = c.options;
  o.num_kv_heads = heads.kv;
  o.num_qo_heads = heads.kv * heads.group;
  o.head_dim = head_dim;
  o.q_dtype = q_dtype;
  o.kv_dtype = kv_dtype;
  o.page_tokens = page;
  o.max_requests = 16;
  o.max_rows = 2048;
  o.max_pages_per_request = kMaxTokens / page + 2;
  o.max_mask_bytes = 1 << 20;
  c.heads_first = heads_first;
  c.variant.sm_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  c.name = "D" + std::to_string(head_dim) + " " + std::string(dtype_name(q_dtype)) + "/" +
           std::string(dtype_name(kv_dtype)) + " page " + std::to_string(page) + " heads " +
           std::to_string(o.num_qo_heads) + "/" + std::to_string(heads.kv) + (heads_first ? " HND" : " NHD");
  return c;
}

std::vector<float> some_floats(int count, float low, float high) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(low + (high - low) * static_cast<float>(i * 7 % count) / static_cast<float>(count));
  }
  return values;
}

void add_variants(std::vector<Configuration>& all) {
  for (const int page : {1, 16}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const auto add = [&](const char* name, auto change) {
        Configuration c = make(128, dtype, dtype, page, {2, 4}, page == 1);
        change(c);
        c.name = std::string(name) + " " + c.name;
        all.push_back(std::move(c));
      };
      add("softcap", [](Configuration& c) { c.variant.softcap = c.options.softcap = 5.0f; });
      add("sinks", [](Configuration& c) { c.variant.sinks = some_floats(8, -2.0f, 3.0f); });
      add("softcap+sinks", [](Configuration& c) {
        c.variant.softcap = c.options.softcap = 20.0f;
        c.variant.sinks = some_floats(8, -2.0f, 3.0f);
      });
      add("alibi", [](Configuration& c) { c.variant.alibi_slopes = some_floats(8, 0.01f, 0.5f); });
      add("sigmoid", [](Configuration& c) {
        c.options.sigmoid = c.variant.sigmoid = true;
        c.options.sigmoid_bias = -3.0f;
        c.variant.sigmoid_bias = -3.0;
      });
      add("invariant", [](Configuration& c) { c.options.batch_invariant = true; });
      add("unshared", [](Configuration& c) { c.options.share_prefixes = false; });
      add("checked", [](Configuration& c) { c.options.checked = true; });
      add("scaled", [](Configuration& c) { c.variant.sm_scale = c.options.sm_scale = 0.3f; });
    }
  }
}

// The kernel for batches of decode, which would not be asked for with so few requests.
void add_warps(std::vector<Configuration>& all) {
  std::size_t n = 0;
  const auto add = [&](int head_dim, DType q_dtype, DType kv_dtype, int page, HeadCounts heads, auto change) {
    Configuration c = make(head_dim, q_dtype, kv_dtype, page, heads, n++ % 2 == 1);
    c.options.decode_kernel = DecodeKernel::kWarpPerWorker;
    if (n % 3 == 0) c.pad_elements = static_cast<int>(128 / dtype_bits(kv_dtype));  // 16 bytes
    change(c);
    c.name = "warps " + c.name;
    all.push_back(std::move(c));
  };
  const auto plain = [](Configuration&) {};
  for (const int head_dim : {32, 64, 80, 128, 192, 256}) {
    for (const int page : {1, 3, 16, 64, 100}) {
      add(head_dim, DType::kBF16, DType::kBF16, page, kHeads[n % 8], plain);
      if (head_dim % 64 == 0) add(head_dim, DType::kF16, DType::kF16, page, kHeads[n % 8], plain);
    }
    add(head_dim, DType::kBF16, DType::kF8E4M3, 16, kHeads[n % 8], plain);
    add(head_dim, DType::kF16, DType::kF8E4M3, 1, kHeads[n % 8], plain);
    for (const DType integers : {DType::kI8, DType::kI4}) {
      if (integers == DType::kI4 && head_dim % 32 != 0) continue;
      for (const int page : {1, 16, 48}) {
        add(head_dim, page == 16 ? DType::kBF16 : DType::kF16, integers, page, kHeads[n % 8], plain);
      }
    }
  }
  for (const HeadCounts heads : std::span(kHeads).first(8)) {
    add(128, DType::kBF16, DType::kBF16, 16, heads, plain);
  }
  for (const int page : {1, 16}) {
    const auto variant = [&](const auto& change) { add(128, DType::kBF16, DType::kBF16, page, {2, 4}, change); };
    variant([](Configuration& c) { c.variant.softcap = c.options.softcap = 5.0f; });
    variant([](Configuration& c) { c.variant.sinks = some_floats(8, -2.0f, 3.0f); });
    for (const DType integers : {DType::kI8, DType::kI4}) {
      add(128, DType::kBF16, integers, page, {2, 4},
          [](Configuration& c) { c.variant.softcap = c.options.softcap = 5.0f; });
    }
    variant([](Configuration& c) { c.variant.alibi_slopes = some_floats(8, 0.01f, 0.5f); });
    variant([](Configuration& c) {
      c.options.sigmoid = c.variant.sigmoid = true;
      c.options.sigmoid_bias = -3.0f;
      c.variant.sigmoid_bias = -3.0;
    });
  }
}

// The form of that kernel for drafts and groups of more than 8: head dims, types and groups of tiles that are full, or
// not, or of one query token.
void add_teams(std::vector<Configuration>& all) {
  std::size_t n = 0;
  constexpr std::array<HeadCounts, 8> kTeamHeads = {
      {{2, 4}, {1, 12}, {3, 1}, {2, 7}, {1, 32}, {2, 8}, {1, 20}, {2, 3}}};
  const auto add = [&](int head_dim, DType q_dtype, DType kv_dtype, int page, auto change) {
    Configuration c = make(head_dim, q_dtype, kv_dtype, page, kTeamHeads[n % 8], n % 2 == 1);
    ++n;
    c.options.decode_kernel = DecodeKernel::kWarpPerWorker;
    c.drafts = true;
    if (n % 3 == 0) c.pad_elements = static_cast<int>(128 / dtype_bits(kv_dtype));  // 16 bytes
    change(c);
    c.name = "teams " + c.name;
    all.push_back(std::move(c));
  };
  const auto plain = [](Configuration&) {};
  for (const int head_dim : {32, 64, 80, 96, 112, 128}) {
    for (const int page : {1, 16, 100}) add(head_dim, DType::kBF16, DType::kBF16, page, plain);
    add(head_dim, DType::kBF16, DType::kF8E4M3, 16, plain);
    add(head_dim, DType::kF16, DType::kF8E4M3, 3, plain);
    add(head_dim, DType::kBF16, DType::kI8, 16, plain);
    if (head_dim % 32 == 0) add(head_dim, DType::kF16, DType::kI4, head_dim == 64 ? 1 : 48, plain);
  }
  const auto variant = [&](const auto& change) {
    for (const DType dtype : {DType::kBF16, DType::kI8}) add(128, DType::kBF16, dtype, 16, change);
  };
  variant([](Configuration& c) { c.variant.softcap = c.options.softcap = 5.0f; });
  variant([](Configuration& c) { c.variant.sinks = some_floats(c.options.num_qo_heads, -2.0f, 3.0f); });
  variant([](Configuration& c) { c.variant.alibi_slopes = some_floats(c.options.num_qo_heads, 0.01f, 0.5f); });
  variant([](Configuration& c) {
    c.options.sigmoid = c.variant.sigmoid = true;
    c.options.sigmoid_bias = -3.0f;
    c.variant.sigmoid_bias = -3.0;
  });
  add(128, DType::kF16, DType::kF8E4M3, 16, [](Configuration& c) { c.options.kv_token_scales = true; });
  add(64, DType::kBF16, DType::kI4, 16, [](Configuration& c) { c.options.kv_rotated = true; });
}

// The kernel for few requests of decode: its head dims and types, every page size, group and variant. Each second one
// without shared prefixes, which go to another kernel.
void add_few(std::vector<Configuration>& all, bool fp8) {
  std::size_t n = 0;
  const auto add = [&](int head_dim, DType dtype, int page, HeadCounts heads, auto change) {
    const DType kv_dtype = fp8 ? DType::kF8E4M3 : dtype;
    Configuration c = make(head_dim, dtype, kv_dtype, page, heads, n++ % 2 == 1);
    c.options.decode_kernel = DecodeKernel::kLowBatch;
    c.options.share_prefixes = n % 2 == 0;
    if (n % 3 == 0) c.pad_elements = static_cast<int>(128 / dtype_bits(kv_dtype));  // 16 bytes
    change(c);
    c.name = "few " + c.name;
    all.push_back(std::move(c));
  };
  const auto plain = [](Configuration&) {};
  for (const int head_dim : {64, 128}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int page : {1, 3, 16, 100}) add(head_dim, dtype, page, kHeads[n % 8], plain);
    }
  }
  for (const HeadCounts heads : std::span(kHeads).first(8)) add(128, DType::kBF16, 16, heads, plain);
  const auto variant = [&](const auto& change) { add(128, DType::kBF16, 16, {2, 4}, change); };
  variant([](Configuration& c) { c.variant.softcap = c.options.softcap = 5.0f; });
  variant([](Configuration& c) { c.variant.sinks = some_floats(8, -2.0f, 3.0f); });
  variant([](Configuration& c) { c.variant.alibi_slopes = some_floats(8, 0.01f, 0.5f); });
  variant([](Configuration& c) {
    c.options.sigmoid = c.variant.sigmoid = true;
    c.options.sigmoid_bias = -3.0f;
    c.variant.sigmoid_bias = -3.0;
  });
}

// The kernel for many query tokens over KV that it converts, for decode too: its head dims, types, scales and hooks.
void add_converted(std::vector<Configuration>& all) {
  std::size_t n = 0;
  constexpr std::array<int, 3> kPages = {1, 16, 100};
  const auto add = [&](int head_dim, DType kv_dtype, auto change) {
    Configuration c = make(head_dim, DType::kBF16, kv_dtype, kPages[n % 3], kHeads[n % kHeads.size()], n % 2 == 1);
    ++n;
    c.options.decode_kernel = DecodeKernel::kPrefill;
    if (n % 3 == 0) c.pad_elements = static_cast<int>(128 / dtype_bits(kv_dtype));  // 16 bytes
    change(c);
    c.name = "prefill " + c.name;
    all.push_back(std::move(c));
  };
  const auto plain = [](Configuration&) {};
  const auto scaled = [](Configuration& c) { c.options.kv_token_scales = true; };
  const auto turned = [](Configuration& c) { c.options.kv_rotated = true; };
  for (const int head_dim : {64, 80, 96, 112, 128, 192, 256}) {
    if (head_dim % 64 != 0 || head_dim == 192) add(head_dim, DType::kF8E4M3, plain);
    add(head_dim, DType::kF8E4M3, [](Configuration& c) { c.options.q_dtype = DType::kF16; });
    add(head_dim, DType::kF8E4M3, scaled);
    for (const DType integers : {DType::kI8, DType::kI4}) {
      if (integers == DType::kI4 && head_dim % 32 != 0) continue;
      for (int i = 0; i < 2; ++i) add(head_dim, integers, plain);
      if ((head_dim & (head_dim - 1)) == 0) {
        for (int i = 0; i < 2; ++i) add(head_dim, integers, turned);
      }
    }
  }
  for (const DType dtype : {DType::kF8E4M3, DType::kI8, DType::kI4}) {
    add(128, dtype, [](Configuration& c) { c.variant.softcap = c.options.softcap = 5.0f; });
    add(256, dtype, [](Configuration& c) { c.variant.softcap = c.options.softcap = 5.0f; });
    add(64, dtype, [](Configuration& c) { c.variant.sinks = some_floats(c.options.num_qo_heads, -2.0f, 3.0f); });
    add(128, dtype,
        [](Configuration& c) { c.variant.alibi_slopes = some_floats(c.options.num_qo_heads, 0.01f, 0.5f); });
    add(128, dtype, [](Configuration& c) { c.variant.sm_scale = c.options.sm_scale = -0.3f; });
  }
}

// Groups of more query heads than a block of 16 rows holds.
void add_wide_groups(std::vector<Configuration>& all) {
  std::size_t n = 0;
  const auto add = [&](int head_dim, DType dtype, int page, HeadCounts heads) -> Configuration& {
    all.push_back(make(head_dim, DType::kBF16, dtype, page, heads, n++ % 2 == 1));
    all.back().name = "wide " + all.back().name;
    return all.back();
  };
  for (const HeadCounts heads : {HeadCounts{1, 24}, {2, 32}, {1, 64}, {1, 71}, {1, 128}}) {
    for (const int page : {1, 16}) {
      add(128, DType::kBF16, page, heads);
      add(64, DType::kBF16, page, heads);
    }
    add(128, DType::kF8E4M3, 16, heads);
    add(128, DType::kI8, 16, heads);
    add(96, DType::kBF16, 16, heads);
    Configuration& capped = add(128, DType::kBF16, 16, heads);
    capped.variant.softcap = capped.options.softcap = 5.0f;
    add(128, DType::kBF16, 16, heads).options.batch_invariant = true;
    if (heads.group <= 64) add(256, DType::kBF16, 16, heads);
  }
}

// Plans over chosen pages, by the two kernels that run them.
void add_lists(std::vector<Configuration>& all) {
  std::size_t n = 0;
  for (const DecodeKernel kernel : {DecodeKernel::kLowBatch, DecodeKernel::kGeneral}) {
    for (const DType kv_dtype : {DType::kBF16, DType::kF8E4M3}) {
      for (const int page : {1, 16, 24, 64}) {
        Configuration c = make(page == 24 ? 64 : 128, DType::kBF16, kv_dtype, page, kHeads[n % 8], n % 2 == 1);
        ++n;
        c.options.decode_kernel = kernel;
        c.options.max_selected = c.options.max_requests;
        c.budget_pages = page == 1 ? 300 : page == 64 ? 3 : 17;
        c.name = (kernel == DecodeKernel::kLowBatch ? "few lists " : "lists ") + c.name;
        all.push_back(std::move(c));
      }
    }
  }
}

// Without pages: units that the copy engine brings and units that it does not, on the kernel for many query tokens and
// the one for all plans.
void add_contiguous(std::vector<Configuration>& all) {
  std::size_t n = 0;
  for (const Entry entry : {Entry::kRagged, Entry::kBlocks}) {
    const auto add = [&](int head_dim, DType dtype, DType kv_dtype, int unit, DecodeKernel kernel, auto change) {
      Configuration c = make(head_dim, dtype, kv_dtype, unit, kHeads[n % kHeads.size()], n % 2 == 1);
      if (++n % 3 == 0 && !c.heads_first) c.pad_elements = static_cast<int>(128 / dtype_bits(kv_dtype));
      c.entry = entry;
      c.options.decode_kernel = kernel;
      c.options.max_block_rows = 1 << 14;
      c.options.max_page_entries = 1 << 18;  // a list for each block row
      change(c);
      c.name = (entry == Entry::kRagged ? "ragged " : "blocks ") + c.name;
      if (kernel == DecodeKernel::kPrefill) c.name = "prefill " + c.name;
      all.push_back(std::move(c));
    };
    const auto plain = [](Configuration&) {};
    for (const DecodeKernel kernel : {DecodeKernel::kPrefill, DecodeKernel::kGeneral}) {
      for (const int head_dim : {64, 128, 256}) {
        for (const int unit : {1, 5, 16, 64}) add(head_dim, DType::kBF16, DType::kBF16, unit, kernel, plain);
      }
      add(128, DType::kF16, DType::kF16, 64, kernel, plain);
      add(128, DType::kF16, DType::kF16, 64, kernel,
          [](Configuration& c) { c.variant.softcap = c.options.softcap = 5.0f; });
      add(128, DType::kBF16, DType::kBF16, 64, kernel,
          [](Configuration& c) { c.variant.sinks = some_floats(c.options.num_qo_heads, -2.0f, 3.0f); });
      if (entry == Entry::kRagged) {
        add(128, DType::kBF16, DType::kBF16, 16, kernel,
            [](Configuration& c) { c.variant.alibi_slopes = some_floats(c.options.num_qo_heads, 0.01f, 0.5f); });
      }
    }
    add(128, DType::kBF16, DType::kF8E4M3, 32, DecodeKernel::kGeneral, plain);
    add(128, DType::kBF16, DType::kF8E4M3, 32, DecodeKernel::kPrefill, plain);
    add(96, DType::kBF16, DType::kBF16, 16, DecodeKernel::kAuto, plain);
  }
}

}  // namespace

std::vector<Configuration> configurations() {
  std::vector<Configuration> all;
  std::size_t n = 0;
  const auto heads = [&] { return kHeads[n++ % kHeads.size()]; };
  for (const int head_dim : {64, 128, 256}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int page : {1, 3, 8, 16, 32, 64, 100, 128, 256}) {
        for (const bool heads_first : {false, true}) {
          all.push_back(make(head_dim, dtype, dtype, page, heads(), heads_first));
          if (n % 3 == 0) all.back().pad_elements = 8;
        }
      }
    }
    for (const int page : {1, 16, 64}) {
      all.push_back(make(head_dim, DType::kBF16, DType::kF8E4M3, page, heads(), page == 16));
      all.push_back(make(head_dim, DType::kF16, DType::kF8E4M3, page, heads(), page == 1));
      // For decode, too, where it is asked for.
      all.push_back(make(head_dim, page == 1 ? DType::kF16 : DType::kBF16, DType::kF8E4M3, page, heads(), page == 64));
      all.back().options.decode_kernel = DecodeKernel::kPrefill;
      all.back().name = "prefill " + all.back().name;
    }
  }
  for (const DType integers : {DType::kI8, DType::kI4}) {
    for (const int head_dim : {64, 128, 256, 96}) {
      for (const int page : {1, 16, 64}) {
        all.push_back(make(head_dim, page == 64 ? DType::kF16 : DType::kBF16, integers, page, heads(), page != 1));
      }
    }
  }
  for (const HeadCounts h : kHeads) all.push_back(make(128, DType::kBF16, DType::kBF16, 16, h, false));
  for (const int head_dim : {32, 48, 80, 96, 112, 144, 160, 192, 224, 240}) {
    for (const int page : {1, 16})
      all.push_back(make(head_dim, DType::kBF16, DType::kBF16, page, heads(), head_dim % 32 == 0));
  }
  add_variants(all);
  // The kernel for all plans keeps to decode too where the choice would be another.
  for (std::size_t i = 0; i < all.size(); i += 2) all[i].options.decode_kernel = DecodeKernel::kGeneral;
  add_warps(all);
  add_teams(all);
  add_few(all, false);
  for (const int head_dim : {32, 64, 128, 256}) {
    const auto add = [&](DType kv_dtype, int page, bool rotated) {
      for (const DecodeKernel kernel : {DecodeKernel::kGeneral, DecodeKernel::kWarpPerWorker}) {
        const HeadCounts h = kernel == DecodeKernel::kWarpPerWorker ? kHeads[n++ % 8] : heads();
        Configuration c = make(head_dim, page == 16 ? DType::kBF16 : DType::kF16, kv_dtype, page, h, page == 16);
        (rotated ? c.options.kv_rotated : c.options.kv_token_scales) = true;
        c.options.decode_kernel = kernel;
        c.name = std::string(kernel == DecodeKernel::kWarpPerWorker ? "warps " : "") +
                 (rotated ? "rotated " : "scaled ") + c.name;
        all.push_back(std::move(c));
      }
    };
    add(DType::kI8, 16, true);
    add(DType::kI4, 16, true);
    add(DType::kI4, 3, true);
    add(DType::kF8E4M3, 16, false);
    add(DType::kF8E4M3, 1, false);
  }
  add_few(all, true);
  add_lists(all);
  add_wide_groups(all);
  add_contiguous(all);
  add_converted(all);
  return all;
}

testing::CaseSpec random_spec(const Configuration& config, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  const AttentionOptions& o = config.options;
  testing::CaseSpec spec;
  spec.kv_heads = o.num_kv_heads;
  spec.group = o.num_qo_heads / o.num_kv_heads;
  spec.head_dim = o.head_dim;
  spec.page_tokens = o.page_tokens;
  spec.kv_dtype = o.kv_dtype;
  spec.token_scales = o.kv_token_scales;
  spec.rotated = o.kv_rotated;
  spec.q_bf16 = o.q_dtype == DType::kBF16;
  spec.q_f16 = o.q_dtype == DType::kF16;
  spec.heads_first = config.heads_first;
  spec.pad_elements = config.pad_elements;
  spec.seed = seed * 2654435761u + 1;
  spec.logit_scale = std::array<float, 4>{1.0f, 1.0f, 0.0f, 6.0f}[static_cast<std::size_t>(below(4))];
  const int page = o.page_tokens;
  const std::array<int, 12> lengths = {0, 1, page - 1, page, page + 1, 2 * page, 63, 64, 65, 129, 300, kMaxTokens};
  const int requests = 1 + below(below(3) == 0 ? 12 : 4);
  const bool alone = o.decode_kernel == DecodeKernel::kWarpPerWorker || o.decode_kernel == DecodeKernel::kLowBatch;
  const bool drafts = config.drafts && below(8) != 0;
  const bool decode = alone && !drafts && below(8) != 0;
  const bool one_token = decode || (!drafts && below(3) == 0);
  for (int r = 0; r < requests; ++r) {
    int tokens = below(2) == 0 ? lengths[static_cast<std::size_t>(below(12))] : below(200);
    tokens = std::min(tokens, spec.rotated ? 150 : kMaxTokens);  // the oracle rotates element by element
    int queries = one_token ? 1 : drafts ? 1 + below(20) : below(9);
    if (below(40) == 0 && !decode && !drafts) queries = 1 + below(300);
    if (decode && below(16) != 0) tokens = std::max(tokens, 1);
    spec.kv_lens.push_back(tokens);
    spec.q_lens.push_back(std::min(queries, tokens));
  }
  spec.mask = static_cast<abi::MaskKind>(below(4));
  if (spec.mask == abi::MaskKind::kWindow)
    spec.window_left = std::array<int, 5>{0, 1, 15, 64, 200}[static_cast<std::size_t>(below(5))];
  const bool by_position = decode || drafts;
  if (by_position && spec.mask == abi::MaskKind::kBits) spec.mask = abi::MaskKind::kCausal;
  if (below(by_position ? 12 : 3) == 0) spec.shared_tokens = below(4 * page + 100);
  if (config.entry != Entry::kPages) {
    spec.contiguous = true;
    spec.page_tokens = 1;
    spec.shared_tokens = 0;
    // Prompts, and queries that are no more than some of the last tokens.
    for (std::size_t r = 0; r < spec.kv_lens.size(); ++r) {
      spec.kv_lens[r] = std::min(spec.kv_lens[r], 420);
      const int most = std::min(spec.kv_lens[r], 200);
      spec.q_lens[r] = below(2) == 0 ? most - below(2) * most / 3 : std::min(spec.q_lens[r], most);
    }
    std::int32_t rows = 0;
    for (std::int32_t& queries : spec.q_lens) rows += queries = std::min(queries, o.max_rows - rows);
  }
  if (config.entry == Entry::kBlocks) {
    spec.kv_lens.resize(1);
    spec.q_lens.resize(1);
    spec.mask = abi::MaskKind::kNone;
  }
  if (config.budget_pages > 0) {
    spec.mask = abi::MaskKind::kNone;
    spec.shared_tokens = 0;
    for (std::size_t r = 0; r < spec.kv_lens.size(); ++r) {
      const int before = (config.budget_pages - 1) * page;
      spec.kv_lens[r] = below(4) != 0 ? before + 1 + below(page) : 1 + below(before);
      spec.q_lens[r] = 1;
    }
  }
  return spec;
}

}  // namespace fovea::gpu_test
