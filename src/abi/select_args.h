// The arguments of the kernels that write and read key codes (kernels/cache/codes.cuh, kernels/cache/select.cuh), and
// the rules both sides of a selection follow: what a step scores, which units are forced, how codes and weights are
// made. They are those of core/select and cpu/select, so that lists agree. Filled by src/select. Compiles under g++ and
// NVRTC.
#pragma once

#include "abi/append_args.h"
#include "abi/page_stats.h"

namespace fovea::abi {

inline constexpr uint32_t kSelectThreads = 512;      // a CTA
inline constexpr uint32_t kMostSelectSplits = 8;     // CTAs a list: a cluster
inline constexpr uint32_t kSelectStageUnits = 8;     // of a warp, on their way together
inline constexpr uint32_t kSelectStages = 2;         // of a warp
inline constexpr uint32_t kSelectGroup = 8;          // query heads a KV head, at most
inline constexpr uint32_t kMostSelectUnits = 65535;  // of a request: a million tokens
inline constexpr uint32_t kLeastSelectTokens = 256;  // of a budget; more than sinks and newest tokens
inline constexpr uint32_t kCodeRecordBytes = kCodeChannels / 2 * kSubPageTokens;

// Where in a record codes 2j and 2j + 1 of token t stand, j = `byte`: a token's 16 bytes together, so that they are
// operands of tensor cores as they come. (Records of the CPU: byte j of all tokens together.)
constexpr uint32_t code_place(uint32_t byte, uint32_t token) { return token * (kCodeChannels / 2) + byte; }

// Codes of new keys, as they stand in `rows.k` after RoPE, into the records of their sub-pages. rows.pool gives pages
// alone: page_stride is page_tokens and token_stride 1. Other tokens of a sub-page are left as they are, also those
// that were never written: a unit that is not full is always in the list, whatever its score.
struct CodesArgs {
  AppendArgs rows;
  PageStatsView stats;  // kCodes
};
inline constexpr uint32_t kCodesThreads = 128;  // a CTA; a thread writes one byte, two codes
constexpr uint32_t codes_ctas(const CodesArgs& args) {
  return (args.rows.rows * args.rows.num_kv_heads * (kCodeChannels / 2) + kCodesThreads - 1) / kCodesThreads;
}

// What is remembered of a list's last full scan.
struct SelectState {
  uint32_t num_candidates;
  uint32_t scanned_tokens;  // seen then; 0: there was none
};

// A query of an engine's forward, which says all that differs between queries: several may be of one request.
struct SelectRow {
  int32_t tokens;       // that it sees; 0: an empty list
  uint32_t q_row;       // its row of q
  uint32_t table;       // entry of page_entries at which its request's pages begin
  uint32_t budget;      // units of its list, at most
  uint32_t candidates;  // units that its full scan keeps, at most SelectArgs::num_candidates
  // Memories [.., num_heads] of candidates and states: the scan whose candidates it scores, or kNone: it scans; and
  // where its own scan is kept, or kNone. Nobody reads in a launch what is written in it.
  uint32_t reads;
  uint32_t writes;
  uint32_t reserved;
};
static_assert(sizeof(SelectRow) == 32);

// One list a (request, KV head), number request * num_heads + head below. Everything but q and kv_lens stays where it
// is for the life of a graph. A unit is a sub-page of kSubPageTokens.
struct SelectArgs {
  const void* q;  // [requests, num_heads * group, head_dim], rotated
  long long q_row_stride;
  long long q_head_stride;
  PageStatsView stats;          // kCodes; strides are multiples of 16 bytes, and at most 2^36 bytes
  const int32_t* page_entries;  // page j of request r: page_entries[r * page_stride + j]
  long long page_stride;
  const int32_t* kv_lens;  // [requests] tokens that the query sees; 0: an empty list
  const uint32_t* phases;  // [requests] or null: full scans where (tokens + phase) % interval is 0
  int32_t* lists;          // [requests * num_heads, list_stride] chosen units as page * subs_per_page + sub, ascending
  long long list_stride;   // at least budget_units
  long long list_row_stride;  // from one request's lists to the next's; 0: num_heads * list_stride
  int32_t* list_tokens;       // [requests] tokens in each list of a request; only the last unit may be short of tokens
  uint32_t* keys;             // [requests * num_heads, max_units], scratch; unused from sm_90 on
  int32_t* candidates;        // [requests * num_heads, num_candidates]; null where interval is 1
  SelectState* states;        // [requests * num_heads], zero: nothing is remembered; null where interval is 1
  const SelectRow* rows;      // [requests] or null: then kv_lens, page_stride, phases and budgets below are not read,
                              // list_tokens is not written, and memories are those that rows name
  float sm_scale;
  uint32_t requests;
  uint32_t num_heads;
  uint32_t group;
  uint32_t splits;          // CTAs a list, launched as a cluster: 1, 2, 4 or kMostSelectSplits
  uint32_t max_units;       // of a request
  uint32_t budget_units;    // of a list, at most
  uint32_t budget_divisor;  // not 0: tokens seen / budget_divisor, at least kLeastSelectTokens, instead
  uint32_t sink_tokens;
  uint32_t recent_tokens;
  uint32_t interval;        // steps from one full scan to the next
  uint32_t num_candidates;  // kept of a full scan; more than budget_units
  uint32_t cached_keys;     // that a CTA holds in shared memory; before sm_90 shares of more stand in `keys`
  uint32_t cached_entries;  // units whose places it holds; for shares of more they are looked up again
};

// Positions of a list that one of its CTAs scores; the last CTAs may have fewer, or none. splits: a power of two.
constexpr uint32_t select_share(uint32_t count, uint32_t splits) {
  for (; splits > 1; splits /= 2) count = (count + 1) / 2;
  return (count + kSelectStageUnits - 1) / kSelectStageUnits * kSelectStageUnits;
}

// Dynamic shared memory: codes on their way, keys, entries of units. 16 bytes are left free after every record, so that
// the same token of eight units, and a word after every 32 keys, so that runs of keys, are in different banks.
inline constexpr uint32_t kSelectRecordRoom = kCodeRecordBytes + 16;
inline constexpr uint32_t kSelectRingBytes =
    kSelectThreads / 32 * kSelectStages * kSelectStageUnits * kSelectRecordRoom;
constexpr uint32_t select_key_words(uint32_t cached_keys) { return cached_keys + cached_keys / 32 + 1; }
constexpr uint32_t select_smem_bytes(uint32_t cached_keys, uint32_t cached_entries) {
  return kSelectRingBytes + (select_key_words(cached_keys) + cached_entries) * 4;
}

constexpr uint32_t select_ctas(const SelectArgs& args) { return args.requests * args.num_heads * args.splits; }

// What a step scores: candidates [0, num_old) of the last full scan, then units from first_new on. Position p of it is
// unit_at(p).
struct SelectSpan {
  uint32_t units;  // that the query sees
  uint32_t num_old;
  uint32_t first_new;
  bool all;   // under budget: every unit is chosen, nothing scored or remembered
  bool scan;  // a full scan
};
constexpr uint32_t span_count(const SelectSpan& span) { return span.num_old + span.units - span.first_new; }

// Units of the list of a query that sees `tokens` tokens.
constexpr uint32_t budget_at(const SelectArgs& args, uint32_t tokens) {
  if (args.budget_divisor == 0) return args.budget_units;
  const uint32_t share = tokens / args.budget_divisor;
  const uint32_t units = (share > kLeastSelectTokens ? share : kLeastSelectTokens) / kSubPageTokens;
  return units < args.budget_units ? units : args.budget_units;
}

// What list `request` is asked for. Where all stand in arrays of their own, a request remembers by its number.
constexpr SelectRow select_row(const SelectArgs& args, uint32_t request) {
  if (args.rows != nullptr) return args.rows[request];
  const int32_t tokens = args.kv_lens[request];
  const uint32_t memory = args.interval > 1 ? request : kNone;
  return {tokens, request, 0, budget_at(args, tokens < 0 ? 0 : static_cast<uint32_t>(tokens)), args.num_candidates,
          memory, memory,  0};
}

constexpr uint32_t recent_unit(const SelectArgs& args, uint32_t tokens) {
  return (tokens > args.recent_tokens ? tokens - args.recent_tokens : 0) / kSubPageTokens;
}

// As select_work() and units_to_rescore() of core/select/reuse.h; a row of SelectArgs::rows has decided by itself.
// tokens: those of the row that the table has room for. state: of the memory that it reads.
constexpr SelectSpan select_span(const SelectArgs& args, const SelectRow& row, uint32_t tokens,
                                 const SelectState& state, uint32_t phase) {
  SelectSpan span{(tokens + kSubPageTokens - 1) / kSubPageTokens, 0, 0, false, true};
  span.all = span.units <= row.budget;
  if (span.all || row.reads == kNone) return span;
  bool rescores = state.scanned_tokens != 0 && tokens > state.scanned_tokens;
  if (args.rows == nullptr) {
    const uint32_t step = tokens + phase;
    const uint32_t in_interval = (args.interval & (args.interval - 1)) == 0 ? step & (args.interval - 1)  // far shorter
                                                                            : step % args.interval;
    rescores = rescores && tokens - state.scanned_tokens < args.interval && in_interval != 0;
  }
  if (!rescores) return span;
  // The unit that was written into when the scan was made may hold keys that it did not see. The candidates end with
  // the units that were forced then, without a gap, so those before first_new need no search.
  const uint32_t written = (state.scanned_tokens - 1) / kSubPageTokens;
  const uint32_t recent = recent_unit(args, tokens);
  span.scan = false;
  span.first_new = written < recent ? written : recent;
  span.num_old = state.num_candidates - (written + 1 - span.first_new);
  return span;
}

// Code of key element x: the nearest level of 0..15. per_step: 1 / step.
constexpr uint32_t key_code(float offset_in_steps) {
  return offset_in_steps > 0.0f ? static_cast<uint32_t>(offset_in_steps < 15.0f ? offset_in_steps : 15.0f) : 0;
}
constexpr float key_element(float x) { return x != x ? 0.0f : x < -65504.0f ? -65504.0f : x > 65504.0f ? 65504.0f : x; }

// x in [-127, 127], to the nearest, halves away from zero; NaN is 0.
constexpr int32_t nearest_weight(float x) {
  if (!(x > -128.0f && x < 128.0f)) return 0;
  const int32_t whole = static_cast<int32_t>(x);
  const float rest = x - static_cast<float>(whole);
  return rest >= 0.5f ? whole + 1 : rest <= -0.5f ? whole - 1 : whole;
}

// Bits that order as scores do; NaN is the worst, forced units are above all.
inline constexpr uint32_t kForcedKey = 0xffffffffu;
constexpr uint32_t score_key(float score, uint32_t bits) {
  if (score != score) bits = 0xff800000u;
  if (bits == 0x7f800000u) bits = 0x7f7fffffu;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

inline constexpr uint32_t kWorstKey = 0x007fffffu;  // of -inf
constexpr uint32_t score_bits(uint32_t key) { return (key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key; }

// Where weight of code `i` under query head `head` stands: bytes in the order in which tensor cores take them.
constexpr uint32_t weight_place(uint32_t head, uint32_t i) {
  return (i % 2 * kSelectGroup + head) * (kCodeChannels / 2) + i / 2;
}

}  // namespace fovea::abi
