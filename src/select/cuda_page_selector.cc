// PageSelector on a CUDA device: its buffers, and the arguments of the kernels that fill them.
#include <algorithm>

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
                   cuda::Device device, cuda::Function select_kernel)
      : Impl(options, policy, place), device_(std::move(device)), kernel_(std::move(select_kernel)) {}

  Status allocate() {
    const std::size_t lists = layer_lists(), all_lists = lists * static_cast<std::size_t>(options_.num_layers);
    const auto create = [&](cuda::DeviceBuffer& buffer, std::size_t bytes, bool zeroed = false) {
      Result<cuda::DeviceBuffer> made = cuda::DeviceBuffer::create(device_, bytes, zeroed);
      if (made.ok()) buffer = std::move(*made);
      return made.status();
    };
    FOVEA_RETURN_IF_ERROR(create(statistics_, statistics_bytes()));
    stats_.data = statistics_.data();
    if (options_.interval > 1) {
      FOVEA_RETURN_IF_ERROR(create(states_, all_lists * sizeof(abi::SelectState), true));
      FOVEA_RETURN_IF_ERROR(create(candidates_, all_lists * num_candidates() * sizeof(std::int32_t)));
    }
    const auto most = static_cast<std::uint32_t>(options_.max_pages_per_request);
    if (abi::select_share(most, splits(options_.max_requests, most)) > select_cached_keys(device_)) {
      if (device_.info().major >= 9) {  // whose kernel has no other place for keys
        return unsupported("max_pages_per_request is {}; this device's shared memory has room for {}", most,
                           abi::kMostSelectSplits * select_cached_keys(device_));
      }
      FOVEA_RETURN_IF_ERROR(create(keys_, lists * most * sizeof(std::uint32_t)));
    }
    const std::vector<abi::KeyCode> codes = abi_codes(options_.key_codes);
    FOVEA_RETURN_IF_ERROR(create(codes_, codes.size() * sizeof(abi::KeyCode)));
    stats_.codes = codes_.as<abi::KeyCode>();
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, codes_.data(), codes.data(), codes_.size_bytes(), nullptr));
    return device_.synchronize();
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
    const std::size_t first = layer_lists() * static_cast<std::size_t>(layer);
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
    args.keys = keys_.as<std::uint32_t>();
    if (options_.interval > 1) {
      args.candidates = candidates_.as<std::int32_t>() + first * num_candidates();
      args.states = states_.as<abi::SelectState>() + first;
    }
    args.sm_scale = options_.sm_scale;
    args.requests = static_cast<std::uint32_t>(step.kv_lens.shape[0]);
    args.num_heads = static_cast<std::uint32_t>(options_.num_kv_heads);
    args.group = static_cast<std::uint32_t>(options_.num_qo_heads / options_.num_kv_heads);
    args.max_units =
        static_cast<std::uint32_t>(std::min<std::int64_t>(step.page_table.shape[1], options_.max_pages_per_request));
    args.splits = splits(step.kv_lens.shape[0], args.max_units);
    args.budget_units = static_cast<std::uint32_t>(budget_pages());
    args.budget_divisor = static_cast<std::uint32_t>(options_.budget_divisor);
    args.sink_tokens = static_cast<std::uint32_t>(options_.sink_tokens);
    args.recent_tokens = static_cast<std::uint32_t>(options_.recent_tokens);
    args.interval = static_cast<std::uint32_t>(options_.interval);
    args.num_candidates = static_cast<std::uint32_t>(num_candidates());
    return cuda_select(device_, kernel_, args, stream.handle);
  }

  Status forget(std::int32_t begin, std::int32_t end, Stream stream) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    const auto heads = static_cast<std::size_t>(options_.num_kv_heads);
    const std::size_t bytes = static_cast<std::size_t>(end - begin) * heads * sizeof(abi::SelectState);
    for (std::int32_t layer = 0; layer < options_.num_layers; ++layer) {
      const std::size_t first =
          layer_lists() * static_cast<std::size_t>(layer) + static_cast<std::size_t>(begin) * heads;
      FOVEA_RETURN_IF_ERROR(cuda::set_bytes(device_, states_.as<abi::SelectState>() + first, 0, bytes, stream.handle));
    }
    return ok_status();
  }

  Status copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    return cuda::copy_on_device(device_, to, from, bytes, stream.handle);
  }

  std::size_t workspace_bytes() const override {
    std::size_t bytes = 0;
    for (const cuda::DeviceBuffer* buffer : {&statistics_, &states_, &candidates_, &keys_, &codes_}) {
      bytes += buffer->size_bytes();
    }
    return bytes;
  }

 private:
  std::size_t num_candidates() const {
    return static_cast<std::size_t>(options_.candidate_factor) * static_cast<std::size_t>(budget_pages());
  }
  std::uint32_t splits(std::int64_t requests, std::uint32_t max_units) const {
    return select_splits(device_, static_cast<std::uint32_t>(requests),
                         static_cast<std::uint32_t>(options_.num_kv_heads), max_units);
  }

  cuda::Device device_;
  cuda::Function kernel_;
  cuda::DeviceBuffer statistics_, states_, candidates_, keys_, codes_;
};

}  // namespace

Result<std::unique_ptr<PageSelector::Impl>> create_cuda_page_selector(const PageSelectorOptions& options,
                                                                      const SelectPolicy& policy, DevicePlace place) {
  if (policy.stat != abi::StatKind::kCodes) {
    return unsupported("policy {} on CUDA; pages are selected by learned key codes alone there: \"fovea\"",
                       policy.name);
  }
  if (options.num_qo_heads / options.num_kv_heads > static_cast<std::int32_t>(abi::kSelectGroup)) {
    return unsupported("{} query heads a KV head on CUDA; the selector takes 1 to {}",
                       options.num_qo_heads / options.num_kv_heads, abi::kSelectGroup);
  }
  if (std::int64_t{options.num_pages} * options.num_kv_heads > std::int64_t{1} << 28) {
    return out_of_range("{} pages of {} KV heads, at most 2^28 of both on CUDA", options.num_pages,
                        options.num_kv_heads);
  }
  FOVEA_ASSIGN_OR_RETURN(cuda::Device device, cuda_device(place.index));
  FOVEA_ASSIGN_OR_RETURN(cuda::Function kernel, select_kernel(device, options.q_dtype));
  FOVEA_RETURN_IF_ERROR(key_codes_kernel(device, options.q_dtype).status());  // so that append() finds it in the cache
  auto selector = std::make_unique<CudaPageSelector>(options, policy, place, std::move(device), std::move(kernel));
  FOVEA_RETURN_IF_ERROR(selector->allocate());
  return std::unique_ptr<PageSelector::Impl>(std::move(selector));
}

}  // namespace fovea
