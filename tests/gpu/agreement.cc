// Running cases through the public API; see agreement.h.
#include "tests/gpu/agreement.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "base/half.h"
#include "base/status.h"
#include "base/thread_pool.h"

namespace fovea::gpu_test {
namespace {

using testing::AttentionCase;
using testing::CaseSpec;

std::vector<std::uint16_t> halves(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint16_t> bits(values.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = dtype == DType::kBF16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
  }
  return bits;
}

}  // namespace

std::string judge(const AttentionCase& c, const Configuration& config, const AgreementRunner::Output& actual) {
  const testing::OracleResult truth = testing::oracle_attention(c, config.variant);
  const testing::OracleResult cost = testing::float_attention(c, config.variant, config.options.q_dtype, true);
  std::string wrong = testing::check_error_bar(truth.out, cost.out, actual.out);
  // Rotated queries are rounded again, which logits feel: as much as in that arithmetic is allowed.
  double rounding = 0.0;
  for (std::size_t i = 0; i < truth.lse.size() && c.spec.rotated; ++i) {
    if (std::isfinite(truth.lse[i])) rounding = std::max(rounding, std::abs(truth.lse[i] - cost.lse[i]));
  }
  for (std::size_t i = 0; i < truth.lse.size() && wrong.empty(); ++i) {
    if (std::isnan(truth.lse[i]) && std::isnan(actual.lse[i])) continue;
    const double error = truth.lse[i] == actual.lse[i] ? 0.0 : std::abs(truth.lse[i] - actual.lse[i]);
    if (!(error <= 2e-4 + 2e-5 * std::abs(truth.lse[i]) + 2.0 * rounding)) {
      wrong = "log-sum-exp " + std::to_string(i) + " is " + std::to_string(actual.lse[i]) + " for " +
              std::to_string(truth.lse[i]);
    }
  }
  return wrong;
}

CaseBatch::CaseBatch(const AttentionCase& c) {
  view.num_requests = c.num_requests();
  view.q_lens = c.spec.q_lens.data();
  view.kv_lens = c.spec.kv_lens.data();
  view.page_indices = c.page_table.data();
  view.num_page_indices = static_cast<std::int64_t>(c.page_table.size());
  view.page_stride = c.page_table_stride;
  view.mask = static_cast<AttentionMask>(c.spec.mask);
  view.window_left = c.spec.window_left;
  if (c.spec.mask != abi::MaskKind::kBits) return;
  mask_bits_of(c, mask_offsets, mask);
  view.mask_bits = mask.data();
  view.mask_bytes = static_cast<std::int64_t>(mask.size());
  view.mask_offsets = mask_offsets.data();
}

PagedKv paged_kv(const Place& place, const AttentionCase& c, const void* k, const void* v, const void* k_scales,
                 const void* v_scales) {
  const abi::KvPoolView& p = c.pool;
  PagedKv kv;
  kv.rotated = c.spec.rotated;
  kv.layout = c.spec.heads_first ? KvLayout::kHND : KvLayout::kNHD;
  if (c.spec.heads_first) {
    kv.k = place.view(k, c.spec.kv_dtype, p.num_pages, c.spec.kv_heads, p.page_tokens, c.spec.head_dim);
    kv.k.strides = {p.page_stride, p.head_stride, p.token_stride, 1, 0};
  } else {
    kv.k = place.view(k, c.spec.kv_dtype, p.num_pages, p.page_tokens, c.spec.kv_heads, c.spec.head_dim);
    kv.k.strides = {p.page_stride, p.token_stride, p.head_stride, 1, 0};
  }
  kv.v = kv.k;
  kv.v.data = const_cast<void*>(v);
  if (k_scales != nullptr) {
    kv.k_scale = place.view(k_scales, DType::kF16, p.num_pages, c.spec.kv_heads, p.page_tokens, 2);
    kv.v_scale = place.view(v_scales, DType::kF16, p.num_pages, c.spec.kv_heads, p.page_tokens, 2);
  }
  return kv;
}

Result<AgreementRunner> AgreementRunner::create(Place& place, const Configuration& config) {
  AttentionOptions options = config.options;
  options.device = place.name();
  std::vector<std::shared_ptr<void>> kept;
  const auto tensor = [&](const std::vector<float>& values, TensorView& into) -> Status {
    if (values.empty()) return ok_status();
    FOVEA_ASSIGN_OR_RETURN(std::shared_ptr<void> memory, upload(place, values));
    into = place.view(memory.get(), DType::kF32, static_cast<std::int64_t>(values.size()));
    kept.push_back(std::move(memory));
    return ok_status();
  };
  FOVEA_RETURN_IF_ERROR(tensor(config.variant.sinks, options.sinks));
  FOVEA_RETURN_IF_ERROR(tensor(config.variant.alibi_slopes, options.alibi_slopes));
  FOVEA_ASSIGN_OR_RETURN(Attention attention, Attention::create(options));
  AgreementRunner runner(place, std::move(attention), config);
  runner.kept_ = std::move(kept);
  return runner;
}

Status AgreementRunner::plan(const AttentionCase& c) {
  if (budget_pages_ > 0) return plan_selected(c);
  if (entry_ == Entry::kRagged) {
    ragged_ = std::make_unique<RaggedLists>(c);
    return attention_.plan_ragged(ragged_->view, place_->stream());
  }
  if (entry_ == Entry::kBlocks) {
    blocks_ = std::make_unique<BlockLists>(c, attention_.options().page_tokens);
    return attention_.plan_blocks(blocks_->view, place_->stream());
  }
  batch_ = std::make_unique<CaseBatch>(c);
  return attention_.plan(batch_->view, place_->stream());
}

SelectedLists::SelectedLists(const AttentionCase& c, int budget_pages, bool grows) {
  const std::int32_t page = c.spec.page_tokens;
  std::mt19937_64 random(c.spec.seed);
  for (int r = 0; r < c.num_requests(); ++r) {
    const std::int32_t tokens = c.spec.kv_lens[static_cast<std::size_t>(r)];
    const std::int32_t pages = (tokens + page - 1) / page;
    const auto first = c.page_table.begin() + r * c.page_table_stride;
    const bool chosen = pages == budget_pages && r % 4 != 3;
    begins.push_back(static_cast<std::int64_t>(entries.size()));
    selected.push_back(chosen ? begins.back() : -1);
    const auto grown = grows ? std::min(static_cast<std::int32_t>(random() % 20), tokens - 1) : 0;
    planned.push_back(chosen ? tokens + page : tokens - grown);
    for (int head = 0; head < (chosen ? c.spec.kv_heads : 1); ++head) {
      const auto at = static_cast<std::ptrdiff_t>(entries.size());
      entries.insert(entries.end(), first, first + pages);
      if (chosen) std::shuffle(entries.begin() + at, entries.end() - 1, random);
    }
  }
}

SelectedBatch SelectedLists::batch(const AttentionCase& c, int budget_pages) const {
  SelectedBatch batch;
  batch.num_requests = c.num_requests();
  batch.kv_lens = planned.data();
  batch.budget_tokens = budget_pages * c.spec.page_tokens;
  batch.num_page_indices = static_cast<std::int64_t>(entries.size());
  batch.list_begins = begins.data();
  batch.selected_begins = selected.data();
  batch.selected_stride = budget_pages;
  return batch;
}

Status AgreementRunner::plan_selected(const AttentionCase& c) {
  // Lengths that the plan does not know yet, where kernels read them.
  selected_ = std::make_unique<SelectedLists>(c, budget_pages_, place_->name() != "cpu");
  FOVEA_ASSIGN_OR_RETURN(lists_, upload(*place_, selected_->entries));
  FOVEA_ASSIGN_OR_RETURN(list_tokens_, upload(*place_, c.spec.kv_lens));
  SelectedBatch batch = selected_->batch(c, budget_pages_);
  batch.page_indices = static_cast<const std::int32_t*>(lists_.get());
  batch.list_tokens = static_cast<const std::int32_t*>(list_tokens_.get());
  return attention_.plan_selected(batch, place_->stream());
}

Result<AgreementRunner::Output> AgreementRunner::run(const AttentionCase& c) {
  const DType dtype = attention_.options().q_dtype;
  const std::size_t size = c.q.size(), states = size / static_cast<std::size_t>(c.spec.head_dim);
  FOVEA_ASSIGN_OR_RETURN(const std::shared_ptr<void> k, upload(*place_, c.k));
  FOVEA_ASSIGN_OR_RETURN(const std::shared_ptr<void> v, upload(*place_, c.v));
  FOVEA_ASSIGN_OR_RETURN(const std::shared_ptr<void> q, upload(*place_, halves(c.q, dtype)));
  std::shared_ptr<void> k_scales, v_scales;
  if (!c.k_scales.empty()) {
    FOVEA_ASSIGN_OR_RETURN(k_scales, upload(*place_, c.k_scales));
    FOVEA_ASSIGN_OR_RETURN(v_scales, upload(*place_, c.v_scales));
  }
  // What is not written shows as NaN.
  FOVEA_ASSIGN_OR_RETURN(const std::shared_ptr<void> out, upload(*place_, std::vector<std::uint16_t>(size, 0x7fff)));
  FOVEA_ASSIGN_OR_RETURN(const std::shared_ptr<void> lse,
                         upload(*place_, std::vector<float>(states, std::numeric_limits<float>::quiet_NaN())));
  FOVEA_RETURN_IF_ERROR(plan(c));
  const PagedKv kv = entry_ == Entry::kPages
                         ? paged_kv(*place_, c, k.get(), v.get(), k_scales.get(), v_scales.get())
                         : contiguous_kv(c, place_->view(k.get(), c.spec.kv_dtype, 1), k.get(), v.get());
  FOVEA_RETURN_IF_ERROR(attention_.run(place_->view(q.get(), dtype, c.num_rows, c.num_qo_heads(), c.spec.head_dim), kv,
                                       place_->view(out.get(), dtype, c.num_rows, c.num_qo_heads(), c.spec.head_dim),
                                       place_->view(lse.get(), DType::kF32, c.num_rows, c.num_qo_heads()),
                                       place_->stream()));
  FOVEA_RETURN_IF_ERROR(place_->wait());
  Output result;
  result.bytes.resize(size * 2);
  std::vector<float> lse_values(states);
  if (size > 0) {
    FOVEA_RETURN_IF_ERROR(place_->download(result.bytes.data(), out.get(), result.bytes.size()));
    FOVEA_RETURN_IF_ERROR(place_->download(lse_values.data(), lse.get(), states * 4));
  }
  const auto* bits = reinterpret_cast<const std::uint16_t*>(result.bytes.data());
  for (std::size_t i = 0; i < size; ++i) {
    result.out.push_back(dtype == DType::kBF16 ? bf16_to_float(bits[i]) : f16_to_float(bits[i]));
  }
  result.lse.assign(lse_values.begin(), lse_values.end());
  return result;
}

AgreementCounts run_agreement(Place& place, int cases, std::uint64_t seed, const std::string& filter, bool nan) {
  const std::vector<Configuration> configs = configurations();
  AgreementCounts counts;
  std::mutex device, result;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < configs.size(); i = next++) {
      const Configuration& config = configs[i];
      if (config.name.find(filter) == std::string::npos) continue;
      std::optional<AgreementRunner> runner;
      std::string failure;
      int done = 0, requests = 0;
      bool unsupported = false;
      {
        const std::lock_guard lock(device);
        auto made = AgreementRunner::create(place, config);
        unsupported = made.status().code() == StatusCode::kUnsupported;
        if (made.ok())
          runner.emplace(std::move(*made));
        else if (!unsupported)
          failure = made.status().to_string();
      }
      for (int n = 0; runner && n < cases && failure.empty(); ++n) {
        const std::uint64_t case_seed = seed + i * 1000003 + static_cast<std::uint64_t>(n);
        AttentionCase c = make_case(config, random_spec(config, case_seed));
        if (nan) plant_nan(c, case_seed);
        Result<AgreementRunner::Output> actual = [&] {
          const std::lock_guard lock(device);
          return runner->run(c);
        }();
        failure = actual.ok() ? judge(c, config, *actual) : actual.status().to_string();
        if (!failure.empty()) failure = c.describe() + ": " + failure;
        ++done;
        requests += c.num_requests();
      }
      if (runner) {
        const std::lock_guard lock(device);
        runner.reset();
      }
      const std::lock_guard lock(result);
      ++counts.configurations;
      counts.unsupported += unsupported ? 1 : 0;
      counts.cases += done;
      counts.requests += requests;
      if (!failure.empty()) counts.failures.push_back(config.name + ": " + failure);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < default_num_threads(); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::sort(counts.failures.begin(), counts.failures.end());
  return counts;
}

AttentionCase make_case(const Configuration& config, const CaseSpec& spec) {
  AttentionCase c = testing::make_case(spec);
  if (config.entry == Entry::kBlocks) set_blocks(c, config.options.page_tokens);
  return c;
}

namespace {

// Makes the keys or values of a request's token infinite, or NaN (in fp8 always), by their scales where they are
// integers, under every head.
void spoil(AttentionCase& c, int request, int token, bool keys, bool nan) {
  const abi::KvPoolView& p = c.pool;
  const std::size_t bytes = static_cast<std::size_t>(dtype_bits(c.spec.kv_dtype) / 8);
  const std::uint16_t pattern = nan ? 0x7fc0 : c.spec.kv_dtype == DType::kBF16 ? 0x7f80 : 0x7c00;  // 0x7fc0: of both
  const std::int64_t page =
      c.page_table[static_cast<std::size_t>(request) * static_cast<std::size_t>(c.page_table_stride) +
                   static_cast<std::size_t>(token / p.page_tokens)];
  std::vector<abi::KvScale>& scales = keys ? c.k_scales : c.v_scales;
  for (std::int64_t head = 0; head < c.spec.kv_heads; ++head) {
    if (!scales.empty()) {
      const std::int64_t at = page * p.scale_page_stride + head * p.scale_head_stride + token % p.page_tokens;
      scales[static_cast<std::size_t>(at)] = {static_cast<std::uint16_t>(nan ? 0x7e00 : 0x7c00), 0x7e00};
      continue;
    }
    for (std::int64_t d = 0; d < c.spec.head_dim; ++d) {
      const std::int64_t at = page * p.page_stride + token % p.page_tokens * p.token_stride + head * p.head_stride + d;
      std::byte* const to = (keys ? c.k : c.v).data() + static_cast<std::size_t>(at) * bytes;
      if (bytes == 1) {
        *to = std::byte{0x7f};
      } else {
        std::memcpy(to, &pattern, sizeof pattern);
      }
    }
  }
}

std::string find_leak(AgreementRunner& runner, const Configuration& config) {
  constexpr int kRows = 5, kTokens = 70;
  CaseSpec spec = random_spec(config, 11);
  spec.q_lens = {kRows};
  spec.kv_lens = {kTokens};
  spec.mask = abi::MaskKind::kCausal;
  spec.window_left = -1;
  spec.shared_tokens = 0;
  AttentionCase c = make_case(config, spec);
  const auto clean = runner.run(c);
  spoil(c, 0, kTokens - 2, false, false);  // the last two rows see it
  const auto spoiled = runner.run(c);
  for (const auto* output : {&clean, &spoiled}) {
    if (!output->ok()) return output->status().to_string();
  }
  const std::size_t seen = clean->bytes.size() / kRows * (kRows - 2);
  if (std::memcmp(clean->bytes.data(), spoiled->bytes.data(), seen) != 0) return "a hidden value changes a row";
  for (std::size_t i = seen / 2; i < spoiled->out.size(); ++i) {
    if (std::isfinite(spoiled->out[i])) return "a row that sees the value hides it";
  }
  return "";
}

}  // namespace

void plant_nan(AttentionCase& c, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto dim = static_cast<std::size_t>(c.spec.head_dim);
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::size_t rows = c.q.size() / dim, sure = rows == 0 ? 0 : random() % rows;
  for (std::size_t row = 0; row < rows; ++row) {
    if (row != sure && random() % 6 != 0) continue;
    if (random() % 2 == 0) {
      std::fill_n(c.q.data() + row * dim, dim, kNaN);
    } else {
      c.q[row * dim + random() % dim] = kNaN;
    }
  }
  if (seed % 2 == 0) return;
  const auto request = static_cast<std::size_t>(random()) % c.spec.kv_lens.size();
  const auto tokens = static_cast<std::uint64_t>(c.spec.kv_lens[request]);
  if (tokens > 0) spoil(c, static_cast<int>(request), static_cast<int>(random() % tokens), true, true);
}

std::vector<std::string> hidden_values_that_leak(Place& place) {
  std::vector<std::string> found;
  for (Configuration config : configurations()) {
    if (config.budget_pages > 0 || config.entry == Entry::kBlocks) continue;  // one query token a request; other masks
    DecodeKernel& kernel = config.options.decode_kernel;
    if (kernel == DecodeKernel::kPrefill) continue;  // whose tiles share what is not finite: docs/kernels/prefill.md
    if (kernel == DecodeKernel::kAuto) kernel = DecodeKernel::kGeneral;
    auto runner = AgreementRunner::create(place, config);
    if (runner.status().code() == StatusCode::kUnsupported) continue;
    const std::string leak = runner.ok() ? find_leak(*runner, config) : runner.status().to_string();
    if (!leak.empty()) found.push_back(config.name + ": " + leak);
  }
  return found;
}

}  // namespace fovea::gpu_test
