// Launches in the emulator; see emulated.h.
#include "tests/emulator/emulated.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <tuple>

#include "abi/attention_args.h"
#include "attention/attention_batch.h"
#include "attention/cuda_executor.h"
#include "attention/paged_attention.h"
#include "base/half.h"
#include "base/status.h"
#include "core/plan/device_plan.h"

namespace fovea::emulator_test {
namespace {

using testing::AttentionCase;

template <typename T>
T checked(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return *std::move(result);
}

std::string words_of(const Status& status) { return status.ok() ? "" : status.to_string(); }

// divides: cases are small, and what makes cuts rare on a device is left out, so that plans have many.
PlannerOptions planner_options_of(const Instantiation& i, const tune::AttentionChoice& choice, bool divides) {
  PlannerOptions p = planner_options({i.config.options, {}, {}}, choice);
  if (!divides) return p;
  p.longest_first = false;
  p.shared_part_bytes = 4096;
  p.cost_item_bytes = 1024;
  p.cost_divide_bytes = 0;
  p.least_part_bytes = 2048;
  return p;
}

std::vector<std::uint16_t> halves(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint16_t> bits(values.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = dtype == DType::kBF16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
  }
  return bits;
}

simt::TensorMap map_of(const tune::AttentionChoice& choice, const AttentionCase& c, const abi::KvPoolView& pool,
                       void* address) {
  const tune::KvTensorMap map = tune::kv_tensor_map(choice, pool, c.spec.kv_heads, c.spec.head_dim);
  simt::TensorMapSpec spec;
  spec.address = address;
  spec.element_bytes = static_cast<std::uint32_t>(std::max(dtype_bits(c.spec.kv_dtype) / 8, 1));
  spec.rank = map.rank;
  std::copy_n(map.dims, 5, spec.dims);
  std::copy_n(map.strides, 5, spec.strides);
  std::copy_n(map.box, 5, spec.box);
  spec.swizzle_bytes = static_cast<std::uint32_t>(map.swizzle_bytes);
  return simt::encode(spec);
}

template <typename T>
simt::Buffer buffer(const char* name, const std::vector<T>& values, bool writable = false) {
  return {name, values.data(), values.size() * sizeof(T), writable};
}

// Generated units define their kernels by name, and the binary exports them.
simt::Kernel kernel_of(const std::string& name) {
  return reinterpret_cast<simt::Kernel>(dlsym(RTLD_DEFAULT, ("simt_" + name).c_str()));
}

}  // namespace

struct Emulated::Impl {
  const Instantiation& instantiation;
  simt::Kernel kernel;
  tune::AttentionChoice choice;
  jit::VariantArgs variant;
  Planner planners[2];  // by Circumstances::divides

  Impl(const Instantiation& i, tune::AttentionChoice made)
      : instantiation(i),
        kernel(kernel_of(i.name)),
        choice(std::move(made)),
        variant(checked(choose_variant(i.config.options)).args),
        planners{checked(Planner::create(planner_options_of(i, choice, false))),
                 checked(Planner::create(planner_options_of(i, choice, true)))} {
    if (kernel == nullptr) throw std::runtime_error("no kernel was compiled for " + i.name);
  }
  Verdict run(const AttentionCase& c, const Circumstances& how);
};

Emulated::Emulated(const Instantiation& instantiation)
    : impl_(std::make_unique<Impl>(instantiation, checked(build(instantiation)).choice)) {}
Emulated::~Emulated() = default;
Verdict Emulated::run(const AttentionCase& c, const Circumstances& how) { return impl_->run(c, how); }

Verdict Emulated::Impl::run(const AttentionCase& c, const Circumstances& how) {
  const AttentionOptions& o = instantiation.config.options;
  const int budget_pages = instantiation.config.budget_pages;
  Verdict verdict;
  Planner& planner = planners[how.divides ? 1 : 0];
  // Over chosen pages: lists by head, and lengths that grew since the plan was made.
  std::optional<gpu_test::SelectedLists> lists;
  if (budget_pages > 0) lists.emplace(c, budget_pages, true);
  BatchTranslator translator(o, true);
  AttentionBatch batch;
  batch.num_requests = c.num_requests();
  batch.q_lens = c.spec.q_lens.data();
  batch.kv_lens = c.spec.kv_lens.data();
  batch.page_table = c.page_table.data();
  batch.page_table_stride = c.page_table_stride;
  batch.mask = c.spec.mask;
  batch.window_left = c.spec.window_left;
  if (c.spec.mask == abi::MaskKind::kBits) {
    batch.mask_offsets = c.mask_offsets.data();
    batch.mask_strides = c.mask_strides.data();
    batch.mask_tails = c.mask_tails.data();
    batch.mask_bits = c.mask_bits.data();
  }
  // Without pages: ragged, or by a block pattern.
  std::optional<gpu_test::RaggedLists> ragged;
  std::optional<gpu_test::BlockLists> blocks;
  const bool contiguous = c.spec.contiguous;
  const abi::KvPoolView pool = contiguous ? gpu_test::contiguous_pool(c, o.page_tokens) : c.pool;
  if (contiguous) {
    const auto translated = [&]() -> Result<BlockRowBatch> {
      if (c.blocks_see) return translator.blocks(blocks.emplace(c, o.page_tokens).view);
      return translator.ragged(ragged.emplace(c).view);
    }();
    verdict.wrong = words_of(translated.ok() ? planner.plan_block_rows(*translated) : translated.status());
  } else if (budget_pages > 0) {
    SelectedBatch selected = lists->batch(c, budget_pages);
    selected.page_indices = lists->entries.data();
    selected.list_tokens = c.spec.kv_lens.data();
    const Result<BlockRowBatch> block_rows = translator.selected(selected);
    if (block_rows.ok()) {
      verdict.wrong = words_of(planner.plan_block_rows(*block_rows));
    } else {
      verdict.wrong = block_rows.status().to_string();
    }
  } else {
    verdict.wrong = words_of(planner.plan(batch));
  }
  if (!verdict.wrong.empty()) return verdict;
  const WorkerStarts starts = worker_starts(instantiation.kernel);
  std::vector<std::byte> plan(max_device_plan_bytes(planner, false, starts));
  plan.resize(checked(pack_device_plan(planner.view(), plan, {}, starts)));
  verdict.divided = planner.stats().split_rows > 0;
  verdict.shared = (planner.view().header->flags & abi::kPlanShares) != 0;

  // The workspace as the product allocates it.
  const auto group = static_cast<std::size_t>(o.num_qo_heads / o.num_kv_heads);
  const std::size_t partial_rows = planner.max_partial_rows(), merges = max_device_plan_merges(planner);
  const std::size_t row_words = partial_rows * static_cast<std::size_t>(o.head_dim);
  std::vector<std::uint32_t> partial_out(row_words, abi::kPartPending), partial_lse(partial_rows, abi::kPartPending);
  std::vector<std::uint32_t> shared_out(row_words, abi::kPartPending), shared_lse(partial_rows, abi::kPartPending);
  std::vector<std::uint32_t> span_counter(1), merge_counters(merges), shared_counters(merges * group + partial_rows);
  const std::vector<std::uint16_t> q = halves(c.q, o.q_dtype);
  std::vector<std::uint16_t> out(q.size(), 0x7fff);  // what is not written shows as NaN
  std::vector<float> lse(q.size() / static_cast<std::size_t>(o.head_dim), std::numeric_limits<float>::quiet_NaN());

  std::vector<std::int32_t> page_table = c.page_table;
  const auto list_of = [&](int r) { return page_table.data() + std::ptrdiff_t{r} * c.page_table_stride; };
  const auto list_pages = [&](int r) {
    return (c.spec.kv_lens[static_cast<std::size_t>(r)] + o.page_tokens - 1) / o.page_tokens;
  };
  if (how.bad_request >= 0) {
    list_of(how.bad_request)[list_pages(how.bad_request) - 1] = static_cast<std::int32_t>(pool.num_pages);
  }
  abi::AttentionArgs args{};
  args.plan = reinterpret_cast<const std::uint8_t*>(plan.data());
  args.page_entries = contiguous         ? translator.page_entries().data()
                      : budget_pages > 0 ? lists->entries.data()
                                         : page_table.data();
  // Of other batches, those that the plan was made for: ends are open, and where they were.
  args.kv_lens = budget_pages > 0 || how.seed % 2 == 1 ? c.spec.kv_lens.data() : nullptr;
  args.mask_bits = contiguous ? translator.given_mask().data() : c.mask_bits.data();
  args.q = q.data();
  args.out = out.data();
  args.lse = lse.data();
  args.q_head_stride = args.out_head_stride = o.head_dim;
  args.q_row_stride = args.out_row_stride = std::int64_t{o.num_qo_heads} * o.head_dim;
  args.partial_out = reinterpret_cast<float*>(partial_out.data());
  args.partial_lse = reinterpret_cast<float*>(partial_lse.data());
  args.merge_counters = merge_counters.data();
  args.shared_out = reinterpret_cast<float*>(shared_out.data());
  args.shared_lse = reinterpret_cast<float*>(shared_lse.data());
  args.shared_counters = shared_counters.data();
  args.span_counter = span_counter.data();
  args.num_pages = static_cast<std::uint32_t>(pool.num_pages);
  args.first_merges = how.first_merges ? 1 : 0;
  args.lists_fixed = budget_pages > 0 ? 0 : 1;
  args.pool = pool;
  std::memcpy(args.variant_params, variant.bytes().data(), variant.bytes().size());
  const simt::TensorMap k_map = choice.tma ? map_of(choice, c, pool, pool.k) : simt::TensorMap{};
  const simt::TensorMap v_map = choice.tma ? map_of(choice, c, pool, pool.v) : simt::TensorMap{};

  simt::Launch launch;
  launch.kernel = kernel;
  launch.grid = static_cast<std::uint32_t>(choice.ctas);
  launch.block = static_cast<std::uint32_t>(choice.threads);
  launch.shared_bytes = static_cast<std::uint32_t>(choice.smem_bytes);
  launch.seed = how.seed;
  launch.landing = how.landing;
  launch.fault = how.fault;
  launch.clocks = how.clocks;
  launch.params = {&args, &k_map, &v_map};
  launch.buffers = {buffer("the plan", plan),
                    buffer("queries", q),
                    buffer("outputs", out, true),
                    buffer("log-sum-exps", lse, true),
                    buffer("mask", c.mask_bits),
                    buffer("parts", partial_out, true),
                    buffer("log-sum-exps of parts", partial_lse, true),
                    buffer("counters of merges", merge_counters, true),
                    buffer("shared parts", shared_out, true),
                    buffer("log-sum-exps of shared parts", shared_lse, true),
                    buffer("counters of shared parts", shared_counters, true),
                    buffer("the counter of queues", span_counter, true),
                    buffer("scales of keys", c.k_scales),
                    buffer("scales of values", c.v_scales),
                    buffer("sinks", instantiation.config.variant.sinks),
                    buffer("slopes", instantiation.config.variant.alibi_slopes)};
  launch.buffers.push_back({"arguments", &args, sizeof args});
  if (budget_pages > 0) launch.buffers.push_back(buffer("chosen pages", lists->entries));
  if (args.kv_lens != nullptr) launch.buffers.push_back(buffer("lengths", c.spec.kv_lens));
  // Page lists as long as the requests are, and the pages that they name.
  std::set<std::int32_t> pages;
  if (contiguous) {
    const std::span<const std::int32_t> entries = translator.page_entries();
    const std::span<const std::uint8_t> mask = translator.given_mask();
    launch.buffers.push_back({"units", entries.data(), entries.size_bytes()});
    launch.buffers.push_back({"mask of blocks", mask.data(), mask.size()});
    for (const auto& [name, base, first] : {std::tuple{"keys", &c.k, pool.k}, {"values", &c.v, pool.v}}) {
      const auto* const begin = static_cast<const std::byte*>(first);
      launch.buffers.push_back({name, begin, static_cast<std::size_t>(base->data() + base->size() - begin)});
    }
  }
  for (int r = 0; r < c.num_requests() && !contiguous; ++r) {
    const std::int32_t used = list_pages(r);
    const std::int32_t* const list = list_of(r);
    if (budget_pages == 0) {
      launch.buffers.push_back({fmt::format("page list of request {}", r), list, static_cast<std::size_t>(used) * 4});
    }
    pages.insert(list, list + used);
  }
  if (how.bad_request >= 0) {  // page 0 is read instead
    pages.erase(static_cast<std::int32_t>(pool.num_pages));
    pages.insert(0);
  }
  const auto page_bytes = static_cast<std::size_t>(c.pool.page_stride * dtype_bits(c.spec.kv_dtype) / 8);
  for (const std::int32_t page : pages) {
    const std::size_t at = static_cast<std::size_t>(page) * page_bytes;
    launch.buffers.push_back({fmt::format("keys of page {}", page), c.k.data() + at, page_bytes});
    launch.buffers.push_back({fmt::format("values of page {}", page), c.v.data() + at, page_bytes});
  }

  verdict.outcome = simt::run(launch);
  if (!verdict.outcome.error.empty()) {
    verdict.wrong = verdict.outcome.error;
    return verdict;
  }
  gpu_test::AgreementRunner::Output output;
  output.bytes.resize(out.size() * 2);
  std::memcpy(output.bytes.data(), out.data(), output.bytes.size());
  for (const std::uint16_t bits : out) {
    output.out.push_back(o.q_dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits));
  }
  output.lse.assign(lse.begin(), lse.end());
  if (how.bad_request < 0) verdict.wrong = gpu_test::judge(c, instantiation.config, output);
  // The next launch finds the workspace as this one did.
  const auto left = [&](const char* what, const std::vector<std::uint32_t>& words, std::uint32_t expected) {
    const auto other = std::find_if(words.begin(), words.end(), [&](std::uint32_t x) { return x != expected; });
    if (verdict.wrong.empty() && other != words.end()) {
      verdict.wrong = fmt::format("word {} of {} is {:#x} behind the launch", other - words.begin(), what, *other);
    }
  };
  left("the parts", partial_out, abi::kPartPending);
  left("the log-sum-exps of parts", partial_lse, abi::kPartPending);
  left("the counters of merges", merge_counters, 0);
  left("the counters of shared parts", shared_counters, 0);
  left("the counter of queues", span_counter, 0);
  verdict.out = std::move(out);
  verdict.lse = std::move(lse);
  return verdict;
}

}  // namespace fovea::emulator_test
