// The driver that testing/fake_driver.h describes.
#include "cuda/testing/fake_driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <set>
#include <vector>

namespace fovea::cuda::fake {

State& state() {
  static State the_state;
  return the_state;
}

std::string library_path() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&state), &info);
  return info.dli_fname;
}

void take_faults_from_environment() {
  const char* const text = std::getenv("FAKE_CUDA_FAULT");
  char function[64] = {};
  int call = 0, code = 0, rank = 0, own_rank = 0;
  if (text == nullptr || std::sscanf(text, "%63[^:]:%d:%d:%d", function, &call, &code, &rank) < 3) return;
  if (const char* const own = std::getenv("FOVEA_RANK"); own != nullptr) own_rank = std::atoi(own);
  if (rank == own_rank) state().once[function] = {call, code};
}

bool name_driver_and_cache() {
  const std::string library = library_path();
  const std::string cache = std::filesystem::path(library).parent_path() / "kernel-cache";
  return ::setenv("FOVEA_LIBCUDA", library.c_str(), 1) == 0 && ::setenv("FOVEA_CACHE_DIR", cache.c_str(), 1) == 0;
}

namespace {

constexpr CuResult kInvalidValue = 1;
constexpr CuResult kInvalidImage = 200;
constexpr CuResult kInvalidContext = 201;
constexpr CuResult kPeerAccessUnsupported = 217;
constexpr CuResult kNotFound = 500;
constexpr CuResult kCaptureUnsupported = 900;
constexpr CuResult kCaptureInvalidated = 901;
constexpr CuResult kUpdateFailure = 910;

using Work = std::function<void()>;
struct FakeGraph {
  std::vector<Work> nodes;
};
struct FakeStream {
  FakeGraph* capture = nullptr;
  int mode = 0;  // of the capture
  bool invalidated = false;
  std::deque<Work> waiting;        // of State::late
  std::size_t given = 0, run = 0;  // how much it ever was
};
struct FakeEvent {
  bool recorded = false;
  FakeStream* stream = nullptr;  // ..., behind so much of its work
  std::size_t given = 0;
};

int g_context;                      // its address is the context
std::set<std::string> g_functions;  // names that were looked up; their addresses are the kernels
thread_local std::vector<CuContext> g_current;
thread_local int g_capture_mode = kCuCaptureGlobal;
std::set<FakeStream*> g_capturing;
std::map<CuAddress, std::size_t> g_memory;
FakeStream g_default_stream;
std::set<FakeStream*> g_streams = {&g_default_stream};

FakeStream& stream_of(CuStream stream) {
  return stream == nullptr ? g_default_stream : *static_cast<FakeStream*>(stream);
}

void give(FakeStream& stream, Work work) {
  if (stream.capture != nullptr) {
    stream.capture->nodes.push_back(std::move(work));
  } else if (state().late) {
    stream.waiting.push_back(std::move(work));
    ++stream.given;
  } else {
    work();
  }
}

void run_until(FakeStream& stream, std::size_t given) {
  for (; stream.run < given && !stream.waiting.empty(); ++stream.run) {
    stream.waiting.front()();
    stream.waiting.pop_front();
  }
}

void run_until(const FakeEvent& event) {
  if (g_streams.contains(event.stream)) run_until(*event.stream, event.given);
}

// Memory that goes is no stream's any more.
void run_all() {
  for (FakeStream* const stream : g_streams) run_until(*stream, stream->given);
}

// Counts the call, and what it should answer: an injected failure, or that there is no context.
CuResult begin(const char* name, bool needs_context = true) {
  if (const int code = count_call(name); code != 0) return code;
  if (!needs_context) return 0;
  return g_current.empty() ? kInvalidContext : state().lost;
}

// As begin(); a failure while the stream captures spoils the capture, as the driver does it.
CuResult enqueue(const char* name, CuStream stream, Work work) {
  FakeStream& s = stream_of(stream);
  if (const CuResult code = begin(name); code != 0) {
    s.invalidated = s.capture != nullptr;
    return code;
  }
  give(s, std::move(work));
  return 0;
}

// As begin(), for calls that spoil captures in global mode unless the thread relaxed its mode.
CuResult begin_unsafe(const char* name) {
  if (const CuResult code = begin(name); code != 0) return code;
  CuResult code = 0;
  for (FakeStream* stream : g_capturing) {
    if (stream->mode != kCuCaptureGlobal || g_capture_mode == kCuCaptureRelaxed) continue;
    stream->invalidated = true;
    code = kCaptureUnsupported;
  }
  return code;
}

std::size_t memory_left() {
  std::size_t left = state().memory_bytes;
  for (const auto& [address, bytes] : g_memory) left -= bytes;
  return left - static_cast<std::size_t>(state().alive.graph_execs) * state().graph_bytes;
}

template <typename T>
T* pointer(CuAddress address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

int count_call(const std::string& name) {
  const int call = ++state().calls[name];
  if (const auto it = state().failures.find(name); it != state().failures.end()) return it->second;
  const auto it = state().once.find(name);
  if (it == state().once.end() || it->second.first != call) return 0;
  const int code = it->second.second;
  if (code >= kCuIllegalAddress && code <= kCuLaunchFailed) state().lost = code;
  return code;
}

void enqueue_work(void* stream, std::function<void()> work) { give(stream_of(stream), std::move(work)); }

}  // namespace fovea::cuda::fake

using namespace fovea::cuda;        // NOLINT: the functions below are C, and stand outside
using namespace fovea::cuda::fake;  // NOLINT

#define FAKE_BEGIN(...) \
  if (const CuResult code = fovea::cuda::fake::begin(__func__ __VA_OPT__(, ) __VA_ARGS__); code != 0) return code

#define FAKE_BEGIN_UNSAFE() \
  if (const CuResult code = fovea::cuda::fake::begin_unsafe(__func__); code != 0) return code

extern "C" {

CuResult cuInit(unsigned) {
  FAKE_BEGIN(false);
  return state().num_devices == 0 ? kCuNoDevice : 0;
}
CuResult cuDriverGetVersion(int* version) {
  FAKE_BEGIN(false);
  *version = state().version;
  return 0;
}
CuResult cuGetErrorName(CuResult code, const char** text) {
  *text = code == kCuOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : nullptr;
  return *text != nullptr ? 0 : kInvalidValue;
}
CuResult cuGetErrorString(CuResult code, const char** text) {
  *text = code == kCuOutOfMemory ? "out of memory" : nullptr;
  return *text != nullptr ? 0 : kInvalidValue;
}
CuResult cuDeviceGetCount(int* count) {
  FAKE_BEGIN(false);
  *count = state().num_devices;
  return 0;
}
CuResult cuDeviceGet(CuDevice* device, int index) {
  FAKE_BEGIN(false);
  *device = index;
  return index < state().num_devices ? 0 : kCuInvalidDevice;
}
CuResult cuDeviceGetName(char* name, int bytes, CuDevice) {
  FAKE_BEGIN(false);
  std::strncpy(name, "Fake H200", static_cast<std::size_t>(bytes));
  return 0;
}
CuResult cuDeviceGetAttribute(int* value, CuDeviceAttribute attribute, CuDevice) {
  FAKE_BEGIN(false);
  switch (attribute) {
    case kCuMultiprocessorCount: *value = kMultiprocessors; break;
    case kCuL2CacheSize: *value = 50 << 20; break;
    case kCuComputeMajor: *value = 9; break;
    case kCuComputeMinor: *value = 0; break;
    case kCuSharedPerBlockOptin: *value = 232448; break;
    default: return kInvalidValue;
  }
  return 0;
}
CuResult cuDeviceTotalMem_v2(std::size_t* bytes, CuDevice) {
  FAKE_BEGIN(false);
  *bytes = state().memory_bytes;
  return 0;
}

CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice) {
  FAKE_BEGIN(false);
  *context = &g_context;
  ++state().alive.contexts;
  return 0;
}
CuResult cuDevicePrimaryCtxRelease_v2(CuDevice) {
  FAKE_BEGIN(false);
  --state().alive.contexts;
  return 0;
}
CuResult cuCtxGetCurrent(CuContext* context) {
  FAKE_BEGIN(false);
  *context = g_current.empty() ? nullptr : g_current.back();
  return 0;
}
CuResult cuCtxPushCurrent_v2(CuContext context) {
  FAKE_BEGIN(false);
  g_current.push_back(context);
  return 0;
}
CuResult cuCtxPopCurrent_v2(CuContext* context) {
  FAKE_BEGIN(false);
  if (g_current.empty()) return kInvalidContext;
  *context = g_current.back();
  g_current.pop_back();
  return 0;
}
CuResult cuCtxSynchronize() {
  FAKE_BEGIN();
  run_all();
  return 0;
}

CuResult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  FAKE_BEGIN();
  *total_bytes = state().memory_bytes;
  *free_bytes = memory_left();
  return 0;
}
CuResult cuMemAlloc_v2(CuAddress* address, std::size_t bytes) {
  FAKE_BEGIN_UNSAFE();
  if (bytes > memory_left()) return kCuOutOfMemory;
  void* const memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!state().any_kernel) std::memset(memory, 0xcd, bytes);  // nobody may count on zeros
  *address = reinterpret_cast<CuAddress>(memory);
  g_memory[*address] = bytes;
  ++state().alive.device_buffers;
  return 0;
}
CuResult cuMemFree_v2(CuAddress address) {
  FAKE_BEGIN_UNSAFE();
  run_all();
  if (g_memory.erase(address) == 0) return kInvalidValue;
  std::free(pointer<void>(address));
  --state().alive.device_buffers;
  return 0;
}
CuResult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  FAKE_BEGIN_UNSAFE();
  *memory = std::malloc(bytes);
  ++state().alive.pinned_buffers;
  return 0;
}
CuResult cuMemFreeHost(void* memory) {
  FAKE_BEGIN_UNSAFE();
  run_all();
  std::free(memory);
  --state().alive.pinned_buffers;
  return 0;
}
CuResult cuMemcpyHtoDAsync_v2(CuAddress to, const void* from, std::size_t bytes, CuStream stream) {
  return enqueue(__func__, stream, [=] { std::memcpy(pointer<void>(to), from, bytes); });
}
CuResult cuMemcpyDtoHAsync_v2(void* to, CuAddress from, std::size_t bytes, CuStream stream) {
  return enqueue(__func__, stream, [=] { std::memcpy(to, pointer<void>(from), bytes); });
}
CuResult cuMemcpyDtoDAsync_v2(CuAddress to, CuAddress from, std::size_t bytes, CuStream stream) {
  return enqueue(__func__, stream, [=] { std::memcpy(pointer<void>(to), pointer<void>(from), bytes); });
}
CuResult cuMemcpy2DAsync_v2(const CuCopyRows* copy, CuStream stream) {
  return enqueue(__func__, stream, [c = *copy] {
    for (std::size_t row = 0; row < c.height; ++row) {
      std::memcpy(pointer<char>(c.to) + row * c.to_pitch, pointer<char>(c.from) + row * c.from_pitch, c.width);
    }
  });
}
// Ranks that are threads reach each other's memory as it is, processes do not.
CuResult cuIpcGetMemHandle(CuIpcHandle* handle, CuAddress address) {
  FAKE_BEGIN();
  const pid_t process = ::getpid();
  std::memcpy(handle->bytes, &address, sizeof address);
  std::memcpy(handle->bytes + sizeof address, &process, sizeof process);
  return 0;
}
CuResult cuIpcOpenMemHandle_v2(CuAddress* address, CuIpcHandle handle, unsigned) {
  FAKE_BEGIN();
  pid_t process = 0;
  std::memcpy(address, handle.bytes, sizeof *address);
  std::memcpy(&process, handle.bytes + sizeof *address, sizeof process);
  return process == ::getpid() ? 0 : kPeerAccessUnsupported;
}
CuResult cuIpcCloseMemHandle(CuAddress) {
  FAKE_BEGIN();
  return 0;
}
CuResult cuMemsetD8Async(CuAddress to, unsigned char value, std::size_t bytes, CuStream stream) {
  return enqueue(__func__, stream, [=] { std::memset(pointer<void>(to), value, bytes); });
}

CuResult cuStreamCreate(CuStream* stream, unsigned) {
  FAKE_BEGIN();
  auto* const made = new FakeStream();
  g_streams.insert(made);
  *stream = made;
  ++state().alive.streams;
  return 0;
}
CuResult cuStreamDestroy_v2(CuStream stream) {
  FAKE_BEGIN();
  run_until(stream_of(stream), stream_of(stream).given);
  g_streams.erase(&stream_of(stream));
  delete static_cast<FakeStream*>(stream);
  --state().alive.streams;
  return 0;
}
CuResult cuStreamSynchronize(CuStream stream) {
  FAKE_BEGIN();
  run_until(stream_of(stream), stream_of(stream).given);
  return 0;
}
CuResult cuStreamIsCapturing(CuStream stream, int* status) {
  FAKE_BEGIN();
  *status = stream_of(stream).capture != nullptr ? 1 : 0;
  return 0;
}
CuResult cuThreadExchangeStreamCaptureMode(int* mode) {
  FAKE_BEGIN(false);
  std::swap(g_capture_mode, *mode);
  return 0;
}
CuResult cuStreamBeginCapture_v2(CuStream stream, int mode) {
  FAKE_BEGIN();
  stream_of(stream).capture = new FakeGraph();
  stream_of(stream).mode = mode;
  g_capturing.insert(&stream_of(stream));
  ++state().alive.graphs;
  return 0;
}
CuResult cuGraphDestroy(CuGraph graph) {
  FAKE_BEGIN();
  delete static_cast<FakeGraph*>(graph);
  --state().alive.graphs;
  return 0;
}
CuResult cuStreamEndCapture(CuStream stream, CuGraph* graph) {
  const CuResult failure = fovea::cuda::fake::begin(__func__);
  FakeStream& s = stream_of(stream);
  *graph = s.capture;
  s.capture = nullptr;
  g_capturing.erase(&s);
  if (failure == 0 && !s.invalidated) return 0;  // else there is no graph, and the stream records no longer
  s.invalidated = false;
  delete static_cast<FakeGraph*>(std::exchange(*graph, nullptr));
  --state().alive.graphs;
  return failure != 0 ? failure : kCaptureInvalidated;
}

CuResult cuEventCreate(CuEvent* event, unsigned) {
  FAKE_BEGIN();
  *event = new FakeEvent();
  ++state().alive.events;
  return 0;
}
CuResult cuEventDestroy_v2(CuEvent event) {
  FAKE_BEGIN();
  delete static_cast<FakeEvent*>(event);
  --state().alive.events;
  return 0;
}
CuResult cuEventRecord(CuEvent event, CuStream stream) {
  FAKE_BEGIN();
  *static_cast<FakeEvent*>(event) = {true, &stream_of(stream), stream_of(stream).given};
  return 0;
}
CuResult cuEventSynchronize(CuEvent event) {
  FAKE_BEGIN();
  run_until(*static_cast<FakeEvent*>(event));
  return 0;
}
CuResult cuEventElapsedTime(float* milliseconds, CuEvent begin_event, CuEvent end_event) {
  FAKE_BEGIN();
  const bool both = static_cast<FakeEvent*>(begin_event)->recorded && static_cast<FakeEvent*>(end_event)->recorded;
  *milliseconds = 0.5f;
  return both ? 0 : kInvalidValue;
}

CuResult cuModuleLoadData(CuModule* module, const void* image) {
  FAKE_BEGIN_UNSAFE();
  if (std::memcmp(image,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return kInvalidImage;
  *module = new int(0);
  ++state().alive.modules;
  return 0;
}
CuResult cuModuleUnload(CuModule module) {
  FAKE_BEGIN();
  delete static_cast<int*>(module);
  --state().alive.modules;
  return 0;
}
CuResult cuModuleGetFunction(CuFunction* function, CuModule, const char* name) {
  FAKE_BEGIN();
  if (std::strcmp(name, "fill") != 0 && !state().kernels.contains(name) && !state().any_kernel) return kNotFound;
  *function = const_cast<std::string*>(&*g_functions.insert(name).first);
  return 0;
}
CuResult cuFuncSetAttribute(CuFunction, CuFunctionAttribute, int) {
  FAKE_BEGIN();
  return 0;
}
CuResult cuOccupancyMaxActiveClusters(int* clusters, CuFunction, const CuLaunchConfig* config) {
  FAKE_BEGIN();
  // As on an H100: clusters come from groups of 16 SMs, of which 132 / 16 are whole.
  const std::uint32_t a_cta = 1024 + config->shared_bytes, an_sm = std::max(1u, (228u << 10) / a_cta);
  std::uint32_t cluster = 1;
  for (std::uint32_t i = 0; i < config->num_attributes; ++i) {
    if (config->attributes[i].id == kCuLaunchClusterDimension) cluster = config->attributes[i].value.cluster[0];
  }
  *clusters = static_cast<int>(128 * an_sm / cluster);
  return 0;
}

// fill(uint32_t* to, uint32_t value, uint32_t count)
CuResult cuLaunchKernelEx(const CuLaunchConfig* config, CuFunction function, void** parameters, void**) {
  Launch launch;
  std::copy_n(config->grid, 3, launch.grid);
  std::copy_n(config->block, 3, launch.block);
  launch.smem_bytes = config->shared_bytes;
  for (std::uint32_t i = 0; i < config->num_attributes; ++i) {
    const CuLaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == kCuLaunchClusterDimension) std::copy_n(attribute.value.cluster, 3, launch.cluster);
    if (attribute.id == kCuLaunchProgrammaticSerialization) launch.programmatic = attribute.value.flag == 1;
  }
  state().launch = launch;
  if (const auto kernel = state().kernels.find(*static_cast<const std::string*>(function));
      kernel != state().kernels.end()) {
    return enqueue(__func__, config->stream, kernel->second(parameters));
  }
  if (*static_cast<const std::string*>(function) != "fill") return enqueue(__func__, config->stream, [] {});
  std::uint32_t* const to = *static_cast<std::uint32_t**>(parameters[0]);
  const std::uint32_t value = *static_cast<std::uint32_t*>(parameters[1]);
  const std::uint32_t count = *static_cast<std::uint32_t*>(parameters[2]);
  return enqueue(__func__, config->stream, [=] { std::fill_n(to, count, value); });
}

CuResult cuGraphInstantiateWithFlags(CuGraphExec* exec, CuGraph graph, unsigned long long) {
  FAKE_BEGIN();
  *exec = new FakeGraph(*static_cast<FakeGraph*>(graph));
  ++state().alive.graph_execs;
  return 0;
}
CuResult cuGraphLaunch(CuGraphExec exec, CuStream stream) {
  return enqueue(__func__, stream, [nodes = static_cast<FakeGraph*>(exec)->nodes] {
    for (const Work& work : nodes) work();
  });
}
CuResult cuGraphExecUpdate_v2(CuGraphExec exec, CuGraph graph, CuGraphExecUpdateResult*) {
  FAKE_BEGIN();
  FakeGraph& to = *static_cast<FakeGraph*>(exec);
  const FakeGraph& from = *static_cast<FakeGraph*>(graph);
  if (to.nodes.size() != from.nodes.size()) return kUpdateFailure;
  to = from;
  return 0;
}
CuResult cuGraphExecDestroy(CuGraphExec exec) {
  FAKE_BEGIN();
  delete static_cast<FakeGraph*>(exec);
  --state().alive.graph_execs;
  return 0;
}

// Writes the address, so that a map can be told from zeros.
CuResult cuTensorMapEncodeTiled(void* map, int, std::uint32_t, void* address, const std::uint64_t*,
                                const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int, int, int, int) {
  FAKE_BEGIN(false);
  std::memcpy(map, &address, sizeof address);
  return 0;
}

}  // extern "C"
