// The C ABI of attention (fovea/fovea.h) over the C++ one.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "capi/records.h"
#include "fovea/version.h"

namespace {

using namespace fovea::capi;
using fovea::DType;
using fovea::Result;
using fovea::Status;
using fovea::TensorView;

Status set_variant(const fovea_attention_options& o, Views& views, fovea::AttentionOptions& options) {
  if (o.variant_name == nullptr && o.variant_source == nullptr) return {};
  if (o.variant_name != nullptr) options.variant.name = o.variant_name;
  if (o.variant_source != nullptr) options.variant.source = o.variant_source;
  if (o.num_variant_values < 0 || (o.num_variant_values > 0 && o.variant_values == nullptr)) {
    return invalid("num_variant_values is " + std::to_string(o.num_variant_values) +
                   ", and variant_values NULL or not");
  }
  for (std::int32_t i = 0; i < o.num_variant_values; ++i) {
    const fovea_variant_value& v = o.variant_values[i];
    if (v.name == nullptr || v.type < FOVEA_PARAM_FLOAT || v.type > FOVEA_PARAM_INT_TENSOR) {
      return invalid("variant value " + std::to_string(i) + " has no name, or type " + std::to_string(v.type));
    }
    options.variant.params.push_back({v.name, static_cast<fovea::VariantParamType>(v.type)});
    options.variant_values.push_back({v.name, v.number, views.get(v.name, v.tensor)});
  }
  return {};
}

Status create(const fovea_attention_options* given, fovea_attention** attention) {
  if (attention == nullptr) return invalid("attention is NULL");
  *attention = nullptr;
  const Result<fovea_attention_options> versioned_options = versioned(given, "options");
  if (!versioned_options.ok()) return versioned_options.status();
  const fovea_attention_options& o = *versioned_options;
  Views views;
  fovea::AttentionOptions options;
  if (Status s = check_kind(o.q_dtype, "q_dtype"); !s.ok()) return s;
  if (Status s = check_kind(o.kv_dtype, "kv_dtype"); !s.ok()) return s;
  if (o.decode_kernel < FOVEA_DECODE_AUTO || o.decode_kernel > FOVEA_DECODE_PREFILL) {
    return invalid("decode_kernel is " + std::to_string(o.decode_kernel) +
                   ", expected FOVEA_DECODE_AUTO to FOVEA_DECODE_PREFILL");
  }
  options.decode_kernel = static_cast<fovea::DecodeKernel>(o.decode_kernel);
  if (o.device != nullptr) options.device = o.device;
  options.num_qo_heads = o.num_qo_heads;
  options.num_kv_heads = o.num_kv_heads;
  options.head_dim = o.head_dim;
  options.q_dtype = static_cast<DType>(o.q_dtype);
  options.kv_dtype = static_cast<DType>(o.kv_dtype);
  options.page_tokens = o.page_tokens;
  options.sm_scale = o.sm_scale;
  options.softcap = o.softcap;
  options.sinks = views.get("sinks", o.sinks);
  options.alibi_slopes = views.get("alibi_slopes", o.alibi_slopes);
  options.sigmoid = o.sigmoid != 0;
  options.sigmoid_bias = o.sigmoid_bias;
  options.max_requests = o.max_requests;
  options.max_rows = o.max_rows;
  options.max_pages_per_request = o.max_pages_per_request;
  options.max_page_entries = o.max_page_entries;
  options.max_cascade_levels = o.max_cascade_levels;
  options.max_selected = o.max_selected;
  options.max_mask_bytes = o.max_mask_bytes;
  options.share_prefixes = o.share_prefixes != 0;
  options.batch_invariant = o.batch_invariant != 0;
  options.checked = o.checked != 0;
  options.device_growth = o.device_growth != 0;
  options.num_threads = o.num_threads;
  options.num_workers = o.num_workers;
  options.kv_token_scales = o.kv_token_scales != 0;
  options.kv_rotated = o.kv_rotated != 0;
  options.graphs_by_rows = o.graphs_by_rows != 0;
  options.max_block_rows = o.max_block_rows;
  if (Status s = set_variant(o, views, options); !s.ok()) return s;
  if (!views.status().ok()) return views.status();
  Result<fovea::Attention> made = fovea::Attention::create(options);
  if (!made.ok()) return made.status();
  *attention = new fovea_attention{std::move(*made)};
  return {};
}

Status check_mask(std::int32_t mask) {
  if (mask >= FOVEA_MASK_NONE && mask <= FOVEA_MASK_BITS) return {};
  return invalid("mask is " + std::to_string(mask) + ", expected FOVEA_MASK_NONE to FOVEA_MASK_BITS");
}

Status plan(fovea_attention* attention, const fovea_batch* given, void* stream) {
  if (attention == nullptr) return invalid("attention is NULL");
  const Result<fovea_batch> versioned_batch = versioned(given, "batch");
  if (!versioned_batch.ok()) return versioned_batch.status();
  const fovea_batch& b = *versioned_batch;
  if (Status s = check_mask(b.mask); !s.ok()) return s;
  fovea::RequestBatch batch;
  batch.num_requests = b.num_requests;
  batch.q_lens = b.q_lens;
  batch.kv_lens = b.kv_lens;
  batch.page_indices = b.page_indices;
  batch.page_indices_device = kind_of(b.page_indices_device);
  batch.num_page_indices = b.num_page_indices;
  batch.list_begins = b.list_begins;
  batch.page_stride = b.page_stride;
  batch.list_ends = b.list_ends;
  batch.mask = static_cast<fovea::AttentionMask>(b.mask);
  batch.window_left = b.window_left;
  batch.mask_bits = b.mask_bits;
  batch.mask_bytes = b.mask_bytes;
  batch.mask_offsets = b.mask_offsets;
  return attention->attention.plan(batch, {stream});
}

Status run(fovea_attention* attention, const fovea_tensor* q, const fovea_paged_kv* kv, const fovea_tensor* out,
           const fovea_tensor* lse, const fovea_run_values* values, void* stream) {
  if (attention == nullptr) return invalid("attention is NULL");
  Views views;
  fovea::RunValues run_values;
  if (values != nullptr) {
    const Result<fovea_run_values> v = versioned(values, "values");
    if (!v.ok()) return v.status();
    run_values = {v->logit_scale, views.get("sinks", v->sinks)};
  }
  const TensorView q_view = views.required("q", q);
  const TensorView out_view = views.required("out", out);
  const TensorView lse_view = views.get("lse", lse);
  fovea::PagedKv pool = views.kv(kv);
  if (!views.status().ok()) return views.status();
  for (TensorView* part : {&pool.k, &pool.v}) take_as(attention->attention.options().kv_dtype, *part);
  pool.rotated = attention->attention.options().kv_rotated;
  return attention->attention.run(q_view, pool, out_view, lse_view, {stream}, run_values);
}

Status plan_selected(fovea_attention* attention, const fovea_selected_batch* given, void* stream) {
  if (attention == nullptr) return invalid("attention is NULL");
  const Result<fovea_selected_batch> versioned_batch = versioned(given, "batch");
  if (!versioned_batch.ok()) return versioned_batch.status();
  const fovea_selected_batch& b = *versioned_batch;
  return attention->attention.plan_selected(
      {b.num_requests, b.kv_lens, b.budget_tokens, b.budget_divisor, b.page_indices, b.num_page_indices, b.list_begins,
       b.selected_begins, b.selected_stride, b.list_tokens},
      {stream});
}

Status plan_ragged(fovea_attention* attention, const fovea_ragged_batch* given, void* stream) {
  if (attention == nullptr) return invalid("attention is NULL");
  const Result<fovea_ragged_batch> versioned_batch = versioned(given, "batch");
  if (!versioned_batch.ok()) return versioned_batch.status();
  const fovea_ragged_batch& b = *versioned_batch;
  if (Status s = check_mask(b.mask); !s.ok()) return s;
  return attention->attention.plan_ragged(
      {b.num_requests, b.q_lens, b.kv_lens, b.kv_begins, static_cast<fovea::AttentionMask>(b.mask), b.window_left,
       b.mask_bits, b.mask_bytes, b.mask_offsets},
      {stream});
}

Status plan_blocks(fovea_attention* attention, const fovea_block_sparse_batch* given, void* stream) {
  if (attention == nullptr) return invalid("attention is NULL");
  const Result<fovea_block_sparse_batch> versioned_batch = versioned(given, "batch");
  if (!versioned_batch.ok()) return versioned_batch.status();
  const fovea_block_sparse_batch& b = *versioned_batch;
  if (Status s = check_mask(b.mask); !s.ok()) return s;
  return attention->attention.plan_blocks(
      {b.num_rows, b.num_tokens, b.block_rows, b.block_tokens, b.indptr, b.indices, b.heads_differ != 0,
       static_cast<fovea::AttentionMask>(b.mask), b.mask_bits, b.mask_bytes},
      {stream});
}

Status plan_cascade(fovea_attention* attention, std::int32_t num_rows, const fovea_cascade_level* levels,
                    std::int32_t num_levels, void* stream) {
  if (attention == nullptr) return invalid("attention is NULL");
  if (num_levels < 0 || num_levels > 64 || (levels == nullptr && num_levels != 0)) {
    return invalid("a cascade of " + std::to_string(num_levels) + " levels, expected 1 to 64");
  }
  std::vector<fovea::CascadeLevel> made(static_cast<std::size_t>(num_levels));
  for (std::size_t i = 0; i < made.size(); ++i) {
    const fovea_cascade_level& l = levels[i];
    made[i] = {l.num_groups,       l.row_begins,  l.kv_lens,    l.page_indices, kind_of(l.page_indices_device),
               l.num_page_indices, l.list_begins, l.causal != 0};
  }
  return attention->attention.plan_cascade(num_rows, made, {stream});
}

}  // namespace

const char* fovea_version(void) { return fovea::kVersion; }
const char* fovea_last_error(void) { return fovea::capi::last_error(); }

void fovea_attention_options_init(fovea_attention_options* options) {
  if (options == nullptr) return;
  const fovea::AttentionOptions d;
  fovea_attention_options o{};
  o.struct_bytes = sizeof o;
  o.device = "cpu";
  o.num_qo_heads = d.num_qo_heads;
  o.num_kv_heads = d.num_kv_heads;
  o.head_dim = d.head_dim;
  o.q_dtype = static_cast<std::int32_t>(d.q_dtype);
  o.kv_dtype = static_cast<std::int32_t>(d.kv_dtype);
  o.page_tokens = d.page_tokens;
  o.max_requests = d.max_requests;
  o.max_rows = d.max_rows;
  o.max_pages_per_request = d.max_pages_per_request;
  o.max_mask_bytes = d.max_mask_bytes;
  o.share_prefixes = d.share_prefixes ? 1 : 0;
  o.device_growth = d.device_growth ? 1 : 0;
  *options = o;
}

fovea_status fovea_attention_create(const fovea_attention_options* options, fovea_attention** attention) {
  return guarded([&] { return create(options, attention); });
}

void fovea_attention_destroy(fovea_attention* attention) { delete attention; }

fovea_status fovea_attention_plan(fovea_attention* attention, const fovea_batch* batch, void* stream) {
  return guarded([&] { return plan(attention, batch, stream); });
}

fovea_status fovea_attention_plan_cascade(fovea_attention* attention, int32_t num_rows,
                                          const fovea_cascade_level* levels, int32_t num_levels, void* stream) {
  return guarded([&] { return plan_cascade(attention, num_rows, levels, num_levels, stream); });
}

fovea_status fovea_attention_plan_selected(fovea_attention* attention, const fovea_selected_batch* batch,
                                           void* stream) {
  return guarded([&] { return plan_selected(attention, batch, stream); });
}

fovea_status fovea_attention_plan_ragged(fovea_attention* attention, const fovea_ragged_batch* batch, void* stream) {
  return guarded([&] { return plan_ragged(attention, batch, stream); });
}

fovea_status fovea_attention_plan_blocks(fovea_attention* attention, const fovea_block_sparse_batch* batch,
                                         void* stream) {
  return guarded([&] { return plan_blocks(attention, batch, stream); });
}

fovea_status fovea_attention_grow(fovea_attention* attention, const int32_t* kv_lens, int32_t num_requests,
                                  void* stream) {
  return guarded([&]() -> Status {
    if (attention == nullptr) return invalid("attention is NULL");
    return attention->attention.grow({kv_lens, static_cast<std::size_t>(std::max(num_requests, 0))}, {stream});
  });
}

fovea_status fovea_attention_grow_on_device(fovea_attention* attention, const fovea_tensor* kv_lens, void* stream) {
  return guarded([&]() -> Status {
    if (attention == nullptr) return invalid("attention is NULL");
    Views views;
    const TensorView lens = views.required("kv_lens", kv_lens);
    if (!views.status().ok()) return views.status();
    return attention->attention.grow_on_device(lens, {stream});
  });
}

fovea_status fovea_attention_growth_status(const fovea_attention* attention, void* stream) {
  return guarded([&]() -> Status {
    if (attention == nullptr) return invalid("attention is NULL");
    return attention->attention.growth_status({stream});
  });
}

fovea_status fovea_attention_run(fovea_attention* attention, const fovea_tensor* q, const fovea_paged_kv* kv,
                                 const fovea_tensor* out, const fovea_tensor* lse, void* stream) {
  return guarded([&] { return run(attention, q, kv, out, lse, nullptr, stream); });
}

fovea_status fovea_attention_run_values(fovea_attention* attention, const fovea_tensor* q, const fovea_paged_kv* kv,
                                        const fovea_tensor* out, const fovea_tensor* lse,
                                        const fovea_run_values* values, void* stream) {
  return guarded([&] { return run(attention, q, kv, out, lse, values, stream); });
}

int32_t fovea_attention_captured(const fovea_attention* attention) {
  return attention != nullptr && attention->attention.captured() ? 1 : 0;
}

size_t fovea_attention_workspace_bytes(const fovea_attention* attention) {
  return attention == nullptr ? 0 : attention->attention.workspace_bytes();
}

void fovea_attention_get_stats(const fovea_attention* attention, fovea_attention_stats* stats) {
  if (stats == nullptr) return;
  *stats = {};
  if (attention == nullptr) return;
  const fovea::AttentionStats s = attention->attention.stats();
  *stats = {s.kv_bytes, s.kv_bytes_unshared, s.partial_bytes, s.plan_bytes, s.num_workers, s.num_items, s.imbalance};
}

size_t fovea_attention_explain(const fovea_attention* attention, char* text, size_t bytes) {
  const std::string words = attention == nullptr ? "" : attention->attention.explain();
  if (text != nullptr && bytes > 0) {
    const std::size_t count = std::min(bytes - 1, words.size());
    std::memcpy(text, words.data(), count);
    text[count] = '\0';
  }
  return words.size() + 1;
}

fovea_status fovea_append_paged_kv(const fovea_tensor* k, const fovea_tensor* v, const fovea_tensor* slots,
                                   const fovea_tensor* batch_indices, const fovea_tensor* positions,
                                   const fovea_tensor* page_indices, const fovea_tensor* page_indptr,
                                   const fovea_paged_kv* kv, void* stream) {
  return guarded([&]() -> Status {
    Views views;
    const TensorView k_view = views.required("k", k);
    const TensorView v_view = views.required("v", v);
    const fovea::AppendPlaces places = views.places(slots, batch_indices, positions, page_indices, page_indptr);
    if (kv == nullptr) return invalid("kv is NULL");
    const fovea::PagedKv pool = views.stored_kv(kv);
    if (!views.status().ok()) return views.status();
    return fovea::append_paged_kv(k_view, v_view, places, pool, {stream});
  });
}

fovea_status fovea_merge_states(const fovea_tensor* v, const fovea_tensor* lse, const fovea_tensor* out,
                                const fovea_tensor* lse_out, void* stream) {
  return guarded([&]() -> Status {
    Views views;
    const TensorView v_view = views.required("v", v);
    const TensorView lse_view = views.required("lse", lse);
    const TensorView out_view = views.required("out", out);
    const TensorView lse_out_view = views.get("lse_out", lse_out);
    if (!views.status().ok()) return views.status();
    return fovea::merge_states(v_view, lse_view, out_view, lse_out_view, {stream});
  });
}

fovea_status fovea_merge_state(const fovea_tensor* v_a, const fovea_tensor* lse_a, const fovea_tensor* v_b,
                               const fovea_tensor* lse_b, const fovea_tensor* out, const fovea_tensor* lse_out,
                               const fovea_tensor* mask, void* stream) {
  return guarded([&]() -> Status {
    Views views;
    const TensorView a = views.required("v_a", v_a);
    const TensorView a_lse = views.required("lse_a", lse_a);
    const TensorView b = views.required("v_b", v_b);
    const TensorView b_lse = views.required("lse_b", lse_b);
    const TensorView out_view = views.required("out", out);
    const TensorView lse_out_view = views.get("lse_out", lse_out);
    const TensorView mask_view = views.get("mask", mask);
    if (!views.status().ok()) return views.status();
    return fovea::merge_state(a, a_lse, b, b_lse, out_view, lse_out_view, mask_view, {stream});
  });
}
