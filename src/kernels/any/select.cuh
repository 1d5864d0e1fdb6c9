// fovea_select: which units of its KV a decode query reads, a list a (request, KV head), in one launch: scores from key
// codes, then the best units, ascending. The lists are those of core/select for the same scores. Launched by backend/
// through jit/, in captured graphs too: lengths are read here.
//
//   Grid: select_ctas() of kSelectThreads threads. `splits` CTAs score the units of a list; the one that is last to end
//   chooses. Dynamic shared memory: cached_keys words. How and how fast: docs/kernels/select.md.
//
// Written in steps that also run on the host (cta.cuh); Scorer is what warps do together: select_scorer.cuh, or scalar
// code in tests. Compiled for FOVEA_Q_DTYPE, the type of the queries.
#pragma once

#include "abi/select_args.h"
#include "kernels/any/cta.cuh"
#include "kernels/any/vec.cuh"

namespace fovea::kernels {

inline constexpr uint32_t kSelectBins = abi::kSelectThreads;  // one a thread
inline constexpr uint32_t kSelectBinBits = 9;
static_assert(kSelectBins == 1u << kSelectBinBits);

// Query heads as codes meet them: q.k is about constant + scale * sum weight * code.
struct SelectQuery {
  alignas(16) signed char weights[abi::kSelectGroup * abi::kCodeChannels];  // see weight_place()
  float by_step[abi::kSelectGroup][abi::kCodeChannels];
  float scale[abi::kSelectGroup];
  float constant[abi::kSelectGroup];
};

struct SelectShared {
  SelectQuery query;
  uint32_t bins[kSelectBins];
  uint32_t before[kSelectBins];
  uint32_t warp_sums[32];
  uint32_t greatest;      // key of a unit that is not forced
  uint32_t not_least;     // ~ of the least one
  uint32_t found_bin;     // the bin that the last chosen unit is in
  uint32_t found_before;  // units in better bins
  uint32_t found_count;
  uint32_t is_last;
};

struct SelectPlace {
  uint32_t page;
  uint32_t sub;
};

// What a CTA scores and chooses for.
struct SelectWork {
  const abi::SelectArgs& args;
  uint32_t list;
  uint32_t request;
  uint32_t head;
  uint32_t split;
  uint32_t tokens;
  uint32_t recent;  // first of the newest units, which are forced
  abi::SelectSpan span;

  __forceinline__ uint32_t unit_at(uint32_t position) const {
    if (position >= span.num_old) return span.first_new + position - span.num_old;
    return static_cast<uint32_t>(args.candidates[static_cast<uint64_t>(list) * args.num_candidates + position]);
  }
  __forceinline__ bool forced(uint32_t unit) const {
    return unit * abi::kSubPageTokens < args.sink_tokens || unit >= recent;
  }
  // Pages outside of the pool: page 0.
  __forceinline__ SelectPlace place_of(uint32_t unit) const {
    const uint32_t subs = static_cast<uint32_t>(args.stats.subs_per_page);
    const uint32_t nth = unit / subs;
    const int32_t page = args.page_entries[request * args.page_stride + nth];
    return {page >= 0 && page < args.stats.num_pages ? static_cast<uint32_t>(page) : 0, unit - nth * subs};
  }
  __forceinline__ int32_t entry_of(uint32_t unit) const {
    const SelectPlace place = place_of(unit);
    return static_cast<int32_t>(place.page * static_cast<uint32_t>(args.stats.subs_per_page) + place.sub);
  }
  // Of the unit's record in the statistics, in 16 bytes.
  __forceinline__ uint32_t record_of(uint32_t unit) const {
    const SelectPlace place = place_of(unit);
    const long long bytes = place.page * args.stats.page_stride + head * args.stats.head_stride;
    return static_cast<uint32_t>(bytes / 16) + place.sub * (abi::kCodeRecordBytes / 16);
  }
  __forceinline__ uint32_t key_of(uint32_t unit, float score) const {
    return forced(unit) ? abi::kForcedKey : abi::score_key(score, float_as_bits(score));
  }
};

// The units to take, by how far their keys are below the greatest: those nearer than `near`, and the first `ties` of
// those at `tie`.
struct SelectLimit {
  uint32_t near;
  uint32_t tie;
  uint32_t ties;
};

template <typename Cta, typename Scorer, KvDType kQ>
class Select {
 public:
  // cache: args.cached_keys words of shared memory.
  __forceinline__ Select(const Cta& cta, const Scorer& scorer, const abi::SelectArgs& args, SelectShared& shared,
                         uint32_t* cache)
      : cta_(cta), scorer_(scorer), args_(args), s_(shared), cache_(cache) {}

  // CTA `index` of the launch.
  __forceinline__ void run(uint32_t index) {
    const uint32_t list = index / args_.splits;
    const uint32_t request = list / args_.num_heads;
    const int32_t length = args_.kv_lens[request];
    const uint32_t most = args_.max_units * abi::kSubPageTokens;
    const uint32_t tokens = length < 0                             ? 0
                            : static_cast<uint32_t>(length) < most ? static_cast<uint32_t>(length)
                                                                   : most;
    const SelectWork work{args_,
                          list,
                          request,
                          list - request * args_.num_heads,
                          index - list * args_.splits,
                          tokens,
                          abi::recent_unit(args_, tokens),
                          abi::select_span(args_, list, tokens)};
    if (work.span.all) {
      if (work.split == 0) take_all(work);
      return;
    }
    prepare(work);
    const uint32_t count = abi::span_count(work.span);
    const bool cached = count <= args_.cached_keys;
    uint32_t* keys = args_.keys + static_cast<uint64_t>(list) * args_.max_units;
    if (args_.splits == 1 && cached) keys = cache_;
    scorer_.score(cta_, work, s_.query, keys);
    if (!cta_.is_last(args_.counters + list, args_.splits, s_.is_last)) return;
    choose(work, keys, cached ? cache_ : keys);
  }

 private:
  __forceinline__ int32_t* list_of(const SelectWork& work) const { return args_.lists + work.list * args_.list_stride; }

  __forceinline__ void take_all(const SelectWork& work) {
    for_each(cta_, work.span.units, [&](uint32_t unit) { list_of(work)[unit] = work.entry_of(unit); });
    if (work.head != 0) return;
    for_each(cta_, 1, [&](uint32_t) { args_.list_tokens[work.request] = static_cast<int32_t>(work.tokens); });
  }

  // Weights of the query heads, rounded to bytes. The same operations in the same order as cpu/select, so that scores
  // have the same bits.
  __forceinline__ void prepare(const SelectWork& work) {
    constexpr uint32_t kChannels = abi::kCodeChannels;
    const abi::KeyCode& code = args_.stats.codes[work.head];
    SelectQuery& query = s_.query;
    const auto q_at = [&](uint32_t g, uint32_t i) {
      float x[1];
      unpack(load<kQ, 1>(args_.q, work.request * args_.q_row_stride +
                                      (work.head * args_.group + g) * args_.q_head_stride + code.channel[i]),
             x);
      return product(x[0], args_.sm_scale);
    };
    for_each(cta_, abi::kSelectGroup * kChannels, [&](uint32_t at) {
      const uint32_t g = at / kChannels;
      const uint32_t i = at % kChannels;
      query.by_step[g][i] = g < args_.group ? product(q_at(g, i), code.step[i]) : 0.0f;
      if (at == 0) s_.greatest = s_.not_least = 0;
    });
    for_each(cta_, abi::kSelectGroup * kChannels, [&](uint32_t at) {
      const uint32_t g = at / kChannels;
      const uint32_t i = at % kChannels;
      float most = 0.0f;
      for (uint32_t j = 0; j < kChannels; ++j) {
        const float size = query.by_step[g][j] < 0.0f ? -query.by_step[g][j] : query.by_step[g][j];
        most = most < size ? size : most;
      }
      const float scale = most / 127.0f;
      query.weights[abi::weight_place(g, i)] =
          most > 0.0f ? static_cast<signed char>(abi::nearest_weight(query.by_step[g][i] / scale)) : 0;
      if (i == 0) query.scale[g] = scale;
    });
    for_each(cta_, abi::kSelectGroup, [&](uint32_t g) {
      float constant = 0.0f;
      int32_t sum = 0;
      if (g >= args_.group) {
        query.scale[g] = 0.0f;
        query.constant[g] = bits_as_float(0xff800000u);
        return;
      }
      for (uint32_t i = 0; i < kChannels; ++i) {
        constant += product(q_at(g, i), code.mean[i]);
        sum += query.weights[abi::weight_place(g, i)];
      }
      query.constant[g] = constant - product(product(7.5f, query.scale[g]), static_cast<float>(sum));
    });
  }

  __forceinline__ void choose(const SelectWork& work, const uint32_t* from, uint32_t* keys) {
    const uint32_t count = abi::span_count(work.span);
    cta_.each_thread([&](uint32_t thread) {
      uint32_t greatest = 0;
      uint32_t not_least = 0;
      for (uint32_t i = thread; i < count; i += cta_.threads()) {
        const uint32_t key = from == keys ? keys[i] : load_fresh(from + i);
        if (from != keys) keys[i] = key;
        if (key == abi::kForcedKey) continue;
        greatest = key > greatest ? key : greatest;
        not_least = ~key > not_least ? ~key : not_least;
      }
      warp_keep_maximum(&s_.greatest, greatest);
      warp_keep_maximum(&s_.not_least, not_least);
    });
    const uint32_t forced =
        (args_.sink_tokens + abi::kSubPageTokens - 1) / abi::kSubPageTokens + work.span.units - work.recent;
    const uint32_t budget = abi::budget_at(args_, work.tokens);
    const uint32_t taken = budget < count ? budget : count;
    take(keys, count, limit_of(keys, count, taken, forced),
         [&](uint32_t rank, uint32_t position) { list_of(work)[rank] = work.entry_of(work.unit_at(position)); });
    const bool remembers = work.span.scan && args_.states != nullptr;
    const uint32_t kept = args_.num_candidates < count ? args_.num_candidates : count;
    if (remembers) {
      int32_t* const candidates = args_.candidates + static_cast<uint64_t>(work.list) * args_.num_candidates;
      take(keys, count, limit_of(keys, count, kept, forced),
           [&](uint32_t rank, uint32_t position) { candidates[rank] = static_cast<int32_t>(position); });
    }
    for_each(cta_, 1, [&](uint32_t) {
      const uint32_t last = work.tokens - (work.span.units - 1) * abi::kSubPageTokens;
      if (work.head == 0) {
        args_.list_tokens[work.request] = static_cast<int32_t>((taken - 1) * abi::kSubPageTokens + last);
      }
      if (remembers) args_.states[work.list] = {kept, work.tokens};
    });
  }

  // Which keys the best `wanted` units have, the forced ones among them. Each round counts the keys that may be the
  // limit in bins of equal width and goes on in the bin that has it; bins of the first span all keys there are.
  __forceinline__ SelectLimit limit_of(const uint32_t* keys, uint32_t count, uint32_t wanted, uint32_t forced) {
    const uint32_t greatest = s_.greatest;
    const uint32_t farthest = greatest - ~s_.not_least;
    if (wanted >= count) return {0xffffffffu, 0xffffffffu, 0};
    uint32_t need = wanted - forced;
    if (need == 0) return {0, 0xffffffffu, 0};
    uint32_t shift = 0;
    while (farthest >> shift >= kSelectBins) ++shift;
    uint32_t base = 0;
    while (true) {
      for_each(cta_, kSelectBins, [&](uint32_t bin) { s_.bins[bin] = 0; });
      for_each(cta_, count, [&](uint32_t i) {
        if (keys[i] == abi::kForcedKey) return;
        const uint32_t distance = greatest - keys[i];
        if (distance >= base && (distance - base) >> shift < kSelectBins) add_one(&s_.bins[(distance - base) >> shift]);
      });
      cta_.exclusive_sums(s_.bins, s_.before, s_.warp_sums);
      for_each(cta_, kSelectBins, [&](uint32_t bin) {
        if (s_.before[bin] >= need || need > s_.before[bin] + s_.bins[bin]) return;
        s_.found_bin = bin;
        s_.found_before = s_.before[bin];
        s_.found_count = s_.bins[bin];
      });
      base += s_.found_bin << shift;
      need -= s_.found_before;
      if (need == s_.found_count) return {base + (1u << shift), 0xffffffffu, 0};
      if (shift == 0) return {base, base, need};
      shift = shift < kSelectBinBits ? 0 : shift - kSelectBinBits;
    }
  }

  // emit(rank, position) for what the limit takes, rank by rank: a thread counts what it takes of its run of positions,
  // and places it after what the threads before it take.
  template <typename Emit>
  __forceinline__ void take(const uint32_t* keys, uint32_t count, const SelectLimit& limit, const Emit& emit) {
    const uint32_t run = (count + cta_.threads() - 1) / cta_.threads();
    const uint32_t greatest = s_.greatest;
    const auto walk = [&](uint32_t thread, const auto& take_sure, const auto& take_tie) {
      const uint32_t end = (thread + 1) * run < count ? (thread + 1) * run : count;
      for (uint32_t i = thread * run; i < end; ++i) {
        const uint32_t distance = greatest - keys[i];
        if (keys[i] == abi::kForcedKey || distance < limit.near) {
          take_sure(i);
        } else if (limit.ties != 0 && distance == limit.tie) {
          take_tie(i);
        }
      }
    };
    // Sure ones in the low half, ties in the high half; neither reaches 2^16.
    cta_.each_thread([&](uint32_t thread) {
      uint32_t counts = 0;
      walk(
          thread, [&](uint32_t) { counts += 1; }, [&](uint32_t) { counts += 1u << 16; });
      s_.bins[thread] = counts;
    });
    cta_.exclusive_sums(s_.bins, s_.before, s_.warp_sums);
    cta_.each_thread([&](uint32_t thread) {
      uint32_t sure = s_.before[thread] & 0xffffu;
      uint32_t tied = s_.before[thread] >> 16;
      const auto taken = [&] { return sure + (tied < limit.ties ? tied : limit.ties); };
      walk(
          thread,
          [&](uint32_t i) {
            emit(taken(), i);
            ++sure;
          },
          [&](uint32_t i) {
            if (tied < limit.ties) emit(taken(), i);
            ++tied;
          });
    });
  }

  const Cta& cta_;
  const Scorer& scorer_;
  const abi::SelectArgs& args_;
  SelectShared& s_;
  uint32_t* cache_;
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_SELECT)
#include "kernels/any/select_scorer.cuh"

extern "C" __global__ void __launch_bounds__(fovea::abi::kSelectThreads, 1)
    fovea_select(const __grid_constant__ fovea::abi::SelectArgs args) {
  using namespace fovea::kernels;
  __shared__ SelectShared shared;
  extern __shared__ uint32_t cache[];
  wait_for_inputs();
  const SelectCta cta;
  const CodeScorer scorer;
  Select<SelectCta, CodeScorer, static_cast<fovea::abi::KvDType>(FOVEA_Q_DTYPE)> select(cta, scorer, args, shared,
                                                                                        cache);
  select.run(blockIdx.x);
}
#endif
