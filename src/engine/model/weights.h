// WeightSource: where a model's tensors come from: a folder's safetensors, or random numbers. Used by transformer.cc.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea {

// A matrix as it is stored.
struct WeightMatrix {
  TensorView weight;  // bf16, f16, f32 or fp8_e4m3
  TensorView scale;   // of fp8_e4m3, which is multiplied by it (fp8_weights.h says what it covers); else empty
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool contains(const std::string& name) const = 0;
  // The tensor, of exactly that shape and of bf16, f16 or f32; valid as long as the source. The
  // Status names the tensor and what is wrong with it.
  virtual Result<TensorView> get(const std::string& name, std::initializer_list<std::int64_t> shape) = 0;
  // The matrix `name`.weight [out, in], with its scale. The same promises.
  virtual Result<WeightMatrix> matrix(const std::string& name, std::int64_t out, std::int64_t in);
  // Whether get() and matrix() cost nothing, so that all may be looked at before any is used.
  virtual bool is_stored() const { return false; }
  // All of it will be used, in about the order of the files: what lies on a disk is fetched beside.
  virtual void read_ahead() {}
};

// Tensors of a Hugging Face folder.
Result<std::unique_ptr<WeightSource>> open_weights(const std::string& folder);

// Random tensors that depend on the seed and the tensor's name alone: uniform, with deviation 1 / sqrt(columns) for
// matrices, so that activations keep their size through any number of layers; 0.02 around `norm_center` for norms, and
// around 0 for biases.
std::unique_ptr<WeightSource> dummy_weights(std::uint64_t seed, DType dtype, float norm_center);

}  // namespace fovea
