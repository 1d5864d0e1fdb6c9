// The part of the CUDA driver's binary interface that this folder calls, declared here so that nothing of CUDA is
// needed to build. The interface is stable: names carry their version (_v2). Included by the .cc files of this folder
// only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::cuda {

using CuResult = int;  // 0: success
using CuDevice = int;
using CuContext = void*;
using CuStream = void*;
using CuEvent = void*;
using CuModule = void*;
using CuFunction = void*;
using CuGraph = void*;
using CuGraphExec = void*;
using CuAddress = std::uint64_t;  // CUdeviceptr

inline constexpr CuResult kCuOutOfMemory = 2;
inline constexpr CuResult kCuDeviceUnavailable = 46;
inline constexpr CuResult kCuNoDevice = 100;
inline constexpr CuResult kCuInvalidDevice = 101;
inline constexpr CuResult kCuInvalidImage = 200;
inline constexpr CuResult kCuNoBinaryForDevice = 209;
inline constexpr CuResult kCuIllegalAddress = 700;
inline constexpr CuResult kCuLaunchTimeout = 702;
inline constexpr CuResult kCuContextDestroyed = 709;
inline constexpr CuResult kCuAssert = 710;
inline constexpr CuResult kCuHardwareStackError = 714;  // the first of six faults of kernels
inline constexpr CuResult kCuLaunchFailed = 719;        // the last of them
inline constexpr CuResult kCuGraphUpdateFailure = 910;

// Capture modes.
inline constexpr int kCuCaptureGlobal = 0;
inline constexpr int kCuCaptureThreadLocal = 1;
inline constexpr int kCuCaptureRelaxed = 2;

enum CuDeviceAttribute : int {
  kCuMultiprocessorCount = 16,
  kCuL2CacheSize = 38,
  kCuComputeMajor = 75,
  kCuComputeMinor = 76,
  kCuSharedPerBlockOptin = 97,
};

enum CuFunctionAttribute : int {
  kCuMaxDynamicSharedBytes = 8,
};

enum CuLaunchAttributeId : int {
  kCuLaunchClusterDimension = 4,
  kCuLaunchProgrammaticSerialization = 6,
};

struct CuLaunchAttribute {
  CuLaunchAttributeId id;
  std::uint32_t pad;
  union {
    std::uint32_t cluster[3];
    int flag;  // programmatic serialization
    char bytes[64];
  } value;
};
static_assert(sizeof(CuLaunchAttribute) == 72);

struct CuLaunchConfig {
  std::uint32_t grid[3];
  std::uint32_t block[3];
  std::uint32_t shared_bytes;
  CuStream stream;
  CuLaunchAttribute* attributes;
  std::uint32_t num_attributes;
};
static_assert(sizeof(CuLaunchConfig) == 56 && offsetof(CuLaunchConfig, stream) == 32);

// cuMemcpy2DAsync; memory types: 2 is device memory.
struct CuCopyRows {
  std::size_t from_x, from_y;
  int from_type;
  const void* from_host;
  CuAddress from;
  void* from_array;
  std::size_t from_pitch, to_x, to_y;
  int to_type;
  void* to_host;
  CuAddress to;
  void* to_array;
  std::size_t to_pitch, width, height;
};
static_assert(sizeof(CuCopyRows) == 128);

// Device memory that another process can map.
struct CuIpcHandle {
  char bytes[64];
};

struct CuGraphExecUpdateResult {
  int result;
  void* error_node;
  void* error_from_node;
};
static_assert(sizeof(CuGraphExecUpdateResult) == 24);

// X(member, symbol, parameters): every function that is looked up.
#define FOVEA_CUDA_FUNCTIONS(X)                                                                                       \
  X(init, cuInit, (unsigned flags))                                                                                   \
  X(driver_get_version, cuDriverGetVersion, (int* version))                                                           \
  X(get_error_name, cuGetErrorName, (CuResult code, const char** text))                                               \
  X(get_error_string, cuGetErrorString, (CuResult code, const char** text))                                           \
  X(device_get_count, cuDeviceGetCount, (int* count))                                                                 \
  X(device_get, cuDeviceGet, (CuDevice * device, int index))                                                          \
  X(device_get_name, cuDeviceGetName, (char* name, int bytes, CuDevice device))                                       \
  X(device_get_attribute, cuDeviceGetAttribute, (int* value, CuDeviceAttribute attribute, CuDevice device))           \
  X(device_total_memory, cuDeviceTotalMem_v2, (std::size_t * bytes, CuDevice device))                                 \
  X(primary_context_retain, cuDevicePrimaryCtxRetain, (CuContext * context, CuDevice device))                         \
  X(primary_context_release, cuDevicePrimaryCtxRelease_v2, (CuDevice device))                                         \
  X(context_get_current, cuCtxGetCurrent, (CuContext * context))                                                      \
  X(context_push, cuCtxPushCurrent_v2, (CuContext context))                                                           \
  X(context_pop, cuCtxPopCurrent_v2, (CuContext * context))                                                           \
  X(context_synchronize, cuCtxSynchronize, ())                                                                        \
  X(memory_get_info, cuMemGetInfo_v2, (std::size_t * free_bytes, std::size_t * total_bytes))                          \
  X(memory_allocate, cuMemAlloc_v2, (CuAddress * address, std::size_t bytes))                                         \
  X(memory_free, cuMemFree_v2, (CuAddress address))                                                                   \
  X(host_allocate, cuMemHostAlloc, (void** address, std::size_t bytes, unsigned flags))                               \
  X(host_free, cuMemFreeHost, (void* address))                                                                        \
  X(copy_to_device, cuMemcpyHtoDAsync_v2, (CuAddress to, const void* from, std::size_t bytes, CuStream stream))       \
  X(copy_to_host, cuMemcpyDtoHAsync_v2, (void* to, CuAddress from, std::size_t bytes, CuStream stream))               \
  X(copy_on_device, cuMemcpyDtoDAsync_v2, (CuAddress to, CuAddress from, std::size_t bytes, CuStream stream))         \
  X(copy_rows, cuMemcpy2DAsync_v2, (const CuCopyRows* copy, CuStream stream))                                         \
  X(ipc_get_handle, cuIpcGetMemHandle, (CuIpcHandle * handle, CuAddress address))                                     \
  X(ipc_open_handle, cuIpcOpenMemHandle_v2, (CuAddress * address, CuIpcHandle handle, unsigned flags))                \
  X(ipc_close_handle, cuIpcCloseMemHandle, (CuAddress address))                                                       \
  X(set_bytes, cuMemsetD8Async, (CuAddress to, unsigned char value, std::size_t bytes, CuStream stream))              \
  X(stream_create, cuStreamCreate, (CuStream * stream, unsigned flags))                                               \
  X(stream_destroy, cuStreamDestroy_v2, (CuStream stream))                                                            \
  X(stream_synchronize, cuStreamSynchronize, (CuStream stream))                                                       \
  X(stream_is_capturing, cuStreamIsCapturing, (CuStream stream, int* status))                                         \
  X(stream_begin_capture, cuStreamBeginCapture_v2, (CuStream stream, int mode))                                       \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))                                            \
  X(stream_end_capture, cuStreamEndCapture, (CuStream stream, CuGraph * graph))                                       \
  X(event_create, cuEventCreate, (CuEvent * event, unsigned flags))                                                   \
  X(event_destroy, cuEventDestroy_v2, (CuEvent event))                                                                \
  X(event_record, cuEventRecord, (CuEvent event, CuStream stream))                                                    \
  X(event_synchronize, cuEventSynchronize, (CuEvent event))                                                           \
  X(event_elapsed_time, cuEventElapsedTime, (float* milliseconds, CuEvent begin, CuEvent end))                        \
  X(module_load, cuModuleLoadData, (CuModule * module, const void* image))                                            \
  X(module_unload, cuModuleUnload, (CuModule module))                                                                 \
  X(module_get_function, cuModuleGetFunction, (CuFunction * function, CuModule module, const char* name))             \
  X(function_set_attribute, cuFuncSetAttribute, (CuFunction function, CuFunctionAttribute attribute, int value))      \
  X(clusters, cuOccupancyMaxActiveClusters, (int* clusters, CuFunction function, const CuLaunchConfig* config))       \
  X(launch, cuLaunchKernelEx, (const CuLaunchConfig* config, CuFunction function, void** parameters, void** extra))   \
  X(graph_instantiate, cuGraphInstantiateWithFlags, (CuGraphExec * exec, CuGraph graph, unsigned long long flags))    \
  X(graph_launch, cuGraphLaunch, (CuGraphExec exec, CuStream stream))                                                 \
  X(graph_update, cuGraphExecUpdate_v2, (CuGraphExec exec, CuGraph graph, CuGraphExecUpdateResult * result))          \
  X(graph_exec_destroy, cuGraphExecDestroy, (CuGraphExec exec))                                                       \
  X(graph_destroy, cuGraphDestroy, (CuGraph graph))                                                                   \
  X(tensor_map_encode, cuTensorMapEncodeTiled,                                                                        \
    (void* map, int type, std::uint32_t rank, void* address, const std::uint64_t* dims, const std::uint64_t* strides, \
     const std::uint32_t* box, const std::uint32_t* element_strides, int interleave, int swizzle, int l2_promotion,   \
     int out_of_bounds))

struct DriverApi {
#define FOVEA_CUDA_MEMBER(member, symbol, parameters) CuResult(*member) parameters = nullptr;
  FOVEA_CUDA_FUNCTIONS(FOVEA_CUDA_MEMBER)
#undef FOVEA_CUDA_MEMBER
};

}  // namespace fovea::cuda
