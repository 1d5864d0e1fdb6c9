// append_paged_kv, merge_state and merge_states of the public API: checks, then the implementation of the tensors'
// device.
#include <vector>

#include "attention/attention_checks.h"
#include "attention/cpu_paged_ops.h"
#include "attention/cuda_paged_ops.h"
#include "base/status.h"
#include "fovea/attention.h"

namespace fovea {
namespace {

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

// That no rows are dropped because other operands lack them.
Status check_length(const char* name, const TensorView& tensor, std::int64_t rows) {
  if (tensor.shape[0] == rows) return ok_status();
  return invalid_argument("{} is {}, expected {} rows as the other operands have", name, describe(tensor), rows);
}

Status check_operand(const char* name, const TensorView& tensor, std::initializer_list<std::int64_t> shape, DType dtype,
                     DevicePlace place) {
  FOVEA_RETURN_IF_ERROR(check_array(name, tensor, shape, dtype, place));
  return check_length(name, tensor, *shape.begin());
}

// The same type, shape and device, rows apart as they like.
Status check_like(const char* name, const TensorView& tensor, const TensorView& like) {
  FOVEA_RETURN_IF_ERROR(check_rows(name, tensor, like.shape[0], like.shape[1], like.shape[2], like.dtype,
                                   {like.device, like.device_index}));
  return check_length(name, tensor, like.shape[0]);
}

Status merge_on_device(const MergeStates& merge, bool pair, DevicePlace place, Stream stream) {
  if (merge.rows == 0 || merge.heads == 0) return ok_status();
  if (place.kind == DeviceKind::kCpu) return cpu_merge_states(merge);
  return cuda_merge_states(merge, pair, place, stream);
}

}  // namespace

Status append_paged_kv(const TensorView& k, const TensorView& v, const AppendPlaces& places, const PagedKv& kv,
                       Stream stream) {
  if (k.rank != 3) return invalid_argument("k is {}, expected [rows, num_kv_heads, head_dim]", describe(k));
  const DevicePlace place{kv.k.device, kv.k.device_index};
  if (!is_float(k.dtype)) return unsupported("k is {}, expected f32, f16 or bf16", describe(k));
  FOVEA_RETURN_IF_ERROR(check_rows("k", k, 0, k.shape[1], k.shape[2], k.dtype, place));
  FOVEA_RETURN_IF_ERROR(check_like("v", v, k));
  FOVEA_ASSIGN_OR_RETURN(const abi::KvPoolView pool, pool_view(kv, k.shape[1], k.shape[2], 0, place));
  const std::int64_t rows = k.shape[0];
  FOVEA_RETURN_IF_ERROR(check_places(places, rows, place));
  if (rows == 0) return ok_status();
  if (place.kind == DeviceKind::kCpu) return cpu_append_paged_kv(k, v, places, pool);
  return cuda_append_paged_kv(k, v, places, pool, stream);
}

Status merge_states(const TensorView& v, const TensorView& lse, const TensorView& out, const TensorView& lse_out,
                    Stream stream) {
  if (v.rank != 4 || !is_float(v.dtype) || v.strides[3] != 1) {
    return invalid_argument(
        "v is {}, expected [rows, states, heads, head_dim] of f32, f16 or bf16 with a contiguous last "
        "dim",
        describe(v));
  }
  const DevicePlace place{v.device, v.device_index};
  FOVEA_RETURN_IF_ERROR(check_place("v", v, place));
  FOVEA_RETURN_IF_ERROR(check_operand("lse", lse, {v.shape[0], v.shape[1], v.shape[2]}, DType::kF32, place));
  FOVEA_RETURN_IF_ERROR(check_rows("out", out, v.shape[0], v.shape[2], v.shape[3], v.dtype, place));
  if (!is_empty(lse_out)) {
    FOVEA_RETURN_IF_ERROR(check_array("lse_out", lse_out, {v.shape[0], v.shape[2]}, DType::kF32, place));
  }
  std::vector<cpu::AttentionState> states(static_cast<std::size_t>(v.shape[1]));
  for (std::int64_t s = 0; s < v.shape[1]; ++s) {
    states[static_cast<std::size_t>(s)] = {
        static_cast<const char*>(v.data) + s * v.strides[1] * (dtype_bits(v.dtype) / 8),
        static_cast<const float*>(lse.data) + s * v.shape[2],
        v.strides[0],
        v.strides[2],
        v.shape[1] * v.shape[2],
        1};
  }
  return merge_on_device({states.data(), v.shape[1], v.shape[0], v.shape[2], v.shape[3], v.dtype, out.data,
                          out.strides[0], out.strides[1], static_cast<float*>(lse_out.data), nullptr},
                         false, place, stream);
}

Status merge_state(const TensorView& v_a, const TensorView& lse_a, const TensorView& v_b, const TensorView& lse_b,
                   const TensorView& out, const TensorView& lse_out, const TensorView& mask, Stream stream) {
  if (v_a.rank != 3 || !is_float(v_a.dtype) || v_a.strides[2] != 1) {
    return invalid_argument(
        "v_a is {}, expected [rows, heads, head_dim] of f32, f16 or bf16 with a contiguous last dim", describe(v_a));
  }
  const DevicePlace place{v_a.device, v_a.device_index};
  FOVEA_RETURN_IF_ERROR(check_place("v_a", v_a, place));
  FOVEA_RETURN_IF_ERROR(check_like("v_b", v_b, v_a));
  FOVEA_RETURN_IF_ERROR(check_rows("out", out, v_a.shape[0], v_a.shape[1], v_a.shape[2], v_a.dtype, place));
  FOVEA_RETURN_IF_ERROR(check_operand("lse_a", lse_a, {v_a.shape[0], v_a.shape[1]}, DType::kF32, place));
  FOVEA_RETURN_IF_ERROR(check_operand("lse_b", lse_b, {v_a.shape[0], v_a.shape[1]}, DType::kF32, place));
  if (!is_empty(lse_out)) {
    FOVEA_RETURN_IF_ERROR(check_array("lse_out", lse_out, {v_a.shape[0], v_a.shape[1]}, DType::kF32, place));
  }
  if (!is_empty(mask)) FOVEA_RETURN_IF_ERROR(check_operand("mask", mask, {v_a.shape[0]}, DType::kU8, place));
  const std::int64_t heads = v_a.shape[1];
  const cpu::AttentionState states[2] = {
      {v_a.data, static_cast<const float*>(lse_a.data), v_a.strides[0], v_a.strides[1], heads, 1},
      {v_b.data, static_cast<const float*>(lse_b.data), v_b.strides[0], v_b.strides[1], heads, 1}};
  return merge_on_device(
      {states, 2, v_a.shape[0], heads, v_a.shape[2], v_a.dtype, out.data, out.strides[0], out.strides[1],
       static_cast<float*>(lse_out.data), static_cast<const std::uint8_t*>(mask.data)},
      true, place, stream);
}

}  // namespace fovea
