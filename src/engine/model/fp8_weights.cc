// Scales by shape, and expansion.
#include "engine/model/fp8_weights.h"

#include "base/fp8.h"
#include "base/half.h"
#include "base/status.h"
#include "base/thread_pool.h"

namespace fovea {
namespace {

std::int64_t blocks_of(std::int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

float scale_at(const TensorView& scale, std::int64_t i) {
  switch (scale.dtype) {
    case DType::kF32: return static_cast<const float*>(scale.data)[i];
    case DType::kF16: return f16_to_float(static_cast<const std::uint16_t*>(scale.data)[i]);
    default: return bf16_to_float(static_cast<const std::uint16_t*>(scale.data)[i]);
  }
}

}  // namespace

Result<Fp8Scales> fp8_scales_of(const std::string& name, const WeightMatrix& matrix) {
  const std::int64_t out = matrix.weight.shape[0], in = matrix.weight.shape[1];
  const TensorView& s = matrix.scale;
  if (s.num_elements() == 1 && s.rank <= 2) return Fp8Scales::kTensor;
  if ((s.rank == 1 || (s.rank == 2 && s.shape[1] == 1)) && s.shape[0] == out) return Fp8Scales::kChannel;
  if (s.rank == 2 && s.shape[0] == blocks_of(out) && s.shape[1] == blocks_of(in)) return Fp8Scales::kBlock;
  return invalid_argument("the scales of {} are [{}], expected [1], [{}, 1] or [{}, {}] for [{}, {}]", name,
                          fmt::join(s.shape.begin(), s.shape.begin() + s.rank, ", "), out, blocks_of(out),
                          blocks_of(in), out, in);
}

std::vector<float> row_scales(const WeightMatrix& matrix) {
  std::vector<float> scales(static_cast<std::size_t>(matrix.weight.shape[0]));
  const bool one = matrix.scale.num_elements() == 1;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = scale_at(matrix.scale, one ? 0 : static_cast<std::int64_t>(i));
  }
  return scales;
}

Result<TensorView> expand_fp8(const WeightMatrix& matrix, std::shared_ptr<void>* memory) {
  const std::int64_t out = matrix.weight.shape[0], in = matrix.weight.shape[1];
  std::shared_ptr<std::uint16_t[]> to;
  try {
    to = std::make_shared<std::uint16_t[]>(static_cast<std::size_t>(out * in));
  } catch (const std::bad_alloc&) {
    return resource_exhausted("no memory for a matrix of [{}, {}] in bf16", out, in);
  }
  const std::int64_t scales = matrix.scale.num_elements();
  const bool blocks = scales != 1 && scales != out;
  const auto* const codes = static_cast<const std::uint8_t*>(matrix.weight.data);
  ThreadPool pool;  // the device's own sleeps while a model loads
  pool.parallel_for(out, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t first = scales == 1 ? 0 : blocks ? row / kFp8Block * blocks_of(in) : row;
      for (std::int64_t i = 0; i < in; ++i) {
        const float scale = scale_at(matrix.scale, blocks ? first + i / kFp8Block : first);
        to[static_cast<std::size_t>(row * in + i)] = float_to_bf16(e4m3_to_float(codes[row * in + i]) * scale);
      }
    }
  });
  *memory = to;
  return cpu_tensor(to.get(), DType::kBF16, out, in);
}

}  // namespace fovea
