// An NCCL whose ranks are processes that exchange through shared memory, in the order of the fake driver's streams
// (testing/fake_driver.h). Found as libnccl.so.2 through LD_LIBRARY_PATH by tests of --tp on a CUDA device without a
// GPU. FAKE_NCCL_FAULT ("ncclAllReduce:3:die:1": what the 3rd call of rank 1 does) fails, dies or hangs until it is
// aborted.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/half.h"
#include "cuda/testing/fake_driver.h"

namespace fovea::cuda::fake {
namespace {

constexpr int kMostRanks = 8;
constexpr std::size_t kSlotBytes = std::size_t{1} << 20;
constexpr int kFailed = 3;
enum Type { kF16 = 6, kF32 = 7, kBF16 = 9 };

struct Shared {
  std::atomic<std::uint64_t> turns[kMostRanks];  // barriers that each rank has come to
  char slots[kMostRanks][kSlotBytes];
};
struct Id {
  char name[128];
};
struct Comm {
  Shared* shared = nullptr;
  int rank = 0, size = 0;
  std::uint64_t turn = 0;
  std::atomic<bool> aborted{false};
};

std::atomic<bool> g_aborted{false};  // ends what hangs

void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

// False where the communicator was aborted while others are missing.
bool barrier(Comm& comm) {
  comm.shared->turns[comm.rank].store(++comm.turn);
  for (int rank = 0; rank < comm.size; ++rank) {
    while (comm.shared->turns[rank].load() < comm.turn) {
      if (comm.aborted.load()) return false;
      pause();
    }
  }
  return true;
}

// What the environment wants of this call.
int fault(const char* name) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::lock_guard lock(mutex);
  const int call = ++calls[name];
  const char* const text = std::getenv("FAKE_NCCL_FAULT");
  char function[64] = {}, kind[16] = {};
  int which = 0, rank = 0, own_rank = 0;
  if (text == nullptr || std::sscanf(text, "%63[^:]:%d:%15[^:]:%d", function, &which, kind, &rank) != 4) return 0;
  if (const char* const own = std::getenv("FOVEA_RANK"); own != nullptr) own_rank = std::atoi(own);
  if (std::string(name) != function || call != which || rank != own_rank) return 0;
  if (kind[0] == 'd') ::_exit(9);
  while (kind[0] == 'h' && !g_aborted.load()) pause();
  return kFailed;
}

std::size_t bytes_of(int type) { return type == kF32 ? 4 : 2; }

float load(const void* at, int type, std::size_t i) {
  if (type == kF32) return static_cast<const float*>(at)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(at)[i];
  return type == kF16 ? f16_to_float(bits) : bf16_to_float(bits);
}

void store(void* at, int type, std::size_t i, float x) {
  if (type == kF32) {
    static_cast<float*>(at)[i] = x;
  } else {
    static_cast<std::uint16_t*>(at)[i] = type == kF16 ? float_to_f16(x) : float_to_bf16(x);
  }
}

// Slot by slot: what every rank has of elements [begin, begin + count), given to `take`.
template <typename Take>
void exchange(Comm& comm, const void* from, std::size_t count, int type, Take take) {
  const std::size_t width = bytes_of(type), most = kSlotBytes / width;
  for (std::size_t begin = 0; begin < count; begin += most) {
    const std::size_t part = std::min(most, count - begin);
    std::memcpy(comm.shared->slots[comm.rank], static_cast<const char*>(from) + begin * width, part * width);
    if (!barrier(comm)) return;
    take(begin, part);
    if (!barrier(comm)) return;
  }
}

}  // namespace
}  // namespace fovea::cuda::fake

using namespace fovea::cuda::fake;  // NOLINT: the functions below are C, and stand outside

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
const char* ncclGetErrorString(int code) { return code == 0 ? "no error" : "internal error of the fake"; }

int ncclGetUniqueId(Id* id) {
  if (const int code = fault(__func__); code != 0) return code;
  *id = {};
  std::snprintf(id->name, sizeof id->name, "/fovea-fake-nccl-%d", ::getpid());
  ::shm_unlink(id->name);  // of a process that was killed before its ranks had met, whose number this one has now
  const int file = ::shm_open(id->name, O_CREAT | O_EXCL | O_RDWR, 0600);
  if (file < 0 || ::ftruncate(file, sizeof(Shared)) != 0) return kFailed;
  ::close(file);
  return 0;
}
int ncclCommInitRank(void** to, int size, Id id, int rank) {
  if (const int code = fault(__func__); code != 0) return code;
  const int file = ::shm_open(id.name, O_RDWR, 0600);
  if (file < 0) return kFailed;
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  auto* const comm = new Comm();
  comm->shared = static_cast<Shared*>(memory);
  comm->rank = rank;
  comm->size = size;
  barrier(*comm);
  if (rank == 0) ::shm_unlink(id.name);
  *to = comm;
  return 0;
}
int ncclCommDestroy(void*) { return fault(__func__); }
// Its memory stays, for calls that are under way.
int ncclCommAbort(void* comm) {
  static_cast<Comm*>(comm)->aborted.store(true);
  if (const int code = fault(__func__); code != 0) return code;
  g_aborted.store(true);
  return 0;
}
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int, void* comm, void* stream) {
  if (const int code = fault(__func__); code != 0) return code;
  enqueue_work(stream, [=, &c = *static_cast<Comm*>(comm)] {
    exchange(c, from, count, type, [&](std::size_t begin, std::size_t part) {
      for (std::size_t i = 0; i < part; ++i) {
        float sum = 0.0f;
        for (int rank = 0; rank < c.size; ++rank) sum += load(c.shared->slots[rank], type, i);
        store(to, type, begin + i, sum);
      }
    });
  });
  return 0;
}
int ncclAllGather(const void* from, void* to, std::size_t count, int type, void* comm, void* stream) {
  if (const int code = fault(__func__); code != 0) return code;
  enqueue_work(stream, [=, &c = *static_cast<Comm*>(comm)] {
    exchange(c, from, count, type, [&](std::size_t begin, std::size_t part) {
      for (int rank = 0; rank < c.size; ++rank) {
        const std::size_t at = (static_cast<std::size_t>(rank) * count + begin) * bytes_of(type);
        std::memcpy(static_cast<char*>(to) + at, c.shared->slots[rank], part * bytes_of(type));
      }
    });
  });
  return 0;
}

}  // extern "C"
