// The list, and how an instantiation is made of the product's own choice; see instantiations.h.
#include "tests/emulator/instantiations.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "attention/cuda_executor.h"
#include "attention/paged_attention.h"
#include "base/status.h"
#include "jit/attention_spec.h"

namespace fovea::emulator_test {
namespace {

abi::KvDType kv_type(DType dtype) { return static_cast<abi::KvDType>(dtype); }

struct Heads {
  int kv, group;
};

Instantiation make(const char* name, KernelKind kind, int head_dim, DType q, DType kv, int page, Heads heads) {
  Instantiation i;
  i.name = name;
  i.kind = kind;
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
  const bool warps = kind == KernelKind::kWarps || kind == KernelKind::kTeams;
  o.decode_kernel = warps                      ? DecodeKernel::kWarpPerWorker
                    : kind == KernelKind::kFew ? DecodeKernel::kLowBatch
                                               : DecodeKernel::kGeneral;
  if (kind == KernelKind::kPrefill) o.decode_kernel = DecodeKernel::kPrefill;
  c.heads_first = page % 2 == 1;
  c.drafts = kind == KernelKind::kTeams;
  c.variant.sm_scale = 1.0 / std::sqrt(static_cast<double>(head_dim));
  return i;
}

std::vector<Instantiation> make_all() {
  constexpr DType kBf16 = DType::kBF16, kF16 = DType::kF16, kFp8 = DType::kF8E4M3;
  constexpr KernelKind kCtas = KernelKind::kCtas, kTrees = KernelKind::kTrees, kWarps = KernelKind::kWarps,
                       kTeams = KernelKind::kTeams, kFew = KernelKind::kFew;
  std::vector<Instantiation> all;
  const auto add = [&](Instantiation i, const auto& change) {
    change(i);
    all.push_back(std::move(i));
  };
  const auto plain = [](Instantiation&) {};
  add(make("ctas_tma", kCtas, 64, kBf16, kBf16, 64, {2, 4}), plain);
  add(make("ctas_gather", kCtas, 80, kBf16, kBf16, 3, {2, 5}), plain);
  add(make("ctas_wide", kCtas, 256, kF16, kF16, 16, {1, 3}), [](Instantiation& i) {
    i.config.variant.softcap = i.config.options.softcap = 5.0f;
    i.config.variant.sinks = {-2.0f, 3.0f, 0.5f};
  });
  add(make("ctas_fp8", kCtas, 128, kBf16, kFp8, 32, {2, 4}), plain);
  add(make("ctas_int8", kCtas, 64, kBf16, DType::kI8, 16, {2, 8}),
      [](Instantiation& i) { i.config.options.kv_rotated = true; });
  add(make("ctas_int4", kCtas, 96, kF16, DType::kI4, 1, {1, 12}), plain);
  add(make("ctas_sm80", kCtas, 64, kF16, kF16, 8, {2, 2}), [](Instantiation& i) { i.arch = "sm_80"; });
  const auto is_checked = [](Instantiation& i) { i.config.options.checked = true; };
  add(make("ctas_checked", kCtas, 64, kBf16, kBf16, 16, {3, 1}), is_checked);
  add(make("ctas_checked_tma", kCtas, 128, kBf16, kBf16, 16, {2, 2}), is_checked);
  add(make("trees_checked", kTrees, 64, kBf16, kBf16, 5, {2, 3}), is_checked);
  add(make("trees_tma", kTrees, 128, kBf16, kBf16, 16, {2, 4}), plain);
  add(make("trees_gather", kTrees, 64, kF16, kF16, 5, {2, 7}), plain);
  add(make("warps_tma", kWarps, 128, kBf16, kBf16, 16, {2, 4}), plain);
  add(make("warps_gather", kWarps, 64, kF16, kF16, 3, {3, 3}), [](Instantiation& i) {
    i.config.variant.alibi_slopes = {0.01f, 0.5f, 0.1f, 0.2f, 0.05f, 0.3f, 0.4f, 0.02f, 0.25f};
  });
  add(make("warps_int4", kWarps, 64, kBf16, DType::kI4, 48, {2, 8}), plain);
  add(make("warps_sm80", kWarps, 80, kBf16, kBf16, 32, {2, 1}), [](Instantiation& i) { i.arch = "sm_80"; });
  add(make("few", kFew, 64, kBf16, kBf16, 16, {2, 4}),
      [](Instantiation& i) { i.config.variant.sinks = {-2.0f, 3.0f, 0.5f, 1.0f, 0.0f, 2.0f, -1.0f, 4.0f}; });
  add(make("few_fp8", kFew, 128, kBf16, kFp8, 24, {1, 8}), plain);
  add(make("warps_scaled", kWarps, 64, kF16, kFp8, 16, {2, 6}),
      [](Instantiation& i) { i.config.options.kv_token_scales = true; });
  add(make("teams_tma", kTeams, 128, kBf16, kBf16, 16, {2, 4}), plain);
  add(make("teams_gather", kTeams, 64, kF16, kF16, 3, {1, 9}), [](Instantiation& i) {
    i.config.variant.alibi_slopes = {0.01f, 0.5f, 0.1f, 0.2f, 0.05f, 0.3f, 0.4f, 0.02f, 0.25f};
  });
  add(make("teams_fp8", kTeams, 96, kBf16, kFp8, 32, {2, 5}), [](Instantiation& i) {
    i.config.variant.sinks = {-2.0f, 3.0f, 0.5f, 1.0f, 0.0f, 2.0f, -1.0f, 4.0f, 0.25f, -3.0f};
  });
  add(make("teams_short", kTeams, 64, kF16, kFp8, 16, {2, 3}), plain);
  add(make("teams_int4", kTeams, 64, kBf16, DType::kI4, 48, {2, 8}), plain);
  add(make("teams_int8", kTeams, 80, kF16, DType::kI8, 8, {1, 20}), plain);
  constexpr KernelKind kPrefill = KernelKind::kPrefill;
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
  add(make("few_lists", kFew, 128, kBf16, kBf16, 16, {2, 4}), chosen(9));
  add(make("ctas_lists", kCtas, 64, kBf16, kFp8, 24, {2, 7}), chosen(7));
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
  tune::AttentionNeed need;
  need.arch = instantiation.arch;
  need.num_sms = kEmulatedSms;
  need.head_dim = o.head_dim;
  need.q_dtype = kv_type(o.q_dtype);
  need.kv_dtype = kv_type(o.kv_dtype);
  need.page_tokens = o.page_tokens;
  need.group = o.num_qo_heads / o.num_kv_heads;
  need.batch_invariant = o.batch_invariant;
  need.transforms_kv = jit::may_transform_kv(variant);
  need.transforms_q = jit::may_transform_q(variant);
  need.plain_logits = variant.source.empty() && (variant.name == "Plain" || variant.name == "Sinks");
  need.token_scales = o.kv_token_scales;
  need.checked = o.checked;
  const KernelKind kind = instantiation.kind;
  need.hooks_logits_alone = variant.source.empty() && variant.name != "Sigmoid";
  FOVEA_ASSIGN_OR_RETURN(tune::AttentionChoice choice,
                         kind == KernelKind::kWarps     ? tune::choose_warp_per_worker_attention(need)
                         : kind == KernelKind::kTeams   ? tune::choose_warp_per_worker_attention(need, true)
                         : kind == KernelKind::kFew     ? tune::choose_low_batch_attention(need)
                         : kind == KernelKind::kPrefill ? tune::choose_prefill_attention(need)
                                                        : tune::choose_attention(need));
  jit::AttentionKernelSpec spec;
  spec.arch = instantiation.arch;
  spec.header = kind == KernelKind::kTrees ? choice.shared_header : choice.header;
  for (const char* const name : {"warp_per_worker", "low_batch", "prefix_forest", "prefill"}) {
    if (spec.header.starts_with(std::string("kernels/attention/") + name + "/"))
      spec.kind = std::string("attention-") + name;
  }
  if (choice.teams) spec.kind = "attention-warp_teams";
  spec.head_dim = o.head_dim;
  spec.q_dtype = need.q_dtype;
  spec.kv_dtype = need.kv_dtype;
  spec.loader = choice.tma ? jit::KvLoader::kTma : jit::KvLoader::kGather;
  spec.box_tokens = choice.box_tokens;
  spec.token_scales = o.kv_token_scales;
  spec.rotated = o.kv_rotated;
  spec.checked = o.checked;
  spec.variant = variant;
  spec.tuning = choice.tuning;
  FOVEA_ASSIGN_OR_RETURN(jit::KernelSource source, jit::attention_source(spec));
  // The same text as the product's.
  FOVEA_ASSIGN_OR_RETURN(const std::vector<jit::KernelSource> product,
                         attention_kernels(o, instantiation.arch, kEmulatedSms));
  if (std::none_of(product.begin(), product.end(), [&](const auto& s) { return s.text == source.text; })) {
    return internal_error("{}: the product does not compile this:\n{}", instantiation.name, source.text);
  }
  return Built{std::move(choice), std::move(source)};
}

}  // namespace fovea::emulator_test
