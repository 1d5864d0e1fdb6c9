// PageLists on a CUDA device: rows and tables go to fixed addresses by copies in the stream, lists stand behind the
// tables in the same array, and each layer is a launch for each run of its heads that select.
#include <algorithm>
#include <cstring>
#include <vector>

#include "attention/cuda_kernels.h"
#include "base/status.h"
#include "cuda/copy_slot.h"
#include "cuda/memory.h"
#include "select/cuda_select.h"
#include "select/page_lists.h"

namespace fovea {
namespace {

constexpr int kStages = 3;  // forwards whose copies may be on their way

CudaSelectorOptions selector_options(const PageListsOptions& o) {
  CudaSelectorOptions s;
  s.q_dtype = o.q_dtype;
  s.sm_scale = o.sm_scale;
  s.num_layers = o.num_layers;
  s.num_kv_heads = o.num_kv_heads;
  s.group = o.group;
  s.max_lists = o.max_rows;
  s.memories = o.memories;
  s.max_units = o.max_units;
  s.budget_units = o.budget_units;
  s.sink_tokens = o.sink_tokens;
  s.recent_tokens = o.recent_tokens;
  s.interval = o.interval;
  s.candidate_factor = o.candidate_factor;
  return s;
}

class CudaPageLists final : public PageLists {
 public:
  CudaPageLists(const PageListsOptions& options, cuda::Device device, cuda::StreamHandle stream, CudaSelector selector)
      : options_(options), device_(std::move(device)), stream_(stream), selector_(std::move(selector)) {
    options_.codes = {};
  }

  Status allocate() {
    const std::int64_t lists = std::int64_t{options_.max_rows} * options_.num_kv_heads * options_.budget_units;
    if (options_.max_entries + lists > std::int64_t{UINT32_MAX}) {
      return unsupported(
          "page tables of {} entries and lists of {}, at most 2^32 of both; lower max_context, kv_budget, max_running "
          "or chunk_tokens",
          options_.max_entries, lists);
    }
    const auto tables = static_cast<std::size_t>(options_.max_entries),
               rows = static_cast<std::size_t>(options_.max_rows);
    FOVEA_ASSIGN_OR_RETURN(
        entries_,
        cuda::DeviceBuffer::create(device_, (tables + static_cast<std::size_t>(lists)) * sizeof(std::int32_t), true));
    FOVEA_ASSIGN_OR_RETURN(rows_, cuda::DeviceBuffer::create(device_, rows * sizeof(abi::SelectRow), true));
    const std::size_t stage_bytes = rows * sizeof(abi::SelectRow) + tables * sizeof(std::int32_t);
    for (cuda::CopySlot& stage : stages_) {
      FOVEA_ASSIGN_OR_RETURN(stage, cuda::CopySlot::create(device_, stage_bytes));
    }
    return ok_status();
  }

  const abi::KeyCode* codes() const override { return selector_.codes(); }
  const std::int32_t* entries() const override { return entries_.as<std::int32_t>(); }
  std::int64_t list_begin(std::size_t row, std::int32_t head) const override {
    return options_.max_entries +
           (static_cast<std::int64_t>(row) * options_.num_kv_heads + head) * options_.budget_units;
  }

  Status begin(std::span<const std::int32_t> tables, std::span<const abi::SelectRow> rows) override {
    if (static_cast<std::int64_t>(tables.size()) > options_.max_entries ||
        static_cast<std::int64_t>(rows.size()) > options_.max_rows) {
      return internal_error("{} entries of page tables and {} queries that select, declared were {} and {}",
                            tables.size(), rows.size(), options_.max_entries, options_.max_rows);
    }
    const cuda::ScopedContext context(device_);
    FOVEA_RETURN_IF_ERROR(context.status());
    num_rows_ = static_cast<std::uint32_t>(rows.size());
    // Most steps of decode write into the pages of the step before.
    const bool known = tables.size() == sent_.size() && std::equal(tables.begin(), tables.end(), sent_.begin());
    cuda::CopySlot& stage = stages_[next_];
    next_ = (next_ + 1) % kStages;
    FOVEA_RETURN_IF_ERROR(stage.copied.synchronize());
    std::byte* const host = stage.memory.data();
    if (!rows.empty()) std::memcpy(host, rows.data(), rows.size_bytes());
    FOVEA_RETURN_IF_ERROR(cuda::copy_to_device(device_, rows_.data(), host, rows.size_bytes(), stream_));
    if (!known) {
      std::memcpy(host + rows.size_bytes(), tables.data(), tables.size_bytes());
      sent_.clear();  // a copy that fails leaves anything
      FOVEA_RETURN_IF_ERROR(
          cuda::copy_to_device(device_, entries_.data(), host + rows.size_bytes(), tables.size_bytes(), stream_));
      sent_.assign(tables.begin(), tables.end());
    }
    return stage.copied.record(stream_);
  }

  Status select(std::int32_t layer, std::int32_t head_begin, const TensorView& q,
                const abi::PageStatsView& stats) override {
    const std::int64_t heads = q.shape[1] / options_.group;
    if (layer < 0 || layer >= options_.num_layers || head_begin < 0 || heads < 1 || q.rank != 3 ||
        q.dtype != options_.q_dtype || q.shape[1] != heads * options_.group || q.shape[2] != options_.head_dim ||
        head_begin + heads > options_.num_kv_heads || stats.num_heads != heads) {
      return invalid_argument("q is {}, from KV head {} of layer {} on; declared were {} layers of {} KV heads",
                              describe(q), head_begin, layer, options_.num_layers, options_.num_kv_heads);
    }
    abi::SelectArgs args{};
    args.q = q.data;
    args.q_row_stride = q.strides[0];
    args.q_head_stride = q.strides[1];
    args.stats = stats;
    args.page_entries = entries();
    args.rows = rows_.as<abi::SelectRow>();
    args.lists = entries_.as<std::int32_t>() + list_begin(0, head_begin);
    args.list_stride = options_.budget_units;
    args.list_row_stride = std::int64_t{options_.budget_units} * options_.num_kv_heads;
    args.requests = num_rows_;
    args.num_heads = static_cast<std::uint32_t>(heads);
    args.max_units = static_cast<std::uint32_t>(options_.max_units);
    return selector_.select(layer, head_begin, args, stream_);
  }

  std::size_t memory_bytes() const override {
    return entries_.size_bytes() + rows_.size_bytes() + selector_.memory_bytes();
  }

 private:
  PageListsOptions options_;
  cuda::Device device_;
  cuda::StreamHandle stream_;
  CudaSelector selector_;
  cuda::DeviceBuffer entries_, rows_;
  cuda::CopySlot stages_[kStages];
  int next_ = 0;
  std::uint32_t num_rows_ = 0;
  std::vector<std::int32_t> sent_;  // the tables that are there
};

}  // namespace

Result<std::unique_ptr<PageLists>> create_cuda_page_lists(const PageListsOptions& options, DevicePlace place,
                                                          Stream stream) {
  if (options.interval > 1 && (options.candidate_factor < 2 || options.candidate_factor > 64)) {
    return unsupported("sparse_candidates is {}; a CUDA device takes 2 to 64 budgets", options.candidate_factor);
  }
  if (options.max_units > static_cast<std::int32_t>(abi::kMostSelectUnits)) {
    return unsupported("page selection over {} tokens; a CUDA device takes {}", std::int64_t{options.max_units} * 16,
                       std::int64_t{abi::kMostSelectUnits} * 16);
  }
  FOVEA_ASSIGN_OR_RETURN(cuda::Device device, cuda_device(place.index));
  FOVEA_ASSIGN_OR_RETURN(CudaSelector selector, CudaSelector::create(device, selector_options(options), options.codes));
  auto lists = std::make_unique<CudaPageLists>(options, std::move(device), stream.handle, std::move(selector));
  FOVEA_RETURN_IF_ERROR(lists->allocate());
  return std::unique_ptr<PageLists>(std::move(lists));
}

}  // namespace fovea
