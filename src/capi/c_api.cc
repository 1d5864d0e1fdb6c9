// The C ABI (fovea/fovea.h) over the C++ one. All of the shared library libfovea_c that other languages load.
#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "fovea/fovea.h"
#include "fovea/version.h"

struct fovea_attention {
  fovea::Attention attention;
};

namespace {

using fovea::DeviceKind;
using fovea::DType;
using fovea::Result;
using fovea::Status;
using fovea::StatusCode;
using fovea::Stream;
using fovea::TensorView;

thread_local std::string last_error;

fovea_status report(const Status& status) {
  if (!status.ok()) last_error = status.to_string();
  return static_cast<fovea_status>(status.code());
}

Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

// Runs f, which returns a Status; exceptions (memory) do not cross the C boundary.
template <typename F>
fovea_status guarded(F&& f) {
  try {
    return report(f());
  } catch (const std::bad_alloc&) {
    return report({StatusCode::kResourceExhausted, "no memory on the host"});
  } catch (const std::exception& error) {
    return report({StatusCode::kInternal, error.what()});
  }
}

enum DlDevice : std::int32_t { kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13 };

bool is_device(std::int32_t type) { return type == kDlCuda || type == kDlCudaManaged; }

Result<DType> dtype_of(const fovea_tensor& t) {
  enum Code { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6, kFloat8E4M3Fn = 10 };
  const int bits = t.dtype.bits;
  if (t.dtype.lanes == 1) {
    switch (t.dtype.code) {
      case kFloat:
        if (bits == 32) return DType::kF32;
        if (bits == 16) return DType::kF16;
        break;
      case kBfloat:
        if (bits == 16) return DType::kBF16;
        break;
      case kInt:
        if (bits == 32) return DType::kI32;
        if (bits == 64) return DType::kI64;
        if (bits == 8) return DType::kI8;
        break;
      case kUint:
      case kBool:
        if (bits == 8) return DType::kU8;
        break;
      case kFloat8E4M3Fn: return DType::kF8E4M3;
      default: break;
    }
  }
  return invalid("DLPack type (code " + std::to_string(t.dtype.code) + ", " + std::to_string(bits) + " bits, " +
                 std::to_string(t.dtype.lanes) + " lanes) is none that Fovea knows");
}

Status view_of(const char* name, const fovea_tensor* t, TensorView& view) {
  view = {};
  if (t == nullptr) return {};
  if (t->ndim < 1 || t->ndim > TensorView::kMaxRank || t->shape == nullptr) {
    return invalid(std::string(name) + " has rank " + std::to_string(t->ndim) + ", expected 1 to " +
                   std::to_string(TensorView::kMaxRank));
  }
  const Result<DType> dtype = dtype_of(*t);
  if (!dtype.ok()) return invalid(std::string(name) + ": " + dtype.status().message());
  view.dtype = *dtype;
  view.rank = t->ndim;
  std::int64_t stride = 1;
  for (int d = t->ndim - 1; d >= 0; --d) {
    view.shape[d] = t->shape[d];
    view.strides[d] = t->strides != nullptr ? t->strides[d] : stride;
    stride *= t->shape[d];
  }
  view.data = static_cast<char*>(t->data) + t->byte_offset;
  if (is_device(t->device.type)) {
    view.device = DeviceKind::kCuda;
    view.device_index = t->device.id;
  } else if (t->device.type != kDlCpu && t->device.type != kDlCudaHost) {
    return invalid(std::string(name) + " is on DLPack device type " + std::to_string(t->device.type) +
                   ", expected CPU or CUDA");
  }
  return {};
}

// A pool of bytes as the pool of `stored` that it holds. int4: a byte has two elements, so dims and strides are twice
// as many of those.
void take_as(DType stored, TensorView& pool) {
  if (pool.dtype != DType::kU8 && pool.dtype != DType::kI8) return;
  if (stored != DType::kF8E4M3 && stored != DType::kI8 && stored != DType::kI4) return;
  pool.dtype = stored;
  if (stored != DType::kI4 || pool.rank != 4) return;
  pool.shape[3] *= 2;
  for (int d = 0; d < 3; ++d) pool.strides[d] *= 2;
}

// The first failure of several conversions.
class Views {
 public:
  TensorView get(const char* name, const fovea_tensor* t) {
    TensorView view;
    Status status = view_of(name, t, view);
    if (status_.ok() && !status.ok()) status_ = std::move(status);
    return view;
  }
  TensorView required(const char* name, const fovea_tensor* t) {
    if (t == nullptr && status_.ok()) status_ = invalid(std::string(name) + " is NULL");
    return get(name, t);
  }
  // Pools of bytes stay what they are.
  fovea::PagedKv kv(const fovea_paged_kv* p) {
    fovea::PagedKv kv;
    if (p == nullptr) {
      if (status_.ok()) status_ = invalid("kv is NULL");
      return kv;
    }
    if (p->layout != FOVEA_NHD && p->layout != FOVEA_HND && status_.ok()) {
      status_ = invalid("layout is " + std::to_string(p->layout) + ", expected FOVEA_NHD or FOVEA_HND");
    }
    kv.layout = p->layout == FOVEA_HND ? fovea::KvLayout::kHND : fovea::KvLayout::kNHD;
    kv.k = required("k", p->k);
    kv.v = required("v", p->v);
    kv.k_scale = get("k_scale", p->k_scale);
    kv.v_scale = get("v_scale", p->v_scale);
    return kv;
  }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// A copy of what the caller's version of the struct has; the rest is zero.
template <typename T>
Result<T> versioned(const T* given, const char* name) {
  T copy{};
  if (given == nullptr) return invalid(std::string(name) + " is NULL");
  if (given->struct_bytes < sizeof(std::size_t) || given->struct_bytes > 4096) {
    return invalid(std::string(name) + ".struct_bytes is " + std::to_string(given->struct_bytes) +
                   ", expected sizeof the struct");
  }
  std::memcpy(&copy, given, std::min(given->struct_bytes, sizeof(T)));
  return copy;
}

Status check_kind(std::int32_t dtype, const char* name) {
  if (dtype >= FOVEA_F32 && dtype <= FOVEA_I4) return {};
  return invalid(std::string(name) + " is " + std::to_string(dtype) + ", expected FOVEA_F32 to FOVEA_I4");
}

DeviceKind kind_of(std::int32_t dl_device) { return is_device(dl_device) ? DeviceKind::kCuda : DeviceKind::kCpu; }

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
  if (o.decode_kernel < FOVEA_DECODE_AUTO || o.decode_kernel > FOVEA_DECODE_FEW) {
    return invalid("decode_kernel is " + std::to_string(o.decode_kernel) +
                   ", expected FOVEA_DECODE_AUTO to FOVEA_DECODE_FEW");
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
  if (Status s = set_variant(o, views, options); !s.ok()) return s;
  if (!views.status().ok()) return views.status();
  Result<fovea::Attention> made = fovea::Attention::create(options);
  if (!made.ok()) return made.status();
  *attention = new fovea_attention{std::move(*made)};
  return {};
}

Status plan(fovea_attention* attention, const fovea_batch* given, void* stream) {
  if (attention == nullptr) return invalid("attention is NULL");
  const Result<fovea_batch> versioned_batch = versioned(given, "batch");
  if (!versioned_batch.ok()) return versioned_batch.status();
  const fovea_batch& b = *versioned_batch;
  if (b.mask < FOVEA_MASK_NONE || b.mask > FOVEA_MASK_BITS) {
    return invalid("mask is " + std::to_string(b.mask) + ", expected FOVEA_MASK_NONE to FOVEA_MASK_BITS");
  }
  fovea::RequestBatch batch;
  batch.num_requests = b.num_requests;
  batch.q_lens = b.q_lens;
  batch.kv_lens = b.kv_lens;
  batch.page_indices = b.page_indices;
  batch.page_indices_device = kind_of(b.page_indices_device);
  batch.num_page_indices = b.num_page_indices;
  batch.list_begins = b.list_begins;
  batch.page_stride = b.page_stride;
  batch.mask = static_cast<fovea::AttentionMask>(b.mask);
  batch.window_left = b.window_left;
  batch.mask_bits = b.mask_bits;
  batch.mask_bytes = b.mask_bytes;
  batch.mask_offsets = b.mask_offsets;
  return attention->attention.plan(batch, {stream});
}

Status plan_selected(fovea_attention* attention, const fovea_selected_batch* given, void* stream) {
  if (attention == nullptr) return invalid("attention is NULL");
  const Result<fovea_selected_batch> versioned_batch = versioned(given, "batch");
  if (!versioned_batch.ok()) return versioned_batch.status();
  const fovea_selected_batch& b = *versioned_batch;
  return attention->attention.plan_selected(
      {b.num_requests, b.kv_lens, b.budget_tokens, b.page_indices, b.num_page_indices, b.list_begins, b.selected_begins,
       b.selected_stride, b.list_tokens},
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
const char* fovea_last_error(void) { return last_error.c_str(); }

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

fovea_status fovea_attention_run(fovea_attention* attention, const fovea_tensor* q, const fovea_paged_kv* kv,
                                 const fovea_tensor* out, const fovea_tensor* lse, void* stream) {
  return guarded([&]() -> Status {
    if (attention == nullptr) return invalid("attention is NULL");
    Views views;
    const TensorView q_view = views.required("q", q);
    const TensorView out_view = views.required("out", out);
    const TensorView lse_view = views.get("lse", lse);
    fovea::PagedKv pool = views.kv(kv);
    if (!views.status().ok()) return views.status();
    for (TensorView* part : {&pool.k, &pool.v}) take_as(attention->attention.options().kv_dtype, *part);
    return attention->attention.run(q_view, pool, out_view, lse_view, {stream});
  });
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
    const fovea::AppendPlaces places{views.get("slots", slots), views.get("batch_indices", batch_indices),
                                     views.get("positions", positions), views.get("page_indices", page_indices),
                                     views.get("page_indptr", page_indptr)};
    fovea::PagedKv pool = views.kv(kv);
    if (!views.status().ok()) return views.status();
    if (Status s = check_kind(kv->kv_dtype, "kv_dtype"); !s.ok()) return s;
    const auto stored = static_cast<DType>(kv->kv_dtype);
    for (TensorView* part : {&pool.k, &pool.v}) take_as(stored == DType::kF32 ? DType::kF8E4M3 : stored, *part);
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
