// Checks of what callers of the public attention API hand over, with messages that say what was expected. Shared by its
// CPU and CUDA implementations.
#pragma once

#include <initializer_list>
#include <string>

#include "abi/kv_pool.h"
#include "fovea/attention.h"

namespace fovea {

// "bf16 [3, 8, 128] on cuda:0"
std::string describe(const TensorView& tensor);

struct DevicePlace {
  DeviceKind kind = DeviceKind::kCpu;
  std::int32_t index = 0;
};
// "cpu", "cuda", "cuda:1". kInvalidArgument for other text.
Result<DevicePlace> parse_device(const std::string& text);
std::string device_name(DevicePlace place);

inline bool is_empty(const TensorView& tensor) { return tensor.data == nullptr && tensor.rank == 0; }

Status check_place(const char* name, const TensorView& tensor, DevicePlace place);
// Rank 3, [at least rows, heads, head_dim] of dtype at the place, the last dim contiguous.
Status check_rows(const char* name, const TensorView& tensor, std::int64_t rows, std::int64_t heads,
                  std::int64_t head_dim, DType dtype, DevicePlace place);
// What kernels need of q and out: 16-byte alignment of the start, of rows and of heads.
Status check_aligned(const char* name, const TensorView& tensor);
// Contiguous, of dtype at the place.
Status check_contiguous(const char* name, const TensorView& tensor, DType dtype, DevicePlace place);
// Contiguous, [at least shape[0], shape[1] ..] of dtype at the place.
Status check_array(const char* name, const TensorView& tensor, std::initializer_list<std::int64_t> shape, DType dtype,
                   DevicePlace place);

// Places of `rows` new rows: slots, or the other four.
Status check_places(const AppendPlaces& places, std::int64_t rows, DevicePlace place);

// The pool that k and v are. page_tokens 0: any.
Result<abi::KvPoolView> pool_view(const PagedKv& kv, std::int64_t num_kv_heads, std::int64_t head_dim,
                                  std::int64_t page_tokens, DevicePlace place);
// k and v of rank 3, at least `tokens` of them without pages, as one page whose entries name entry_tokens each.
Result<abi::KvPoolView> contiguous_view(const PagedKv& kv, std::int64_t tokens, std::int64_t num_kv_heads,
                                        std::int64_t head_dim, std::int32_t entry_tokens, DevicePlace place);
// Whether it is stored as the options say.
Status check_storage(const AttentionOptions& options, const PagedKv& kv, const abi::KvPoolView& pool);

}  // namespace fovea
