// The choice of fovea_select: the best of all units that the CTAs of a cluster scored, each CTA for those whose keys it
// holds. Included by select.cuh.
//
// What the CTAs tell each other they send into each other's shared memory, where everyone waits for what all send:
// first the range of their scores, then how many of them fall into each of kSelectBins bins of equal width over the
// range, last the few units of the one bin that the last wanted unit is in, which every CTA ranks one against one. A
// bin with more than kSelectBorder units (equal scores, or far apart ones) is narrowed before, by the bits of keys.
#pragma once

#include "abi/select_args.h"
#include "kernels/any/cta.cuh"
#include "kernels/any/instructions.cuh"

namespace fovea::kernels {

inline constexpr uint32_t kSelectBins = 512;
inline constexpr uint32_t kSelectBorder = 256;
static_assert(2 * kSelectBorder == abi::kSelectThreads);
static_assert(kSelectBins == abi::kSelectThreads);

// What is sent, each kind with a count of arrived bytes of its own. A CTA sends one again only after everyone has had
// the other two or its answer, so that nothing is overwritten that is still read.
enum SelectMessage : uint32_t { kRangeMessage = 0, kCountsMessage = 1, kBorderMessage = 2 };
inline constexpr uint32_t kSelectMessages = 3;

// As for_each(), for steps that run once and whose code has to be fetched: not unrolled.
template <typename Cta, typename Step>
__forceinline__ void each(const Cta& cta, uint32_t count, const Step& step) {
  cta.each_thread([&](uint32_t thread) {
#pragma unroll 1
    for (uint32_t i = thread; i < count; i += abi::kSelectThreads) step(i);
  });
}

// The keys that a CTA holds, of `count` positions from `first` on.
struct SelectKeys {
  uint32_t* keys;
  bool spaced;  // see select_smem_bytes()
  uint32_t first;
  uint32_t count;
  uint32_t sinks;   // positions below this one are forced
  uint32_t newest;  // and those from this one on

  __forceinline__ uint32_t& at(uint32_t i) const { return keys[spaced ? i + i / 32 : i]; }
  __forceinline__ uint32_t put(uint32_t i, float score) const {
    const uint32_t position = first + i;
    const bool forced = position < sinks || position >= newest;
    const uint32_t key = forced ? abi::kForcedKey : abi::score_key(score, float_as_bits(score));
    at(i) = key;
    return key;
  }
  // Orders as keys do and, among equal ones, the earlier position before the later.
  __forceinline__ uint64_t word(uint32_t i) const { return static_cast<uint64_t>(at(i)) << 16 | (0xffffu - first - i); }
};

// Of the keys of units that are neither forced nor worth nothing.
struct SelectExtremes {
  uint32_t greatest;
  uint32_t not_least;  // ~ of the least

  __forceinline__ void add(uint32_t key) {
    if (key == abi::kForcedKey || key <= abi::kWorstKey) return;
    greatest = key > greatest ? key : greatest;
    not_least = ~key > not_least ? ~key : not_least;
  }
};

struct alignas(16) SelectRange {
  uint64_t greatest;
  uint64_t not_least;  // ~ of the least
};

// Where the last wanted unit is: among `count` of bin `bin`, of which `need` are wanted.
struct SelectSearch {
  uint32_t bin;
  uint32_t need;
  uint32_t count;
  uint32_t slot;  // those of the CTAs before this one
  uint64_t low;   // words of bin `bin` that are in question
  uint64_t high;
};

// Ranks of the list that a CTA writes.
struct SelectPart {
  uint32_t begin;
  uint32_t count;
};

struct alignas(16) SelectCounts {
  uint32_t pairs[4];  // of 8 bins, 16 bits each
};

struct SelectChoiceShared {
  SelectCounts parts[abi::kMostSelectSplits][kSelectBins / 8];  // by CTA
  SelectRange ranges[abi::kMostSelectSplits];                   // by CTA
  uint64_t border[2][kSelectBorder];                            // words, in any order
  uint32_t sure[2][abi::kMostSelectSplits];                     // by CTA: units in better bins
  uint32_t bins[abi::kSelectThreads];                           // of this CTA
  uint32_t totals[abi::kSelectThreads];                         // of all
  uint32_t before[abi::kSelectThreads];
  uint32_t warp_sums[32];
  uint64_t arrived[kSelectMessages];  // device: mbarriers
  SelectRange range;                  // of this CTA
  SelectExtremes extremes;            // of this CTA
  uint32_t num_sure[2];
  uint32_t better[2 * kSelectBorder];  // words of the border than each
  uint32_t num_border[2];
  uint32_t offset[2];  // chosen by the CTAs before this one
  uint64_t limit[2];   // the last chosen word
  SelectSearch search[2];
};

template <typename Cta>
class SelectChoice {
 public:
  __forceinline__ SelectChoice(Cta& cta, SelectChoiceShared& shared, const SelectKeys& keys)
      : cta_(cta), s_(shared), keys_(keys) {}

  // A step of every thread, before anything else.
  static __forceinline__ void reset(SelectChoiceShared& s, uint32_t thread) {
    s.bins[thread] = s.better[thread] = 0;
    if (thread != 0) return;
    s.extremes = {0, 0};
    for (uint32_t k = 0; k < 2; ++k) s.num_sure[k] = s.num_border[k] = s.offset[k] = 0;
  }

  // emit(k, begin, nth, position) for the best wanted[k] units of all that this CTA holds, k < num, where forced ones
  // are the best. The CTA's are ranks begin + nth of all, by position. wanted[k] is at least 1 and at most the units
  // that there are. Returns the ranks of k = 0.
  template <typename Emit>
  __forceinline__ SelectPart take(uint32_t num, const uint32_t (&wanted)[2], const Emit& emit) {
    spread();
    each(cta_, keys_.count, [&](uint32_t i) { add_one(&s_.bins[bin_of(keys_.at(i))]); });
    sum_bins();
    each(cta_, num * kSelectBins, [&](uint32_t i) {
      const uint32_t k = i / kSelectBins;
      const uint32_t bin = i % kSelectBins;
      if (!locate(k, bin, k == 0 ? wanted[0] : wanted[1])) return;
      s_.search[k].bin = bin;
      s_.search[k].low = 0;
      s_.search[k].high = ~uint64_t{0};
    });
#pragma unroll 1
    for (uint32_t k = 0; k < num; ++k) {
#pragma unroll 1
      while (s_.search[k].count > kSelectBorder) narrow(k);
    }
    share_borders(num);
    find_limits(num);
    return walk(num, emit);
  }

 private:
  // Bins of the first round: of equal width from the greatest score to the least. Any scores are right, as a better one
  // never falls into a worse bin; without a range, and below the least, all are in the last bin.
  __forceinline__ uint32_t bin_of(uint32_t key) const {
    constexpr float kLast = kSelectBins - 1;
    const float distance =
        key == abi::kForcedKey ? 0.0f : (greatest_ - bits_as_float(abi::score_bits(key))) * bins_per_score_;
    return distance < kLast ? static_cast<uint32_t>(distance) : kSelectBins - 1;
  }

  // What all CTAs' `mine` span.
  __forceinline__ SelectRange agree(const SelectRange& mine) {
    cta_.each_thread_alone([&](uint32_t thread) {
      if (thread < cta_.ranks()) cta_.template send<kRangeMessage>(thread, s_.ranges[cta_.rank()], mine);
    });
    cta_.template receive<kRangeMessage>(cta_.ranks() * sizeof(SelectRange));
    SelectRange all{0, 0};
#pragma unroll 1
    for (uint32_t j = 0; j < cta_.ranks(); ++j) {
      const SelectRange one = s_.ranges[j];
      all.greatest = one.greatest > all.greatest ? one.greatest : all.greatest;
      all.not_least = one.not_least > all.not_least ? one.not_least : all.not_least;
    }
    return all;
  }

  __forceinline__ void spread() {
    const SelectRange all = agree({s_.extremes.greatest, s_.extremes.not_least});
    greatest_ = bits_as_float(abi::score_bits(static_cast<uint32_t>(all.greatest)));
    const float least = bits_as_float(abi::score_bits(~static_cast<uint32_t>(all.not_least)));
    bins_per_score_ = static_cast<float>(kSelectBins - 1) / (greatest_ - least);
  }

  // Totals become the bins of all CTAs. Not in place: what arrived says nothing of threads that send bins elsewhere.
  __forceinline__ void sum_bins() {
    constexpr uint32_t kParts = kSelectBins / 8;
    cta_.each_thread_alone([&](uint32_t thread) {
      const uint32_t part = thread % kParts;
      SelectCounts counts;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        counts.pairs[j] = s_.bins[8 * part + 2 * j] | s_.bins[8 * part + 2 * j + 1] << 16;
      }
#pragma unroll 1
      for (uint32_t to = thread / kParts; to < cta_.ranks(); to += abi::kSelectThreads / kParts) {
        cta_.template send<kCountsMessage>(to, s_.parts[cta_.rank()][part], counts);
      }
    });
    cta_.template receive<kCountsMessage>(cta_.ranks() * sizeof s_.parts[0]);
    each(cta_, kSelectBins / 2, [&](uint32_t pair) {
      uint32_t sums = 0;  // of all: at most kMostSelectUnits in each half
#pragma unroll 8
      for (uint32_t j = 0; j < cta_.ranks(); ++j) sums += s_.parts[j][pair / 4].pairs[pair % 4];
      s_.totals[2 * pair] = sums & 0xffffu;
      s_.totals[2 * pair + 1] = sums >> 16;
    });
    cta_.exclusive_sums(s_.totals, s_.before, s_.warp_sums);
  }

  // Whether the need-th best unit is in this bin; then the search goes on there.
  __forceinline__ bool locate(uint32_t k, uint32_t bin, uint32_t need) {
    if (s_.before[bin] >= need || need > s_.before[bin] + s_.totals[bin]) return false;
    SelectSearch& search = s_.search[k];
    search.need = need - s_.before[bin];
    search.count = s_.totals[bin];
    search.slot = 0;
#pragma unroll 1
    for (uint32_t j = 0; j < cta_.rank(); ++j) {
      search.slot += s_.parts[j][bin / 8].pairs[bin % 8 / 2] >> bin % 2 * 16 & 0xffffu;
    }
    return true;
  }

  // Bins of equal width, in words, over those in question.
  __forceinline__ void narrow(uint32_t k) {
    const SelectSearch search = s_.search[k];
    const auto for_questions = [&](const auto& visit) {
      each(cta_, keys_.count, [&](uint32_t i) {
        const uint64_t word = keys_.word(i);
        if (word >= search.low && word <= search.high && bin_of(keys_.at(i)) == search.bin) visit(word);
      });
    };
    each(cta_, kSelectBins, [&](uint32_t bin) {
      s_.bins[bin] = 0;
      if (bin == 0) s_.range = {0, 0};
    });
    for_questions([&](uint64_t word) {
      keep_maximum(&s_.range.greatest, word);
      keep_maximum(&s_.range.not_least, ~word);
    });
    const SelectRange all = agree(s_.range);
    uint32_t shift = 0;
#pragma unroll 1
    while ((all.greatest - ~all.not_least) >> shift >= kSelectBins) ++shift;
    for_questions([&](uint64_t word) { add_one(&s_.bins[(all.greatest - word) >> shift]); });
    sum_bins();
    each(cta_, kSelectBins, [&](uint32_t bin) {
      if (!locate(k, bin, search.need)) return;
      const uint64_t high = all.greatest - (static_cast<uint64_t>(bin) << shift);
      const uint64_t width = uint64_t{1} << shift;
      s_.search[k].high = high;
      s_.search[k].low = high >= width ? high - width + 1 : 0;
    });
  }

  // Sends a word of the last unit's bin to all if it is in question; returns 1 if it is better.
  __forceinline__ uint32_t share_border(uint32_t k, uint64_t word) {
    const SelectSearch& search = s_.search[k];
    if (word > search.high) return 1;
    if (word < search.low) return 0;
    const uint32_t slot = search.slot + add_to(&s_.num_border[k], 1);
#pragma unroll 1
    for (uint32_t j = 0; j < cta_.ranks(); ++j) cta_.template send<kBorderMessage>(j, s_.border[k][slot], word);
    return 0;
  }

  // Every CTA learns all words in question, and how many better ones each CTA has.
  __forceinline__ void share_borders(uint32_t num) {
    cta_.each_thread([&](uint32_t thread) {
      uint32_t sure[2] = {0, 0};
      const int32_t last[2] = {static_cast<int32_t>(s_.search[0].bin),
                               num == 1 ? -1 : static_cast<int32_t>(s_.search[1].bin)};
#pragma unroll 1
      for (uint32_t i = thread; i < keys_.count; i += abi::kSelectThreads) {
        const auto bin = static_cast<int32_t>(bin_of(keys_.at(i)));
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          if (bin == last[k]) {
            sure[k] += share_border(k, keys_.word(i));
          } else if (bin < last[k]) {
            ++sure[k];
          }
        }
      }
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) warp_add(&s_.num_sure[k], sure[k]);
    });
    uint32_t bytes = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < num; ++k) {
      cta_.each_thread_alone([&](uint32_t thread) {
        if (thread < cta_.ranks()) cta_.template send<kBorderMessage>(thread, s_.sure[k][cta_.rank()], s_.num_sure[k]);
      });
      bytes += s_.search[k].count * sizeof s_.border[0][0] + cta_.ranks() * sizeof s_.sure[0][0];
    }
    cta_.template receive<kBorderMessage>(bytes);
  }

  // limit, and offset: what the CTAs before this one take.
  __forceinline__ void find_limits(uint32_t num) {
    const uint32_t first = s_.search[0].count;
    const uint32_t count = num == 1 ? first : first + s_.search[1].count;
    // Several threads count what is better than a word.
    constexpr uint32_t kEach = 8;
    each(cta_, count * kEach, [&](uint32_t at) {
      const uint32_t i = at / kEach;
      const uint32_t k = i < first ? 0 : 1;
      const uint64_t word = s_.border[k][i - k * first];
      uint32_t better = 0;
#pragma unroll 4
      for (uint32_t j = at % kEach; j < s_.search[k].count; j += kEach) better += s_.border[k][j] > word ? 1 : 0;
      add_to(&s_.better[i], better);
    });
    each(cta_, count, [&](uint32_t i) {
      const uint32_t k = i < first ? 0 : 1;
      const uint64_t word = s_.border[k][i - k * first];
      const uint32_t better = s_.better[i];
      if (better + 1 == s_.search[k].need) s_.limit[k] = word;
      const bool before = 0xffffu - static_cast<uint32_t>(word & 0xffffu) < keys_.first;
      if (better < s_.search[k].need && before) add_one(&s_.offset[k]);
    });
    cta_.each_thread([&](uint32_t thread) {
      for (uint32_t k = 0; k < num; ++k) {
        if (thread < cta_.rank()) add_to(&s_.offset[k], s_.sure[k][thread]);
      }
    });
  }

  // A thread counts what is taken of its run of positions, and places it after what the threads before it take.
  template <typename Emit>
  __forceinline__ SelectPart walk(uint32_t num, const Emit& emit) {
    const uint32_t run = (keys_.count + abi::kSelectThreads - 1) / abi::kSelectThreads;
    const uint64_t limits[2] = {s_.limit[0], num == 1 ? ~uint64_t{0} : s_.limit[1]};
    const auto visit = [&](uint32_t thread, const auto& taken) {
      const uint32_t end = (thread + 1) * run < keys_.count ? (thread + 1) * run : keys_.count;
#pragma unroll 1
      for (uint32_t i = thread * run; i < end; ++i) {
        const uint64_t word = keys_.word(i);
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          if (word >= limits[k]) taken(k, i);
        }
      }
    };
    // Two counts in a word; neither reaches 2^16.
    cta_.each_thread([&](uint32_t thread) {
      uint32_t counts = 0;
      visit(thread, [&](uint32_t k, uint32_t) { counts += 1u << 16 * k; });
      s_.bins[thread] = counts;
    });
    cta_.exclusive_sums(s_.bins, s_.before, s_.warp_sums);
    cta_.each_thread([&](uint32_t thread) {
      uint32_t nth[2] = {s_.before[thread] & 0xffffu, s_.before[thread] >> 16};
      visit(thread, [&](uint32_t k, uint32_t i) { emit(k, s_.offset[k], nth[k]++, keys_.first + i); });
    });
    constexpr uint32_t kLast = abi::kSelectThreads - 1;
    return {s_.offset[0], (s_.before[kLast] + s_.bins[kLast]) & 0xffffu};
  }

  Cta& cta_;
  SelectChoiceShared& s_;
  const SelectKeys& keys_;
  float greatest_ = 0.0f;
  float bins_per_score_ = 0.0f;
};

}  // namespace fovea::kernels
