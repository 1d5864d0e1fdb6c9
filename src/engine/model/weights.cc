// Weights from safetensors and from a generator of random numbers.
#include "engine/model/weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "base/cgroup.h"
#include "base/half.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/quote.h"
#include "base/random.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "engine/model/fp8_weights.h"
#include "engine/model/safetensors.h"

namespace fovea {
namespace {

class StoredWeights : public WeightSource {
 public:
  explicit StoredWeights(TensorStore store) : store_(std::move(store)) {}

  bool contains(const std::string& name) const override { return store_.has(name); }

  Result<TensorView> get(const std::string& name, std::initializer_list<std::int64_t> shape) override {
    FOVEA_ASSIGN_OR_RETURN(const TensorView view, store_.find(name, shape));
    if (view.dtype != DType::kBF16 && view.dtype != DType::kF16 && view.dtype != DType::kF32) {
      return unsupported("{} is stored as {}, expected bf16, f16 or f32", store_.describe(name),
                         dtype_name(view.dtype));
    }
    return view;
  }

  Result<WeightMatrix> matrix(const std::string& name, std::int64_t out, std::int64_t in) override {
    const std::string weight = name + ".weight";
    std::string scale = weight + "_scale";
    if (!store_.has(scale)) scale += "_inv";  // by DeepSeek's name, which multiplies all the same
    WeightMatrix found;
    FOVEA_ASSIGN_OR_RETURN(found.weight, store_.find(weight, {out, in}));
    if (found.weight.dtype != DType::kF8E4M3) {
      if (store_.has(scale)) {
        return data_loss("{} is {} and has scales, expected fp8_e4m3 or no {}", store_.describe(weight),
                         dtype_name(found.weight.dtype), scale);
      }
      FOVEA_ASSIGN_OR_RETURN(found.weight, get(weight, {out, in}));
      return found;
    }
    if (!store_.has(scale)) {
      return not_found("{} is fp8_e4m3 and has no scales, expected {}_scale or {}_scale_inv beside it",
                       store_.describe(weight), weight, weight);
    }
    FOVEA_ASSIGN_OR_RETURN(found.scale, store_.find(scale));
    if (found.scale.dtype != DType::kF32 && found.scale.dtype != DType::kBF16 && found.scale.dtype != DType::kF16) {
      return unsupported("{} is stored as {}, expected f32, bf16 or f16", store_.describe(scale),
                         dtype_name(found.scale.dtype));
    }
    FOVEA_RETURN_IF_ERROR(fp8_scales_of(store_.describe(weight), found).status());
    return found;
  }
  bool is_stored() const override { return true; }

  // A thread asks for one piece after the other, which waits where the disk is behind. Not where the machine cannot
  // keep the files beside what the device makes of them.
  void read_ahead() override {
    if (store_.total_bytes() > available_memory_bytes() / 2) return;
    reader_ = std::jthread([this](const std::stop_token& stop) {
      constexpr std::size_t kPiece = std::size_t{32} << 20;
      for (const MappedFile& file : store_.files()) {
        for (std::size_t at = 0; at < file.size_bytes() && !stop.stop_requested(); at += kPiece) {
          file.prefetch(at, kPiece);
        }
      }
    });
  }

 private:
  TensorStore store_;
  std::jthread reader_;  // over store_
};

class DummyWeights : public WeightSource {
 public:
  DummyWeights(std::uint64_t seed, DType dtype, float norm_center)
      : seed_(seed), dtype_(dtype), norm_center_(norm_center) {}

  bool contains(const std::string& /*name*/) const override { return false; }  // nothing is stored

  Result<TensorView> get(const std::string& name, std::initializer_list<std::int64_t> shape) override {
    TensorView view;
    view.dtype = dtype_;
    view.rank = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    view.strides[0] = 1;
    if (view.rank == 2) view.strides = {view.shape[1], 1};
    const std::size_t size = static_cast<std::size_t>(view.num_elements() * dtype_bits(dtype_) / 8);
    // Asked for again: views of it must stay.
    if (const auto known = tensors_.find(name); known != tensors_.end() && known->second.size == size) {
      view.data = known->second.bytes.get();
      return view;
    }
    const bool norm = view.rank == 1 && name.ends_with("norm.weight");
    const double deviation = view.rank == 2 ? 1.0 / std::sqrt(static_cast<double>(view.shape[1])) : 0.02;
    // Not written before the threads that fill it do: the first touch of pages is most of the time.
    Tensor made{std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[size]), size};
    if (made.bytes == nullptr) {
      return resource_exhausted("no memory for {} ({} MB)", name, view.num_elements() * dtype_bits(dtype_) / 8 >> 20);
    }
    // A uniform number in [-1, 1) has deviation 1 / sqrt(3).
    fill(hash_string(name), norm ? norm_center_ : 0.0f, static_cast<float>(deviation * std::sqrt(3.0)),
         view.num_elements(), made.bytes.get());
    view.data = made.bytes.get();
    tensors_[name] = std::move(made);
    return view;
  }

 private:
  // Elements 8 b .. 8 b + 7 come from block b of the tensor's own Philox stream, whichever thread makes them.
  void fill(std::uint64_t stream, float center, float range, std::int64_t count, std::byte* out) {
    const std::int64_t blocks = (count + 7) / 8;
    pool_.parallel_for(blocks, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        const auto words = philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                       static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                                      {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
        for (std::int64_t i = block * 8; i < std::min(block * 8 + 8, count); ++i) {
          const std::uint32_t half = (words[static_cast<std::size_t>(i % 8) / 2] >> (i % 2 * 16)) & 0xffffu;
          const float value = center + (static_cast<float>(half) - 32767.5f) * 0x1p-15f * range;
          if (dtype_ == DType::kF32) {
            reinterpret_cast<float*>(out)[i] = value;
          } else {
            reinterpret_cast<std::uint16_t*>(out)[i] =
                dtype_ == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
          }
        }
      }
    });
  }

  std::uint64_t seed_;
  DType dtype_;
  float norm_center_;
  ThreadPool pool_;  // alive only while a model loads, when the device's own pool sleeps
  struct Tensor {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t size = 0;
  };
  std::map<std::string, Tensor> tensors_;
};

}  // namespace

Result<WeightMatrix> WeightSource::matrix(const std::string& name, std::int64_t out, std::int64_t in) {
  WeightMatrix matrix;
  FOVEA_ASSIGN_OR_RETURN(matrix.weight, get(name + ".weight", {out, in}));
  return matrix;
}

Result<std::unique_ptr<WeightSource>> open_weights(const std::string& folder) {
  FOVEA_ASSIGN_OR_RETURN(TensorStore store, TensorStore::open(folder));
  for (const std::string& name : store.names()) {
    if (!name.ends_with(".k_scale") && !name.ends_with(".v_scale") && !name.ends_with(".kv_scale")) continue;
    log_warning("{}: {} and its like are not used: the KV cache scales keys and values by itself", shorten(folder),
                name);
    break;
  }
  return std::unique_ptr<WeightSource>(std::make_unique<StoredWeights>(std::move(store)));
}

std::unique_ptr<WeightSource> dummy_weights(std::uint64_t seed, DType dtype, float norm_center) {
  return std::make_unique<DummyWeights>(seed, dtype, norm_center);
}

}  // namespace fovea
