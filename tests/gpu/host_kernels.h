// The kernels of the engine's CUDA device as plain loops on the host, for the driver without a GPU
// (cuda/testing/fake_driver.h): what kernels/model says they compute, and attention by the CPU's executor over the plan
// as it lies in device memory. bf16 activations. Used by cuda_engine_test.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "abi/attention_args.h"
#include "abi/fp8_args.h"
#include "abi/linear_args.h"
#include "abi/op_args.h"
#include "abi/select_args.h"
#include "abi/token_moves.h"
#include "attention/paged_attention.h"
#include "base/fp8.h"
#include "base/half.h"
#include "base/thread_pool.h"
#include "core/select/reuse.h"
#include "cpu/append.h"
#include "cpu/attention/attention.h"
#include "cpu/attention/convert.h"
#include "cpu/move_tokens.h"
#include "cuda/testing/dot.h"
#include "cuda/testing/fake_driver.h"
#include "testing/device_plan_view.h"

namespace fovea::host_kernels {

inline float load(const void* base, long long i) { return bf16_to_float(static_cast<const std::uint16_t*>(base)[i]); }
inline void store(void* base, long long i, float x) { static_cast<std::uint16_t*>(base)[i] = float_to_bf16(x); }

inline void rms_norm(const abi::NormArgs& a, std::uint32_t ctas) {
  for (std::uint32_t cta = 0; cta < ctas; ++cta) {
    const std::uint32_t row = cta / a.heads, head = cta % a.heads;
    const long long from = row * a.x_row_stride + head * a.x_head_stride;
    const long long residual = row * a.residual_row_stride + head * a.residual_head_stride;
    std::vector<float> x(a.dim);
    float squares = 0.0f;
    for (std::uint32_t i = 0; i < a.dim; ++i) {
      x[i] = load(a.x, from + i);
      if (a.residual != nullptr) {
        x[i] += load(a.residual, residual + i);
        store(a.residual, residual + i, x[i]);
      }
      squares += x[i] * x[i];
    }
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(a.dim) + a.eps);
    const long long to = row * a.out_row_stride + head * a.out_head_stride;
    for (std::uint32_t i = 0; i < a.dim; ++i) store(a.out, to + i, x[i] * factor * (a.weight[i] + a.weight_offset));
  }
}

inline float activate(abi::GateKind kind, float x) {
  return kind == abi::GateKind::kSilu   ? x / (1.0f + std::exp(-x))
         : kind == abi::GateKind::kGelu ? 0.5f * x * (1.0f + std::erf(x * 0.70710678f))
                                        : 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
}

// kind: of products with a gate, whose instantiation a launch does not show.
inline void linear(const abi::LinearArgs& a, abi::GateKind kind) {
  const long long k = a.shape.k, rows = 2ll * a.shape.pairs;
  const bool gated = a.shape.half != 1;
  std::vector<float> xs(static_cast<std::size_t>(a.tokens * k)), factors(a.tokens, 1.0f);
  for (std::uint32_t token = 0; token < a.tokens; ++token) {
    float* const x = &xs[static_cast<std::size_t>(token * k)];
    float squares = 0.0f;
    for (long long i = 0; i < k; ++i) {
      x[i] = load(a.x, token * a.x_stride + i);
      squares += x[i] * x[i];
      if (a.norm != nullptr) {
        x[i] = bf16_to_float(float_to_bf16(x[i] * (load(a.norm, i) + static_cast<float>(a.norm_plus_one))));
      }
    }
    if (a.norm != nullptr) factors[token] = 1.0f / std::sqrt(squares / static_cast<float>(k) + a.norm_eps);
  }
  std::vector<float> w(static_cast<std::size_t>(k)), all(static_cast<std::size_t>(a.tokens * rows));
  for (long long row = 0; row < rows; ++row) {
    for (long long i = 0; i < k; ++i) {
      w[i] = a.scales == nullptr
                 ? load(a.shape.w, row * k + i)
                 : e4m3_to_float(static_cast<const std::uint8_t*>(a.shape.w)[row * k + i]) * a.scales[row];
    }
    for (std::uint32_t token = 0; token < a.tokens; ++token) {
      const float sum = cuda::fake::dot(&xs[static_cast<std::size_t>(token * k)], w.data(), w.size());
      all[static_cast<std::size_t>(token * rows + row)] =
          sum * factors[token] + (a.bias != nullptr ? load(a.bias, row) : 0.0f);
    }
  }
  for (std::uint32_t token = 0; token < a.tokens; ++token) {
    const float* const sums = &all[static_cast<std::size_t>(token * rows)];
    for (long long column = 0; column < (gated ? rows / 2 : rows); ++column) {
      const long long to = token * a.y_stride + column;
      if (a.f32_out != 0) {
        static_cast<float*>(a.y)[to] = sums[column];
      } else if (gated) {
        store(a.y, to, activate(kind, sums[column]) * sums[column + a.shape.half]);
      } else {
        store(a.y, to, sums[column] + (a.residual != nullptr ? load(a.residual, to) : 0.0f));
      }
    }
  }
}

inline void fp8_rows(const abi::Fp8RowsArgs& a) {
  for (std::uint32_t row = 0; row < a.rows; ++row) {
    float most = 0.0f;
    for (std::uint32_t i = 0; i < a.width; ++i) most = std::max(most, std::abs(load(a.from, row * a.stride + i)));
    a.scales[row] = abi::fp8_row_scale(most);
    for (std::uint32_t i = 0; i < a.width; ++i) {
      a.codes[std::size_t{row} * a.width + i] = cpu::e4m3_of(load(a.from, row * a.stride + i) * (1.0f / a.scales[row]));
    }
  }
}

inline void fp8_expand(const abi::Fp8ExpandArgs& a) {
  for (std::size_t i = 0; i < std::size_t{a.rows} * a.width; ++i) {
    store(a.to, static_cast<long long>(i), e4m3_to_float(a.codes[i]) * a.scales[i / a.width]);
  }
}

inline void fp8_finish(const abi::Fp8FinishArgs& a) {
  for (std::uint32_t row = 0; row < a.rows; ++row) {
    for (std::uint32_t i = 0; i < a.width; ++i) {
      const float scale = a.row_scales == nullptr ? 1.0f : a.row_scales[row] * a.column_scales[i];
      const float bias = a.bias == nullptr ? 0.0f : load(a.bias, i);
      store(a.y, row * a.stride + i, load(a.y, row * a.stride + i) * scale + bias);
    }
  }
}

inline void embed(const abi::EmbedArgs& a) {
  for (std::uint32_t row = 0; row < a.rows; ++row) {
    for (std::uint32_t i = 0; i < a.width; ++i) {
      const bool known = static_cast<std::uint32_t>(a.ids[row]) < a.table_rows;
      store(a.out, row * a.out_stride + i, known ? a.scale * load(a.table, a.ids[row] * a.table_stride + i) : 0.0f);
    }
  }
}

inline void gate(const abi::GateArgs& a) {
  for (std::uint32_t row = 0; row < a.rows; ++row) {
    for (std::uint32_t i = 0; i < a.width; ++i) {
      const float x = load(a.gate_up, row * a.gate_up_stride + i);
      const float up = load(a.gate_up, row * a.gate_up_stride + a.width + i);
      store(a.out, row * a.out_stride + i, activate(a.kind, x) * up);
    }
  }
}

inline void add(const abi::PairArgs& a) {
  for (std::uint32_t row = 0; row < a.rows; ++row) {
    for (std::uint32_t i = 0; i < a.width; ++i) {
      store(a.x, row * a.x_stride + i, load(a.x, row * a.x_stride + i) + load(a.y, row * a.y_stride + i));
    }
  }
}

inline void softcap(const abi::PairArgs& a) {
  for (std::uint32_t row = 0; row < a.rows; ++row) {
    for (std::uint32_t i = 0; i < a.width; ++i) {
      float& x = static_cast<float*>(a.x)[row * a.x_stride + i];
      x = a.cap * std::tanh(x / a.cap);
    }
  }
}

inline void argmax(const abi::ArgmaxArgs& a, std::uint32_t ctas) {
  for (std::uint32_t row = 0; row < ctas / a.parts; ++row) {
    const float* const x = a.logits + row * a.stride;
    const float* const best = std::max_element(x, x + a.width);
    a.best[row] = std::isfinite(*best) ? static_cast<std::int32_t>(best - x) : -1;
  }
}

inline void draw(const abi::DrawArgs& a, std::uint32_t rows) {
  for (std::uint32_t row = 0; row < rows; ++row) {
    const abi::DrawRow& how = a.draws[row];
    if (how.inverse_temperature == 0.0f || a.best[row] < 0) continue;
    const float* const x = a.logits + row * a.stride;
    const float max = x[a.best[row]];
    const auto weight = [&](std::uint32_t i) { return std::exp(double{x[i] - max} * how.inverse_temperature); };
    const auto bucket = [&](std::uint32_t i) {
      return static_cast<int>(std::min((max - x[i]) * how.inverse_temperature * 16.0f, 1023.0f));
    };
    double all = 0.0, mass = 0.0;
    std::vector<std::uint32_t> order(a.width), kept;
    for (std::uint32_t i = 0; i < a.width; ++i) all += weight(order[i] = i);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t i, std::uint32_t k) { return x[i] > x[k]; });
    for (const std::uint32_t i : order) {
      if (!kept.empty() && (mass >= how.top_p * all || x[i] < max - how.reach)) break;
      mass += weight(i);
      kept.push_back(i);
    }
    // Those of nearer buckets than the last in their order, then the last's by likelihood.
    const int last = how.top_p < 1.0f ? bucket(kept.back()) : 1024;
    std::stable_sort(kept.begin(), kept.end(), [&](std::uint32_t i, std::uint32_t k) {
      if ((bucket(i) == last) != (bucket(k) == last)) return bucket(k) == last;
      return bucket(i) != last && i < k;
    });
    const double u = std::ldexp(static_cast<double>(std::uint64_t{how.u_high} << 32 | how.u_low), -53);
    double sum = 0.0;
    for (const std::uint32_t i : kept) {
      a.best[row] = static_cast<std::int32_t>(i);
      sum += weight(i);
      if (sum > u * mass) break;
    }
  }
}

inline std::uint8_t* record_of(const abi::PageStatsView& stats, std::int32_t page, std::int32_t head,
                               std::int32_t sub) {
  return static_cast<std::uint8_t*>(stats.data) + page * stats.page_stride + head * stats.head_stride +
         sub * std::int64_t{abi::kCodeRecordBytes};
}

// The heads [begin, ..) of a pool as a pool of their own.
inline abi::KvPoolView heads_from(abi::KvPoolView pool, std::int32_t begin) {
  const std::int64_t bytes = begin * pool.head_stride * abi::kv_bits(pool.dtype) / 8;
  pool.k = static_cast<std::byte*>(pool.k) + bytes;
  pool.v = static_cast<std::byte*>(pool.v) + bytes;
  if (pool.granularity == abi::ScaleGranularity::kTokenHead) {
    pool.k_scale = static_cast<abi::KvScale*>(pool.k_scale) + begin * pool.scale_head_stride;
    pool.v_scale = static_cast<abi::KvScale*>(pool.v_scale) + begin * pool.scale_head_stride;
  }
  return pool;
}

// Key codes are those of bf16 pools alone.
inline void rope_append(const abi::RopeAppendArgs& a, int head_dim, ThreadPool& threads) {
  const auto head_of = [&](std::uint32_t row, std::uint32_t first, std::uint32_t head, std::uint32_t heads,
                           const float* norm, bool rotates) {
    const auto at = [&](std::uint32_t h) { return row * a.row_stride + (first + h) * a.head_stride; };
    std::vector<float> x(static_cast<std::size_t>(head_dim));
    for (int i = 0; i < head_dim; ++i) x[i] = load(a.qkv, at(head) + i);
    if (norm != nullptr) {
      const bool whole = a.norms_are_whole != 0;
      double squares = 0.0;
      for (std::uint32_t h = whole ? 0 : head; h < (whole ? heads : head + 1); ++h) {
        for (int i = 0; i < head_dim; ++i) squares += std::pow(load(a.qkv, at(h) + i), 2);
      }
      const double factor = 1.0 / std::sqrt(squares / (head_dim * (whole ? heads : 1.0)) + a.norm_eps);
      for (int i = 0; i < head_dim; ++i) {
        x[i] *= static_cast<float>(factor) * (norm[(whole ? head * head_dim : 0) + i] + a.norm_offset);
      }
    }
    const auto half = static_cast<int>(a.rotary_dim / 2);
    for (int i = 0; rotates && i < half; ++i) {
      const float angle = static_cast<float>(a.positions[row]) * a.inv_freq[i];
      const float c = std::cos(angle) * a.attention_factor, s = std::sin(angle) * a.attention_factor;
      const float low = x[i], high = x[i + half];
      x[i] = low * c - high * s;
      x[i + half] = high * c + low * s;
    }
    return x;
  };
  // All heads are read before the first is written.
  std::vector<std::pair<long long, std::vector<float>>> queries;
  for (std::uint32_t row = 0; row < a.rows; ++row) {
    for (std::uint32_t head = 0; a.does_q != 0 && head < a.num_qo_heads; ++head) {
      queries.emplace_back(row * a.row_stride + head * a.head_stride,
                           head_of(row, 0, head, a.num_qo_heads, a.q_norm, true));
    }
    for (std::uint32_t t = 0; t < a.num_targets; ++t) {
      const abi::RopeTarget& target = a.targets[t];
      const std::int32_t slot = target.slots[row];
      if (slot < 0) continue;
      const abi::KvPoolView& pool = target.pool;
      const std::int32_t heads = target.head_end - target.head_begin;
      std::vector<float> ks, vs;
      for (std::int32_t head = target.head_begin; head < target.head_end; ++head) {
        const auto h = static_cast<std::uint32_t>(head);
        const auto k = head_of(row, a.num_qo_heads, h, a.num_kv_heads, a.k_norm, true);
        const auto v = head_of(row, a.num_qo_heads + a.num_kv_heads, h, a.num_kv_heads, nullptr, false);
        ks.insert(ks.end(), k.begin(), k.end());
        vs.insert(vs.end(), v.begin(), v.end());
      }
      const TensorView k = cpu_tensor(ks.data(), DType::kF32, 1, heads, head_dim);
      const TensorView v = cpu_tensor(vs.data(), DType::kF32, 1, heads, head_dim);
      const Status status = cpu::append_kv(k, v, &slot, heads_from(pool, target.head_begin), threads);
      if (!status.ok() || (target.stats.data != nullptr && pool.dtype != abi::KvDType::kBF16)) std::abort();
      for (std::int32_t head = target.head_begin; head < target.head_end && target.stats.data != nullptr; ++head) {
        const long long to = slot / pool.page_tokens * pool.page_stride + slot % pool.page_tokens * pool.token_stride +
                             head * pool.head_stride;
        const std::int32_t nth = head - target.head_begin, token = slot % pool.page_tokens;
        const abi::KeyCode& code = target.stats.codes[nth];
        for (std::uint32_t i = 0; i < abi::kCodeChannels; ++i) {
          const float x = load(pool.k, to + code.channel[i]);
          const std::uint32_t level =
              abi::key_code((abi::key_element(x) - code.mean[i]) * (1.0f / code.step[i]) + 8.0f);
          std::uint8_t& byte = record_of(
              target.stats, slot / pool.page_tokens, nth,
              token /
                  abi::kSubPageTokens)[abi::code_place(i / 2, static_cast<std::uint32_t>(token % abi::kSubPageTokens))];
          byte = static_cast<std::uint8_t>(i % 2 == 0 ? (byte & 0xf0u) | level : (byte & 0x0fu) | level << 4);
        }
      }
    }
  }
  for (const auto& [at, x] : queries) {
    for (int i = 0; i < head_dim; ++i) store(a.qkv, at + i, x[i]);
  }
}

// The largest q.k of a unit that its codes tell, by the rules of abi/select_args.h.
inline float score(const abi::SelectArgs& a, const abi::SelectRow& row, std::int32_t head, std::int32_t unit) {
  const abi::KeyCode& code = a.stats.codes[head];
  const std::int32_t subs = a.stats.subs_per_page;
  const std::int32_t page = a.page_entries[row.table + static_cast<std::uint32_t>(unit / subs)];
  const std::uint8_t* const record = record_of(a.stats, page, head, unit % subs);
  float best = -INFINITY;
  for (std::uint32_t g = 0; g < a.group; ++g) {
    const long long at =
        row.q_row * a.q_row_stride + (static_cast<std::uint32_t>(head) * a.group + g) * a.q_head_stride;
    float by_step[abi::kCodeChannels], most = 0.0f, constant = 0.0f;
    for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
      const float q = load(a.q, at + code.channel[i]) * a.sm_scale;
      by_step[i] = q * code.step[i];
      most = std::max(most, std::abs(by_step[i]));
      constant += q * code.mean[i];
    }
    const float scale = most / 127.0f;
    std::int32_t largest = INT32_MIN, sum_of_weights = 0;
    std::int32_t weights[abi::kCodeChannels];
    for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
      sum_of_weights += weights[i] = most > 0.0f ? abi::nearest_weight(by_step[i] / scale) : 0;
    }
    for (std::uint32_t t = 0; t < abi::kSubPageTokens; ++t) {
      std::int32_t sum = 0;
      for (std::uint32_t i = 0; i < abi::kCodeChannels; ++i) {
        sum += weights[i] * (record[abi::code_place(i / 2, t)] >> i % 2 * 4 & 15);
      }
      largest = std::max(largest, sum);
    }
    best = std::max(best,
                    constant - 7.5f * scale * static_cast<float>(sum_of_weights) + scale * static_cast<float>(largest));
  }
  return best;
}

// Of rows alone. Candidates of memories stand where the device's do, in the order of core/select.
inline void select(const abi::SelectArgs& a) {
  for (std::uint32_t list = 0; list < a.requests * a.num_heads; ++list) {
    const abi::SelectRow& row = a.rows[list / a.num_heads];
    const auto head = static_cast<std::int32_t>(list % a.num_heads);
    const std::int32_t units = num_units(row.tokens, abi::kSubPageTokens);
    std::int32_t* const to = a.lists + list / a.num_heads * a.list_row_stride + head * a.list_stride;
    ChooseRule rule;
    rule.budget_tokens = static_cast<std::int32_t>(row.budget) * abi::kSubPageTokens;
    rule.sink_tokens = static_cast<std::int32_t>(a.sink_tokens);
    rule.recent_tokens = static_cast<std::int32_t>(a.recent_tokens);
    const auto place = [&](std::uint32_t memory) { return memory * a.num_heads + static_cast<std::uint32_t>(head); };
    SelectMemory memory;
    if (row.reads != abi::kNone) {
      const abi::SelectState& state = a.states[place(row.reads)];
      const std::int32_t* const first = a.candidates + std::int64_t{place(row.reads)} * a.num_candidates;
      memory.candidates.assign(first, first + state.num_candidates);
      memory.scanned_tokens = static_cast<std::int32_t>(state.scanned_tokens);
      if (memory.scanned_tokens < 1 || memory.scanned_tokens >= row.tokens) std::abort();  // stale
    }
    std::vector<std::int32_t> scored, chosen;
    for (std::int32_t unit = 0; unit < units; ++unit) scored.push_back(unit);
    if (under_budget(rule, row.tokens)) {
      chosen = scored;
    } else {
      if (memory.scanned_tokens > 0) units_to_rescore(memory, rule, row.tokens, &scored);
      std::vector<float> scores;
      for (const std::int32_t unit : scored) scores.push_back(score(a, row, head, unit));
      ChooseScratch scratch;
      std::vector<std::int32_t> candidates;
      choose_units(scored, scores, rule, row.tokens, scratch, &chosen, static_cast<std::int32_t>(row.candidates),
                   &candidates);
      if (row.writes != abi::kNone) {
        std::copy(candidates.begin(), candidates.end(),
                  a.candidates + std::int64_t{place(row.writes)} * a.num_candidates);
        a.states[place(row.writes)] = {static_cast<std::uint32_t>(candidates.size()),
                                       static_cast<std::uint32_t>(row.tokens)};
      }
    }
    const std::int32_t subs = a.stats.subs_per_page;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      to[i] = a.page_entries[row.table + static_cast<std::uint32_t>(chosen[i] / subs)] * subs + chosen[i] % subs;
    }
  }
}

inline void attention(const abi::AttentionArgs& args, std::int64_t head_dim, VariantId variant, ThreadPool& threads) {
  const DevicePlanView plan(args.plan);
  abi::PlanView view = plan.view;
  view.page_entries = args.page_entries;
  view.kv_lens = args.kv_lens;
  view.mask_bits = args.mask_bits;
  const auto& params = *reinterpret_cast<const AttentionParams*>(args.variant_params);
  const std::int64_t rows = view.header->num_rows;
  const std::int64_t heads = std::int64_t{view.header->num_kv_heads} * view.header->group;
  TensorView q = cpu_tensor(args.q, DType::kBF16, rows, heads, head_dim);
  q.strides[0] = args.q_row_stride;
  q.strides[1] = args.q_head_stride;
  const TensorView out = cpu_tensor(args.out, DType::kBF16, rows, heads, head_dim);
  cpu::AttentionWorkspace workspace;
  const Status status = cpu::run_attention(view, params, variant, q, &args.pool, 1, out, args.lse, workspace, threads);
  if (!status.ok()) std::abort();
}

// Puts them into the driver, for a model with such heads and gates. Every launch finds its arguments as
// they were.
inline void install(std::int64_t head_dim, VariantId variant, abi::GateKind kind) {
  auto& kernels = cuda::fake::state().kernels;
  const auto threads = std::make_shared<ThreadPool>(1);
  const auto with = [&]<typename Args>(const char* name, void (*run)(const Args&)) {
    kernels[name] = [run](void** p) { return [run, args = *static_cast<const Args*>(p[0])] { run(args); }; };
  };
  for (const char* const name : {"fovea_linear", "fovea_linear_batch"}) {
    kernels[name] = [kind](void** p) {
      return [kind, args = *static_cast<const abi::LinearArgs*>(p[0])] { linear(args, kind); };
    };
  }
  with("fovea_embed", &embed);
  with("fovea_gate", &gate);
  with("fovea_fp8_rows", &fp8_rows);
  with("fovea_fp8_expand", &fp8_expand);
  with("fovea_fp8_finish", &fp8_finish);
  with("fovea_add", &add);
  with("fovea_softcap", &softcap);
  kernels["fovea_rms_norm"] = [](void** p) {
    return [args = *static_cast<const abi::NormArgs*>(p[0]), ctas = cuda::fake::state().launch.grid[0]] {
      rms_norm(args, ctas);
    };
  };
  kernels["fovea_argmax"] = [](void** p) {
    return [args = *static_cast<const abi::ArgmaxArgs*>(p[0]), ctas = cuda::fake::state().launch.grid[0]] {
      argmax(args, ctas);
    };
  };
  kernels["fovea_draw"] = [](void** p) {
    return [args = *static_cast<const abi::DrawArgs*>(p[0]), rows = cuda::fake::state().launch.grid[0]] {
      draw(args, rows);
    };
  };
  kernels["fovea_rope_append"] = [head_dim, threads](void** p) {
    return [head_dim, threads, args = *static_cast<const abi::RopeAppendArgs*>(p[0])] {
      rope_append(args, static_cast<int>(head_dim), *threads);
    };
  };
  with("fovea_select", &select);
  with("fovea_move_tokens", &cpu::move_tokens);
  kernels["fovea_attention"] = [=](void** p) {
    const auto args = std::make_shared<abi::AttentionArgs>(*static_cast<const abi::AttentionArgs*>(p[0]));
    return [=] { attention(*args, head_dim, variant, *threads); };
  };
}

}  // namespace fovea::host_kernels
