// Finds NCCL and calls it.
#include "cuda/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <vector>

#include "base/library_search.h"
#include "base/status.h"

namespace fovea::cuda {
namespace {

constexpr std::string_view kLibrary = "libnccl.so.";
constexpr int kSum = 0;

struct UniqueId {
  char bytes[sizeof(NcclId)];
};
static_assert(sizeof(UniqueId) == 128);

}  // namespace

// X(member, symbol, parameters): the part of NCCL's stable interface that is called.
#define FOVEA_NCCL_FUNCTIONS(X)                                                                                \
  X(get_version, ncclGetVersion, (int* version))                                                               \
  X(get_unique_id, ncclGetUniqueId, (UniqueId * id))                                                           \
  X(comm_init, ncclCommInitRank, (void** comm, int size, UniqueId id, int rank))                               \
  X(comm_destroy, ncclCommDestroy, (void* comm))                                                               \
  X(comm_abort, ncclCommAbort, (void* comm))                                                                   \
  X(all_reduce, ncclAllReduce,                                                                                 \
    (const void* from, void* to, std::size_t count, int type, int operation, void* comm, StreamHandle stream)) \
  X(all_gather, ncclAllGather,                                                                                 \
    (const void* from, void* to, std::size_t count, int type, void* comm, StreamHandle stream))

struct NcclFunctions {
#define FOVEA_NCCL_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  FOVEA_NCCL_FUNCTIONS(FOVEA_NCCL_MEMBER)
#undef FOVEA_NCCL_MEMBER
  const char* (*error_string)(int code) = nullptr;
  std::string path;
};

namespace {

Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }

// By NcclComm::abort, on another thread.
Status aborted() { return unavailable("NCCL was aborted, for other ranks have ended"); }

// By its bare name the linker finds one that is loaded already, PyTorch's for example.
std::vector<std::string> candidates() {
  std::vector<std::string> paths = {std::string(kLibrary) + "2"};
  for (const std::filesystem::path& folder : library_folders()) {
    if (const auto found = newest_library(folder, kLibrary)) paths.push_back(found->path.string());
  }
  return paths;
}

Status open(const std::string& path, NcclFunctions* functions) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return unavailable(fmt::format("NCCL cannot be loaded: {}", dlerror()));
#define FOVEA_NCCL_FIND(member, symbol, parameters)                                           \
  functions->member = reinterpret_cast<decltype(functions->member)>(dlsym(library, #symbol)); \
  if (functions->member == nullptr) return unavailable(path + " has no " #symbol);
  FOVEA_NCCL_FUNCTIONS(FOVEA_NCCL_FIND)
  FOVEA_NCCL_FIND(error_string, ncclGetErrorString, )
#undef FOVEA_NCCL_FIND
  functions->path = path;
  return ok_status();
}

Result<const NcclFunctions*> load() {
  static std::mutex mutex;
  static const NcclFunctions* loaded = nullptr;  // for the life of the process
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  // Multicast over NVLink has been seen to hang machines that share their switches. Buffers that graphs register need
  // all ranks to capture at the same time, which ranks with other plans do not. Both only where nobody says otherwise.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  ::setenv("NCCL_GRAPH_REGISTER", "0", 0);
  for (const std::string& path : candidates()) {
    auto functions = std::make_unique<NcclFunctions>();
    if (open(path, functions.get()).ok()) return loaded = functions.release();
  }
  return unavailable(
      "NCCL, over which several GPUs compute a model together, was not found; run `pip install nvidia-nccl-cu13`, and "
      "let LD_LIBRARY_PATH name the folder of its libnccl.so.2");
}

}  // namespace

Status NcclComm::status(int code, const char* what) const {
  if (code == 0) return ok_status();
  return internal_error("{}: {} (NCCL {}, {})", what, functions_.error_string(code), version(), functions_.path);
}

std::string NcclComm::version() const {
  int version = 0;
  functions_.get_version(&version);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Result<NcclId> NcclComm::make_id() {
  FOVEA_ASSIGN_OR_RETURN(const NcclFunctions* const functions, load());
  UniqueId id;
  const int code = functions->get_unique_id(&id);
  if (code != 0) return internal_error("ncclGetUniqueId: {}", functions->error_string(code));
  NcclId words;
  std::memcpy(words.data(), &id, sizeof id);
  return words;
}

Result<std::unique_ptr<NcclComm>> NcclComm::create(const NcclId& words, int rank, int size) {
  FOVEA_ASSIGN_OR_RETURN(const NcclFunctions* const functions, load());
  UniqueId id;
  std::memcpy(&id, words.data(), sizeof id);
  void* comm = nullptr;
  const int code = functions->comm_init(&comm, size, id, rank);
  if (code != 0) {
    return make_status(StatusCode::kUnavailable, "ncclCommInitRank of rank {} of {}: {}; NCCL_DEBUG=WARN says more",
                       rank, size, functions->error_string(code));
  }
  return std::unique_ptr<NcclComm>(new NcclComm(*functions, comm));
}

NcclComm::~NcclComm() {
  if (void* const comm = comm_.load(); comm != nullptr) functions_.comm_destroy(comm);
}

Status NcclComm::all_reduce(void* x, std::size_t count, NcclType type, StreamHandle stream) {
  void* const comm = comm_.load();
  if (comm == nullptr) return aborted();
  return status(functions_.all_reduce(x, x, count, static_cast<int>(type), kSum, comm, stream), "ncclAllReduce");
}

Status NcclComm::all_gather(const void* from, void* to, std::size_t count, NcclType type, StreamHandle stream) {
  void* const comm = comm_.load();
  if (comm == nullptr) return aborted();
  return status(functions_.all_gather(from, to, count, static_cast<int>(type), comm, stream), "ncclAllGather");
}

void NcclComm::abort() {
  if (void* const comm = comm_.exchange(nullptr); comm != nullptr) functions_.comm_abort(comm);
}

}  // namespace fovea::cuda
