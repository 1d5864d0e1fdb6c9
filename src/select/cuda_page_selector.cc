// PageSelector on a CUDA device: its buffers, and the arguments of the kernels that fill them.
#include <algorithm>
#include <cmath>

#include "attention/cuda_kernels.h"
#include "attention/cuda_paged_ops.h"
#include "base/status.h"
#include "cuda/memory.h"
#include "select/cuda_select.h"
#include "select/page_selector_impl.h"

namespace fovea {
namespace {

class CudaPageSelector final : public PageSelector::Impl {
 public:
  CudaPageSelector(const PageSelectorOptions& options, const SelectPolicy& policy, DevicePlace place,
                   cuda::Device device, CudaSelector selector, cuda::DeviceBuffer statistics)
      : Impl(options, policy, place),
        device_(std::move(device)),
        selector_(std::move(selector)),
        statistics_(std::move(statistics)) {
    stats_.data = statistics_.data();
    stats_.codes = selector_.codes();
  }

  Status append(std::int32_t layer, const TensorView& k, const AppendPlaces& places, const abi::KvPoolView&,
                Stream stream) override {
    if (k.shape[0] * k.shape[1] >= std::int64_t{1} << 27) {
      return out_of_range("{} rows of {} heads in one launch, at most 2^27 of both; split the rows", k.shape[0],
                          k.shape[1]);
    }
    abi::CodesArgs args{};
    args.rows.k = k.data;
    args.rows.k_row_stride = k.strides[0];
    args.rows.k_head_stride = k.strides[1];
    set_places(places, args.rows);
    args.rows.rows = static_cast<std::uint32_t>(k.shape[0]);
    args.rows.num_kv_heads = static_cast<std::uint32_t>(k.shape[1]);
    args.rows.pool.page_stride = args.rows.pool.page_tokens = args.rows.pool.entry_tokens = kSelectPageTokens;
    args.rows.pool.token_stride = args.rows.pool.entries_per_page = 1;
    args.rows.pool.num_pages = stats_.num_pages;
    args.stats = stats(layer);
    FOVEA_ASSIGN_OR_RETURN(const cuda::Function kernel, key_codes_kernel(device_, k.dtype));
    return cuda_key_codes(device_, kernel, args, stream.handle);
  }

  Status select(std::int32_t layer, const TensorView& q, const SelectStep& step, Stream stream) override {
    abi::SelectArgs args{};
    args.q = q.data;
    args.q_row_stride = q.strides[0];
    args.q_head_stride = q.strides[1];
    args.stats = stats(layer);
    args.page_entries = static_cast<const std::int32_t*>(step.page_table.data);
    args.page_stride = step.page_table.strides[0];
    args.kv_lens = static_cast<const std::int32_t*>(step.kv_lens.data);
    args.phases = static_cast<const std::uint32_t*>(step.phases.data);
    args.lists = static_cast<std::int32_t*>(step.lists.data);
    args.list_stride = step.lists.shape[2];
    args.list_tokens = static_cast<std::int32_t*>(step.list_tokens.data);
    args.requests = static_cast<std::uint32_t>(step.kv_lens.shape[0]);
    args.num_heads = static_cast<std::uint32_t>(options_.num_kv_heads);
    args.max_units =
        static_cast<std::uint32_t>(std::min<std::int64_t>(step.page_table.shape[1], options_.max_pages_per_request));
    return selector_.select(layer, 0, args, stream.handle);
  }

  Status forget(std::int32_t begin, std::int32_t end, Stream stream) override {
    return selector_.forget(begin, end, stream.handle);
  }

  Status copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return cuda::copy_on_device(device_, to, from, bytes, stream.handle);
  }

  std::size_t workspace_bytes() const override { return statistics_.size_bytes() + selector_.memory_bytes(); }

 private:
  cuda::Device device_;
  CudaSelector selector_;
  cuda::DeviceBuffer statistics_;
};

// What the selector needs of the public options, of which all but sm_scale are taken as they are.
CudaSelectorOptions selector_options(const PageSelectorOptions& o) {
  CudaSelectorOptions s;
  s.q_dtype = o.q_dtype;
  s.sm_scale = o.sm_scale == 0.0f ? 1.0f / std::sqrt(static_cast<float>(o.head_dim)) : o.sm_scale;
  s.num_layers = o.num_layers;
  s.num_kv_heads = o.num_kv_heads;
  s.group = o.num_qo_heads / o.num_kv_heads;
  s.max_lists = s.memories = o.max_requests;
  s.max_units = o.max_pages_per_request;
  s.budget_units = o.budget_tokens / kSelectPageTokens;
  s.budget_divisor = o.budget_divisor;
  s.sink_tokens = o.sink_tokens;
  s.recent_tokens = o.recent_tokens;
  s.interval = o.interval;
  s.candidate_factor = o.candidate_factor;
  return s;
}

}  // namespace

Result<std::unique_ptr<PageSelector::Impl>> create_cuda_page_selector(const PageSelectorOptions& options,
                                                                      const SelectPolicy& policy, DevicePlace place) {
  if (policy.stat != abi::StatKind::kCodes) {
    return unsupported("policy {} on CUDA; pages are selected by learned key codes alone there: \"fovea\"",
                       policy.name);
  }
  if (std::int64_t{options.num_pages} * options.num_kv_heads > std::int64_t{1} << 28) {
    return out_of_range("{} pages of {} KV heads, at most 2^28 of both on CUDA", options.num_pages,
                        options.num_kv_heads);
  }
  FOVEA_ASSIGN_OR_RETURN(cuda::Device device, cuda_device(place.index));
  const std::vector<abi::KeyCode> codes = abi_codes(options.key_codes);
  FOVEA_ASSIGN_OR_RETURN(CudaSelector selector, CudaSelector::create(device, selector_options(options), codes));
  FOVEA_RETURN_IF_ERROR(key_codes_kernel(device, options.q_dtype).status());  // so that append() finds it in the cache
  const std::size_t bytes = static_cast<std::size_t>(options.num_layers) * static_cast<std::size_t>(options.num_pages) *
                            static_cast<std::size_t>(options.num_kv_heads) *
                            static_cast<std::size_t>(abi::stat_bytes(policy.stat, options.head_dim));
  FOVEA_ASSIGN_OR_RETURN(cuda::DeviceBuffer statistics, cuda::DeviceBuffer::create(device, bytes));
  return std::unique_ptr<PageSelector::Impl>(std::make_unique<CudaPageSelector>(
      options, policy, place, std::move(device), std::move(selector), std::move(statistics)));
}

}  // namespace fovea
