// The C ABI of page selection (fovea/fovea.h) over fovea/page_selector.h.
#include "fovea/page_selector.h"

#include <span>

#include "capi/records.h"

struct fovea_page_selector {
  fovea::PageSelector selector;
};

namespace {

using namespace fovea::capi;
using fovea::DType;
using fovea::PageSelectorOptions;
using fovea::Result;
using fovea::Status;

static_assert(sizeof(fovea_key_code) == sizeof(fovea::KeyCode));

Status create(const fovea_page_selector_options* given, fovea_page_selector** selector) {
  if (selector == nullptr) return invalid("selector is NULL");
  *selector = nullptr;
  const Result<fovea_page_selector_options> versioned_options = versioned(given, "options");
  if (!versioned_options.ok()) return versioned_options.status();
  const fovea_page_selector_options& o = *versioned_options;
  if (Status s = check_kind(o.q_dtype, "q_dtype"); !s.ok()) return s;
  if (o.num_key_codes < 0 || (o.num_key_codes > 0 && o.key_codes == nullptr)) {
    return invalid("num_key_codes is " + std::to_string(o.num_key_codes) + ", and key_codes NULL or not");
  }
  PageSelectorOptions options;
  if (o.device != nullptr) options.device = o.device;
  if (o.policy != nullptr) options.policy = o.policy;
  options.key_codes.resize(static_cast<std::size_t>(o.num_key_codes));
  if (o.num_key_codes > 0) {
    std::memcpy(options.key_codes.data(), o.key_codes, options.key_codes.size() * sizeof(fovea_key_code));
  }
  options.num_qo_heads = o.num_qo_heads;
  options.num_kv_heads = o.num_kv_heads;
  options.head_dim = o.head_dim;
  options.q_dtype = static_cast<DType>(o.q_dtype);
  options.sm_scale = o.sm_scale;
  options.rotary_dim = o.rotary_dim;
  options.budget_tokens = o.budget_tokens;
  options.budget_divisor = o.budget_divisor;
  options.sink_tokens = o.sink_tokens;
  options.recent_tokens = o.recent_tokens;
  options.interval = o.interval;
  options.candidate_factor = o.candidate_factor;
  options.num_layers = o.num_layers;
  options.num_pages = o.num_pages;
  options.max_requests = o.max_requests;
  options.max_pages_per_request = o.max_pages_per_request;
  options.num_threads = o.num_threads;
  Result<fovea::PageSelector> made = fovea::PageSelector::create(options);
  if (!made.ok()) return made.status();
  *selector = new fovea_page_selector{std::move(*made)};
  return {};
}

Status step_of(const fovea_select_step* given, fovea::SelectStep& step) {
  const Result<fovea_select_step> versioned_step = versioned(given, "step");
  if (!versioned_step.ok()) return versioned_step.status();
  Views views;
  step.kv_lens = views.get("kv_lens", versioned_step->kv_lens);
  step.page_table = views.required("page_table", versioned_step->page_table);
  step.lists = views.required("lists", versioned_step->lists);
  step.list_tokens = views.required("list_tokens", versioned_step->list_tokens);
  step.phases = views.get("phases", versioned_step->phases);
  return views.status();
}

// Calls f(the C++ object).
template <typename F>
fovea_status with(fovea_page_selector* selector, F&& f) {
  return guarded([&]() -> Status {
    if (selector == nullptr) return invalid("selector is NULL");
    return f(selector->selector);
  });
}

}  // namespace

fovea_status fovea_learn_key_codes(const fovea_tensor* keys, const fovea_tensor* queries, fovea_key_code* codes,
                                   int32_t num_kv_heads) {
  return guarded([&]() -> Status {
    Views views;
    const fovea::TensorView keys_view = views.required("keys", keys);
    const fovea::TensorView queries_view = views.get("queries", queries);
    if (!views.status().ok()) return views.status();
    const Result<std::vector<fovea::KeyCode>> learned = fovea::learn_key_codes(keys_view, queries_view);
    if (!learned.ok()) return learned.status();
    if (codes == nullptr || num_kv_heads != static_cast<std::int32_t>(learned->size())) {
      return invalid("codes is NULL or has room for " + std::to_string(num_kv_heads) + ", expected " +
                     std::to_string(learned->size()));
    }
    std::memcpy(codes, learned->data(), learned->size() * sizeof(fovea_key_code));
    return {};
  });
}

void fovea_page_selector_options_init(fovea_page_selector_options* options) {
  if (options == nullptr) return;
  const PageSelectorOptions d;
  fovea_page_selector_options o{};
  o.struct_bytes = sizeof o;
  o.device = "cpu";
  o.policy = "fovea";
  o.num_qo_heads = d.num_qo_heads;
  o.num_kv_heads = d.num_kv_heads;
  o.head_dim = d.head_dim;
  o.q_dtype = static_cast<std::int32_t>(d.q_dtype);
  o.rotary_dim = d.rotary_dim;
  o.budget_tokens = d.budget_tokens;
  o.sink_tokens = d.sink_tokens;
  o.recent_tokens = d.recent_tokens;
  o.interval = d.interval;
  o.candidate_factor = d.candidate_factor;
  o.num_layers = d.num_layers;
  o.max_requests = d.max_requests;
  o.max_pages_per_request = d.max_pages_per_request;
  *options = o;
}

fovea_status fovea_page_selector_create(const fovea_page_selector_options* options, fovea_page_selector** selector) {
  return guarded([&] { return create(options, selector); });
}

void fovea_page_selector_destroy(fovea_page_selector* selector) { delete selector; }

fovea_status fovea_page_selector_append(fovea_page_selector* selector, int32_t layer, const fovea_tensor* k,
                                        const fovea_tensor* slots, const fovea_tensor* batch_indices,
                                        const fovea_tensor* positions, const fovea_tensor* page_indices,
                                        const fovea_tensor* page_indptr, const fovea_paged_kv* kv, void* stream) {
  return with(selector, [&](fovea::PageSelector& s) -> Status {
    Views views;
    const fovea::TensorView k_view = views.required("k", k);
    const fovea::AppendPlaces places = views.places(slots, batch_indices, positions, page_indices, page_indptr);
    const fovea::PagedKv pool = views.stored_kv(kv);
    if (!views.status().ok()) return views.status();
    return s.append(layer, k_view, places, pool, {stream});
  });
}

fovea_status fovea_page_selector_select(fovea_page_selector* selector, int32_t layer, const fovea_tensor* q,
                                        const fovea_select_step* step, void* stream) {
  return with(selector, [&](fovea::PageSelector& s) -> Status {
    Views views;
    const fovea::TensorView q_view = views.required("q", q);
    fovea::SelectStep made;
    Status status = step_of(step, made);
    if (!status.ok()) return status;
    if (!views.status().ok()) return views.status();
    return s.select(layer, q_view, made, {stream});
  });
}

fovea_status fovea_page_selector_plan(fovea_page_selector* selector, fovea_attention* attention, const int32_t* kv_lens,
                                      int32_t num_requests, const fovea_select_step* step, void* stream) {
  return with(selector, [&](fovea::PageSelector& s) -> Status {
    if (attention == nullptr || kv_lens == nullptr || num_requests < 0) {
      return invalid("attention or kv_lens is NULL, or num_requests negative");
    }
    fovea::SelectStep made;
    Status status = step_of(step, made);
    if (!status.ok()) return status;
    return s.plan(attention->attention, {kv_lens, static_cast<std::size_t>(num_requests)}, made, {stream});
  });
}

fovea_status fovea_page_selector_forget(fovea_page_selector* selector, int32_t begin, int32_t end, void* stream) {
  return with(selector, [&](fovea::PageSelector& s) { return s.forget(begin, end, {stream}); });
}

fovea_status fovea_page_selector_copy_page(fovea_page_selector* selector, int32_t from, int32_t to, void* stream) {
  return with(selector, [&](fovea::PageSelector& s) { return s.copy_page(from, to, {stream}); });
}

fovea_status fovea_page_selector_statistics(const fovea_page_selector* selector, int32_t layer, void** data) {
  return guarded([&]() -> Status {
    if (selector == nullptr || data == nullptr) return invalid("selector or data is NULL");
    const Result<fovea::TensorView> statistics = selector->selector.statistics(layer);
    if (statistics.ok()) *data = statistics->data;
    return statistics.status();
  });
}

size_t fovea_page_selector_bytes_per_page(const fovea_page_selector* selector) {
  return selector == nullptr ? 0 : selector->selector.statistics_bytes_per_page();
}

size_t fovea_page_selector_workspace_bytes(const fovea_page_selector* selector) {
  return selector == nullptr ? 0 : selector->selector.workspace_bytes();
}
