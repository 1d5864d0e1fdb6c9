#include "tune/attention_choice.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/status.h"

namespace fovea::tune {
namespace {

struct Machine {
  bool hopper;              // sm_90a: TMA, register split
  std::int64_t smem_bytes;  // that a CTA may have
};

Result<Machine> machine_of(std::string_view arch) {
  int number = 0;
  if (arch.starts_with("sm_")) std::from_chars(arch.data() + 3, arch.data() + arch.size(), number);
  if (number < 80) return unsupported("attention kernels need sm_80 or later, not {}", arch);
  if (arch == "sm_90a") return Machine{true, 227 << 10};
  const bool small = number == 86 || number == 89 || number == 120 || number == 121;
  return Machine{false, (small ? 99 : 163) << 10};
}

bool is_integer(abi::KvDType dtype) { return dtype == abi::KvDType::kI8 || dtype == abi::KvDType::kI4; }

// A scale for each token and head is loaded beside K and V.
bool has_token_scales(const AttentionNeed& need) { return is_integer(need.kv_dtype) || need.token_scales; }

Status check(const AttentionNeed& need) {
  if (need.head_dim < 32 || need.head_dim > 256 || need.head_dim % 16 != 0) {
    return unsupported("head_dim {}, the kernels take multiples of 16 from 32 to 256", need.head_dim);
  }
  if (need.q_dtype != abi::KvDType::kF16 && need.q_dtype != abi::KvDType::kBF16) {
    return unsupported("queries of storage type {}, the kernels take f16 and bf16", static_cast<int>(need.q_dtype));
  }
  if (need.kv_dtype != abi::KvDType::kF16 && need.kv_dtype != abi::KvDType::kBF16 &&
      need.kv_dtype != abi::KvDType::kF8E4M3 && !is_integer(need.kv_dtype)) {
    return unsupported("KV of storage type {}, the kernels take f16, bf16, fp8_e4m3, int8 and int4",
                       static_cast<int>(need.kv_dtype));
  }
  if (need.transforms_kv && abi::kv_bits(need.kv_dtype) < 16) {
    return unsupported("key and value hooks over KV of {} bits: they work in place, on 16-bit KV",
                       abi::kv_bits(need.kv_dtype));
  }
  if (need.kv_dtype == abi::KvDType::kI4 && need.head_dim % 32 != 0) {
    return unsupported("head_dim {} with int4 KV, the kernels take multiples of 32", need.head_dim);
  }
  if (need.page_tokens < 1) return unsupported("pages of {} tokens", need.page_tokens);
  if (need.group < 1 || need.group > 128) {
    return unsupported("{} query heads a KV head, the kernels take 1 to 128", need.group);
  }
  return ok_status();
}

// Bytes of kernels/attention/general/shared.cuh's SharedMemory, at most: the kernel asserts it.
std::int64_t smem_bytes(const AttentionNeed& need, int consumer_warps, int stages, int stage_tokens) {
  const std::int64_t head_dim = need.head_dim;
  const std::int64_t kv = std::int64_t{2} * stages * stage_tokens * head_dim * abi::kv_bits(need.kv_dtype) / 8;
  const std::int64_t scales = has_token_scales(need) ? std::int64_t{8} * stages * stage_tokens : 32;
  const std::int64_t records = 16 * 240;
  const std::int64_t states = std::int64_t{2} * consumer_warps * 16 * 8;
  const std::int64_t targets = std::int64_t{consumer_warps} * 16 * 8;
  const std::int64_t part_weights = head_dim > 192 ? 256 * 4 : 576 * 4;
  const std::int64_t reduce = std::int64_t{4} * consumer_warps * (head_dim + 8) * 4;
  const std::int64_t queries =
      head_dim > 192 ? consumer_warps * (head_dim / 16 - 5) * 512 : 16;  // those not in registers
  const std::int64_t hook_rows = consumer_warps * head_dim * 4;
  const std::int64_t gathered_rows = 3 * 64 * 8;
  const std::int64_t barriers = std::int64_t{24} * stages + 16 * 16 + 256;
  return (kv + records + states + targets + part_weights + reduce + queries + hook_rows + gathered_rows + barriers +
          scales + 1023) /
         1024 * 1024;
}

// Those that compute, of every kernel: kernels/attention/config.cuh.
int consumer_warps_of(const Machine& machine, int head_dim) { return head_dim > (machine.hopper ? 128 : 80) ? 4 : 8; }

// Bytes of kernels/attention/warp_per_worker/memory.cuh's SharedMemory, at most: the kernel asserts it.
std::int64_t warp_smem_bytes(const AttentionNeed& need, int warps, int team_warps, int slots, int slices) {
  const std::int64_t ring = std::int64_t{2} * 16 * need.head_dim * abi::kv_bits(need.kv_dtype) / 8 * slots * slices;
  const std::int64_t scales = has_token_scales(need) ? std::int64_t{2} * 16 * 4 * slots * slices : 8;
  const std::int64_t records = 8 * 240;
  const std::int64_t queries = need.head_dim > 192 ? (need.head_dim / 16 - 5) * 512 : 0;
  const std::int64_t shared_part = team_warps * (std::int64_t{need.head_dim} / 16 * 512 + 32);  // of 8 rows, in floats
  const std::int64_t of_warp = queries + std::int64_t{need.head_dim} * 4 + 16;
  const std::int64_t of_team = (ring + 1023) / 1024 * 1024 + scales + records + slots * 8 + shared_part;
  return (warps * of_warp + warps / team_warps * of_team + 1024 + 1023) / 1024 * 1024;
}

// Bytes of kernels/attention/low_batch/finish.cuh's SharedMemory, at most: the kernel asserts it.
std::int64_t low_batch_smem_bytes(const AttentionNeed& need, int warps) {
  const std::int64_t outputs = std::int64_t{need.group} * (need.head_dim + 4) * 4;
  const std::int64_t states = 8 * 8;
  const std::int64_t record = 240;
  const std::int64_t parts = std::int64_t{16} * need.group * (need.head_dim + 1) * 4;
  return (warps * (outputs + states + record) + parts + 128 + 1023) / 1024 * 1024;
}

}  // namespace

Result<AttentionChoice> choose_attention(const AttentionNeed& need) {
  FOVEA_RETURN_IF_ERROR(check(need));
  FOVEA_ASSIGN_OR_RETURN(const Machine machine, machine_of(need.arch));
  AttentionChoice choice;
  choice.header = "kernels/attention/general/kernel.cuh";
  const int consumer_warps = consumer_warps_of(machine, need.head_dim);
  choice.threads = consumer_warps * 32 + 128;

  // Stages of up to 32 KiB, as many as fit: what keeps the memory busy is the bytes on their way.
  const int row_bytes = 2 * need.head_dim * abi::kv_bits(need.kv_dtype) / 8;
  // TMA where a box (a whole piece of a page; below 8 tokens it would start inside of a swizzle pattern) brings 4 KiB
  // at least: a box takes the loading warp about 60 clocks, whatever its size, and small ones cannot fill the memory's
  // rate.
  const int whole = need.page_tokens & -need.page_tokens;
  const int box_bytes = std::min(whole, 64) * row_bytes / 2;
  choice.tma = machine.hopper && !has_token_scales(need) && whole >= 8 && box_bytes >= 4096;
  if (machine.hopper && need.plain_logits && abi::kv_bits(need.kv_dtype) == 16 &&
      (need.head_dim == 64 || need.head_dim == 128) && (!choice.tma || whole >= 16)) {
    choice.shared_header = "kernels/attention/prefix_forest/kernel.cuh";
  }
  int stage_tokens = 64;
  int stages = 0;
  for (; stage_tokens >= 16; stage_tokens /= 2) {
    if (stage_tokens * row_bytes > 32 << 10) continue;
    stages = need.kv_dtype == abi::KvDType::kI4 ? 24 : 12;
    while (stages > 0 && smem_bytes(need, consumer_warps, stages, stage_tokens) > machine.smem_bytes) --stages;
    if (!choice.tma) stages = stages / 3 * 3;  // each of three gathering warps has stages of its own
    if (stages >= 3) break;
  }
  if (stages < 3) {
    return unsupported("head_dim {} needs more shared memory than {} has", need.head_dim, need.arch);
  }
  choice.box_tokens = choice.tma ? std::min(whole, stage_tokens) : stage_tokens;
  choice.smem_bytes = smem_bytes(need, consumer_warps, stages, stage_tokens);
  choice.programmatic_launch = machine.hopper;

  choice.num_workers = choice.ctas = need.num_sms;
  // Where requests share runs: those first, then the requests' own runs in three rounds
  // (docs/kernels/prefix-forest.md).
  choice.shared_rounds = 4;
  choice.shared_part_bytes = 256 << 10;
  // Where a row's bits may not depend on its tile, and where every slice must meet one warp only, tiles have one block
  // of 16 rows.
  const int most_rows = consumer_warps * 16;
  choice.tile_rows = need.batch_invariant || need.transforms_kv ? 16 : most_rows;
  if (need.group > choice.tile_rows) {  // a tile holds a query token at least
    if (need.transforms_kv || need.group > most_rows) {
      return unsupported("{} query heads a KV head, with head_dim {}{} the kernel takes up to {}", need.group,
                         need.head_dim, need.transforms_kv ? " and hooks on K and V" : "",
                         need.transforms_kv ? 16 : most_rows);
    }
    // One query token a tile, whoever shares the batch.
    while (choice.tile_rows < need.group) choice.tile_rows *= 2;
  }
  if (!choice.shared_header.empty() && need.group <= 64) choice.shared_tile_rows = std::min(choice.tile_rows, 64);
  choice.block_tokens = 64;
  choice.cost_item_bytes = 16 << 10;
  // 64 rows take 1.6 times as long as 16, 128 rows 2.8 times; with 64 here 16 query tokens among 255 decodes cost 676
  // us instead of 487. The kernel for shared runs multiplies by warpgroup.
  choice.cost_balance_rows = 32;
  if (!choice.shared_header.empty()) choice.shared_balance_rows = 64;
  choice.cost_divide_bytes = 128 << 10;
  choice.least_part_bytes = 56 << 10;
  choice.tuning = {{"FOVEA_STAGES", stages},
                   {"FOVEA_STAGE_TOKENS", stage_tokens},
                   {"FOVEA_SMEM_BYTES", static_cast<int>(choice.smem_bytes)}};
  if (need.batch_invariant) choice.tuning.emplace_back("FOVEA_INVARIANT", 1);
  return choice;
}

Result<AttentionChoice> choose_warp_per_worker_attention(const AttentionNeed& need, bool teams) {
  FOVEA_RETURN_IF_ERROR(check(need));
  FOVEA_ASSIGN_OR_RETURN(const Machine machine, machine_of(need.arch));
  const int team_warps = teams ? 2 : 1;
  const int rows = teams ? 32 : 8;
  const char* const name = teams ? "warp_teams" : "warp_per_worker";
  if (need.group > rows) {
    return unsupported("{} query heads a KV head, {} takes up to {}", need.group, name, rows);
  }
  if (teams && !machine.hopper) return unsupported("warp_teams is for sm_90a, not {}", need.arch);
  if (teams && need.head_dim > 128) {
    return unsupported("head_dim {}, warp_teams has registers for up to 128", need.head_dim);
  }
  if (need.batch_invariant || need.transforms_kv || need.checked) {
    return unsupported("{} has no chunks of fixed bounds, no key and value hooks and no checks", name);
  }
  AttentionChoice choice;
  choice.header = "kernels/attention/warp_per_worker/kernel.cuh";
  const bool int4 = need.kv_dtype == abi::KvDType::kI4;
  const int warps = consumer_warps_of(machine, need.head_dim);
  choice.threads = warps * 32;
  // A slice of 16 tokens by one box of K and one of V. Boxes may be small: every warp issues its own. Those of int4 are
  // too small: 16 rows cost TMA as much time as 16 rows twice as long.
  const bool whole_slices = need.page_tokens % 16 == 0;
  choice.tma = machine.hopper && whole_slices && !int4;
  choice.box_tokens = 16;
  // Slices that a warp takes together: two of int4, so that its instructions do not wait for each other, and of teams,
  // which wait for one another behind each slot.
  const std::int64_t slice_bytes = std::int64_t{2} * 16 * need.head_dim * abi::kv_bits(need.kv_dtype) / 8;
  const int slices = teams && choice.tma && slice_bytes < 4096 ? 4 : int4 || teams ? 2 : 1;
  int slots = int4 && !teams ? 3 : 6;
  while (slots > 0 && warp_smem_bytes(need, warps, team_warps, slots, slices) > machine.smem_bytes) --slots;
  if (slots < 1) return unsupported("head_dim {} needs more shared memory than {} has", need.head_dim, need.arch);
  choice.smem_bytes = warp_smem_bytes(need, warps, team_warps, slots, slices);
  choice.programmatic_launch = machine.hopper;
  // Numbers of pairs are powers of two as a rule, which then divide evenly; a few idle warps cost nothing, because the
  // memory is what all share.
  const int all = warps / team_warps * need.num_sms;
  choice.num_workers = 1;
  while (2 * choice.num_workers <= all) choice.num_workers *= 2;
  if (choice.num_workers * 20 < all * 19) choice.num_workers = all;
  choice.ctas = choice.num_workers * team_warps / warps;
  choice.tile_rows = teams ? rows : 16;
  choice.tile_tokens = teams ? 0 : 1;  // of several query tokens each reads the run again, out of the L2 as a rule
  choice.block_tokens = 16 * slices;
  choice.cost_item_bytes = 8 << 10;
  choice.cost_balance_rows = 64;
  choice.cost_divide_bytes = teams ? 32 << 10 : 16 << 10;
  choice.least_part_bytes = teams ? 64 << 10 : 32 << 10;
  // Stages are not used, but the headers that the kernels share count them.
  choice.tuning = {{"FOVEA_STAGES", 3},
                   {"FOVEA_STAGE_TOKENS", 16},
                   {"FOVEA_SLOTS", slots},
                   {"FOVEA_SLICES", slices},
                   {"FOVEA_ROW_BLOCKS", teams ? 2 : 1},
                   {"FOVEA_TEAM_WARPS", team_warps},
                   {"FOVEA_WHOLE_SLICES", whole_slices ? 1 : 0},
                   {"FOVEA_WARPS_SMEM_BYTES", static_cast<int>(choice.smem_bytes)}};
  return choice;
}

Result<AttentionChoice> choose_low_batch_attention(const AttentionNeed& need) {
  FOVEA_RETURN_IF_ERROR(check(need));
  FOVEA_ASSIGN_OR_RETURN(const Machine machine, machine_of(need.arch));
  if (need.group > 8) return unsupported("{} query heads a KV head, low_batch takes up to 8", need.group);
  const bool fp8 = need.kv_dtype == abi::KvDType::kF8E4M3 && !need.token_scales;
  if ((need.kv_dtype != need.q_dtype && !fp8) || (need.head_dim != 64 && need.head_dim != 128)) {
    return unsupported(
        "low_batch reads KV of the queries' type or fp8 without a scale a token, and head dims 64 and 128");
  }
  if (need.batch_invariant || need.transforms_kv || need.transforms_q || need.checked) {
    return unsupported("low_batch has no chunks of fixed bounds, no hooks on its inputs and no checks");
  }
  AttentionChoice choice;
  choice.header = "kernels/attention/low_batch/kernel.cuh";
  const int warps = need.head_dim > 64 ? 12 : 16;  // as many as the registers of an SM are enough for
  choice.threads = warps * 32;
  choice.box_tokens = 16;
  choice.smem_bytes = low_batch_smem_bytes(need, warps);
  choice.programmatic_launch = machine.hopper;
  choice.num_workers = choice.ctas = need.num_sms;
  choice.tile_rows = 16;
  choice.tile_tokens = 1;          // of several query tokens each reads the run again, out of the L2 as a rule
  const int slices = fp8 ? 2 : 1;  // as many bytes on their way
  choice.block_tokens = 16 * slices;
  choice.cost_item_bytes = 16 << 10;
  choice.cost_balance_rows = 64;
  choice.cost_divide_bytes = 128 << 10;
  choice.least_part_bytes = fp8 ? 28 << 10 : 56 << 10;
  // Stages are not used, but the headers that the kernels share count them.
  choice.tuning = {{"FOVEA_STAGES", 3},
                   {"FOVEA_STAGE_TOKENS", 16},
                   {"FOVEA_SLICES", slices},
                   {"FOVEA_ROW_BLOCKS", 1},
                   {"FOVEA_TEAM_WARPS", 1},
                   {"FOVEA_FEW_WARPS", warps},
                   {"FOVEA_FEW_ROWS", need.group},
                   {"FOVEA_FEW_SMEM_BYTES", static_cast<int>(choice.smem_bytes)}};
  return choice;
}

Result<AttentionChoice> choose_prefill_attention(const AttentionNeed& need) {
  FOVEA_RETURN_IF_ERROR(check(need));
  FOVEA_ASSIGN_OR_RETURN(const Machine machine, machine_of(need.arch));
  if (!machine.hopper) return unsupported("the prefill kernel is for sm_90a, not {}", need.arch);
  const int bits = abi::kv_bits(need.kv_dtype);
  const bool converts = bits < 16;  // to halves, by a warpgroup
  if (!converts && need.kv_dtype != need.q_dtype) {
    return unsupported("the prefill kernel reads KV of 16 bits in the queries' type");
  }
  // Values times scales are rounded once more than they were: less than bf16 outputs are, as much as those of fp16.
  if (has_token_scales(need) && need.q_dtype != abi::KvDType::kBF16) {
    return unsupported("the prefill kernel reads KV with a scale a token under bf16 queries, not under fp16");
  }
  constexpr int kHeadDims[] = {64, 80, 96, 112, 128, 192, 256};
  if (std::find(std::begin(kHeadDims), std::end(kHeadDims), need.head_dim) == std::end(kHeadDims)) {
    return unsupported("head_dim {}, the prefill kernel takes 64 to 128 in steps of 16, 192 and 256", need.head_dim);
  }
  if (need.transforms_kv || need.transforms_q || !need.hooks_logits_alone) {
    return unsupported("the prefill kernel has softmax, and no hooks but on logits");
  }
  if (need.batch_invariant || need.checked) {
    return unsupported("the prefill kernel has no chunks of fixed bounds and no checks");
  }
  if (need.group > 128) return unsupported("{} query heads a KV head, a tile has 128 rows", need.group);
  const int whole = need.page_tokens & -need.page_tokens;
  if (need.head_dim == 112 && whole < 8 && !converts) {
    return unsupported("head_dim 112 with pages of {} tokens, which the prefill kernel has no registers for",
                       need.page_tokens);
  }
  AttentionChoice choice;
  choice.header = "kernels/attention/prefill/kernel.cuh";
  choice.threads = converts ? 512 : 384;
  choice.tma = whole >= 8 && !converts;
  choice.box_tokens = choice.tma ? std::min(whole, 64) : 64;
  choice.box_panels = false;
  choice.row_boxes = need.head_dim % 64 != 0;
  // What converts takes registers from what computes.
  const bool narrow = converts && (need.head_dim > 64 || has_token_scales(need));
  const int tokens = (need.head_dim > 128 ? 64 : 128) / (narrow ? 2 : 1);
  const int query_slots = need.head_dim > (converts ? 128 : 192) ? 1 : 2;
  const std::int64_t row_bytes = std::int64_t{128} * ((need.head_dim + 63) / 64);
  // As kernels/attention/prefill/memory.cuh, which asserts it: tiles, records, what rows see, barriers, offsets of
  // rows; scales of queries, and tiles as they are stored, with their scales and barriers.
  const int kv_slots = converts ? 3 : 2;
  const std::int64_t fixed = row_bytes * (128 * query_slots + 2 * kv_slots * tokens) + 16 * 240 + 2592 * query_slots +
                             1024 + (choice.tma ? 0 : 16 * tokens) + (converts ? 1024 * query_slots + 2048 : 0) +
                             (has_token_scales(need) ? 64 * tokens : 0);
  const std::int64_t of_raw =
      2 * (std::int64_t{tokens} * need.head_dim * bits / 8 + (has_token_scales(need) ? 4 * tokens : 0) + 16);
  const int raw_slots =
      converts ? static_cast<int>(std::min<std::int64_t>(8, (machine.smem_bytes - fixed) / of_raw)) : 1;
  choice.smem_bytes = (fixed + (converts ? raw_slots * of_raw : 64) + 1023) / 1024 * 1024;
  choice.programmatic_launch = true;
  choice.num_workers = choice.ctas = need.num_sms;
  choice.tile_rows = 128;
  choice.block_tokens = tokens;
  choice.cost_item_bytes = (48 << 10) * bits / 16;
  choice.cost_balance_rows = 128;
  choice.cost_divide_bytes = (128 << 10) * bits / 16;
  choice.least_part_bytes = (128 << 10) * bits / 16;
  choice.longest_first = true;
  int merge_fan = 1;
  while (merge_fan * merge_fan < need.num_sms) ++merge_fan;
  // Stages are not used, but the headers that the kernels share count them.
  choice.tuning = {{"FOVEA_STAGES", 3},
                   {"FOVEA_STAGE_TOKENS", 64},
                   {"FOVEA_BLOCK_TOKENS", tokens},
                   {"FOVEA_QUERY_SLOTS", query_slots},
                   {"FOVEA_KV_SLOTS", kv_slots},
                   {"FOVEA_RAW_SLOTS", raw_slots},
                   {"FOVEA_MERGE_FAN", merge_fan},
                   {"FOVEA_PREFILL_SMEM_BYTES", static_cast<int>(choice.smem_bytes)}};
  return choice;
}

KvTensorMap kv_tensor_map(const AttentionChoice& choice, const abi::KvPoolView& pool, int num_kv_heads, int head_dim) {
  const auto bits = static_cast<std::uint32_t>(abi::kv_bits(pool.dtype));
  const std::uint32_t bytes = std::max(bits / 8, 1u);  // int4: two elements
  const std::uint32_t row = static_cast<std::uint32_t>(head_dim) * bits / 8;
  const std::uint32_t panel = choice.row_boxes || row % 128 == 0 ? 128 : row % 64 == 0 ? 64 : row % 32 == 0 ? 32 : 16;
  const auto stride = [bits](long long elements) { return static_cast<std::uint64_t>(elements) * bits / 8; };
  KvTensorMap map;
  map.rank = 5;
  map.swizzle_bytes = panel == 16 ? 0 : static_cast<int>(panel);
  const std::uint64_t dims[5] = {panel / bytes, static_cast<std::uint64_t>(pool.page_tokens), row / panel,
                                 static_cast<std::uint64_t>(num_kv_heads), static_cast<std::uint64_t>(pool.num_pages)};
  const std::uint64_t strides[5] = {bytes, stride(pool.token_stride), panel, stride(pool.head_stride),
                                    stride(pool.page_stride)};
  const std::uint32_t box[5] = {panel / bytes, static_cast<std::uint32_t>(choice.box_tokens),
                                choice.box_panels ? row / panel : 1, 1, 1};
  std::copy(std::begin(dims), std::end(dims), map.dims);
  if (choice.row_boxes) {
    map.dims[0] = row / bytes;
    map.dims[2] = 1;
  }
  std::copy(std::begin(strides), std::end(strides), map.strides);
  std::copy(std::begin(box), std::end(box), map.box);
  return map;
}

}  // namespace fovea::tune
