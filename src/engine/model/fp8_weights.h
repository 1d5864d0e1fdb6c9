// Matrices of fp8 checkpoints: what their scales cover, and the same as devices take them. Used by transformer.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/weights.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea {

// Side of the square of a matrix that has a scale where scales are by block.
inline constexpr std::int64_t kFp8Block = 128;

enum class Fp8Scales : std::uint8_t { kTensor, kChannel, kBlock };

// What the scales of an fp8_e4m3 matrix cover, by their shape; kInvalidArgument names the shapes that there are.
Result<Fp8Scales> fp8_scales_of(const std::string& name, const WeightMatrix& matrix);

// The scales of a matrix with one for all or one a row, as one a row.
std::vector<float> row_scales(const WeightMatrix& matrix);

// The matrix as bf16: numbers times scales, rounded once. kResourceExhausted.
Result<TensorView> expand_fp8(const WeightMatrix& matrix, std::shared_ptr<void>* memory);

}  // namespace fovea
