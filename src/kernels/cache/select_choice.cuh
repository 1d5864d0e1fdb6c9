// The choice of fovea_select: the best of all units that the CTAs of a cluster scored, each CTA for those whose keys it
// holds. Included by select.cuh.
//
// While they score, CTAs count how many of their units fall into each of kSelectBins bins of equal width over a range
// that follows from the query alone (SelectBins). What they tell each other they send into each other's shared memory,
// where everyone waits for what all send: the counts, then the few units of the one bin that the last wanted unit is
// in, which every CTA ranks one against one. A bin with more than kSelectBorder units (equal scores, or far apart ones)
// is narrowed before, by the bits of keys. Few units (those that are rescored) are not worth two messages: everyone
// gets the keys of all while they are scored, and chooses alone.
#pragma once

#include "abi/select_args.h"
#include "kernels/plan/cta.cuh"
#include "kernels/ptx/instructions.cuh"

namespace fovea::kernels {

inline constexpr uint32_t kSelectBins = 512;
inline constexpr uint32_t kSelectBorder = 256;
static_assert(2 * kSelectBorder <= abi::kSelectThreads);
static_assert(kSelectBins == abi::kSelectThreads);

// What is sent, each kind with a count of arrived bytes of its own. A CTA sends one again only after everyone has had
// another or its answer, so that nothing is overwritten that is still read.
enum SelectMessage : uint32_t { kRangeMessage = 0, kCountsMessage = 1, kBorderMessage = 2, kKeysMessage = 3 };
inline constexpr uint32_t kSelectMessages = 4;

// As for_each(), for steps that run once and whose code has to be fetched: not unrolled.
template <typename Cta, typename Step>
__forceinline__ void each(const Cta& cta, uint32_t count, const Step& step) {
  cta.each_thread([&](uint32_t thread) {
#pragma unroll 1
    for (uint32_t i = thread; i < count; i += abi::kSelectThreads) step(i);
  });
}

// The keys that a CTA holds, of `held` positions from `start` on; of them it scores `count` from `first` on.
struct SelectKeys {
  uint32_t* keys;
  bool spaced;  // see select_key_words()
  bool shared;  // it holds those of all CTAs, and everyone does
  uint32_t start;
  uint32_t held;
  uint32_t first;
  uint32_t count;
  int32_t* entries;  // of lists, for what it scores; null: not kept
  uint32_t sinks;    // positions below this one are forced
  uint32_t newest;   // and those from this one on

  __forceinline__ uint32_t& at(uint32_t i) const { return keys[spaced ? i + i / 32 : i]; }
  __forceinline__ uint32_t key_of(uint32_t position, float score) const {
    const bool forced = position < sinks || position >= newest;
    return forced ? abi::kForcedKey : abi::score_key(score, float_as_bits(score));
  }
  // Orders as keys do and, among equal ones, the earlier position before the later; less than ~0.
  __forceinline__ uint64_t word(uint32_t i, uint32_t key) const {
    return static_cast<uint64_t>(key) << 32 | (kFirstPosition - start - i);
  }
  static __forceinline__ uint32_t position_of(uint64_t word) { return kFirstPosition - static_cast<uint32_t>(word); }

  static constexpr uint32_t kFirstPosition = 0xfffffffeu;
};

// Bins of equal width from the greatest score that codes allow down to that of a key in the middle of all levels, which
// the best of 16 keys hardly ever misses. Any scores are right, as a better one never falls into a worse bin; all below
// are in the last bin, all above in the first.
struct SelectBins {
  uint32_t* counts;
  float greatest;
  float per_score;

  // The bin of a key and, below the point, where in it.
  __forceinline__ float place_of(uint32_t key) const {
    constexpr float kLast = kSelectBins - 1;
    const float distance = (greatest - bits_as_float(abi::score_bits(key))) * per_score;
    const float place = distance < kLast ? distance : kLast;  // of NaN, too
    return key == abi::kForcedKey || place < 0.0f ? 0.0f : place;
  }
  __forceinline__ uint32_t of(uint32_t key) const { return static_cast<uint32_t>(place_of(key)); }
  __forceinline__ void add(uint32_t key) const { add_one(&counts[of(key)]); }
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

struct alignas(16) SelectCounts {
  uint32_t pairs[4];  // of 8 bins, 16 bits each
};

struct SelectChoiceShared {
  SelectCounts parts[abi::kMostSelectSplits][kSelectBins / 8];  // by CTA
  SelectRange ranges[abi::kMostSelectSplits];                   // by CTA
  uint64_t border[2][kSelectBorder];                            // words, in any order
  uint32_t bins[kSelectBins];                                   // of this CTA
  uint32_t warp_sums[32];
  uint64_t arrived[kSelectMessages];  // device: mbarriers
  SelectRange range;                  // of this CTA
  uint32_t num_border[2];
  uint32_t offset[2];  // chosen by the CTAs before this one
  uint32_t taken;      // of the positions that were walked over: two counts
  uint64_t limit[2];   // the last chosen word
  SelectSearch search[2];
};

template <typename Cta>
class SelectChoice {
 public:
  __forceinline__ SelectChoice(Cta& cta, SelectChoiceShared& shared, const SelectKeys& keys, const SelectBins& bins)
      : cta_(cta), s_(shared), keys_(keys), bins_(bins), alone_(keys.shared || cta.ranks() == 1) {}

  // A step of every thread, before anything else.
  static __forceinline__ void reset(SelectChoiceShared& s, uint32_t thread) {
    s.bins[thread] = 0;
    if (thread == 0) s.taken = 0;
    if (thread < 2) s.num_border[thread] = s.offset[thread] = 0;
  }

  // emit(k, rank, position) for the best wanted[k] units of all that this CTA scored, k < num, where forced ones are
  // the best; rank counts them by position, over all CTAs. s.bins holds counts of all keys. wanted[k] is at least 1 and
  // at most the units that there are.
  template <typename Emit>
  __forceinline__ void take(uint32_t num, const uint32_t (&wanted)[2], const Emit& emit) {
    search_bins([&](uint32_t bin, const auto& holds) {
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        if (k >= num || !holds(k, wanted[k])) continue;
        s_.search[k].bin = bin;
        s_.search[k].low = 0;
        s_.search[k].high = ~uint64_t{0};
      }
    });
#pragma unroll 1
    for (uint32_t k = 0; k < num; ++k) {
#pragma unroll 1
      while (s_.search[k].count > kSelectBorder) narrow(k);
    }
    share_borders(num);
    find_limits(num);
    walk(num, emit);
  }

 private:
  // What all CTAs' ranges span.
  __forceinline__ SelectRange agree() {
    if (alone_) return s_.range;
    cta_.each_thread_alone([&](uint32_t thread) {
      if (thread < cta_.ranks()) cta_.template send<kRangeMessage>(thread, s_.ranges[cta_.rank()], s_.range);
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

  __forceinline__ void share_counts() {
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
  }

  // Units in a bin of all CTAs and, in the upper half, of those before this one. Both stay below 2^16.
  __forceinline__ uint32_t count_in(uint32_t bin) const {
    if (alone_) return s_.bins[bin];
    uint32_t all = 0;  // of two bins
    uint32_t before = 0;
#pragma unroll
    for (uint32_t j = 0; j < abi::kMostSelectSplits; ++j) {
      const uint32_t pair = j < cta_.ranks() ? s_.parts[j][bin / 8].pairs[bin % 8 / 2] : 0;
      all += pair;
      before += j < cta_.rank() ? pair : 0;
    }
    const uint32_t shift = bin % 2 * 16;
    return (all >> shift & 0xffffu) | before >> shift << 16;
  }

  // found(bin, holds) for every bin of all CTAs together, where holds(k, need) tells whether the need-th best unit is
  // in it; if so, the search of k goes on there.
  template <typename Found>
  __forceinline__ void search_bins(const Found& found) {
    if (!alone_) share_counts();
    const auto count = [&](uint32_t bin, uint32_t&) { return count_in(bin); };
    cta_.scan(s_.warp_sums, count, [&](uint32_t bin, uint32_t before, uint32_t counts, uint32_t) {
      found(bin, [&](uint32_t k, uint32_t need) {
        const uint32_t better = before & 0xffffu;
        if (better >= need || need > better + (counts & 0xffffu)) return false;
        SelectSearch& search = s_.search[k];
        search.need = need - better;
        search.count = counts & 0xffffu;
        search.slot = counts >> 16;
        s_.offset[k] += before >> 16;
        return true;
      });
    });
  }

  // Bins of equal width, in words, over those in question.
  __forceinline__ void narrow(uint32_t k) {
    const SelectSearch search = s_.search[k];
    const auto for_questions = [&](const auto& visit) {
      each(cta_, keys_.held, [&](uint32_t i) {
        const uint32_t key = keys_.at(i);
        const uint64_t word = keys_.word(i, key);
        if (word >= search.low && word <= search.high && bins_.of(key) == search.bin) visit(word);
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
    const SelectRange all = agree();
    uint32_t shift = 0;
#pragma unroll 1
    while ((all.greatest - ~all.not_least) >> shift >= kSelectBins) ++shift;
    for_questions([&](uint64_t word) { add_one(&s_.bins[(all.greatest - word) >> shift]); });
    search_bins([&](uint32_t bin, const auto& holds) {
      if (!holds(k, search.need)) return;
      const uint64_t high = all.greatest - (static_cast<uint64_t>(bin) << shift);
      const uint64_t width = uint64_t{1} << shift;
      s_.search[k].high = high;
      s_.search[k].low = high >= width ? high - width + 1 : 0;
    });
  }

  // A word of a last unit's bin, to everyone if it is in question.
  __forceinline__ void share_border(uint32_t k, uint64_t word) {
    const SelectSearch& search = s_.search[k];
    if (word > search.high || word < search.low) return;
    const uint32_t slot = search.slot + add_to(&s_.num_border[k], 1);
    if (alone_) {
      s_.border[k][slot] = word;
      return;
    }
#pragma unroll 1
    for (uint32_t j = 0; j < cta_.ranks(); ++j) cta_.template send<kBorderMessage>(j, s_.border[k][slot], word);
  }

  // Every CTA learns all words in question. A thread first marks what may be of them, then looks closer.
  __forceinline__ void share_borders(uint32_t num) {
    constexpr uint32_t kMost = 16;  // keys of a thread at a time
    const uint32_t count = s_.search[0].count + (num == 1 ? 0 : s_.search[1].count);
    const float bins[2] = {static_cast<float>(s_.search[0].bin),
                           num == 1 ? static_cast<float>(kSelectBins) : static_cast<float>(s_.search[1].bin)};
    cta_.each_thread_alone([&](uint32_t thread) {
#pragma unroll 1
      for (uint32_t begin = thread; begin < keys_.held; begin += kMost * abi::kSelectThreads) {
        uint32_t marks = 0;
#pragma unroll 4
        for (uint32_t n = 0; n < kMost; ++n) {
          const uint32_t i = begin + n * abi::kSelectThreads;
          if (i >= keys_.held) break;
          const float place = bins_.place_of(keys_.at(i));
          if (place >= bins[0] && place < bins[0] + 1.0f) marks |= 1u << n;
          if (place >= bins[1] && place < bins[1] + 1.0f) marks |= 0x10000u << n;
        }
#pragma unroll 1
        for (; marks != 0; marks &= marks - 1) {
          const uint32_t n = lowest_bit(marks);
          const uint32_t i = begin + n % kMost * abi::kSelectThreads;
          share_border(n / kMost, keys_.word(i, keys_.at(i)));
        }
      }
    });
    if (alone_) {
      cta_.each_thread([](uint32_t) {});
    } else {
      cta_.template receive<kBorderMessage>(count * static_cast<uint32_t>(sizeof s_.border[0][0]));
    }
  }

  // limit, and offset: what the CTAs before this one take.
  __forceinline__ void find_limits(uint32_t num) {
#pragma unroll 1
    for (uint32_t k = 0; k < num; ++k) {
      const uint32_t need = s_.search[k].need;
      cta_.rank_words(s_.border[k], s_.search[k].count, k, [&](uint64_t word, uint32_t better) {
        if (better + 1 == need) s_.limit[k] = word;
        if (better < need && SelectKeys::position_of(word) < keys_.start) add_one(&s_.offset[k]);
      });
    }
    cta_.each_thread([](uint32_t) {});
  }

  // A thread marks what is taken of its run of positions, and places it after what the threads before it take.
  template <typename Emit>
  __forceinline__ void walk(uint32_t num, const Emit& emit) {
    constexpr uint32_t kMost = 16;  // positions of a run
    const uint64_t limits[2] = {s_.limit[0], num == 1 ? ~uint64_t{0} : s_.limit[1]};
#pragma unroll 1
    for (uint32_t begin = 0; begin < keys_.held; begin += abi::kSelectThreads * kMost) {
      const uint32_t even = (keys_.held - begin + abi::kSelectThreads - 1) / abi::kSelectThreads;
      const uint32_t run = even < kMost ? even : kMost;
      const uint32_t taken = s_.taken;
      const auto mark = [&](uint32_t thread, uint32_t& marks) {
        const uint32_t first = begin + thread * run;
        const uint32_t left = first < keys_.held ? keys_.held - first : 0;
        marks = 0;
#pragma unroll 4
        for (uint32_t n = 0; n < (run < left ? run : left); ++n) {
          const uint64_t word = keys_.word(first + n, keys_.at(first + n));
          if (word >= limits[0]) marks |= 1u << n;
          if (word >= limits[1]) marks |= 0x10000u << n;
        }
        return count_bits(marks & 0xffffu) | count_bits(marks >> 16) << 16;  // neither sum reaches 2^16
      };
      cta_.scan(s_.warp_sums, mark, [&](uint32_t thread, uint32_t before, uint32_t counts, uint32_t marks) {
        before += taken;
        if (thread == abi::kSelectThreads - 1) s_.taken = before + counts;
        uint32_t ranks[2] = {s_.offset[0] + (before & 0xffffu), s_.offset[1] + (before >> 16)};
#pragma unroll 1
        for (; marks != 0; marks &= marks - 1) {
          const uint32_t n = lowest_bit(marks);
          const uint32_t k = n / kMost;
          const uint32_t position = keys_.start + begin + thread * run + n % kMost;
          if (position - keys_.first < keys_.count) emit(k, k == 0 ? ranks[0] : ranks[1], position);
          ranks[0] += 1 - k;
          ranks[1] += k;
        }
      });
    }
  }

  Cta& cta_;
  SelectChoiceShared& s_;
  const SelectKeys& keys_;
  const SelectBins& bins_;
  bool alone_;  // this CTA has all keys
};

}  // namespace fovea::kernels
