// The plan as executors read it: plain records that cross from the host planner to a CPU thread or a GPU worker.
// Written by core/plan; read by cpu/ and by device code. Compiles under g++ and NVRTC (-default-device): no std types
// here.
//
// An attention call is a block-sparse matrix. A *block row* pairs a set of query tokens with a run of KV tokens. The
// tile step cuts its query tokens into *items*; a *queue entry* is an item and a run of KV heads, or one; a *worker*
// runs its slice of the queue in order. An item either writes its output rows directly or leaves partial states
// (output, log-sum-exp) in the workspace, which the *merge list* combines in a fixed ascending order.
#pragma once

#if defined(__CUDACC_RTC__)
using int32_t = int;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif

namespace fovea::abi {

inline constexpr uint32_t kNone = 0xffffffffu;

// Which (query, KV) pairs of a block row are seen. Positions are token positions in the request's own sequence.
enum class MaskKind : uint8_t {
  kNone = 0,    // all
  kCausal = 1,  // kv_pos <= q_pos
  kWindow = 2,  // causal and q_pos - kv_pos <= window_left
  kBits = 3,  // bit mask_offset + row * mask_stride + kv token; bit 0 is the lowest bit of byte 0; row counts from the
              // first row of the block row, kv token from the start of its run
};

enum ItemFlags : uint8_t {
  kItemDirect = 1,      // writes its output rows itself; has no partial states
  kItemSingleHead = 2,  // stands in the queue under one KV head only, so its partial rows are those of one head
  kItemMasked = 4,      // some pair in it may be masked; without the flag the executor may skip the mask
  kItemOpenEnd = 8,     // kv_end follows kv_lens[length_slot] when that grew after the plan was made
  kItemFirstPart = 16,  // first part of a (solo tile, KV head) pair that cuts between workers divided: the last item of
                        // its worker, while the other parts are the first items of the workers behind it
};

enum BlockRowFlags : uint8_t {
  kRowsContiguous = 1,  // row_indices[row_begin + i] == row_indices[row_begin] + i
  kRowsSolo = 2,        // no other block row covers its (row, head) pairs: items that are not split write directly
};

// A tile of query tokens over a range of KV tokens, for every KV head it is queued under. 32 bytes.
struct WorkItem {
  uint32_t row_begin;   // first query token, an index into row_indices and q_pos
  uint16_t row_count;   // query tokens; the tile has row_count * group rows
  uint8_t tile_class;   // index into PlanHeader::tile_rows
  uint8_t flags;        // ItemFlags
  uint32_t list_begin;  // page entry that holds token 0 of the run, an index into the page entries
  uint32_t kv_begin;    // tokens [kv_begin, kv_end) of the run
  uint32_t kv_end;
  uint32_t length_slot;   // index into kv_lens, or kNone
  uint32_t block_row;     // index into block_rows
  uint32_t partial_slot;  // first partial row, or kNone when direct; see partial_row()
};
static_assert(sizeof(WorkItem) == 32);

// What the items of one block row share. 64 bytes.
struct BlockRow {
  uint32_t row_begin;  // slice of row_indices and q_pos
  uint32_t row_count;
  uint32_t list_begin;       // page entry that holds token 0 of the run
  uint32_t num_tokens;       // tokens in the run when the plan was made
  int32_t position_base;     // position of the run's token 0 (runs are contiguous unless positions_begin is set)
  uint32_t positions_begin;  // one position a page entry from here in kv_positions, or kNone
  uint32_t length_slot;      // index into kv_lens of the request that owns the open end, or kNone
  int32_t window_left;       // tokens before q_pos still seen; MaskKind::kWindow only
  uint64_t mask_offset;      // bits; MaskKind::kBits only
  uint32_t mask_stride;      // bits a row; MaskKind::kBits only
  uint16_t head_begin;       // KV heads [head_begin, head_end)
  uint16_t head_end;
  uint16_t pool;  // which KV pool of the call
  MaskKind mask;
  uint8_t flags;          // BlockRowFlags
  uint32_t num_requests;  // requests whose rows share this run: 1 for a plain request
  uint32_t first_token;   // tokens [first_token, num_tokens) of the run belong to this block row; 0 but for runs that
                          // start inside a page
  uint32_t reserved;
};
static_assert(sizeof(BlockRow) == 64);

// One output row group: query token `row` (index into row_indices) under one KV head, made of num_parts partial states.
// Part i, query head g of the group: partial row merge_parts[parts_begin + i] + g.
struct MergeEntry {
  uint32_t row;
  uint16_t head;
  uint16_t num_parts;
  uint32_t parts_begin;
};
static_assert(sizeof(MergeEntry) == 12);

// Workers that start together. queue_begin[first_queue + w] .. [first_queue + w + 1) are worker w's entries.
struct Launch {
  uint32_t first_queue;
  uint32_t num_workers;
};

inline constexpr uint32_t kMaxTileClasses = 7;

enum PlanFlags : uint32_t {
  kPlanShares = 1,      // some run is read for several requests at once: most rows are made of parts
  kPlanWarpStarts = 2,  // of a plan packed for a device: its workers begin by abi::WarpStart
  kPlanHeadRuns = 4,    // queue entries are runs of heads, see queue_head_end()
};

struct PlanHeader {
  uint64_t generation;  // grows by one with every plan written
  uint32_t num_rows;    // query tokens, length of row_indices' first copy: rows of Q and of the output
  uint32_t num_items;
  uint32_t num_block_rows;
  uint32_t num_launches;
  uint32_t num_queue_entries;  // one more, 0, stands behind them
  uint32_t num_merges;
  uint32_t num_parts;
  uint32_t num_partial_rows;  // partial states in use: each head_dim floats and one log-sum-exp
  uint32_t num_kv_heads;
  uint32_t group;                       // query heads a KV head
  uint32_t flags;                       // PlanFlags
  uint32_t tile_rows[kMaxTileClasses];  // (token, query head) rows that a tile of this class holds
};

// A queue entry packs (item, first head): 2^24 items, 256 heads.
constexpr uint32_t queue_entry(uint32_t item, uint32_t head) { return (item << 8) | head; }
constexpr uint32_t queue_item(uint32_t entry) { return entry >> 8; }
constexpr uint32_t queue_head(uint32_t entry) { return entry & 0xffu; }

// Where the heads of a queue entry end. Under kPlanHeadRuns an entry stands for all heads of its item from its own up
// to the next entry's, if that is a later one, or the last: a worker has a few entries of a tile, not one for each
// head. Items under a single head, and all others without the flag, are under the entry's own. next: the entry behind.
constexpr uint32_t queue_head_end(const PlanHeader& plan, uint32_t item_flags, uint32_t entry, uint32_t next) {
  const uint32_t head = queue_head(entry);
  if (!(plan.flags & kPlanHeadRuns) || (item_flags & kItemSingleHead)) return head + 1;
  return queue_head(next) > head ? queue_head(next) : plan.num_kv_heads;
}

// First partial row of (item, head): row_count * group rows, ordered (token, query head of the group).
constexpr uint32_t partial_row(const WorkItem& item, const BlockRow& block_row, uint32_t head, uint32_t group) {
  const uint32_t nth = (item.flags & kItemSingleHead) ? 0u : head - block_row.head_begin;
  return item.partial_slot + nth * item.row_count * group;
}

// Everything an executor needs, borrowed. Pointers are host or device memory, whichever the executor reads.
struct PlanView {
  const PlanHeader* header;
  const WorkItem* items;
  const BlockRow* block_rows;
  const Launch* launches;
  const uint32_t* queue_begin;
  const uint32_t* queue;
  const uint32_t* row_indices;  // query token -> row of Q and of the output
  const int32_t* q_pos;         // position of each query token, parallel to row_indices
  const MergeEntry* merges;
  const uint32_t* merge_parts;
  const int32_t* page_entries;  // the caller's page lists; an entry names entry_tokens tokens of a pool
  const int32_t* kv_positions;  // see BlockRow::positions_begin; may be null
  const int32_t* kv_lens;       // by length slot; may be null when no item has kItemOpenEnd
  const uint8_t* mask_bits;     // see MaskKind::kBits; may be null

  constexpr uint32_t queue_head_end(uint32_t i) const {
    return abi::queue_head_end(*header, items[queue_item(queue[i])].flags, queue[i], queue[i + 1]);
  }
};

}  // namespace fovea::abi
