// The public PageSelector: checks, then the implementation of the device.
#include "fovea/page_selector.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "abi/select_args.h"
#include "base/quote.h"
#include "base/status.h"
#include "select/page_selector_impl.h"

namespace fovea {
namespace {

constexpr std::int32_t kUnit = kSelectPageTokens;
static_assert(kUnit == abi::kSubPageTokens && kKeyCodeChannels == abi::kCodeChannels &&
              kLeastBudgetTokens == abi::kLeastSelectTokens);

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

// Policies whose lists all have as many units of a page as the budget.
Result<const SelectPolicy*> find_policy(const std::string& name) {
  std::string names;
  for (const SelectPolicy& policy : select_policies()) {
    if (policy.stat == abi::StatKind::kNone || policy.unit_tokens != kUnit || policy.mass != 0.0f) continue;
    if (policy.name == name) return &policy;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", policy.name);
  }
  const auto known = select_policies();
  if (std::none_of(known.begin(), known.end(), [&](const SelectPolicy& policy) { return policy.name == name; })) {
    return invalid_argument("policy is {}, expected one of {}", quote(name), names);
  }
  return unsupported("policy {} outside of the engine: its lists are none that plan_selected() takes; there are {}",
                     quote(name), names);
}

Status check_counts(const PageSelectorOptions& o) {
  struct Count {
    const char* name;
    std::int64_t value, least, most;
  };
  constexpr std::int64_t kAny = std::numeric_limits<std::int32_t>::max();
  for (const auto& [name, value, least, most] :
       {Count{"num_qo_heads", o.num_qo_heads, 1, 4096}, Count{"num_kv_heads", o.num_kv_heads, 1, 4096},
        Count{"sink_tokens", o.sink_tokens, 0, kAny}, Count{"recent_tokens", o.recent_tokens, 1, kAny},
        Count{"budget_divisor", o.budget_divisor, 0, kAny}, Count{"interval", o.interval, 1, 1 << 16},
        Count{"candidate_factor", o.candidate_factor, 2, 64}, Count{"num_threads", o.num_threads, 0, 4096}}) {
    if (value < least || value > most) {
      return invalid_argument("{} is {}, expected {} to {}", name, value, least, most);
    }
  }
  for (const auto& [name, value, least, most] :
       {Count{"num_layers", o.num_layers, 1, 1 << 16}, Count{"num_pages", o.num_pages, 1, 1 << 28},
        Count{"max_requests", o.max_requests, 1, 1 << 16},
        Count{"max_pages_per_request", o.max_pages_per_request, 1, abi::kMostSelectUnits}}) {
    if (value < least || value > most) return out_of_range("{} is {}, expected {} to {}", name, value, least, most);
  }
  return ok_status();
}

Status check_budget(const PageSelectorOptions& o) {
  if (o.budget_tokens < kLeastBudgetTokens || o.budget_tokens % kUnit != 0) {
    return invalid_argument("budget_tokens is {}, expected a multiple of {}, {} or more", o.budget_tokens, kUnit,
                            kLeastBudgetTokens);
  }
  constexpr std::int32_t kMost = static_cast<std::int32_t>(abi::kMostSelectUnits) * kUnit;
  if (o.budget_tokens > kMost) return out_of_range("budget_tokens is {}, expected up to {}", o.budget_tokens, kMost);
  if (o.budget_divisor == 1) return invalid_argument("budget_divisor is 1, expected 0, or 2 or more");
  // The newest tokens reach into one page more than they fill, and what is written next into another.
  const std::int64_t forced = (std::int64_t{o.sink_tokens} + kUnit - 1) / kUnit + o.recent_tokens / kUnit + 2;
  const std::int32_t least = o.budget_divisor != 0 ? kLeastBudgetTokens : o.budget_tokens;
  if (forced * kUnit > least) {
    return invalid_argument(
        "a budget of {} tokens; sinks ({}) and newest ones ({}) alone are up to {}, as whole pages are read", least,
        o.sink_tokens, o.recent_tokens, forced * kUnit);
  }
  return ok_status();
}

// That sizes in bytes are numbers of 64 bits, and far from it.
Status check_memory(const PageSelectorOptions& o, const SelectPolicy& policy) {
  const double heads = o.num_kv_heads, layers = o.num_layers, rows = layers * o.max_requests * heads;
  const double statistics = layers * o.num_pages * heads * abi::stat_bytes(policy.stat, o.head_dim);
  const double remembered = o.interval > 1 ? rows * o.candidate_factor * (o.budget_tokens / kUnit) * 4.0 : 0.0;
  if (statistics <= 0x1p44 && remembered <= 0x1p44 && rows <= 0x1p28) return ok_status();
  return out_of_range("{} layers of {} pages, {} requests and {} KV heads take {:.0f} TB", o.num_layers, o.num_pages,
                      o.max_requests, o.num_kv_heads, (statistics + remembered + rows * 64.0) * 1e-12);
}

Status check_codes(const PageSelectorOptions& o, const SelectPolicy& policy) {
  if (policy.stat != abi::StatKind::kCodes) return ok_status();
  const std::size_t expected = static_cast<std::size_t>(o.num_layers) * static_cast<std::size_t>(o.num_kv_heads);
  if (o.key_codes.size() != expected) {
    return invalid_argument("{} key_codes, expected {} for {} layers of {} KV heads; learn_key_codes() makes them",
                            o.key_codes.size(), expected, o.num_layers, o.num_kv_heads);
  }
  for (std::size_t at = 0; at < expected; ++at) {
    const KeyCode& code = o.key_codes[at];
    for (std::int32_t i = 0; i < kKeyCodeChannels; ++i) {
      if (code.channel[i] >= o.head_dim || !std::isfinite(code.mean[i]) || !std::isfinite(code.step[i]) ||
          !std::isfinite(1.0f / code.step[i]) || code.step[i] <= 0.0f) {
        return invalid_argument(
            "key_codes[{}] has channel {}, mean {} and step {} at {}, expected a channel below {}, finite numbers and "
            "a "
            "step above 0",
            at, code.channel[i], code.mean[i], code.step[i], i, o.head_dim);
      }
    }
  }
  return ok_status();
}

Status check_options(const PageSelectorOptions& o, const SelectPolicy& policy) {
  FOVEA_RETURN_IF_ERROR(check_counts(o));
  if (o.num_qo_heads % o.num_kv_heads != 0) {
    return invalid_argument("{} query heads for {} KV heads, expected a multiple", o.num_qo_heads, o.num_kv_heads);
  }
  if (o.head_dim < kKeyCodeChannels || o.head_dim > 256 || o.head_dim % 16 != 0) {
    return unsupported("head_dim is {}, expected a multiple of 16 from {} to 256", o.head_dim, kKeyCodeChannels);
  }
  if (!is_float(o.q_dtype)) return unsupported("q_dtype is {}, expected f32, f16 or bf16", dtype_name(o.q_dtype));
  if (!std::isfinite(o.sm_scale)) return invalid_argument("sm_scale is {}, expected a finite number", o.sm_scale);
  if (o.rotary_dim < -1 || o.rotary_dim > o.head_dim || (o.rotary_dim > 0 && o.rotary_dim % 2 != 0)) {
    return invalid_argument("rotary_dim is {}, expected an even number up to {}, or -1 for all", o.rotary_dim,
                            o.head_dim);
  }
  FOVEA_RETURN_IF_ERROR(check_budget(o));
  FOVEA_RETURN_IF_ERROR(check_memory(o, policy));
  return check_codes(o, policy);
}

Status check_layer(const PageSelector::Impl& impl, std::int32_t layer) {
  if (layer >= 0 && layer < impl.options().num_layers) return ok_status();
  return out_of_range("layer {}, declared were {}; raise num_layers", layer, impl.options().num_layers);
}

// i32 [requests] of the object's device.
Status check_of_requests(const char* name, const TensorView& tensor, std::int64_t requests, DevicePlace place) {
  return check_array(name, tensor, {requests}, DType::kI32, place);
}

// What select() writes, and the table. Lengths and phases are select()'s to check.
Status check_lists(const PageSelector::Impl& impl, const SelectStep& step, std::int64_t requests) {
  const PageSelectorOptions& o = impl.options();
  const DevicePlace place = impl.place();
  if (requests > o.max_requests) {
    return out_of_range("{} requests, declared were {}; raise max_requests", requests, o.max_requests);
  }
  FOVEA_RETURN_IF_ERROR(check_of_requests("list_tokens", step.list_tokens, requests, place));
  const TensorView& table = step.page_table;
  FOVEA_RETURN_IF_ERROR(check_place("page_table", table, place));
  if (table.rank != 2 || table.dtype != DType::kI32 || table.shape[0] < requests || table.shape[1] < 1 ||
      (table.shape[1] > 1 && table.strides[1] != 1) || table.strides[0] < 0) {
    return invalid_argument("page_table is {}, expected i32 [{}, pages] with contiguous rows", describe(table),
                            requests);
  }
  const TensorView& lists = step.lists;
  const std::int64_t budget = o.budget_tokens / kUnit;
  FOVEA_RETURN_IF_ERROR(check_contiguous("lists", lists, DType::kI32, place));
  if (lists.rank != 3 || lists.shape[0] < requests || lists.shape[1] != o.num_kv_heads || lists.shape[2] < budget) {
    return invalid_argument("lists is {}, expected i32 [{}, {}, {} or more]", describe(lists), requests, o.num_kv_heads,
                            budget);
  }
  return ok_status();
}

// Entries of page_indices that a tensor of the step spans, from the lowest address of both on.
struct Extent {
  std::uintptr_t begin, end;
};
Extent extent_of(const TensorView& tensor) {
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  std::int64_t last = 0;
  for (int d = 0; d < tensor.rank; ++d) last += std::max<std::int64_t>(tensor.shape[d] - 1, 0) * tensor.strides[d];
  return {begin, begin + static_cast<std::uintptr_t>(last + 1) * sizeof(std::int32_t)};
}

}  // namespace

std::vector<abi::KeyCode> abi_codes(const std::vector<KeyCode>& codes) {
  std::vector<abi::KeyCode> made(codes.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    std::copy_n(codes[i].channel, kKeyCodeChannels, made[i].channel);
    std::copy_n(codes[i].mean, kKeyCodeChannels, made[i].mean);
    std::copy_n(codes[i].step, kKeyCodeChannels, made[i].step);
  }
  return made;
}

PageSelector::Impl::Impl(PageSelectorOptions options, const SelectPolicy& policy, DevicePlace place)
    : options_(std::move(options)), policy_(policy), place_(place) {
  if (options_.sm_scale == 0.0f) options_.sm_scale = 1.0f / std::sqrt(static_cast<float>(options_.head_dim));
  if (options_.rotary_dim < 0) options_.rotary_dim = options_.head_dim;
  stats_.kind = policy.stat;
  stats_.head_stride = abi::stat_bytes(policy.stat, options_.head_dim);
  stats_.page_stride = stats_.head_stride * options_.num_kv_heads;
  stats_.num_pages = options_.num_pages;
  stats_.subs_per_page = 1;
  stats_.num_heads = options_.num_kv_heads;
  stats_.head_dim = options_.head_dim;
  stats_.rotary_dim = options_.rotary_dim;
}

abi::PageStatsView PageSelector::Impl::stats(std::int32_t layer) const {
  abi::PageStatsView view = stats_;
  view.data = static_cast<std::byte*>(view.data) + layer_bytes() * static_cast<std::size_t>(layer);
  if (view.codes != nullptr) view.codes += std::ptrdiff_t{layer} * view.num_heads;
  return view;
}

PageSelector::PageSelector(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PageSelector::PageSelector(PageSelector&&) noexcept = default;
PageSelector& PageSelector::operator=(PageSelector&&) noexcept = default;
PageSelector::~PageSelector() = default;

Result<PageSelector> PageSelector::create(const PageSelectorOptions& options) {
  FOVEA_ASSIGN_OR_RETURN(const DevicePlace place, parse_device(options.device));
  FOVEA_ASSIGN_OR_RETURN(const SelectPolicy* policy, find_policy(options.policy));
  FOVEA_RETURN_IF_ERROR(check_options(options, *policy));
  const bool on_cpu = place.kind == DeviceKind::kCpu;
  FOVEA_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, on_cpu ? create_cpu_page_selector(options, *policy)
                                                            : create_cuda_page_selector(options, *policy, place));
  return PageSelector(std::move(impl));
}

Status PageSelector::append(std::int32_t layer, const TensorView& k, const AppendPlaces& places, const PagedKv& kv,
                            Stream stream) {
  const PageSelectorOptions& o = impl_->options();
  FOVEA_RETURN_IF_ERROR(check_layer(*impl_, layer));
  if (!is_float(k.dtype)) return unsupported("k is {}, expected f32, f16 or bf16", describe(k));
  FOVEA_RETURN_IF_ERROR(check_rows("k", k, 0, o.num_kv_heads, o.head_dim, k.dtype, impl_->place()));
  FOVEA_RETURN_IF_ERROR(check_places(places, k.shape[0], impl_->place()));
  abi::KvPoolView pool{};
  if (impl_->policy().stat != abi::StatKind::kCodes) {
    if (is_empty(kv.k)) {
      return invalid_argument("kv is missing; policy {} reads the keys that stand in the pages", impl_->policy().name);
    }
    FOVEA_ASSIGN_OR_RETURN(pool, pool_view(kv, o.num_kv_heads, o.head_dim, kUnit, impl_->place()));
    if (pool.num_pages != o.num_pages) {
      return invalid_argument("k is a pool of {} pages, declared were num_pages = {}", pool.num_pages, o.num_pages);
    }
  }
  if (k.shape[0] == 0) return ok_status();
  return impl_->append(layer, k, places, pool, stream);
}

Status PageSelector::select(std::int32_t layer, const TensorView& q, const SelectStep& step, Stream stream) {
  const PageSelectorOptions& o = impl_->options();
  FOVEA_RETURN_IF_ERROR(check_layer(*impl_, layer));
  FOVEA_RETURN_IF_ERROR(check_of_requests("kv_lens", step.kv_lens, 0, impl_->place()));
  const std::int64_t requests = step.kv_lens.shape[0];
  FOVEA_RETURN_IF_ERROR(check_lists(*impl_, step, requests));
  if (!is_empty(step.phases)) FOVEA_RETURN_IF_ERROR(check_of_requests("phases", step.phases, requests, impl_->place()));
  FOVEA_RETURN_IF_ERROR(check_rows("q", q, requests, o.num_qo_heads, o.head_dim, o.q_dtype, impl_->place()));
  if (requests == 0) return ok_status();
  return impl_->select(layer, q, step, stream);
}

Status PageSelector::plan(Attention& attention, std::span<const std::int32_t> kv_lens, const SelectStep& step,
                          Stream stream) {
  const PageSelectorOptions& o = impl_->options();
  const AttentionOptions& a = attention.options();
  const auto requests = static_cast<std::int64_t>(kv_lens.size());
  FOVEA_RETURN_IF_ERROR(check_lists(*impl_, step, requests));
  FOVEA_ASSIGN_OR_RETURN(const DevicePlace place, parse_device(a.device));
  if (a.page_tokens != kUnit || a.num_qo_heads != o.num_qo_heads || a.num_kv_heads != o.num_kv_heads ||
      a.head_dim != o.head_dim || device_name(place) != device_name(impl_->place())) {
    return invalid_argument(
        "an attention of {}/{} heads of {} over pages of {} tokens on {}, expected {}/{} heads of {}, pages of {} on "
        "{}",
        a.num_qo_heads, a.num_kv_heads, a.head_dim, a.page_tokens, device_name(place), o.num_qo_heads, o.num_kv_heads,
        o.head_dim, kUnit, device_name(impl_->place()));
  }
  const std::int64_t room = std::min<std::int64_t>(step.page_table.shape[1], o.max_pages_per_request);
  for (std::int64_t i = 0; i < requests; ++i) {
    const std::int32_t tokens = kv_lens[static_cast<std::size_t>(i)];
    if (tokens < 1 || tokens > room * kUnit) {
      return out_of_range("request {} has {} tokens, expected 1 to {}: {} pages of {}", i, tokens, room * kUnit, room,
                          kUnit);
    }
  }
  const Extent table = extent_of(step.page_table), lists = extent_of(step.lists);
  const std::uintptr_t begin = std::min(table.begin, lists.begin), end = std::max(table.end, lists.end);
  const auto entry = [&](const Extent& of) {
    return static_cast<std::int64_t>((of.begin - begin) / sizeof(std::int32_t));
  };
  std::vector<std::int64_t> list_begins, selected_begins;
  for (std::int64_t i = 0; i < requests; ++i) {
    list_begins.push_back(entry(table) + i * step.page_table.strides[0]);
    selected_begins.push_back(entry(lists) + i * o.num_kv_heads * step.lists.shape[2]);
  }
  SelectedBatch batch;
  batch.num_requests = static_cast<std::int32_t>(requests);
  batch.kv_lens = kv_lens.data();
  batch.budget_tokens = o.budget_tokens;
  batch.budget_divisor = o.budget_divisor;
  batch.page_indices = reinterpret_cast<const std::int32_t*>(begin);
  batch.num_page_indices = static_cast<std::int64_t>((end - begin) / sizeof(std::int32_t));
  if (requests > 0 && batch.num_page_indices > std::int64_t{1} << 31) {
    return invalid_argument("page_table and lists are {} entries apart; make them parts of one array",
                            batch.num_page_indices);
  }
  batch.list_begins = list_begins.data();
  batch.selected_begins = selected_begins.data();
  batch.selected_stride = step.lists.shape[2];
  batch.list_tokens = static_cast<const std::int32_t*>(step.list_tokens.data);
  return attention.plan_selected(batch, stream);
}

Status PageSelector::forget(std::int32_t begin, std::int32_t end, Stream stream) {
  const PageSelectorOptions& o = impl_->options();
  if (begin < 0 || begin > end || end > o.max_requests) {
    return out_of_range("rows [{}, {}), expected a part of [0, {})", begin, end, o.max_requests);
  }
  if (begin == end || o.interval == 1) return ok_status();
  return impl_->forget(begin, end, stream);
}

Status PageSelector::copy_page(std::int32_t from, std::int32_t to, Stream stream) {
  const PageSelectorOptions& o = impl_->options();
  if (from < 0 || from >= o.num_pages || to < 0 || to >= o.num_pages) {
    return out_of_range("a copy of page {} to {}, expected pages below {}", from, to, o.num_pages);
  }
  for (std::int32_t layer = 0; layer < o.num_layers && from != to; ++layer) {
    const abi::PageStatsView stats = impl_->stats(layer);
    auto* const data = static_cast<std::byte*>(stats.data);
    FOVEA_RETURN_IF_ERROR(impl_->copy(data + to * stats.page_stride, data + from * stats.page_stride,
                                      static_cast<std::size_t>(stats.page_stride), stream));
  }
  return ok_status();
}

const PageSelectorOptions& PageSelector::options() const { return impl_->options(); }
std::size_t PageSelector::workspace_bytes() const { return impl_->workspace_bytes(); }
std::size_t PageSelector::statistics_bytes_per_page() const {
  return static_cast<std::size_t>(impl_->stats(0).page_stride);
}

Result<TensorView> PageSelector::statistics(std::int32_t layer) const {
  FOVEA_RETURN_IF_ERROR(check_layer(*impl_, layer));
  const abi::PageStatsView stats = impl_->stats(layer);
  TensorView view = cpu_tensor(stats.data, DType::kU8, stats.num_pages, stats.num_heads, stats.head_stride);
  view.device = impl_->place().kind;
  view.device_index = impl_->place().index;
  return view;
}

}  // namespace fovea
