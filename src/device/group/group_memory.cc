// Futexes that work between processes, and the mapping.
#include "device/group/group_memory.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "base/status.h"

namespace fovea {
namespace {

// A rank that sleeps looks this often whether the group has ended.
constexpr long kSleepNanoseconds = 100'000'000;

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

Result<std::shared_ptr<GroupMemory>> map(int descriptor, std::size_t bytes) {
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) {
    return resource_exhausted("no {} MB of memory for the ranks to share: {}", bytes >> 20, std::strerror(errno));
  }
  return std::shared_ptr<GroupMemory>(static_cast<GroupMemory*>(address),
                                      [bytes](GroupMemory* memory) { ::munmap(memory, bytes); });
}

}  // namespace

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

void GroupEvent::signal() {
  count.fetch_add(1);
  if (sleepers.load() != 0) futex(count, FUTEX_WAKE, INT_MAX, nullptr);
}

void GroupMemory::relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void GroupMemory::sleep(GroupEvent& event, std::uint32_t seen) {
  const timespec timeout{0, kSleepNanoseconds};
  futex(event.count, FUTEX_WAIT, seen, &timeout);
}

void GroupMemory::end(const Status& why, int size) {
  std::uint32_t expected = kRunning;
  if (!ended.compare_exchange_strong(expected, kEnding)) return;
  code = static_cast<std::uint32_t>(why.code());
  const std::size_t length = std::min(why.message().size(), kMessageBytes - 1);
  std::memcpy(message, why.message().data(), length);
  message[length] = '\0';
  ended.store(kEnded);
  has_written.signal();
  for (int rank = 0; rank < size; ++rank) {
    ranks[rank].arrived.signal();
    ranks[rank].has_read.signal();
  }
}

Status GroupMemory::status() const {
  if (ended.load() != kEnded) return ok_status();
  return {static_cast<StatusCode>(code), std::string(message)};
}

Result<std::shared_ptr<GroupMemory>> create_group_memory(int size, int* descriptor) {
  const int file = ::memfd_create("fovea-ranks", MFD_CLOEXEC);
  if (file < 0) return internal_error("memory for the ranks to share: {}", std::strerror(errno));
  const std::size_t bytes = GroupMemory::bytes(size);
  Result<std::shared_ptr<GroupMemory>> memory =
      ::ftruncate(file, static_cast<off_t>(bytes)) == 0
          ? map(file, bytes)
          : Status(StatusCode::kResourceExhausted, "no memory for the ranks to share");
  if (memory.ok() && descriptor != nullptr) {
    *descriptor = file;
  } else {
    ::close(file);
  }
  return memory;
}

Result<std::shared_ptr<GroupMemory>> map_group_memory(int descriptor, int size) {
  return map(descriptor, GroupMemory::bytes(size));
}

}  // namespace fovea
