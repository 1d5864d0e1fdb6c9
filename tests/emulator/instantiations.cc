// The list, and how an instantiation is made of the product's own choice; see instantiations.h.
#include "tests/emulator/instantiations.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "attention/cuda_executor.h"
#include "attention/paged_attention.h"
#include "base/status.h"

namespace fovea::emulator_test {
namespace {

using tune::PlanKernel;

struct Heads {
  int kv, group;
};

Instantiation make(const char* name, PlanKernel kernel, int head_dim, DType q, DType kv, int page, Heads heads) {
  Instantiation i;
  i.name = name;
  i.kernel = kernel;
  gpu_test::Configuration& c = i.config;
  c.name = name;
  AttentionOptions& o = c.options;
  o.device = "cpu";  // where its tensors are
  o.num_kv_heads = heads.kv;
  o.num_qo_heads = heads.kv * heads.group;
  o.head_dim = head_dim;
  o.q_dtype = q;
  o.kv_dtype = kv;
  o.page_tokens = page;
  o.max_requests = 16;
  o.max_rows = 2048;
  o.max_pages_per_request = 800 / page + 2;
  o.max_mask_bytes = 1 << 20;
  o.max_block_rows = 4096;
  const bool teams = kernel == PlanKernel::kWarpTeams;  // of the same public name
  o.decode_kernel = static_cast<DecodeKernel>(teams ? PlanKernel::kWarpPerWorker : kernel);
  c.heads_first = page % 2 == 1;
  c.drafts = teams;
  c.variant.sm_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return i;
}

std::vector<Instantiation> make_all() {
  constexpr DType kBf16 = DType::kBF16, kF16 = DType::kF16, kFp8 = DType::kF8E4M3;
  using enum tune::PlanKernel;
  std::vector<Instantiation> all;
  const auto add = [&](Instantiation i, const auto& change) {
    change(i);
    all.push_back(std::move(i));
  };
  const auto plain = [](Instantiation&) {};
  const auto shared = [](Instantiation& i) { i.shared = true; };
  add(make("ctas_tma", kGeneral, 64, kBf16, kBf16, 64, {2, 4}), plain);
  add(make("ctas_gather", kGeneral, 80, kBf16, kBf16, 3, {2, 5}), plain);
  add(make("ctas_wide", kGeneral, 256, kF16, kF16, 16, {1, 3}), [](Instantiation& i) {
    i.config.variant.softcap = i.config.options.softcap = 5.0f;
    i.config.variant.sinks = {-2.0f, 3.0f, 0.5f};
  });
  add(make("ctas_fp8", kGeneral, 128, kBf16, kFp8, 32, {2, 4}), plain);
  add(make("ctas_int8", kGeneral, 64, kBf16, DType::kI8, 16, {2, 8}),
      [](Instantiation& i) { i.config.options.kv_rotated = true; });
  add(make("ctas_int4", kGeneral, 96, kF16, DType::kI4, 1, {1, 12}), plain);
  add(make("ctas_sm80", kGeneral, 64, kF16, kF16, 8, {2, 2}), [](Instantiation& i) { i.arch = "sm_80"; });
  const auto is_checked = [](Instantiation& i) { i.config.options.checked = true; };
  add(make("ctas_checked", kGeneral, 64, kBf16, kBf16, 16, {3, 1}), is_checked);
  add(make("ctas_checked_tma", kGeneral, 128, kBf16, kBf16, 16, {2, 2}), is_checked);
  add(make("trees_checked", kGeneral, 64, kBf16, kBf16, 5, {2, 3}),
      [](Instantiation& i) { i.shared = i.config.options.checked = true; });
  add(make("trees_tma", kGeneral, 128, kBf16, kBf16, 16, {2, 4}), shared);
  add(make("trees_gather", kGeneral, 64, kF16, kF16, 5, {2, 7}), shared);
  add(make("warps_tma", kWarpPerWorker, 128, kBf16, kBf16, 16, {2, 4}), plain);
  add(make("warps_gather", kWarpPerWorker, 64, kF16, kF16, 3, {3, 3}), [](Instantiation& i) {
    i.config.variant.alibi_slopes = {0.01f, 0.5f, 0.1f, 0.2f, 0.05f, 0.3f, 0.4f, 0.02f, 0.25f};
  });
  add(make("warps_int4", kWarpPerWorker, 64, kBf16, DType::kI4, 48, {2, 8}), plain);
  add(make("warps_sm80", kWarpPerWorker, 80, kBf16, kBf16, 32, {2, 1}), [](Instantiation& i) { i.arch = "sm_80"; });
  add(make("few", kLowBatch, 64, kBf16, kBf16, 16, {2, 4}),
      [](Instantiation& i) { i.config.variant.sinks = {-2.0f, 3.0f, 0.5f, 1.0f, 0.0f, 2.0f, -1.0f, 4.0f}; });
  add(make("few_fp8", kLowBatch, 128, kBf16, kFp8, 24, {1, 8}), plain);
  add(make("warps_scaled", kWarpPerWorker, 64, kF16, kFp8, 16, {2, 6}),
      [](Instantiation& i) { i.config.options.kv_token_scales = true; });
  add(make("teams_tma", kWarpTeams, 128, kBf16, kBf16, 16, {2, 4}), plain);
  add(make("teams_gather", kWarpTeams, 64, kF16, kF16, 3, {1, 9}), [](Instantiation& i) {
    i.config.variant.alibi_slopes = {0.01f, 0.5f, 0.1f, 0.2f, 0.05f, 0.3f, 0.4f, 0.02f, 0.25f};
  });
  add(make("teams_fp8", kWarpTeams, 96, kBf16, kFp8, 32, {2, 5}), [](Instantiation& i) {
    i.config.variant.sinks = {-2.0f, 3.0f, 0.5f, 1.0f, 0.0f, 2.0f, -1.0f, 4.0f, 0.25f, -3.0f};
  });
  add(make("teams_short", kWarpTeams, 64, kF16, kFp8, 16, {2, 3}), plain);
  add(make("teams_int4", kWarpTeams, 64, kBf16, DType::kI4, 48, {2, 8}), plain);
  add(make("teams_int8", kWarpTeams, 80, kF16, DType::kI8, 8, {1, 20}), plain);
  add(make("prefill_tma", kPrefill, 128, kBf16, kBf16, 16, {2, 4}), plain);
  add(make("prefill_gather", kPrefill, 64, kF16, kF16, 5, {2, 3}), [](Instantiation& i) {
    i.config.variant.softcap = i.config.options.softcap = 5.0f;
    i.config.variant.sinks = {-2.0f, 3.0f, 0.5f, 1.0f, 0.0f, 2.0f};
  });
  // Row by row without a hook, where tiles that all rows see go by a loop of their own.
  add(make("prefill_rows", kPrefill, 128, kBf16, kBf16, 1, {1, 16}), plain);
  add(make("prefill_wide", kPrefill, 256, kF16, kF16, 32, {1, 8}), plain);
  // Head dims whose last panel is not whole, and of three panels.
  add(make("prefill_d80", kPrefill, 80, kBf16, kBf16, 16, {2, 5}), plain);
  add(make("prefill_d96", kPrefill, 96, kF16, kF16, 3, {1, 12}), plain);
  add(make("prefill_d192", kPrefill, 192, kBf16, kBf16, 32, {2, 3}), plain);
  // Converted: a byte and half a byte, with and without scales a token, turned, under a hook, odd row lengths.
  add(make("prefill_fp8", kPrefill, 128, kBf16, kFp8, 16, {2, 4}), plain);
  add(make("prefill_fp8_rows", kPrefill, 64, kF16, kFp8, 1, {1, 7}),
      [](Instantiation& i) { i.config.variant.sinks = {-2.0f, 3.0f, 0.5f, 1.0f, 0.0f, 2.0f, -1.0f}; });
  add(make("prefill_fp8_wide", kPrefill, 256, kBf16, kFp8, 5, {2, 3}),
      [](Instantiation& i) { i.config.variant.softcap = i.config.options.softcap = 5.0f; });
  add(make("prefill_fp8_scaled", kPrefill, 80, kBf16, kFp8, 16, {2, 5}),
      [](Instantiation& i) { i.config.options.kv_token_scales = true; });
  add(make("prefill_int8", kPrefill, 128, kBf16, DType::kI8, 16, {2, 4}),
      [](Instantiation& i) { i.config.options.kv_rotated = true; });
  // Scales a token where no item is split: long ones are one warpgroup's alone.
  add(make("prefill_int8_d112", kPrefill, 112, kBf16, DType::kI8, 16, {2, 3}), plain);
  add(make("prefill_int8_d192", kPrefill, 192, kBf16, DType::kI8, 3, {1, 12}), plain);
  add(make("prefill_int4", kPrefill, 128, kBf16, DType::kI4, 1, {2, 3}), plain);
  add(make("prefill_int4_d64", kPrefill, 64, kBf16, DType::kI4, 32, {1, 16}),
      [](Instantiation& i) { i.config.options.kv_rotated = true; });
  // Over chosen pages.
  const auto chosen = [](int pages) {
    return [pages](Instantiation& i) {
      i.config.budget_pages = pages;
      i.config.options.max_selected = i.config.options.max_requests;
    };
  };
  add(make("few_lists", kLowBatch, 128, kBf16, kBf16, 16, {2, 4}), chosen(9));
  add(make("ctas_lists", kGeneral, 64, kBf16, kFp8, 24, {2, 7}), chosen(7));
  for (Instantiation& i : all) {  // vectors keep their places from here on
    const auto view = [](const std::vector<float>& x) {
      return cpu_tensor(x.data(), DType::kF32, static_cast<std::int64_t>(x.size()));
    };
    if (!i.config.variant.sinks.empty()) i.config.options.sinks = view(i.config.variant.sinks);
    if (!i.config.variant.alibi_slopes.empty()) i.config.options.alibi_slopes = view(i.config.variant.alibi_slopes);
  }
  return all;
}

}  // namespace

const std::vector<Instantiation>& instantiations() {
  static const std::vector<Instantiation> all = make_all();
  return all;
}

const Instantiation& find_instantiation(const std::string& name) {
  for (const Instantiation& i : instantiations()) {
    if (i.name == name) return i;
  }
  throw std::runtime_error("no instantiation " + name);
}

Result<Built> build(const Instantiation& instantiation) {
  const AttentionOptions& o = instantiation.config.options;
  FOVEA_ASSIGN_OR_RETURN(const VariantSpec variant, variant_spec(o));
  FOVEA_ASSIGN_OR_RETURN(AllowedKernels allowed, allowed_kernels(o, variant, instantiation.arch, kEmulatedSms));
  for (AllowedKernel& kernel : allowed.kernels) {
    if (kernel.kind != instantiation.kernel) continue;
    if (!instantiation.shared) return Built{std::move(kernel.choice), std::move(kernel.source)};
    if (kernel.shared.has_value()) return Built{std::move(kernel.choice), *std::move(kernel.shared)};
  }
  return internal_error("{}: the product has no such kernel", instantiation.name);
}

}  // namespace fovea::emulator_test
