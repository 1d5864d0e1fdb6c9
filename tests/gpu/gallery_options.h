// The options that the gallery (examples/variants) runs with on a device. Used by variants_gpu_test.cc, and by
// warm_main.cc, which compiles their kernels beforehand.
#pragma once

#include <memory>
#include <vector>

#include "jit/gallery_cases_test_util.h"
#include "jit/gallery_test_util.h"
#include "tests/gpu/agreement.h"

namespace fovea::gpu_test {

// The options of a variant; its tensors are kept alive in `kept`.
inline Result<AttentionOptions> options_of(Place& place, const VariantSpec& spec, const jit::GalleryCase& gallery,
                                           DType dtype, std::vector<std::shared_ptr<void>>& kept) {
  AttentionOptions o;
  o.device = place.name();
  o.num_qo_heads = jit::kGalleryHeads;
  o.num_kv_heads = jit::kGalleryKvHeads;
  o.head_dim = jit::kGalleryHeadDim;
  o.q_dtype = o.kv_dtype = dtype;
  o.max_requests = 8;
  o.max_rows = 64;
  o.max_pages_per_request = 16;
  o.softcap = gallery.softcap;
  o.sigmoid_bias = gallery.sigmoid_bias;
  o.variant = spec;
  Status failed;
  const auto tensor = [&](const auto& values, DType type) {
    Result<std::shared_ptr<void>> memory = upload(place, values);
    if (!memory.ok()) {
      failed = memory.status();
      return TensorView();
    }
    kept.push_back(*memory);
    return place.view(memory->get(), type, static_cast<std::int64_t>(values.size()));
  };
  if (!gallery.sinks.empty()) o.sinks = tensor(gallery.sinks, DType::kF32);
  for (const auto& [name, number] : gallery.numbers) o.variant_values.push_back({.name = name, .number = number});
  for (const auto& [name, values] : gallery.floats) {
    o.variant_values.push_back({.name = name, .tensor = tensor(values, DType::kF32)});
  }
  for (const auto& [name, values] : gallery.ints) {
    o.variant_values.push_back({.name = name, .tensor = tensor(values, DType::kI32)});
  }
  if (!failed.ok()) return failed;
  return o;
}

}  // namespace fovea::gpu_test
