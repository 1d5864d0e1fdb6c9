// fovea_select: which units of its KV a decode query reads, a list a (request, KV head), in one launch: scores from key
// codes, then the best units, ascending. The lists are those of core/select for the same scores. Launched by
// select/cuda_select.h through jit/, in captured graphs too: lengths are read here.
//
//   Grid: select_ctas() of kSelectThreads threads, `splits` CTAs a list. They are a cluster: each scores its share of
//   the units and keeps their keys, then they choose together (select_choice.cuh). Dynamic shared memory:
//   select_smem_bytes(). How and how fast: docs/kernels/select.md.
//
// Written in steps that also run on the host (cta.cuh); Scorer is what warps do together: select_scorer.cuh, or scalar
// code in tests. Compiled for FOVEA_Q_DTYPE, the type of the queries.
#pragma once

#include "abi/select_args.h"
#include "kernels/cache/select_choice.cuh"
#include "kernels/plan/cta.cuh"
#include "kernels/ptx/vec.cuh"

namespace fovea::kernels {

// Query heads as codes meet them: q.k is about constant + scale * sum weight * code.
struct SelectQuery {
  alignas(16) signed char weights[abi::kSelectGroup * abi::kCodeChannels];  // see weight_place()
  uint32_t most[abi::kSelectGroup];                                         // bits of the greatest size of by_step
  float by_step[abi::kSelectGroup][abi::kCodeChannels];
  float by_mean[abi::kSelectGroup][abi::kCodeChannels];
  float scale[abi::kSelectGroup];
  float by_means[abi::kSelectGroup];  // sums of by_mean
  int32_t sum[abi::kSelectGroup];     // of weights
  int32_t size[abi::kSelectGroup];    // sums of their sizes
  abi::KeyCode code;

  __forceinline__ float constant(uint32_t g) const {
    return by_means[g] - product(product(7.5f, scale[g]), static_cast<float>(sum[g]));
  }
  __forceinline__ SelectBins bins(uint32_t* counts) const {
    float greatest = bits_as_float(0xff800000u);
    float middle = greatest;
#pragma unroll
    for (uint32_t g = 0; g < abi::kSelectGroup; ++g) {
      const float most = by_means[g] + 7.5f * scale[g] * static_cast<float>(size[g]);
      greatest = greatest < most ? most : greatest;
      middle = middle < by_means[g] ? by_means[g] : middle;
    }
    return {counts, greatest, greatest > middle ? (kSelectBins - 1) / (greatest - middle) : 0.0f};
  }
};

struct SelectShared {
  SelectQuery query;
  SelectChoiceShared choice;
  uint32_t claimed;  // pieces of work, by warps
};

struct SelectPlace {
  int32_t page;  // as listed
  uint32_t sub;
};

// What a CTA scores of `count` positions.
struct SelectShare {
  uint32_t first;
  uint32_t count;
  __forceinline__ SelectShare(uint32_t positions, uint32_t rank, uint32_t ranks) {
    const uint32_t even = abi::select_share(positions, ranks);
    first = even * rank < positions ? even * rank : positions;
    count = even < positions - first ? even : positions - first;
  }
};

// What a CTA scores and chooses for.
struct SelectWork {
  const abi::SelectArgs& args;
  uint32_t list;
  uint32_t request;
  uint32_t head;
  uint32_t tokens;
  uint32_t recent;  // first of the newest units, which are forced
  abi::SelectRow row;
  abi::SelectSpan span;

  __forceinline__ uint32_t unit_at(uint32_t position) const {
    if (position >= span.num_old) return span.first_new + position - span.num_old;
    return static_cast<uint32_t>(candidates_of(row.reads)[position]);
  }
  __forceinline__ uint32_t memory_of(uint32_t number) const { return number * args.num_heads + head; }
  __forceinline__ int32_t* candidates_of(uint32_t number) const {
    return args.candidates + static_cast<uint64_t>(memory_of(number)) * args.num_candidates;
  }
  __forceinline__ SelectPlace place_of(uint32_t unit) const {
    const uint32_t subs = static_cast<uint32_t>(args.stats.subs_per_page);
    const uint32_t nth = subs == 1 ? unit : unit / subs;
    return {args.page_entries[args.rows == nullptr ? request * args.page_stride + nth : row.table + nth],
            unit - nth * subs};
  }
  // Pages outside of the pool: page 0.
  __forceinline__ uint32_t page_of(const SelectPlace& place) const {
    return place.page >= 0 && place.page < args.stats.num_pages ? static_cast<uint32_t>(place.page) : 0;
  }
  __forceinline__ int32_t entry_of(const SelectPlace& place) const {
    return static_cast<int32_t>(page_of(place) * static_cast<uint32_t>(args.stats.subs_per_page) + place.sub);
  }
  // Of a unit's record in the statistics, in 16 bytes.
  __forceinline__ uint32_t record_of(const SelectPlace& place) const {
    const auto page_stride = static_cast<uint32_t>(args.stats.page_stride >> 4);
    const auto head_stride = static_cast<uint32_t>(args.stats.head_stride >> 4);
    return page_of(place) * page_stride + head * head_stride + place.sub * (abi::kCodeRecordBytes / 16);
  }
};

template <typename Cta, typename Scorer, KvDType kQ>
class Select {
 public:
  // ring: kSelectRingBytes of shared memory; cache: that of keys, then that of entries.
  __forceinline__ Select(Cta& cta, Scorer& scorer, const abi::SelectArgs& args, SelectShared& shared, uint8_t* ring,
                         uint32_t* cache)
      : cta_(cta), scorer_(scorer), args_(args), s_(shared), ring_(ring), cache_(cache) {}

  // Before run(): what no kernel writes that a graph has before this one.
  __forceinline__ void prepare(uint32_t head) {
    constexpr uint32_t kWords = sizeof(abi::KeyCode) / 4;
    const auto* const code = reinterpret_cast<const uint32_t*>(args_.stats.codes + head);
    cta_.each_thread([&](uint32_t thread) {
      if (thread < kWords) reinterpret_cast<uint32_t*>(&s_.query.code)[thread] = code[thread];
      if (thread < abi::kSelectGroup) s_.query.most[thread] = s_.query.sum[thread] = s_.query.size[thread] = 0;
      if (thread == 0) s_.claimed = 0;
      SelectChoice<Cta>::reset(s_.choice, thread);
    });
    scorer_.guess_at(cta_, args_);
  }

  // CTA cta.rank() of the cluster of a list.
  __forceinline__ void run(uint32_t request, uint32_t head) {
    const uint32_t list = request * args_.num_heads + head;
    const abi::SelectRow row = abi::select_row(args_, request);
    const bool reuses = row.reads != abi::kNone;
    const uint32_t memory = row.reads * args_.num_heads + head;
    const abi::SelectState state = reuses ? args_.states[memory] : abi::SelectState{};
    const uint32_t phase = reuses && args_.phases != nullptr && args_.rows == nullptr ? args_.phases[request] : 0;
    if (reuses) scorer_.guess(args_, memory);
    weigh(row.q_row, head);
    const uint32_t most = args_.max_units * abi::kSubPageTokens;
    const uint32_t tokens = row.tokens < 0                             ? 0
                            : static_cast<uint32_t>(row.tokens) < most ? static_cast<uint32_t>(row.tokens)
                                                                       : most;
    const SelectWork work{args_,   list,
                          request, head,
                          tokens,  abi::recent_unit(args_, tokens),
                          row,     abi::select_span(args_, row, tokens, state, phase)};
    if (work.span.all) {
      if (cta_.rank() == 0) take_all(work);
      return;
    }
    const SelectKeys keys = keys_of(work);
    scorer_.find(work, keys);
    scorer_.fill(work, keys, ring_, &s_.claimed);
    round();
    const SelectBins bins = s_.query.bins(s_.choice.bins);
    scorer_.score(cta_, work, s_.query, keys, bins);
    if (keys.shared) {
      cta_.template receive<kKeysMessage>(keys.held * 4);
      each(cta_, keys.held, [&](uint32_t i) { bins.add(keys.at(i)); });
    } else {
      cta_.each_thread([](uint32_t) {});
    }
    choose(work, keys, bins);
  }

 private:
  __forceinline__ int32_t* list_of(const SelectWork& work) const {
    if (args_.list_row_stride == 0) return args_.lists + work.list * args_.list_stride;
    return args_.lists + work.request * args_.list_row_stride + work.head * args_.list_stride;
  }

  __forceinline__ void take_all(const SelectWork& work) {
    each(cta_, work.span.units, [&](uint32_t unit) { list_of(work)[unit] = work.entry_of(work.place_of(unit)); });
    if (work.head != 0 || args_.rows != nullptr) return;
    each(cta_, 1, [&](uint32_t) { args_.list_tokens[work.request] = static_cast<int32_t>(work.tokens); });
  }

  __forceinline__ SelectKeys keys_of(const SelectWork& work) const {
    const uint32_t all = abi::span_count(work.span);
    const SelectShare share(all, cta_.rank(), cta_.ranks());
    const bool shared = cta_.ranks() > 1 && !work.span.scan && all <= args_.cached_keys;
    const bool cached = Cta::kCachesAll || share.count <= args_.cached_keys;
    uint32_t* const entries = cache_ + abi::select_key_words(args_.cached_keys);
    SelectKeys keys;
    keys.keys = cached ? cache_ : args_.keys + static_cast<uint64_t>(work.list) * args_.max_units + share.first;
    keys.spaced = cached;
    keys.shared = shared;
    keys.start = shared ? 0 : share.first;
    keys.held = shared ? all : share.count;
    keys.first = share.first;
    keys.count = share.count;
    keys.entries = share.count <= args_.cached_entries ? reinterpret_cast<int32_t*>(entries) : nullptr;
    // Candidates begin with the sinks, and everything that is newer than the scan comes after them.
    keys.sinks = (args_.sink_tokens + abi::kSubPageTokens - 1) / abi::kSubPageTokens;
    keys.newest = work.span.num_old + work.recent - work.span.first_new;
    return keys;
  }

  // Weights of the query heads, a warp each, and round() to bytes while the first codes are on their way. The same
  // operations in the same order as cpu/select, so that scores have the same bits.
  __forceinline__ void weigh(uint32_t q_row, uint32_t head) {
    constexpr uint32_t kChannels = abi::kCodeChannels;
    static_assert(abi::kSelectGroup * kChannels <= abi::kSelectThreads && kChannels == 32);
    SelectQuery& query = s_.query;
    cta_.each_thread_of_warps([&](uint32_t thread) {
      const uint32_t g = thread / kChannels;
      const uint32_t i = thread % kChannels;
      if (g >= args_.group) return;
      const long long row = q_row * args_.q_row_stride + (head * args_.group + g) * args_.q_head_stride;
      float x[1];
      unpack(load<kQ, 1>(args_.q, row + query.code.channel[i]), x);
      const float q = product(x[0], args_.sm_scale);
      const float by_step = product(q, query.code.step[i]);
      query.by_step[g][i] = by_step;
      query.by_mean[g][i] = product(q, query.code.mean[i]);
      const uint32_t size = float_as_bits(by_step) & 0x7fffffffu;
      warp_keep_maximum(&query.most[g], by_step == by_step ? size : 0);
    });
  }

  __forceinline__ void round() {
    constexpr uint32_t kChannels = abi::kCodeChannels;
    SelectQuery& query = s_.query;
    cta_.each_thread([&](uint32_t thread) {
      const uint32_t g = thread / kChannels;
      const uint32_t i = thread % kChannels;
      if (g >= abi::kSelectGroup) return;
      float scale = 0.0f;
      float sum = bits_as_float(0xff800000u);
      int32_t weight = 0;
      if (g < args_.group) {
        const float most = bits_as_float(query.most[g]);
        scale = most / 127.0f;
        weight = most > 0.0f ? abi::nearest_weight(query.by_step[g][i] / scale) : 0;
        sum = 0.0f;
#pragma unroll 8
        for (uint32_t j = 0; j < kChannels; ++j) sum += query.by_mean[g][j];
        warp_sum_add(&query.sum[g], weight);
        warp_sum_add(&query.size[g], weight < 0 ? -weight : weight);
      }
      query.weights[abi::weight_place(g, i)] = static_cast<signed char>(weight);
      if (i != 0) return;
      query.scale[g] = scale;
      query.by_means[g] = sum;
    });
  }

  __forceinline__ void choose(const SelectWork& work, const SelectKeys& keys, const SelectBins& bins) {
    const uint32_t count = abi::span_count(work.span);
    const uint32_t wanted[2] = {work.row.budget < count ? work.row.budget : count,
                                work.row.candidates < count ? work.row.candidates : count};
    const bool remembers = work.span.scan && work.row.writes != abi::kNone;
    int32_t* const candidates = work.candidates_of(remembers ? work.row.writes : 0);
    int32_t* const list = list_of(work);
    SelectChoice<Cta> choice(cta_, s_.choice, keys, bins);
    choice.take(remembers ? 2 : 1, wanted, [&](uint32_t k, uint32_t rank, uint32_t position) {
      if (k != 0) {
        candidates[rank] = static_cast<int32_t>(position);
      } else {
        list[rank] = keys.entries != nullptr ? keys.entries[position - keys.first]
                                             : work.entry_of(work.place_of(work.unit_at(position)));
      }
    });
    if (cta_.rank() != 0) return;
    each(cta_, 1, [&](uint32_t) {
      const uint32_t last = work.tokens - (work.span.units - 1) * abi::kSubPageTokens;
      if (work.head == 0 && args_.rows == nullptr) {
        args_.list_tokens[work.request] = static_cast<int32_t>((wanted[0] - 1) * abi::kSubPageTokens + last);
      }
      if (remembers) args_.states[work.memory_of(work.row.writes)] = {wanted[1], work.tokens};
    });
  }

  Cta& cta_;
  Scorer& scorer_;
  const abi::SelectArgs& args_;
  SelectShared& s_;
  uint8_t* ring_;
  uint32_t* cache_;
};

}  // namespace fovea::kernels

#if defined(__CUDACC_RTC__) && defined(FOVEA_SELECT)
#include "kernels/cache/select_scorer.cuh"

extern "C" __global__ void __launch_bounds__(fovea::abi::kSelectThreads, 1)
    fovea_select(const __grid_constant__ fovea::abi::SelectArgs args) {
  using namespace fovea::kernels;
  __shared__ SelectShared shared;
  extern __shared__ __align__(128) uint8_t dynamic[];
  SelectCta cta(shared.choice.arrived, args.splits);
  CodeScorer scorer;
  Select<SelectCta, CodeScorer, static_cast<fovea::abi::KvDType>(FOVEA_Q_DTYPE)> select(
      cta, scorer, args, shared, dynamic, reinterpret_cast<uint32_t*>(dynamic + fovea::abi::kSelectRingBytes));
  const uint32_t request = cta.list() / args.num_heads;
  const uint32_t head = cta.list() - request * args.num_heads;
  select.prepare(head);
  cta.meet();
  wait_for_inputs();
  select.run(request, head);
}
#endif
