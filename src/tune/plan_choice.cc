// The rules, in the order in which they are asked; the measurements behind the figures are in docs/kernels/.
#include "tune/plan_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"

namespace fovea::tune {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// One request after the other costs a CTA what starts and ends an item, but its pairs come in whole; up to so many
// pairs that is less than what the other kernels lose (28 query heads of 4, 37 requests of 3,001 tokens, 148
// pairs: 56.5 us against 61.1, of fp8 33.4 against 41.9).
std::int64_t most_low_batch_pairs(const KernelMenu& menu) { return std::int64_t{menu.num_sms} * 5 / 3; }
bool low_batch_profitable(const KernelMenu& menu, const PlanFacts& facts) {
  return facts.pairs <= most_low_batch_pairs(menu);
}

// A request with much of the work is divided among many CTAs, whose parts meet last. Beside many others their pairs, a
// few us each, take longer (409 requests of 100 tokens beside a long one under 40 heads: 643 us against 293).
bool one_is_long(const KernelMenu& menu, const PlanFacts& facts) {
  return abi::kv_bits(menu.kv_dtype) == 16 && 3 * facts.longest_bytes > facts.kv_bytes &&
         facts.kv_bytes >= 256 * kMiB && facts.pairs <= 16 * std::int64_t{menu.num_sms};
}

// A warp each for whole pairs: no item waits for a CTA. Below so many pairs most of them are divided.
std::int64_t least_warps_pairs(const KernelMenu& menu) {
  return std::int64_t{menu.num_sms} / (menu.kv_dtype == abi::KvDType::kI4 ? 8 : 2);
}
// Pairs alike, of some length but not many, keep the CTAs of the general kernel as busy (32 requests of 2,048 tokens
// under 8 heads: 65.3 us against 67.1).
bool pairs_alike(const KernelMenu& menu, const PlanFacts& facts) {
  return abi::kv_bits(menu.kv_dtype) == 16 && menu.has(PlanKernel::kLowBatch) && facts.pairs < 512 &&
         facts.kv_bytes < 448 * kMiB && 4 * facts.kv_bytes >= facts.pairs * kMiB &&
         4 * facts.longest_bytes * facts.requests <= 5 * facts.kv_bytes;
}
bool warp_per_worker_profitable(const KernelMenu& menu, const PlanFacts& facts) {
  return facts.pairs >= least_warps_pairs(menu) && !one_is_long(menu, facts) && !pairs_alike(menu, facts);
}

// More rows than the kernels for decode take, in one or two tiles of 32. KV of 8 and 4 bits is converted once a team
// and slice, by the other kernels for every 16 rows (us, general kernel beside it: fp8, 28 rows, 116 requests of 495 76
// and 150, 33 of 34k 562 and 780; 60 rows, 815 of 704 535 and 548; but 28 rows, 27 of 27k 121 and 109; 8 rows of two
// tokens, 310 of 814 247 and 306). Few pairs are parts of many teams, which take longer to meet (fp8, 12 rows, one of
// 1M 162 and 119, 16 rows, 40 pairs 76 and 43; int4, 32 rows, 78 pairs 31 and 21; but 32 rows, 126 pairs 885 and 1,096;
// of up to 8 rows int4, 192 pairs 112 and 77), and so is a long one's beside some (16 rows, 162 pairs 85 and 47). Of
// 16-bit KV only many short requests (13 rows, 37 requests of 158 under 32 heads 54 and 100, of 6,814 under 8 242 and
// 238), but not of some tokens (15 rows, 792 requests of 13 under 32 heads 366 and 178).
bool warp_teams_profitable(const KernelMenu& menu, const PlanFacts& facts) {
  const std::int64_t sms = menu.num_sms;
  if (facts.most_rows > 64) return false;
  if (abi::kv_bits(menu.kv_dtype) == 16) {
    return facts.most_rows > 8 && facts.most_rows <= 16 && facts.pairs >= 4 * sms &&
           64 * facts.kv_bytes >= facts.pairs * kMiB;
  }
  if (facts.most_rows <= 8) return !facts.decode && facts.most_rows > 1 && facts.pairs >= 4 * sms;
  return 3 * facts.longest_bytes > facts.kv_bytes ? facts.pairs >= 2 * sms : 4 * facts.pairs >= 3 * sms;
}

// Up to a block of 16 rows the general kernel reads as fast as this one or faster, but at head dims whose stages are
// short (us, general and this: 12 rows, head dim 112, one request of 590k 131 and 95, 80 one of 471k 198 and 207; 16
// rows, 256, 32 of 48k 408 and 374, 64 247 of 8.6k 158 and 166; 32 rows, 112, 72 of 2k 132 and 85). KV of 8 and 4 bits
// is converted for a tile of rows as a whole: from 33 rows on, where teams of warps have two tiles (us beside the best
// of the others: fp8, 35 rows, 4 of 63k 219 and 369, 63 rows, 373 of 660 84 and 167, 64 rows, one of 1M 148 and 412;
// int8, 60 rows, 3 of 169k 110 and 184; but 28 rows, 4 of 163k 642 and 592), unless there is little to read, or most
// requests have few rows (a prompt beside 63 decodes 858 and 534, which was not understood). A few tokens of many
// requests of some length go to it as well, whose items the warpgroups take by turns (5 tokens, 192 requests of 705
// under 32 heads 353 and 631; 12 tokens, 16 of 768 46 and 94; 8, 68 that see 136 28 and 36; 10 rows, 265 of 115 72 and
// 81).
bool prefill_profitable(const KernelMenu& menu, const PlanFacts& facts) {
  const int bits = abi::kv_bits(menu.kv_dtype);
  if (bits < 16) {
    if (facts.most_rows <= 32) return false;
    // What a byte would be multiplied with if every request had as many rows, up to a tile's.
    const std::int64_t of_byte = std::min<std::int64_t>(facts.most_rows, 128) * 16 / bits;
    return facts.flops >= 256 * facts.kv_bytes ||
           (facts.kv_bytes >= 16 * kMiB && 5 * facts.flops >= 2 * of_byte * facts.kv_bytes);
  }
  const bool short_drafts = facts.most_q > 1 && facts.most_rows <= (menu.head_dim % 64 == 0 ? 16 : 8) &&
                            facts.pairs >= 3 * std::int64_t{menu.num_sms} && 2 * facts.kv_bytes < facts.pairs * kMiB &&
                            32 * facts.kv_bytes >= facts.pairs * kMiB;
  return short_drafts || facts.most_rows > (menu.head_dim == 112 || menu.head_dim > 128 ? 8 : 16);
}

// Whether reading common runs once is faster than each request by itself, by how long both take on one H200 in us; MB a
// us is TB/s. Fitted to drawn cases of `fovea bench attention --suite sweep` and of suite cliffs, within a fifth where
// the two are close. Shared runs cost rounds of their own, and outside of their kernel merges row by row.
bool sharing_profitable(const KernelMenu& menu, const PlanFacts& facts) {
  const double all = static_cast<double>(facts.kv_bytes) / 1e6, read = static_cast<double>(*facts.shared_bytes) / 1e6;
  const bool wide = abi::kv_bits(menu.kv_dtype) == 16;
  const double tflop = facts.decode ? 0.0 : static_cast<double>(facts.flops) / 1e6;  // a us is so many TFLOP/s
  const double shared = menu.shared_kernel && facts.decode ? 32.0 + read / 3.9
                                                           : 25.0 + std::max(read / (wide ? 1.5 : 1.0), tflop / 190.0) +
                                                                 static_cast<double>(facts.rows) * 0.004;
  const bool teams = menu.has(PlanKernel::kWarpTeams) && warp_teams_profitable(menu, facts);
  const bool converts = !wide && menu.has(PlanKernel::kPrefill) && prefill_profitable(menu, facts);
  const double apart = 5.0 + (facts.decode ? all / 4.3
                              : converts   ? std::max(all / 1.8, tflop / 300.0)
                              : teams      ? all / 1.3
                                           : std::max(all, tflop / 95.0));
  return shared < apart;
}

bool can_run(PlanKernel kernel, const PlanFacts& facts) {
  if (kernel == PlanKernel::kGeneral || kernel == PlanKernel::kPrefill) return true;
  return !facts.bit_mask && (!facts.given || (facts.selected && kernel == PlanKernel::kLowBatch));
}

PlanChoice choose_apart(const KernelMenu& menu, const PlanFacts& facts) {
  const auto general = [](PlanReason reason) { return PlanChoice{PlanKernel::kGeneral, reason}; };
  if (menu.has(PlanKernel::kPrefill)) {
    // Every request by itself: what several read at once, L2 has.
    if (menu.asked == PlanKernel::kPrefill) return {PlanKernel::kPrefill, PlanReason::kAsked, false};
    if (!menu.asked.has_value() && prefill_profitable(menu, facts))
      return {PlanKernel::kPrefill, PlanReason::kLongQueries, false};
  }
  if (facts.bit_mask) return general(PlanReason::kBitMask);
  if (facts.given && !facts.selected) return general(PlanReason::kGivenRows);
  if (menu.asked.has_value()) {
    // warp_teams is warp_per_worker for more rows.
    const bool teams = *menu.asked == PlanKernel::kWarpPerWorker && facts.most_rows > 8;
    const PlanKernel asked = teams && menu.has(PlanKernel::kWarpTeams) ? PlanKernel::kWarpTeams : *menu.asked;
    if (menu.has(asked) && can_run(asked, facts)) return {asked, PlanReason::kAsked};
  }
  if (!facts.selected && menu.has(PlanKernel::kWarpTeams) && warp_teams_profitable(menu, facts))
    return {PlanKernel::kWarpTeams, PlanReason::kFewRows};
  if (!facts.decode) return general(PlanReason::kLongQueries);
  if (menu.has(PlanKernel::kLowBatch) && low_batch_profitable(menu, facts))
    return {PlanKernel::kLowBatch, PlanReason::kFewPairs};
  if (facts.selected) return general(PlanReason::kGivenRows);
  if (menu.has(PlanKernel::kWarpPerWorker)) {
    if (warp_per_worker_profitable(menu, facts)) return {PlanKernel::kWarpPerWorker, PlanReason::kManyPairs};
    return general(one_is_long(menu, facts) ? PlanReason::kOneLong : PlanReason::kBetween);
  }
  return general(menu.has(PlanKernel::kLowBatch) ? PlanReason::kBetween : PlanReason::kAlone);
}

Result<AttentionChoice> choose_kernel(PlanKernel kernel, const AttentionNeed& need) {
  switch (kernel) {
    case PlanKernel::kWarpPerWorker: return choose_warp_per_worker_attention(need);
    case PlanKernel::kWarpTeams: return choose_warp_per_worker_attention(need, true);
    case PlanKernel::kLowBatch: return choose_low_batch_attention(need);
    case PlanKernel::kPrefill: return choose_prefill_attention(need);
    case PlanKernel::kGeneral: break;
  }
  return choose_attention(need);
}

std::string bytes_text(std::int64_t bytes) {
  return bytes >= kMiB << 10 ? fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30))
                             : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB);
}

}  // namespace

std::string_view kernel_name(PlanKernel kernel) {
  switch (kernel) {
    case PlanKernel::kGeneral: return "general";
    case PlanKernel::kWarpPerWorker: return "warp_per_worker";
    case PlanKernel::kLowBatch: return "low_batch";
    case PlanKernel::kPrefill: return "prefill";
    case PlanKernel::kWarpTeams: return "warp_teams";
  }
  return "?";
}

Result<KernelChoices> choose_kernels(const AttentionNeed& need) {
  FOVEA_ASSIGN_OR_RETURN(AttentionChoice general, choose_kernel(PlanKernel::kGeneral, need));
  KernelChoices choices;
  choices.menu.kv_dtype = need.kv_dtype;
  choices.menu.num_sms = need.num_sms;
  choices.menu.head_dim = need.head_dim;
  choices.menu.shared_kernel = !general.shared_header.empty();
  choices.kernels.emplace_back(PlanKernel::kGeneral, std::move(general));
  for (const PlanKernel kernel :
       {PlanKernel::kWarpPerWorker, PlanKernel::kWarpTeams, PlanKernel::kLowBatch, PlanKernel::kPrefill}) {
    Result<AttentionChoice> choice = choose_kernel(kernel, need);
    if (choice.ok()) {
      choices.kernels.emplace_back(kernel, *std::move(choice));
    } else {
      choices.menu.why_not(kernel) = choice.status().message();
    }
  }
  return choices;
}

bool is_profitable(PlanKernel kernel, const KernelMenu& menu, const PlanFacts& facts) {
  switch (kernel) {
    case PlanKernel::kGeneral: return true;
    case PlanKernel::kWarpPerWorker: return warp_per_worker_profitable(menu, facts);
    case PlanKernel::kLowBatch: return low_batch_profitable(menu, facts);
    case PlanKernel::kPrefill: return prefill_profitable(menu, facts);
    case PlanKernel::kWarpTeams: return warp_teams_profitable(menu, facts);
  }
  return false;
}

PlanChoice choose_plan_kernel(const KernelMenu& menu, const PlanFacts& facts) {
  if (facts.captured.has_value()) {
    if (!can_run(*facts.captured, facts)) return {*facts.captured, PlanReason::kCannotReplay};
    // The kernels for decode alone run no shared runs.
    return {*facts.captured, PlanReason::kCaptured, *facts.captured == PlanKernel::kGeneral};
  }
  if (facts.shared_bytes.has_value() && !facts.bit_mask) {
    // Who asks for a kernel leaves nothing to estimates.
    if (menu.asked.has_value() || sharing_profitable(menu, facts)) return {PlanKernel::kGeneral, PlanReason::kShares};
    PlanChoice apart = choose_apart(menu, facts);
    apart.share = false;
    return apart;
  }
  return choose_apart(menu, facts);
}

std::string describe(const KernelMenu& menu, const PlanFacts& facts, const PlanChoice& choice) {
  const std::string pairs =
      fmt::format("decode of {} (request, KV head) pairs over {}", facts.pairs, bytes_text(facts.kv_bytes));
  const auto why = [&]() -> std::string {
    switch (choice.reason) {
      case PlanReason::kCaptured: return "a graph captured it, and replays it";
      case PlanReason::kCannotReplay: return "a graph captured it, and it cannot run this plan";
      case PlanReason::kAsked: return "decode_kernel asks for it";
      case PlanReason::kShares:
        return fmt::format("requests share runs, {} are read instead of {}{}", bytes_text(*facts.shared_bytes),
                           bytes_text(facts.kv_bytes),
                           menu.shared_kernel ? ", by the kernel for shared runs" : "; no kernel of its own for that");
      case PlanReason::kGivenRows:
        return facts.selected ? "block rows of one query token each; of the decode kernels low_batch alone runs them, "
                                "for few pairs"
                              : "block rows as given, which no decode kernel runs";
      case PlanReason::kBitMask: return "a mask of bits, which no decode kernel tests";
      case PlanReason::kLongQueries:
        if (choice.kernel == PlanKernel::kPrefill) {
          return fmt::format("up to {} query tokens a request, {} rows under a KV head: wide tiles", facts.most_q,
                             facts.most_rows);
        }
        return fmt::format("up to {} query tokens a request, where {} one", facts.most_q,
                           prefill_profitable(menu, facts) ? "other kernels here take" : "those for decode take");
      case PlanReason::kFewPairs:
        return fmt::format("{}, at most {}: what happens once counts", pairs, most_low_batch_pairs(menu));
      case PlanReason::kFewRows:
        return fmt::format("up to {} rows of a request under a KV head, tiles of 32 by two warps each",
                           facts.most_rows);
      case PlanReason::kManyPairs: return pairs + ", enough for every warp to have work of its own";
      case PlanReason::kOneLong: return pairs + ", more than a third of them one request's";
      case PlanReason::kBetween:
        if (!menu.has(PlanKernel::kWarpPerWorker)) {
          return fmt::format("{}, more than {}; {}", pairs, most_low_batch_pairs(menu),
                             menu.why_not(PlanKernel::kWarpPerWorker));
        }
        if (pairs_alike(menu, facts)) return pairs + ", alike and of some length: CTAs are as busy as warps";
        return fmt::format("{}, below the {} from which warp_per_worker is faster", pairs, least_warps_pairs(menu));
      case PlanReason::kAlone:
        return menu.why_not(PlanKernel::kWarpPerWorker) +
               (menu.has(PlanKernel::kLowBatch) ? "" : "; " + menu.why_not(PlanKernel::kLowBatch));
    }
    return "?";
  }();
  const char* const apart =
      choice.share || !facts.shared_bytes.has_value() ? "" : " (common pages would save too little to be read once)";
  return fmt::format("{}: {}{}", kernel_name(choice.kernel), why, apart);
}

}  // namespace fovea::tune
