// The executor's scalar half: checks, the workspace, queues to threads, then merges.
#include "cpu/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/status.h"
#include "cpu/quantize.h"

namespace fovea::cpu {
namespace {

constexpr size_t kLine = 64;

size_t rounded(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Hands out pieces of a thread's scratch; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(size_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += rounded(count * sizeof(T));
    return piece;
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

ItemScratch carve(Carver& carver, int head_dim, int tile_rows) {
  const size_t d = static_cast<size_t>(head_dim);
  const size_t rows = static_cast<size_t>(std::max(tile_rows, kMaxRowsAtOnce));
  ItemScratch s;
  s.q = carver.take<float>(rows * d);
  s.o = carver.take<float>(rows * d);
  s.max = carver.take<float>(rows);
  s.sum = carver.take<float>(rows);
  s.k_block = carver.take<uint32_t>(d * kBlockTokens);
  s.s_block = carver.take<float>(kMaxRowsAtOnce * kBlockTokens);
  s.kv_rows = carver.take<float>(d * kBlockTokens);
  for (uint16_t*& codes : s.codes) codes = carver.take<uint16_t>(d * kBlockTokens);
  s.q_sum = carver.take<float>(rows);
  s.zero_sum = carver.take<float>(rows);
  s.seen = carver.take<uint64_t>(rows);
  for (const void**& rows : s.rows) rows = carver.take<const void*>(kBlockTokens);
  s.streams = carver.take<const void*>(kStreams * StreamRows::kAStream);
  return s;
}

Status check_tensor(const char* name, const TensorView& tensor, int64_t rows, int64_t heads) {
  if (tensor.rank != 3 || tensor.shape[0] < rows || tensor.shape[1] != heads) {
    return invalid_argument("{} has rank {} and shape [{}, {}, {}], expected [{}, {}, head_dim]", name, tensor.rank,
                            tensor.shape[0], tensor.shape[1], tensor.shape[2], rows, heads);
  }
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kBF16) {
    return unsupported("{} is {}, expected f32 or bf16", name, dtype_name(tensor.dtype));
  }
  if (tensor.strides[2] != 1) {
    return invalid_argument("{} has stride {} in its last dim, expected 1", name, tensor.strides[2]);
  }
  return ok_status();
}

Status check_pool(int index, const abi::KvPoolView& pool, int head_dim) {
  if (pool.dtype > abi::KvDType::kI4) {
    return invalid_argument("KV pool {} has storage type {}, which is none", index, static_cast<int>(pool.dtype));
  }
  if (Status s = check_kv_scales(pool, head_dim); !s.ok()) {
    return Status(s.code(), "KV pool " + std::to_string(index) + ": " + s.message());
  }
  if (pool.entry_tokens < 1 || pool.entries_per_page < 1 ||
      (std::int64_t{pool.page_tokens} + pool.entry_tokens - 1) / pool.entry_tokens != pool.entries_per_page) {
    return invalid_argument("KV pool {} has pages of {} tokens in {} entries of {}", index, pool.page_tokens,
                            pool.entries_per_page, pool.entry_tokens);
  }
  return ok_status();
}

// Goes through the queue entries [begin, end), some heads of an item at a time.
class QueueCursor {
 public:
  // heads: of the first entry, done before.
  QueueCursor(const abi::PlanView& plan, uint32_t begin, uint32_t end, uint32_t heads)
      : plan_(plan), entry_(begin), end_(end), done_(heads) {}

  bool at_end() const { return entry_ == end_; }
  uint32_t entry() const { return entry_; }
  uint32_t heads_done() const { return done_; }
  uint32_t item() const { return abi::queue_item(plan_.queue[entry_]); }
  uint32_t head() const { return abi::queue_head(plan_.queue[entry_]) + done_; }

  // How many heads of the item, from head() on, follow one another, at most kMaxHeadsAtOnce; goes behind them.
  int take() {
    const uint32_t of = item();
    uint32_t heads = 0;
    uint32_t next;
    do {
      const uint32_t last = plan_.queue_head_end(entry_);
      const uint32_t more = std::min(last - head(), static_cast<uint32_t>(kMaxHeadsAtOnce) - heads);
      next = head() + more;
      heads += more;
      done_ += more;
      if (next < last) break;
      ++entry_;
      done_ = 0;
    } while (heads < kMaxHeadsAtOnce && !at_end() && item() == of && head() == next);
    return static_cast<int>(heads);
  }

 private:
  const abi::PlanView& plan_;
  uint32_t entry_;
  uint32_t end_;
  uint32_t done_;
};

}  // namespace

void AttentionWorkspace::Free::operator()(void* p) const { std::free(p); }

template <typename T>
AttentionWorkspace::Buffer<T> AttentionWorkspace::allocate(size_t count) {
  const size_t bytes = rounded(std::max<size_t>(count * sizeof(T), 1));
  void* p = std::aligned_alloc(kLine, bytes);
  if (p != nullptr) std::memset(p, 0, bytes);
  return Buffer<T>(static_cast<T*>(p));
}

size_t AttentionWorkspace::thread_bytes() const {
  Carver carver(nullptr);
  carve(carver, head_dim_, tile_rows_);
  // An odd number of pages apart, so that the threads' scratch does not share cache sets.
  return (carver.used() + 4095) / 4096 * 4096 + kLine;
}

ItemScratch AttentionWorkspace::scratch(int thread) const {
  Carver carver(scratch_.get() + static_cast<size_t>(thread) * thread_bytes());
  return carve(carver, head_dim_, tile_rows_);
}

Status AttentionWorkspace::reserve(uint32_t partial_rows, int head_dim, int tile_rows, int num_threads) {
  const size_t floats = static_cast<size_t>(partial_rows) * static_cast<size_t>(head_dim);
  if (floats > partial_floats_ || partial_out_ == nullptr) {
    partial_out_ = allocate<float>(floats);
    partial_floats_ = partial_out_ == nullptr ? 0 : floats;
  }
  if (partial_rows > partial_rows_ || partial_lse_ == nullptr) {
    partial_lse_ = allocate<float>(partial_rows);
    partial_rows_ = partial_lse_ == nullptr ? 0 : partial_rows;
  }
  if (head_dim > head_dim_ || tile_rows > tile_rows_ || num_threads > num_threads_) {
    head_dim_ = std::max(head_dim, head_dim_);
    tile_rows_ = std::max(tile_rows, tile_rows_);
    num_threads_ = std::max(num_threads, num_threads_);
    scratch_ = allocate<std::byte>(thread_bytes() * static_cast<size_t>(num_threads_));
    if (scratch_ == nullptr) head_dim_ = tile_rows_ = num_threads_ = 0;
  }
  if (partial_out_ == nullptr || partial_lse_ == nullptr || scratch_ == nullptr) {
    return resource_exhausted("no memory for the attention workspace: {} partial rows of {} floats", partial_rows,
                              head_dim);
  }
  return ok_status();
}

namespace {

// What the threads of a call share.
struct AttentionRun {
  const abi::PlanView& plan;
  const AttentionParams& params;
  const AttentionKernels& kernels;
  const TensorView& q;
  const abi::KvPoolView* pools;
  const TensorView& out;
  float* lse;
  AttentionWorkspace& workspace;
  ThreadPool& threads;
  const Pause* pause;  // or null

  int head_dim() const { return static_cast<int>(q.shape[2]); }
  uint32_t num_threads() const { return static_cast<uint32_t>(threads.size()); }
  int group() const { return static_cast<int>(plan.header->group); }
  QueueWork resolve(const QueueCursor& at) const {
    QueueWork work;
    if (at.at_end()) return work;
    work.item = &plan.items[at.item()];
    work.block_row = &plan.block_rows[work.item->block_row];
    work.pool = &pools[work.block_row->pool];
    work.kv_head = static_cast<int>(at.head());
    return work;
  }
  // The thread's queues, from `place` on; false: left there.
  bool run_queues(int thread, AttentionWorkspace::Place& place) const;
  // The thread's part of the merges.
  void merge(int thread) const {
    const MergeArgs args{
        &plan, &params, group(), head_dim(), &out, lse, workspace.partial_out(), workspace.partial_lse()};
    const uint64_t merges = plan.header->num_merges;
    const auto begin = static_cast<uint32_t>(merges * static_cast<uint32_t>(thread) / num_threads());
    const auto end = static_cast<uint32_t>(merges * (static_cast<uint32_t>(thread) + 1) / num_threads());
    kernels.merge(args, begin, end);
  }
};

bool AttentionRun::run_queues(int thread, AttentionWorkspace::Place& place) const {
  ItemArgs args{};
  args.plan = &plan;
  args.params = &params;
  args.group = group();
  args.head_dim = head_dim();
  args.q = &q;
  args.out = &out;
  args.lse = lse;
  args.partial_out = workspace.partial_out();
  args.partial_lse = workspace.partial_lse();
  args.scratch = workspace.scratch(thread);
  args.pause = pause;
  args.pause_is_due = [](const Pause& asked) { return asked.due(); };
  args.place = &place.item;
  for (; place.launch < plan.header->num_launches; ++place.launch, place.worker = static_cast<uint32_t>(thread)) {
    const abi::Launch& launch = plan.launches[place.launch];
    for (; place.worker < launch.num_workers; place.worker += num_threads(), place.entry = place.heads = 0) {
      const uint32_t* bounds = plan.queue_begin + launch.first_queue + place.worker;
      QueueCursor at(plan, bounds[0] + place.entry, bounds[1], place.heads);
      args.next = resolve(at);
      while (!at.at_end()) {
        args.work = args.next;
        args.num_heads = at.take();
        args.next = resolve(at);
        if (!kernels.run_item(args)) return false;
        place.entry = at.entry() - bounds[0];
        place.heads = at.heads_done();
        if (pause != nullptr && !at.at_end() && pause->due()) return false;
      }
    }
  }
  return true;
}

Status check_run(const abi::PlanView& plan, const TensorView& q, const abi::KvPoolView* pools, int num_pools,
                 const TensorView& out, AttentionWorkspace& workspace, ThreadPool& threads) {
  const abi::PlanHeader& header = *plan.header;
  const int group = static_cast<int>(header.group);
  const int64_t heads = int64_t{header.num_kv_heads} * group;
  if (Status s = check_tensor("q", q, header.num_rows, heads); !s.ok()) return s;
  if (Status s = check_tensor("out", out, header.num_rows, heads); !s.ok()) return s;
  const int head_dim = static_cast<int>(q.shape[2]);
  if (head_dim % 16 != 0 || head_dim < kMinHeadDim || head_dim > kMaxHeadDim || out.shape[2] != head_dim) {
    return unsupported("head_dim is {} for q and {} for out, expected one multiple of 16 from {} to {}", head_dim,
                       out.shape[2], kMinHeadDim, kMaxHeadDim);
  }
  for (int i = 0; i < num_pools; ++i) {
    if (Status s = check_pool(i, pools[i], head_dim); !s.ok()) return s;
  }
  for (uint32_t i = 0; i < header.num_block_rows; ++i) {
    if (plan.block_rows[i].pool >= num_pools) {
      return invalid_argument("the plan reads KV pool {}, the call has {}", plan.block_rows[i].pool, num_pools);
    }
  }
  int tile_rows = 1;
  for (uint32_t i = 0; i < header.num_items; ++i) tile_rows = std::max(tile_rows, plan.items[i].row_count * group);
  return workspace.reserve(header.num_partial_rows, head_dim, tile_rows, threads.size());
}

}  // namespace

Status run_attention(const abi::PlanView& plan, const AttentionParams& params, const AttentionKernels& kernels,
                     const TensorView& q, const abi::KvPoolView* pools, int num_pools, const TensorView& out,
                     float* lse, AttentionWorkspace& workspace, ThreadPool& threads) {
  if (Status s = check_run(plan, q, pools, num_pools, out, workspace, threads); !s.ok()) return s;
  const AttentionRun run{plan, params, kernels, q, pools, out, lse, workspace, threads, nullptr};
  threads.run([&](int thread) {
    AttentionWorkspace::Place place;
    place.worker = static_cast<uint32_t>(thread);
    run.run_queues(thread, place);
    if (plan.header->num_merges == 0) return;
    threads.barrier(thread);
    run.merge(thread);
  });
  return ok_status();
}

Result<bool> run_attention_part(const abi::PlanView& plan, const AttentionParams& params,
                                const AttentionKernels& kernels, const TensorView& q, const abi::KvPoolView* pools,
                                int num_pools, const TensorView& out, float* lse, AttentionWorkspace& workspace,
                                ThreadPool& threads, const Pause& pause, bool goes_on) {
  if (Status s = check_run(plan, q, pools, num_pools, out, workspace, threads); !s.ok()) return s;
  std::vector<AttentionWorkspace::Place>& places = workspace.places();
  if (!goes_on) {
    places.assign(static_cast<size_t>(threads.size()), {});
    for (size_t i = 0; i < places.size(); ++i) places[i].worker = static_cast<uint32_t>(i);
  }
  const AttentionRun run{plan, params, kernels, q, pools, out, lse, workspace, threads, &pause};
  std::atomic<int> left{0};
  threads.run([&](int thread) {
    if (!run.run_queues(thread, places[static_cast<size_t>(thread)])) left.fetch_add(1, std::memory_order_relaxed);
  });
  if (left.load(std::memory_order_relaxed) > 0) return false;
  if (plan.header->num_merges > 0) threads.run([&](int thread) { run.merge(thread); });
  return true;
}

Status run_attention(const abi::PlanView& plan, const AttentionParams& params, VariantId variant, const TensorView& q,
                     const abi::KvPoolView* pools, int num_pools, const TensorView& out, float* lse,
                     AttentionWorkspace& workspace, ThreadPool& threads) {
  const bool sinks = variant == VariantId::kSinks || variant == VariantId::kSoftcapSinks;
  const bool softcap = variant == VariantId::kSoftcap || variant == VariantId::kSoftcapSinks;
  if (sinks && params.sinks == nullptr) return invalid_argument("variant {} needs sinks", variant_name(variant));
  if (softcap && !(params.softcap > 0.0f)) {
    return invalid_argument("variant {} needs a softcap above 0, it is {}", variant_name(variant), params.softcap);
  }
  if (variant == VariantId::kAlibi && params.alibi_slopes == nullptr) {
    return invalid_argument("variant alibi needs slopes");
  }
  return run_attention(plan, params, attention_kernels(variant), q, pools, num_pools, out, lse, workspace, threads);
}

}  // namespace fovea::cpu
