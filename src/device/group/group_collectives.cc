// The collectives of a ProcessGroup over the memory that its ranks share. What a rank hands over goes through slots of
// fixed size, piece by piece: it writes its slot, waits for all, reads theirs. A piece uses the slot that the one
// before did not, so one wait a piece is enough: whoever waits for the next piece has read this one.
#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "device/group/process_group.h"

namespace fovea {
namespace {

constexpr std::int64_t kSlotFloats = GroupMemory::kSlotBytes / sizeof(float);
// Below it a piece is done before other threads have begun.
constexpr std::int64_t kGrain = 8192;

}  // namespace

Status ProcessGroup::exchange() {
  memory_->ranks[rank_].arrived.signal();
  const std::uint32_t target = turn_ + 1;
  for (int rank = 0; rank < size_; ++rank) {
    GroupEvent& arrived = memory_->ranks[rank].arrived;
    const auto there = [&] { return static_cast<std::int32_t>(arrived.count.load() - target) >= 0; };
    if (rank != rank_) FOVEA_RETURN_IF_ERROR(memory_->wait(arrived, there));
  }
  // Signals of an end count as arrivals.
  return status();
}

Status ProcessGroup::all_reduce(float* x, std::int64_t count, ThreadPool& pool) {
  for (std::int64_t begin = 0; begin < count; begin += kSlotFloats) {
    const std::int64_t piece = std::min(kSlotFloats, count - begin);
    float* const to = x + begin;
    auto* const mine = reinterpret_cast<float*>(my_slot());
    pool.parallel_for(piece, kGrain,
                      [&](std::int64_t first, std::int64_t last) { std::copy(to + first, to + last, mine + first); });
    FOVEA_RETURN_IF_ERROR(exchange());
    pool.parallel_for(piece, kGrain, [&](std::int64_t first, std::int64_t last) {
      const auto* from = reinterpret_cast<const float*>(slot(0));
      std::copy(from + first, from + last, to + first);
      for (int rank = 1; rank < size_; ++rank) {
        from = reinterpret_cast<const float*>(slot(rank));
        for (std::int64_t i = first; i < last; ++i) to[i] += from[i];
      }
    });
    ++turn_;
  }
  return ok_status();
}

Status ProcessGroup::all_gather(float* rows, std::int64_t num_rows, std::int64_t row_stride, std::int64_t width,
                                std::int64_t step) {
  const auto begin_of = [&](int rank) { return std::min(rank * step, width); };
  // Columns in pieces, so that a row of any width fits.
  for (std::int64_t column = 0; column < step; column += kSlotFloats) {
    const std::int64_t columns = std::min(kSlotFloats, step - column);
    const std::int64_t most_rows = kSlotFloats / columns;
    // Where the rank's part of these columns begins, and how many there are of it.
    const auto part = [&](int rank) {
      const std::int64_t begin = std::min(begin_of(rank) + column, begin_of(rank + 1));
      return std::pair{begin, std::min(columns, begin_of(rank + 1) - begin)};
    };
    for (std::int64_t first = 0; first < num_rows; first += most_rows) {
      const std::int64_t count = std::min(most_rows, num_rows - first);
      const auto [mine, my_width] = part(rank_);
      auto* to = reinterpret_cast<float*>(my_slot());
      for (std::int64_t row = first; row < first + count; ++row, to += columns) {
        std::copy_n(rows + row * row_stride + mine, my_width, to);
      }
      FOVEA_RETURN_IF_ERROR(exchange());
      for (int rank = 0; rank < size_; ++rank) {
        if (rank == rank_) continue;
        const auto [begin, part_width] = part(rank);
        const auto* from = reinterpret_cast<const float*>(slot(rank));
        for (std::int64_t row = first; row < first + count; ++row, from += columns) {
          std::copy_n(from, part_width, rows + row * row_stride + begin);
        }
      }
      ++turn_;
    }
  }
  return ok_status();
}

Status ProcessGroup::all_gather(const void* mine, std::size_t bytes, void* all) {
  if (bytes > GroupMemory::kSlotBytes) {
    return out_of_range("{} bytes of a rank, expected at most {}", bytes, GroupMemory::kSlotBytes);
  }
  std::memcpy(my_slot(), mine, bytes);
  FOVEA_RETURN_IF_ERROR(exchange());
  for (int rank = 0; rank < size_; ++rank) {
    std::memcpy(static_cast<std::byte*>(all) + static_cast<std::size_t>(rank) * bytes, slot(rank), bytes);
  }
  ++turn_;
  return ok_status();
}

Status ProcessGroup::barrier() {
  FOVEA_RETURN_IF_ERROR(exchange());
  ++turn_;
  return ok_status();
}

Status ProcessGroup::write_ring(const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kRing = GroupMemory::kRingBytes;
  while (bytes > 0) {
    const std::uint64_t written = memory_->written.load();
    std::size_t room = kRing;
    for (int rank = 1; rank < size_; ++rank) {
      GroupMemory::Rank& reader = memory_->ranks[rank];
      FOVEA_RETURN_IF_ERROR(memory_->wait(reader.has_read, [&] { return written - reader.read.load() < kRing; }));
      room = std::min<std::size_t>(room, kRing - static_cast<std::size_t>(written - reader.read.load()));
    }
    const std::size_t at = written % kRing;
    const std::size_t piece = std::min({bytes, room, kRing - at});
    std::memcpy(memory_->ring + at, from, piece);
    memory_->written.store(written + piece);
    memory_->has_written.signal();
    from += piece;
    bytes -= piece;
  }
  return status();
}

Status ProcessGroup::read_ring(std::byte* to, std::size_t bytes) {
  constexpr std::size_t kRing = GroupMemory::kRingBytes;
  GroupMemory::Rank& me = memory_->ranks[rank_];
  while (bytes > 0) {
    const std::uint64_t read = me.read.load();
    FOVEA_RETURN_IF_ERROR(memory_->wait(memory_->has_written, [&] { return memory_->written.load() > read; }));
    const std::size_t at = read % kRing;
    const std::size_t piece = std::min({bytes, static_cast<std::size_t>(memory_->written.load() - read), kRing - at});
    std::memcpy(to, memory_->ring + at, piece);
    me.read.store(read + piece);
    me.has_read.signal();
    to += piece;
    bytes -= piece;
  }
  // What is there of a group that has ended counts for nothing.
  return status();
}

Status ProcessGroup::broadcast(std::vector<std::int32_t>& words) {
  std::uint64_t count = words.size();
  if (rank_ == 0) {
    FOVEA_RETURN_IF_ERROR(write_ring(reinterpret_cast<const std::byte*>(&count), sizeof count));
    return write_ring(reinterpret_cast<const std::byte*>(words.data()), words.size() * sizeof(std::int32_t));
  }
  FOVEA_RETURN_IF_ERROR(read_ring(reinterpret_cast<std::byte*>(&count), sizeof count));
  words.resize(static_cast<std::size_t>(count));
  return read_ring(reinterpret_cast<std::byte*>(words.data()), words.size() * sizeof(std::int32_t));
}

}  // namespace fovea
