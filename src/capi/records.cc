#include "capi/records.h"

#include <algorithm>

namespace fovea::capi {
namespace {

// The numbers of fovea.h are those of the C++ API, so one is cast to the other.
template <typename T>
constexpr bool is(int number, T value) {
  return number == static_cast<int>(value);
}
static_assert(is(FOVEA_OK, StatusCode::kOk) && is(FOVEA_INVALID_ARGUMENT, StatusCode::kInvalidArgument) &&
              is(FOVEA_NOT_FOUND, StatusCode::kNotFound) && is(FOVEA_UNSUPPORTED, StatusCode::kUnsupported) &&
              is(FOVEA_OUT_OF_RANGE, StatusCode::kOutOfRange) &&
              is(FOVEA_RESOURCE_EXHAUSTED, StatusCode::kResourceExhausted) &&
              is(FOVEA_UNAVAILABLE, StatusCode::kUnavailable) && is(FOVEA_CANCELLED, StatusCode::kCancelled) &&
              is(FOVEA_DATA_LOSS, StatusCode::kDataLoss) && is(FOVEA_INTERNAL, StatusCode::kInternal));
static_assert(is(FOVEA_F32, DType::kF32) && is(FOVEA_F16, DType::kF16) && is(FOVEA_BF16, DType::kBF16) &&
              is(FOVEA_F8E4M3, DType::kF8E4M3) && is(FOVEA_I8, DType::kI8) && is(FOVEA_I4, DType::kI4));
static_assert(is(FOVEA_MASK_NONE, AttentionMask::kNone) && is(FOVEA_MASK_CAUSAL, AttentionMask::kCausal) &&
              is(FOVEA_MASK_WINDOW, AttentionMask::kWindow) && is(FOVEA_MASK_BITS, AttentionMask::kBits));
static_assert(is(FOVEA_NHD, KvLayout::kNHD) && is(FOVEA_HND, KvLayout::kHND));
static_assert(is(FOVEA_DECODE_AUTO, DecodeKernel::kAuto) && is(FOVEA_DECODE_GENERAL, DecodeKernel::kGeneral) &&
              is(FOVEA_DECODE_WARP_PER_WORKER, DecodeKernel::kWarpPerWorker) &&
              is(FOVEA_DECODE_LOW_BATCH, DecodeKernel::kLowBatch) && is(FOVEA_DECODE_PREFILL, DecodeKernel::kPrefill));
static_assert(is(FOVEA_PARAM_FLOAT, VariantParamType::kFloat) && is(FOVEA_PARAM_INT, VariantParamType::kInt) &&
              is(FOVEA_PARAM_FLOAT_TENSOR, VariantParamType::kFloatTensor) &&
              is(FOVEA_PARAM_INT_TENSOR, VariantParamType::kIntTensor));

thread_local std::string last;

enum DlDevice : std::int32_t { kDlCpu = 1, kDlCuda = 2, kDlCudaHost = 3, kDlCudaManaged = 13 };

bool is_device(std::int32_t type) { return type == kDlCuda || type == kDlCudaManaged; }

Result<DType> dtype_of(const fovea_tensor& t) {
  enum Code { kInt = 0, kUint = 1, kFloat = 2, kBfloat = 4, kBool = 6, kFloat8E4M3Fn = 10 };
  const int bits = t.dtype.bits;
  if (t.dtype.lanes == 1) {
    switch (t.dtype.code) {
      case kFloat:
        if (bits == 32) return DType::kF32;
        if (bits == 16) return DType::kF16;
        break;
      case kBfloat:
        if (bits == 16) return DType::kBF16;
        break;
      case kInt:
        if (bits == 32) return DType::kI32;
        if (bits == 64) return DType::kI64;
        if (bits == 8) return DType::kI8;
        break;
      case kUint:
      case kBool:
        if (bits == 8) return DType::kU8;
        break;
      case kFloat8E4M3Fn: return DType::kF8E4M3;
      default: break;
    }
  }
  return invalid("DLPack type (code " + std::to_string(t.dtype.code) + ", " + std::to_string(bits) + " bits, " +
                 std::to_string(t.dtype.lanes) + " lanes) is none that Fovea knows");
}

Status view_of(const char* name, const fovea_tensor* t, TensorView& view) {
  view = {};
  if (t == nullptr) return {};
  if (t->ndim < 1 || t->ndim > TensorView::kMaxRank || t->shape == nullptr) {
    return invalid(std::string(name) + " has rank " + std::to_string(t->ndim) + ", expected 1 to " +
                   std::to_string(TensorView::kMaxRank));
  }
  const Result<DType> dtype = dtype_of(*t);
  if (!dtype.ok()) return invalid(std::string(name) + ": " + dtype.status().message());
  view.dtype = *dtype;
  view.rank = t->ndim;
  std::int64_t stride = 1;
  const bool elements = std::count(t->shape, t->shape + t->ndim, 0) == 0;  // NumPy's strides without any are all 0
  for (int d = t->ndim - 1; d >= 0; --d) {
    view.shape[d] = t->shape[d];
    view.strides[d] = t->strides != nullptr && elements ? t->strides[d] : stride;
    stride *= t->shape[d];
  }
  view.data = static_cast<char*>(t->data) + t->byte_offset;
  if (is_device(t->device.type)) {
    view.device = DeviceKind::kCuda;
    view.device_index = t->device.id;
  } else if (t->device.type != kDlCpu && t->device.type != kDlCudaHost) {
    return invalid(std::string(name) + " is on DLPack device type " + std::to_string(t->device.type) +
                   ", expected CPU or CUDA");
  }
  return {};
}

}  // namespace

fovea_status report(const Status& status) {
  if (!status.ok()) last = status.to_string();
  return static_cast<fovea_status>(status.code());
}

const char* last_error() { return last.c_str(); }

DeviceKind kind_of(std::int32_t dl_device) { return is_device(dl_device) ? DeviceKind::kCuda : DeviceKind::kCpu; }

Status check_kind(std::int32_t dtype, const char* name) {
  if (dtype >= FOVEA_F32 && dtype <= FOVEA_I4) return {};
  return invalid(std::string(name) + " is " + std::to_string(dtype) + ", expected FOVEA_F32 to FOVEA_I4");
}

void take_as(DType stored, TensorView& pool) {
  if (pool.dtype != DType::kU8 && pool.dtype != DType::kI8) return;
  if (stored != DType::kF8E4M3 && stored != DType::kI8 && stored != DType::kI4) return;
  pool.dtype = stored;
  if (stored != DType::kI4 || pool.rank != 4) return;
  pool.shape[3] *= 2;
  for (int d = 0; d < 3; ++d) pool.strides[d] *= 2;
}

TensorView Views::get(const char* name, const fovea_tensor* t) {
  TensorView view;
  if (Status status = view_of(name, t, view); !status.ok()) fail(std::move(status));
  return view;
}

TensorView Views::required(const char* name, const fovea_tensor* t) {
  if (t == nullptr) fail(invalid(std::string(name) + " is NULL"));
  return get(name, t);
}

PagedKv Views::kv(const fovea_paged_kv* p) {
  PagedKv kv;
  if (p == nullptr) {
    fail(invalid("kv is NULL"));
    return kv;
  }
  if (p->layout != FOVEA_NHD && p->layout != FOVEA_HND) {
    fail(invalid("layout is " + std::to_string(p->layout) + ", expected FOVEA_NHD or FOVEA_HND"));
  }
  kv.layout = p->layout == FOVEA_HND ? KvLayout::kHND : KvLayout::kNHD;
  kv.k = required("k", p->k);
  kv.v = required("v", p->v);
  kv.k_scale = get("k_scale", p->k_scale);
  kv.v_scale = get("v_scale", p->v_scale);
  return kv;
}

PagedKv Views::stored_kv(const fovea_paged_kv* p) {
  if (p == nullptr) return {};
  PagedKv pool = kv(p);
  const std::int32_t kind = p->kv_dtype & ~FOVEA_ROTATED;
  if (Status status = check_kind(kind, "kv_dtype"); !status.ok()) fail(std::move(status));
  pool.rotated = (p->kv_dtype & FOVEA_ROTATED) != 0;
  const auto stored = kind == FOVEA_F32 ? DType::kF8E4M3 : static_cast<DType>(kind);
  for (TensorView* part : {&pool.k, &pool.v}) take_as(stored, *part);
  return pool;
}

AppendPlaces Views::places(const fovea_tensor* slots, const fovea_tensor* batch_indices, const fovea_tensor* positions,
                           const fovea_tensor* page_indices, const fovea_tensor* page_indptr) {
  return {get("slots", slots), get("batch_indices", batch_indices), get("positions", positions),
          get("page_indices", page_indices), get("page_indptr", page_indptr)};
}

}  // namespace fovea::capi
