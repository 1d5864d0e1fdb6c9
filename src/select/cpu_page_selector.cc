// PageSelector on the CPU: statistics and scores of cpu/select, lists and memory of core/select/list_maker.h, as in the
// engine's selection stage; here a row is a request, and lists go to the caller's array.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "attention/cpu_paged_ops.h"
#include "base/half.h"
#include "base/status.h"
#include "core/select/list_maker.h"
#include "cpu/select/select.h"
#include "cpu/select/stats.h"
#include "select/page_selector_impl.h"

namespace fovea {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

class CpuPageSelector final : public PageSelector::Impl {
 public:
  CpuPageSelector(const PageSelectorOptions& options, const SelectPolicy& policy)
      : Impl(options, policy, DevicePlace{}),
        codes_(abi_codes(options.key_codes)),
        maker_(options.num_layers, options.num_kv_heads, options.interval > 1 ? options.max_requests : 0,
               options.head_dim) {
    if (options.num_threads > 0) own_threads_ = std::make_unique<ThreadPool>(options.num_threads);
    if (policy.stat == abi::StatKind::kCodes) stats_.codes = codes_.data();
  }

  Status allocate() {
    statistics_.reset(std::calloc(statistics_bytes(), 1));  // of pages that were never written nothing is ever touched
    stats_.data = statistics_.get();
    if (stats_.data != nullptr) return ok_status();
    return make_status(StatusCode::kResourceExhausted, "{} bytes of page statistics", statistics_bytes());
  }

  Status append(std::int32_t layer, const TensorView& k, const AppendPlaces& places, const abi::KvPoolView& pool,
                Stream) override {
    FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int32_t> slots,
                           slots_of(places, k.shape[0], kSelectPageTokens, stats_.num_pages));
    if (policy().stat != abi::StatKind::kCodes) {
      return cpu::update_page_stats(slots.data(), k.shape[0], pool, stats(layer), threads());
    }
    cpu::write_key_codes(k, slots.data(), stats(layer), threads());
    return ok_status();
  }

  Status select(std::int32_t layer, const TensorView& q, const SelectStep& step, Stream) override {
    FOVEA_RETURN_IF_ERROR(check_rows(step));
    queries_.clear();
    for (std::int64_t row = 0; row < step.kv_lens.shape[0]; ++row) {
      const std::int32_t tokens = length_of(step, row);
      if (num_units(tokens, kSelectPageTokens) <= budget_at(tokens) / kSelectPageTokens) {
        list_all(step, row, tokens);
      } else {
        queries_.push_back(query_of(layer, step, row, tokens));
      }
    }
    // What the selector needs of a pool where nothing reads its keys.
    abi::KvPoolView pool{};
    pool.num_pages = stats_.num_pages;
    pool.page_tokens = kSelectPageTokens;
    const TensorView in_q = in_f32(q, step.kv_lens.shape[0]);
    FOVEA_RETURN_IF_ERROR(maker_.make(layer, static_cast<std::uint64_t>(layer), 0, options_.num_kv_heads, queries_,
                                      [&](std::span<const SelectJob> jobs) {
                                        return workspace_.select(in_q, options_.sm_scale, pool, stats(layer), jobs,
                                                                 threads());
                                      }));
    for (std::size_t i = 0; i < queries_.size(); ++i) {
      const std::int64_t row = queries_[i].job.row;
      for (std::int32_t head = 0; head < options_.num_kv_heads; ++head) {
        const std::span<const std::int32_t> chosen = maker_.chosen(i, head);
        std::int32_t* const list = list_of(step, row, head);
        for (std::size_t n = 0; n < chosen.size(); ++n) list[n] = table_row(step, row)[chosen[n]];
        // As long for every head: all of the budget, its last page as full as the newest.
        const auto count = static_cast<std::int32_t>(chosen.size());
        tokens_in_list(step, row) = (count - 1) * kSelectPageTokens + (queries_[i].seen - 1) % kSelectPageTokens + 1;
      }
    }
    return ok_status();
  }

  Status forget(std::int32_t begin, std::int32_t end, Stream) override {
    maker_.forget(begin, end);
    return ok_status();
  }

  Status copy(void* to, const void* from, std::size_t bytes, Stream) override {
    std::memcpy(to, from, bytes);
    return ok_status();
  }

  std::size_t workspace_bytes() const override { return statistics_bytes() + maker_.memory_bytes(); }

 private:
  ThreadPool& threads() { return own_threads_ != nullptr ? *own_threads_ : process_threads(); }

  static std::int32_t length_of(const SelectStep& step, std::int64_t row) {
    return static_cast<const std::int32_t*>(step.kv_lens.data)[row];
  }
  static const std::int32_t* table_row(const SelectStep& step, std::int64_t row) {
    return static_cast<const std::int32_t*>(step.page_table.data) + row * step.page_table.strides[0];
  }
  std::int32_t* list_of(const SelectStep& step, std::int64_t row, std::int64_t head) const {
    const std::int64_t number = row * options_.num_kv_heads + head;
    return static_cast<std::int32_t*>(step.lists.data) + number * step.lists.shape[2];
  }
  static std::int32_t& tokens_in_list(const SelectStep& step, std::int64_t row) {
    return static_cast<std::int32_t*>(step.list_tokens.data)[row];
  }
  std::int32_t budget_at(std::int32_t tokens) const {
    return std::min(options_.budget_tokens, KvBudget{options_.budget_tokens, options_.budget_divisor}.at(tokens));
  }

  // That lengths, pages and phases are what they may be.
  Status check_rows(const SelectStep& step) const {
    const std::int64_t room = std::min<std::int64_t>(step.page_table.shape[1], options_.max_pages_per_request);
    for (std::int64_t row = 0; row < step.kv_lens.shape[0]; ++row) {
      const std::int32_t tokens = length_of(step, row);
      if (tokens < 0 || tokens > room * kSelectPageTokens) {
        return out_of_range("request {} has {} tokens, expected 0 to {}: {} pages of {}", row, tokens,
                            room * kSelectPageTokens, room, kSelectPageTokens);
      }
      const std::int32_t* const pages = table_row(step, row);
      const std::int32_t* const end = pages + num_units(tokens, kSelectPageTokens);
      const auto bad = std::find_if(pages, end, [&](std::int32_t p) { return p < 0 || p >= stats_.num_pages; });
      if (bad != end) {
        return out_of_range("page {} of request {} is {}, declared were {} pages", bad - pages, row, *bad,
                            stats_.num_pages);
      }
      if (!is_empty(step.phases) && static_cast<const std::int32_t*>(step.phases.data)[row] < 0) {
        return invalid_argument("phase {} of request {}, expected 0 or more",
                                static_cast<const std::int32_t*>(step.phases.data)[row], row);
      }
    }
    return ok_status();
  }

  void list_all(const SelectStep& step, std::int64_t row, std::int32_t tokens) const {
    for (std::int64_t head = 0; head < options_.num_kv_heads; ++head) {
      std::copy_n(table_row(step, row), num_units(tokens, kSelectPageTokens), list_of(step, row, head));
    }
    tokens_in_list(step, row) = tokens;
  }

  ListQuery query_of(std::int32_t layer, const SelectStep& step, std::int64_t row, std::int32_t tokens) const {
    const auto phase = is_empty(step.phases) ? 0 : static_cast<const std::int32_t*>(step.phases.data)[row];
    ListQuery query;
    query.job.policy = &policy();
    query.job.rule.unit_tokens = kSelectPageTokens;
    query.job.rule.budget_tokens = budget_at(tokens);
    query.job.rule.sink_tokens = options_.sink_tokens;
    query.job.rule.recent_tokens = options_.recent_tokens;
    query.job.row = query.memory = static_cast<std::int32_t>(row);
    query.job.pages = table_row(step, row);
    query.job.tokens = query.seen = tokens;
    if (options_.interval == 1) return query;
    // All heads of a layer scan at once.
    query.work = select_work({options_.interval, options_.candidate_factor}, maker_.memory(layer, query.memory, 0),
                             tokens, static_cast<std::uint64_t>(phase));
    query.remembered = query.work == SelectWork::kScan;
    query.num_candidates = query.remembered ? options_.candidate_factor * budget_pages() : 0;
    return query;
  }

  // The queries as the scorer takes them.
  TensorView in_f32(const TensorView& q, std::int64_t rows) {
    if (q.dtype == DType::kF32) return q;
    const std::int64_t heads = options_.num_qo_heads, dim = options_.head_dim;
    widened_.resize(static_cast<std::size_t>(rows * heads * dim));
    threads().parallel_for(rows * heads, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto* from =
            static_cast<const std::uint16_t*>(q.data) + i / heads * q.strides[0] + i % heads * q.strides[1];
        float* const to = widened_.data() + i * dim;
        for (std::int64_t d = 0; d < dim; ++d)
          to[d] = q.dtype == DType::kF16 ? f16_to_float(from[d]) : bf16_to_float(from[d]);
      }
    });
    return cpu_tensor(widened_.data(), DType::kF32, rows, heads, dim);
  }

  std::vector<abi::KeyCode> codes_;
  std::unique_ptr<ThreadPool> own_threads_;
  std::unique_ptr<void, Free> statistics_;
  ListMaker maker_;  // remembers by row; nothing where interval is 1
  std::vector<ListQuery> queries_;
  std::vector<float> widened_;
  cpu::SelectWorkspace workspace_;
};

}  // namespace

Result<std::unique_ptr<PageSelector::Impl>> create_cpu_page_selector(const PageSelectorOptions& options,
                                                                     const SelectPolicy& policy) {
  auto selector = std::make_unique<CpuPageSelector>(options, policy);
  FOVEA_RETURN_IF_ERROR(selector->allocate());
  return std::unique_ptr<PageSelector::Impl>(std::move(selector));
}

}  // namespace fovea
