// The attention kernel for many query tokens a request (prefill, appended chunks, verification), on sm_90a. One CTA an
// SM works through its queue of the plan: two warpgroups have 64 rows of a tile each, a third loads, and a fourth
// converts KV of 8 and 4 bits. While a warpgroup's softmax runs, its products of the tile before are under way, and
// those of the other warpgroup. Q K^T takes queries and keys from shared memory, P V takes P from registers
// (FlashAttention-3, arXiv:2407.08608, sections 3.1 and 3.2); the first product of an item is issued with the last one
// of the item before it. docs/kernels/prefill.md has the arithmetic.
#pragma once

#include "kernels/attention/prefill/config.cuh"
#include "kernels/attention/prefill/convert.cuh"
#include "kernels/attention/prefill/finish.cuh"
#include "kernels/attention/prefill/loader.cuh"
#include "kernels/attention/prefill/queries.cuh"
#include "kernels/ptx/wgmma_tile.cuh"

namespace fovea::attention::prefill {

inline constexpr uint32_t kGroupBarrier = 1;  // by name, of the warps of a warpgroup; one for each
inline constexpr uint32_t kTurnBarrier = 3;   // of both warpgroups: one waits for its turn, the other one gives it
inline constexpr uint32_t kSplitBarrier = 5;  // of both, at the end of an item that they split

// The warpgroups take turns at issuing products, one turn each for every tile of keys: while one multiplies, the other
// is at its softmax (FlashAttention-3, section 3.1). Left alone, waiting for tiles brings both in step. Who is alone
// with an item takes none.
__device__ __forceinline__ void wait_turn(const Group& group) {
  if (!group.alone()) ptx::barrier_sync(kTurnBarrier + group.index, kGroups * kGroupThreads);
}
__device__ __forceinline__ void pass_turn(const Group& group) {
  if (!group.alone()) ptx::barrier_arrive(kTurnBarrier + (group.index ^ 1), kGroups * kGroupThreads);
}

// Where the products of a tile find their matrices: low words of descriptors, the same in all lanes.
struct Operands {
  uint32_t q, k, v;

  // Of the logits of the k_use-th tile, and of the outputs of the group's tile before it: which slots those are in. One
  __device__ __forceinline__ static uint32_t find(const Group& group, uint32_t q_use, uint32_t k_use) {
    // Of two slots each, values are in the other one.
    const uint32_t slots =
        kKvSlots > 2 ? (k_use - group.step()) % kKvSlots << 12 | k_use % kKvSlots << 16 : k_use % kKvSlots << 16;
    return __shfl_sync(~0u, group.rows_index() | q_use % kQuerySlots << 8 | slots, 0);
  }
  __device__ __forceinline__ static Operands of(const Memory& shared, uint32_t slots) {
    const uint32_t q_slot = slots >> 8 & 0xf, k_slot = slots >> 16;
    const uint32_t v_slot = kKvSlots > 2 ? slots >> 12 & 0xf : (k_slot + 1) % 2;
    const uint32_t rows = ptx::smem_address(shared.q[q_slot]) + (slots & 0xff) * kGroupRows * 128;
    return {static_cast<uint32_t>(ptx::wgmma_matrix(rows)),
            static_cast<uint32_t>(ptx::wgmma_matrix(ptx::smem_address(shared.k[k_slot]))),
            static_cast<uint32_t>(ptx::wgmma_matrix(ptx::smem_address(shared.v[v_slot]), kKvPanelBytes))};
  }
  __device__ __forceinline__ static Operands of(const Memory& shared, const Group& group, uint32_t q_use,
                                                uint32_t k_use) {
    return of(shared, find(group, q_use, k_use));
  }
};

// s = Q K^T of the group's rows and a tile.
__device__ __forceinline__ void issue_logits(const Operands& at, float (&s)[kLogits]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t in_panel = b % 4 * 32;
    ptx::wgmma_shared<kMmaBf16>(s, ptx::wgmma_at(at.q, b / 4 * kQueryPanelBytes + in_panel),
                                ptx::wgmma_at(at.k, b / 4 * kKvPanelBytes + in_panel), b == 0);
  }
  ptx::wgmma_commit();
}

// o += P V of a tile; fresh: o = P V. One instruction's registers must be within the launch's: 256 columns of sums are
// beyond those of a CTA of four warpgroups.
inline constexpr int kOutputParts = kHeadDim > 192 && kConverts ? 2 : 1;
__device__ __forceinline__ void issue_outputs(const Operands& at, const Probabilities& p, State& state, bool fresh) {
  auto& o = reinterpret_cast<float(&)[kOutputParts][kHeadDim / 2 / kOutputParts]>(state.o);
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kBlockTokens / 16; ++step) {
#pragma unroll
    for (int part = 0; part < kOutputParts; ++part) {
      const uint32_t columns = part * (kHeadDim / 64 / kOutputParts) * kKvPanelBytes;
      ptx::wgmma<kMmaBf16, true>(o[part], p[step], ptx::wgmma_at(at.v, columns + step * 16 * 128), step == 0 && fresh);
    }
  }
  ptx::wgmma_commit();
}

__device__ __forceinline__ void settle(State& state) {
  ptx::wgmma_settle(reinterpret_cast<float(&)[kHeadDim / 2]>(state.o));
}

// Zeros in the values of a tile outside of the run, whose memory may hold NaN: their P is 0. By a warpgroup; both may
// do it at once.
__device__ __forceinline__ void clear_values(Memory& shared, const Group& group, const Run& run, uint32_t tile_token) {
  uint8_t* const v = shared.v[(group.k_use - group.step()) % kKvSlots];
  uint32_t lane = group.lane;
  asm volatile("" : "+r"(lane));  // what follows from it would be kept from tile to tile
#pragma unroll 1
  for (uint32_t i = group.warp * 32 + lane; i < kBlockTokens * kRowChunks; i += kGroupThreads) {
    const uint32_t token = tile_token + i / kRowChunks;
    if (token >= run.begin && token < run.end) continue;
    *reinterpret_cast<uint4*>(v + tile_offset(i / kRowChunks, i % kRowChunks, kKvPanelBytes)) = uint4{0, 0, 0, 0};
  }
  ptx::fence_before_async_copies();
  ptx::barrier_sync(kGroupBarrier + group.index, kGroupThreads);
}

// Logits of a tile that a mask divides, or that a hook or the scale changes, as exponentiate_below_max() takes them.
__device__ __forceinline__ void prepare_logits(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                               const Item& item, uint32_t tile, const LogitScale& scale,
                                               float (&s)[kLogits]) {
  KeyScales(shared, group).apply(s);
  change_logits(args, shared, group, item, tile, s);
  if (!Variant::kHasLogit && scale.negative) {
#pragma unroll
    for (int i = 0; i < kLogits; ++i) s[i] = -s[i];
  }
  const Run run = run_of(args, record_of(shared, item));
  const TileRows& rows = rows_here(shared, group);
  if (tile < rows.plain_begin[group.rows_index()] || tile >= rows.plain_end[group.rows_index()])
    mask_tile(args, shared, group, item, token_of(run, tile), s);
}

// What a warpgroup holds of the items it works on.
struct Sums {
  State state;
  Running now;
  float s[kLogits];  // logits of a tile
  Probabilities p;   // of the tile before, as products read them
};

// The other warpgroup's tile of an item that is split, which the ring goes on from when both have let it go.
template <int kSlots>
__device__ __forceinline__ void pass_tile(const TileBarriers<kSlots>& ring, uint32_t use, const Group& group) {
  wait_full(ring, use);
  release(ring, use, group);
}

// Lets the keys in front of the group's next tile pass.
__device__ __forceinline__ void pass_keys(const Memory& shared, const Group& group) {
  if (group.split() && group.k_use != group.base) pass_tile(shared.k_ring, group.k_use - 1, group);
}
// Until the values of the group's tile before the next are there.
__device__ __forceinline__ void wait_values(const Memory& shared, const Group& group) {
  wait_full(shared.v_ring, group.k_use - group.step());
}

// Until no outputs are under way: their values and P are free then.
__device__ __forceinline__ void end_outputs(const Memory& shared, const Group& group, bool multiplies) {
  ptx::wgmma_wait<0>();
  if (multiplies) release(shared.v_ring, group.k_use - 2 * group.step(), group);
  if (group.split() && group.k_use - 2 != group.base) pass_tile(shared.v_ring, group.k_use - 3, group);
}

// Until the logits of the group's next tile are there; with their scales an item's last keys are kept until those are
// read, behind which the other warpgroup may let the ring go round.
__device__ __forceinline__ void end_logits(const Memory& shared, Group& group, bool last, Sums& sums) {
  ptx::wgmma_settle(sums.s);
  if (!kKeepsLastKeys || !last) release(shared.k_ring, group.k_use, group);
  group.k_use += group.step();
}
__device__ __forceinline__ void end_keys(Memory& shared, const Group& group) {
  if (kKeepsLastKeys) release(shared.k_ring, group.k_use - 1, group);
  tell_left(shared, kKeys, group);
}

// The logits of the next tile, then the outputs of this one, whose operands are there; until the logits are.
__device__ __forceinline__ void multiply_tile(const Memory& shared, Group& group, const Operands& at, uint32_t tile,
                                              bool fresh, Sums& sums) {
  wait_turn(group);
  issue_logits(at, sums.s);
  issue_outputs(at, sums.p, sums.state, fresh);
  pass_turn(group);
  ptx::wgmma_wait<1>();
  end_logits(shared, group, tile == 1, sums);
}

// The logits of the warp's rows and a tile that they see whole once more, by the warp's own products of keys in global
// memory: those in shared memory may be others by now.
__device__ __forceinline__ void find_logits_again(const abi::AttentionArgs& args, const Memory& shared,
                                                  const Group& group, const Item& item, uint32_t tile,
                                                  float (&s)[kLogits]) {
  const Run run = run_of(args, record_of(shared, item));
  const uint32_t q = ptx::smem_address(shared.q[group.q_use % kQuerySlots]);
  uint32_t lane = group.lane;
  asm volatile("" : "+r"(lane));  // what follows from it would be kept from tile to tile
  const uint32_t row = q + tile_offset(group.first_row() + lane % 16, lane / 16, kQueryPanelBytes);
#pragma unroll
  for (uint32_t first = 0; first < kBlockTokens; first += 32) {
    const auto keys = reinterpret_cast<uint64_t>(row_of(args, args.pool.k, run, token_of(run, tile) + first + lane));
#pragma unroll
    for (uint32_t n = 0; n < 4; ++n) {
      auto& sums = reinterpret_cast<float(&)[kLogits / 4][4]>(s)[first / 8 + n];
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = 0.0f;
      const auto* const key = reinterpret_cast<const uint8_t*>(__shfl_sync(~0u, keys, n * 8 + lane / 4));
#pragma unroll 1
      for (uint32_t b = 0; b < kBlocks; ++b) {
        uint32_t a[4];
        ptx::ldmatrix_x4(a, (row ^ (b % 4 * 32)) + b / 4 * kQueryPanelBytes);
        if constexpr (kConverts) {
          uint32_t low, high;
          stored_pairs(key, b * 16 + lane % 4 * 2, low, high);
          ptx::mma_16816<kMmaBf16>(sums, a, low, high);
        } else {
          const auto* const dims = reinterpret_cast<const uint32_t*>(key + b * 32 + lane % 4 * 4);
          ptx::mma_16816<kMmaBf16>(sums, a, dims[0], dims[4]);
        }
      }
    }
  }
  KeyScales(shared, group).apply(s);
}

// Where a token outweighs all before it, while no outputs are under way: P relative to that one.
__device__ __forceinline__ void start_over(const abi::AttentionArgs& args, const Memory& shared, const Group& group,
                                           const Item& item, uint32_t tile, const RowFactors& scale, Sums& sums) {
  float alpha[2];
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < kLogits; ++i) most = fmaxf(most, sums.s[i]);
  if (__all_sync(~0u, most < 1e30f)) {
    lower(sums.s, sums.now, alpha);
  } else {
    find_logits_again(args, shared, group, item, tile, sums.s);
    (void)exponentiate_below_max(sums.s, sums.now, scale, alpha);
  }
  scale_outputs(sums.state, alpha);
}

// Tiles from `tile` down that all rows see whole, and before which all have seen a token. The warps of a group must not
// part here: products are one instruction of all four.
__device__ __forceinline__ void run_plain_tiles(const abi::AttentionArgs& args, const Memory& shared, Group& group,
                                                const Item& item, const RowFactors& factor, uint32_t& tile,
                                                Sums& sums) {
  const TileRows& rows = rows_here(shared, group);
  // The item's last is issued with the next item's first.
  const uint32_t end = max(rows.plain_begin[group.rows_index()], group.step());
  // Rows have seen a token in the group's tile before: where items are split that is not the next one.
  if (tile + group.step() - 1 >= rows.plain_end[group.rows_index()]) return;
  const RowFactors scale = factor.here(shared, group);
#pragma unroll 1
  for (; tile >= end; tile -= group.step()) {
    // The next keys are there, as a rule; values come later, and so do keys that are converted. Waiting is under the
    // exponentials and the outputs of the tile before.
    const KeyScales keys(shared, group);
    if constexpr (!kConverts) wait_full(shared.k_ring, group.k_use);
    const uint32_t slots = Operands::find(group, group.q_use, group.k_use);
    Operands at;  // at once, where no register is left for the slots
    if constexpr (!kSplits) at = Operands::of(shared, slots);
    keys.apply(sums.s);
    const bool done = exponentiate(sums.s, sums.now, scale);
    if constexpr (kConverts) {
      pass_keys(shared, group);
      wait_full(shared.k_ring, group.k_use);
    }
    wait_values(shared, group);
    end_outputs(shared, group, true);
    settle(sums.state);
    if (!done) start_over(args, shared, group, item, tile, scale, sums);
    ptx::wgmma_settle(sums.s);
    pack(sums.s, sums.p);
    if constexpr (kSplits) at = Operands::of(shared, slots);
    multiply_tile(shared, group, at, tile, false, sums);
  }
}

// The end of an item that is split: tiles that are left, and the state of the second warpgroup's goes to the first's,
// through the queries' memory, which no product reads any more.
__device__ __forceinline__ void end_split(Memory& shared, const Group& group, const Item& item, State& state) {
  if (group.k_use - 1 != group.base + item.tiles) {
    pass_tile(shared.k_ring, group.k_use - 1, group);
    pass_tile(shared.v_ring, group.k_use - 1, group);
  }
  if (group.index == 1 && item.tiles % 2 != 0) {  // as many turns as the other
    wait_turn(group);
    pass_turn(group);
  }
  uint32_t thread = group.warp * 32 + group.lane;
  asm volatile("" : "+r"(thread));  // what follows from it would be kept from item to item
  auto* const sums = reinterpret_cast<float4*>(shared.q[group.q_use % kQuerySlots]) + thread;
  constexpr uint32_t kThreads = kGroups * kGroupThreads;
  ptx::barrier_sync(kSplitBarrier, kThreads);
  if (group.index == 1) {
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i) {
      const auto& o = state.o[i / 2][i % 2];
      sums[i * kGroupThreads] = {o[0], o[1], o[2], o[3]};
    }
    shared.split_sums[kSplits ? thread : 0] = {state.max[0], state.max[1], state.sum[0], state.sum[1]};
  }
  ptx::barrier_sync(kSplitBarrier, kThreads);
  if (group.index == 1) return;
  const float4 other = shared.split_sums[kSplits ? thread : 0];
  const float max[2] = {other.x, other.y}, sum[2] = {other.z, other.w};
  float own[2], others[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float most = fmaxf(state.max[h], max[h]);
    own[h] = state.max[h] == kMinusInf ? 0.0f : ptx::exp2_approx(state.max[h] - most);
    others[h] = max[h] == kMinusInf ? 0.0f : ptx::exp2_approx(max[h] - most);
    state.max[h] = most;
    state.sum[h] = state.sum[h] * own[h] + sum[h] * others[h];
  }
#pragma unroll
  for (int i = 0; i < kBlocks * 2; ++i) {
    auto& o = state.o[i / 2][i % 2];
    const float4 x = sums[i * kGroupThreads];
    o[0] = o[0] * own[0] + x.x * others[0];
    o[1] = o[1] * own[0] + x.y * others[0];
    o[2] = o[2] * own[1] + x.z * others[1];
    o[3] = o[3] * own[1] + x.w * others[1];
  }
  ptx::barrier_sync(kGroupBarrier + group.index, kGroupThreads);  // outputs go through the same memory
}

__device__ __forceinline__ void release_record(Memory& shared, uint32_t n, uint32_t lane) {
  if constexpr (kConverts) asm volatile("" : "+r"(n));  // what follows from it would be kept from tile to tile
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&shared.record_empty[n % kRecords]));
}

// Maxima as finish_row() takes them, sums of all lanes, and outputs over rotated values as they were.
__device__ __forceinline__ void close(const Running& now, uint32_t lane, State& state) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    state.max[h] = now.shift[h] != 0.0f ? now.shift[h] : kMinusInf;
    state.sum[h] = now.sum[h];
  }
  finish_sums(state);
  if constexpr (kPoolRotated) rotate_back(state, lane);
}

// Item n or the first one behind it that the group works on; false at the end of the queue.
__device__ __forceinline__ bool next_item(const abi::AttentionArgs& args, Memory& shared, Group& group, uint32_t n,
                                          Item& item) {
  for (;; ++n) {
    group.take(Opened::kBoth);  // as rows of empty items are
    const Opened opened = open_item(args, shared, group, n, item);
    if (opened == Opened::kEnd) return false;
    if (opened == Opened::kAlone || opened == Opened::kOthers) group.turn();
    if (opened == Opened::kOthers) {
      group.pass();
      ++group.q_use;
      group.k_use += item.tiles;
      group.base += item.tiles;
    } else if (opened == Opened::kEmpty) {
      end_nothing(args, shared, group, item);
    } else if (opened != Opened::kNothing) {
      group.take(opened);
      return true;
    }
    release_record(shared, n, group.lane);
  }
}

__device__ __forceinline__ void run_group(const abi::AttentionArgs& args, Memory& shared, Group group) {
  LogitScale scale{};  // of converted keys: in the queries
  RowFactors factor;
  factor.factor[0] = 1.0f;
  if constexpr (!kConverts) {
    scale = find_scale(args);
    factor.factor[0] = Variant::kHasLogit ? 1.0f : scale.factor;
  }
  if (group.index == 1) pass_turn(group);  // the first begins
  Item item{};
  for (uint32_t n = 0; next_item(args, shared, group, n, item); n = item.nth + 1) {
    Sums sums;
    const uint32_t first = group.split() ? group.index : 0;  // of the item's tiles
    if constexpr (kSplits) group.k_use = group.base + first;
    // 1. The first logits of an item, with nothing beside them.
    wait_left(shared, kKeys, group);
    wait_full(shared.q_ring, group.q_use);
    pass_keys(shared, group);
    wait_full(shared.k_ring, group.k_use);
    wait_turn(group);
    issue_logits(Operands::of(shared, group, group.q_use, group.k_use), sums.s);
    pass_turn(group);
    find_hooked(args, shared, group, item);
    clear(sums.state);
    ptx::wgmma_wait<0>();
    end_logits(shared, group, item.tiles == 1, sums);
    for (uint32_t tile = item.tiles - 1 - first;;) {
      // 2. Tiles that all rows see whole.
      if (!Variant::kHasLogit && !scale.negative) run_plain_tiles(args, shared, group, item, factor, tile, sums);
      // 3. A tile that a mask divides, the item's last, or any.
      const bool last = tile < group.step();
      prepare_logits(args, shared, group, item, tile, scale, sums.s);
      if (last) end_keys(shared, group);
      float alpha[2];
      const bool moved = exponentiate_below_max(sums.s, sums.now, factor.here(shared, group), alpha);
      const bool fresh = group.fresh();
      if (fresh) wait_left(shared, kValues, group);
      end_outputs(shared, group, !fresh);
      settle(sums.state);
      if (moved) scale_outputs(sums.state, alpha);
      pack(sums.s, sums.p);
      const Run run = run_of(args, record_of(shared, item));
      const uint32_t token = token_of(run, tile);
      if (token < run.begin || token + kBlockTokens > run.end) {
        wait_values(shared, group);
        clear_values(shared, group, run, token);
      }
      if (last) {
        if (kQuerySlots == 1 || !group.both() || !is_direct(shared, item)) break;
        Item next;
        if (open_item(args, shared, group, item.nth + 1, next) != Opened::kBoth) break;
        wait_full(shared.q_ring, group.q_use + 1);
      }
      const Operands at = Operands::of(shared, group, group.q_use + (last ? 1 : 0), group.k_use);
      if (!last) pass_keys(shared, group);
      wait_full(shared.k_ring, group.k_use);
      wait_values(shared, group);
      if (!last) {
        multiply_tile(shared, group, at, tile, fresh, sums);
        group.end_fresh();
        tile -= kSplits ? group.step() : 1;  // the step alone would spill at head dim 64
        continue;
      }
      // 4. The rows of an item behind which another one follows, while that one's first logits are under way.
      wait_turn(group);
      issue_outputs(at, sums.p, sums.state, fresh);
      issue_logits(at, sums.s);
      pass_turn(group);
      ptx::wgmma_wait<1>();
      settle(sums.state);
      release(shared.v_ring, group.k_use - 1, group);
      close(sums.now, group.lane, sums.state);
      write_rows(args, shared, group, item, sums.state);
      release(shared.q_ring, group.q_use++, group);
      release_record(shared, item.nth, group.lane);
      group.base += item.tiles;
      (void)open_item(args, shared, group, item.nth + 1, item);
      group.take(Opened::kBoth);
      find_hooked(args, shared, group, item);
      tile = item.tiles - 1;
      sums.now = Running();
      ptx::wgmma_wait<0>();
      end_logits(shared, group, item.tiles == 1, sums);
    }
    // 5. The last outputs, and their rows.
    wait_values(shared, group);
    issue_outputs(Operands::of(shared, group, group.q_use, group.k_use), sums.p, sums.state, group.fresh());
    ptx::wgmma_wait<0>();
    settle(sums.state);
    release(shared.v_ring, group.k_use - group.step(), group);
    close(sums.now, group.lane, sums.state);
    if (group.split()) end_split(shared, group, item, sums.state);
    group.base += item.tiles;
    tell_left(shared, kValues, group);
    group.end_passed();
    if (group.split() && group.index == 1) {
      // The first warpgroup has all of the rows.
    } else if (is_direct(shared, item)) {
      write_rows(args, shared, group, item, sums.state);
    } else {
      end_parts(args, shared, group, item, sums.state);
    }
    release(shared.q_ring, group.q_use++, group);
    release_record(shared, item.nth, group.lane);
  }
  if (group.index == 0) wait_turn(group);  // the last turn of the second
}

__device__ __forceinline__ void init_barriers(Memory& shared, uint32_t thread) {
  const auto init = [](uint64_t& barrier, uint32_t count) { ptx::mbarrier_init(ptx::smem_address(&barrier), count); };
  constexpr uint32_t kTileArrivals = kConverts ? kTileConverters : kTma ? 1 : 32;
  if (thread < kKvSlots) {
    init(shared.k_ring.full[thread], kTileArrivals);
    init(shared.v_ring.full[thread], kTileArrivals);
    init(shared.k_ring.empty[thread], kComputeWarps);
    init(shared.v_ring.empty[thread], kComputeWarps);
  } else if (thread < kKvSlots + kQuerySlots) {
    init(shared.q_ring.full[thread - kKvSlots], 32);
    init(shared.q_ring.empty[thread - kKvSlots], kComputeWarps);
  } else if (thread < kKvSlots + kQuerySlots + kRecords) {
    const uint32_t i = thread - kKvSlots - kQuerySlots;
    init(shared.record_full[i], kRecordArrivals);
    init(shared.record_empty[i], kComputeWarps + kTileLoaders + kConverterWarps);
  } else if (thread < kKvSlots + kQuerySlots + kRecords + kTileLoaders) {
    shared.loaded_items[thread - kKvSlots - kQuerySlots - kRecords] = 0;
  }
  if (thread >= 96 && thread < 96 + 2 * kGroups) init(shared.left[thread % 2][(thread - 96) / 2], kGroupThreads / 32);
  if (kConverts && thread >= 64 && thread < 64 + 2 * kRawSlots) {
    TileBarriers<kRawSlots>& ring = shared.raw_ring[thread % 2];
    init(ring.full[(thread - 64) / 2], 32);
    init(ring.empty[(thread - 64) / 2], kTileConverters);
  }
  ptx::fence_mbarrier_init();
}

}  // namespace fovea::attention::prefill

extern "C" __global__ void __launch_bounds__(fovea::attention::prefill::kCtaThreads, 1)
    fovea_attention(const __grid_constant__ fovea::abi::AttentionArgs args,
                    const __grid_constant__ fovea::abi::TensorMap k_map,
                    const __grid_constant__ fovea::abi::TensorMap v_map) {
  using namespace fovea;
  using namespace fovea::attention;
  using namespace fovea::attention::prefill;
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  Memory& shared = *reinterpret_cast<Memory*>(dynamic_shared);
  const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  uint32_t lane = threadIdx.x % 32;
  asm volatile("" : "+r"(lane));  // asked for once: reading it again takes as long as a load
  init_barriers(shared, threadIdx.x);
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  __syncthreads();
  if (kConverts && warp >= kComputeWarps + 4) {
    ptx::setmaxnreg_dec<kLoadRegisters>();
    TileConverter(shared, warp - kComputeWarps - 4, lane).run(args);
  } else if (warp >= kComputeWarps) {
    ptx::setmaxnreg_dec<kLoadRegisters>();
    const uint32_t loader = warp - kComputeWarps;
    if (loader == 3) {
      run_scheduler(args, shared, lane);
    } else if (loader == 2) {
      load_queries(args, shared, loader, lane);
    } else {
#if FOVEA_LOADER == 0
      if (loader == 0) {
        load_tiles(args, &k_map, shared, shared.k, shared.k_ring, loader, lane);
      } else {
        load_tiles(args, &v_map, shared, shared.v, shared.v_ring, loader, lane);
      }
#else
      if constexpr (kConverts) {
        TileLoader(args, shared, loader, lane).run_stored();
      } else {
        TileLoader(args, shared, loader, lane).run();
      }
#endif
    }
  } else {
    ptx::setmaxnreg_inc<kComputeRegisters>();
    const Group group{warp / 4, warp % 4, lane};
    run_group(args, shared, group);
  }
}
