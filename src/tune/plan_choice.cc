// The rules, in the order in which they are asked; the measurements behind the figures are in docs/kernels/.
#include "tune/plan_choice.h"

#include <fmt/format.h>

namespace fovea::tune {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// With more pairs than SMs a CTA has several of them, one after the other, and what starts and ends an item shows.
bool few_pays(const KernelMenu& menu, const PlanFacts& facts) { return facts.pairs <= menu.num_sms; }

// Measured on bf16: 512 pairs need 256 MiB, 192 need 448. Fewer pairs, each divided among more warps, and shorter ones
// are as fast or faster undivided.
struct WarpsNeed {
  std::int64_t pairs, kv_bytes;
};
WarpsNeed warps_need(abi::KvDType kv_dtype, std::int64_t pairs) {
  const bool wide = abi::kv_bits(kv_dtype) == 16;
  const bool many = pairs >= 512;
  const std::int64_t least = wide && !many ? 448 : wide || kv_dtype == abi::KvDType::kI4 ? 256 : 512;
  return {wide ? 192 : 512, least * kMiB};
}

// A request with much of the work is divided among many CTAs, whose parts meet last.
bool one_is_long(const PlanFacts& facts) { return 3 * facts.longest_bytes > facts.kv_bytes; }

bool warps_pay(const KernelMenu& menu, const PlanFacts& facts) {
  const WarpsNeed need = warps_need(menu.kv_dtype, facts.pairs);
  return facts.pairs >= need.pairs && facts.kv_bytes >= need.kv_bytes && !one_is_long(facts);
}

// Reading runs once costs items and merges of its own: where it saves little, requests are faster apart.
bool sharing_pays(const PlanFacts& facts) { return 8 * (facts.kv_bytes - *facts.shared_bytes) >= facts.kv_bytes; }

PlanChoice choose_apart(const KernelMenu& menu, const PlanFacts& facts) {
  const auto general = [](PlanReason reason) { return PlanChoice{PlanKernel::kGeneral, reason}; };
  if (facts.bit_mask) return general(PlanReason::kBitMask);
  if (facts.given && !facts.selected) return general(PlanReason::kGivenRows);
  if (!facts.decode) return general(PlanReason::kLongQueries);
  if (menu.asked.has_value() && menu.has(*menu.asked) && (!facts.selected || *menu.asked != PlanKernel::kWarps)) {
    return {*menu.asked, PlanReason::kAsked};
  }
  if (menu.has(PlanKernel::kFew) && few_pays(menu, facts)) return {PlanKernel::kFew, PlanReason::kFewPairs};
  if (facts.selected) return general(PlanReason::kGivenRows);
  if (menu.has(PlanKernel::kWarps)) {
    if (warps_pay(menu, facts)) return {PlanKernel::kWarps, PlanReason::kManyPairs};
    return general(one_is_long(facts) ? PlanReason::kOneLong : PlanReason::kBetween);
  }
  return general(menu.has(PlanKernel::kFew) ? PlanReason::kBetween : PlanReason::kAlone);
}

bool can_run(PlanKernel kernel, const PlanFacts& facts) {
  if (kernel == PlanKernel::kGeneral) return true;
  return facts.decode && !facts.bit_mask && (!facts.given || (facts.selected && kernel == PlanKernel::kFew));
}

std::string bytes_text(std::int64_t bytes) {
  return bytes >= kMiB << 10 ? fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30))
                             : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB);
}

}  // namespace

std::string_view kernel_name(PlanKernel kernel) {
  switch (kernel) {
    case PlanKernel::kGeneral: return "general";
    case PlanKernel::kWarps: return "warps";
    case PlanKernel::kFew: return "few";
  }
  return "?";
}

KernelMenu kernel_menu(const AttentionNeed& need) {
  KernelMenu menu;
  menu.kv_dtype = need.kv_dtype;
  menu.num_sms = need.num_sms;
  if (const auto general = choose_attention(need); general.ok()) menu.shared_kernel = !general->shared_header.empty();
  if (const auto warps = choose_warp_attention(need); !warps.ok()) menu.no_warps = warps.status().message();
  if (const auto few = choose_few_attention(need); !few.ok()) menu.no_few = few.status().message();
  return menu;
}

bool kernel_pays(PlanKernel kernel, const KernelMenu& menu, const PlanFacts& facts) {
  switch (kernel) {
    case PlanKernel::kGeneral: return true;
    case PlanKernel::kWarps: return warps_pay(menu, facts);
    case PlanKernel::kFew: return few_pays(menu, facts);
  }
  return false;
}

PlanChoice choose_plan_kernel(const KernelMenu& menu, const PlanFacts& facts) {
  if (facts.recorded.has_value()) {
    if (!can_run(*facts.recorded, facts)) return {*facts.recorded, PlanReason::kCannotReplay};
    // The kernels for decode alone run no shared runs.
    return {*facts.recorded, PlanReason::kRecorded, *facts.recorded == PlanKernel::kGeneral};
  }
  if (facts.shared_bytes.has_value() && !facts.bit_mask) {
    if (sharing_pays(facts)) return {PlanKernel::kGeneral, PlanReason::kShares};
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
      case PlanReason::kRecorded: return "a graph recorded it, and replays it";
      case PlanReason::kCannotReplay: return "a graph recorded it, and it cannot run this plan";
      case PlanReason::kAsked: return "decode_kernel asks for it";
      case PlanReason::kShares:
        return fmt::format("requests share runs, {} are read instead of {}{}", bytes_text(*facts.shared_bytes),
                           bytes_text(facts.kv_bytes),
                           menu.shared_kernel ? ", by the kernel for shared runs" : "; no kernel of its own for that");
      case PlanReason::kGivenRows: return "block rows as given, which only it runs";
      case PlanReason::kBitMask: return "a mask of bits, which only it tests";
      case PlanReason::kLongQueries:
        return fmt::format("up to {} query tokens a request, where the others take one", facts.most_q);
      case PlanReason::kFewPairs:
        return fmt::format("{}, no more than the {} SMs: what happens once counts", pairs, menu.num_sms);
      case PlanReason::kManyPairs: return pairs + ", enough for every warp to have work of its own";
      case PlanReason::kOneLong: return pairs + ", more than a third of them one request's";
      case PlanReason::kBetween: {
        const WarpsNeed need = warps_need(menu.kv_dtype, facts.pairs);
        return pairs + (menu.no_warps.empty() ? fmt::format(", below the {} pairs and {} from where warps is faster",
                                                            need.pairs, bytes_text(need.kv_bytes))
                                              : fmt::format(", more than the {} SMs; {}", menu.num_sms, menu.no_warps));
      }
      case PlanReason::kAlone: return menu.no_warps + (menu.no_few.empty() ? "" : "; " + menu.no_few);
    }
    return "?";
  }();
  const char* const apart =
      choice.share || !facts.shared_bytes.has_value() ? "" : " (common pages would save too little to be read once)";
  return fmt::format("{}: {}{}", kernel_name(choice.kernel), why, apart);
}

}  // namespace fovea::tune
