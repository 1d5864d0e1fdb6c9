// From the records of the C ABI (fovea/fovea.h) to those of the C++ one, and from Status to codes. Used by the files of
// this folder.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "fovea/attention.h"
#include "fovea/fovea.h"

struct fovea_attention {
  fovea::Attention attention;
};

namespace fovea::capi {

// Notes what went wrong for fovea_last_error().
fovea_status report(const Status& status);
const char* last_error();

inline Status invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

// Runs f, which returns a Status; exceptions (memory) do not cross the C boundary.
template <typename F>
fovea_status guarded(F&& f) {
  try {
    return report(f());
  } catch (const std::bad_alloc&) {
    return report({StatusCode::kResourceExhausted, "no memory on the host"});
  } catch (const std::exception& error) {
    return report({StatusCode::kInternal, error.what()});
  }
}

// Of a DLPack device type.
DeviceKind kind_of(std::int32_t dl_device);

// That it is a storage type.
Status check_kind(std::int32_t dtype, const char* name);

// A pool of bytes as the pool of `stored` that it holds. int4: a byte has two elements, so dims and strides are twice
// as many of those.
void take_as(DType stored, TensorView& pool);

// The first failure of several conversions.
class Views {
 public:
  TensorView get(const char* name, const fovea_tensor* t);
  TensorView required(const char* name, const fovea_tensor* t);
  // Pools of bytes stay what they are.
  PagedKv kv(const fovea_paged_kv* p);
  // Pools of bytes are what p->kv_dtype says, fp8 where it says nothing. Null: an empty one.
  PagedKv stored_kv(const fovea_paged_kv* p);
  AppendPlaces places(const fovea_tensor* slots, const fovea_tensor* batch_indices, const fovea_tensor* positions,
                      const fovea_tensor* page_indices, const fovea_tensor* page_indptr);
  const Status& status() const { return status_; }

 private:
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  Status status_;
};

// A copy of what the caller's version of the struct has; the rest is zero.
template <typename T>
Result<T> versioned(const T* given, const char* name) {
  T copy{};
  if (given == nullptr) return invalid(std::string(name) + " is NULL");
  if (given->struct_bytes < sizeof(std::size_t) || given->struct_bytes > 4096) {
    return invalid(std::string(name) + ".struct_bytes is " + std::to_string(given->struct_bytes) +
                   ", expected sizeof the struct");
  }
  std::memcpy(&copy, given, std::min(given->struct_bytes, sizeof(T)));
  return copy;
}

}  // namespace fovea::capi
