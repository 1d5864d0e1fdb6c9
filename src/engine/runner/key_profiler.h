// KeyProfiler: learns a model's KeyCodes while it reads text. It stands where page selection would (LayerSelection),
// selects nothing, and gathers by layer and KV head the mean and deviation of each channel of the keys, as they lie in
// the KV cache, and the size of the queries in it. Made by create_profiling_engine; called by the model, layer by
// layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine/model/key_codes.h"
#include "engine/model/model.h"

namespace fovea {

class KeyProfiler final : public LayerSelection {
 public:
  // kUnsupported for heads of fewer channels than a code has. Both must outlive what is called but codes().
  static Result<std::unique_ptr<KeyProfiler>> create(Device& device, const Model& model);

  // Before a forward, which borrows the batch's slots and pools until it ends.
  void begin(const ForwardBatch& batch);
  abi::PageStatsView statistics(std::int32_t layer, std::size_t range) const override;
  Result<bool> attend(std::int32_t layer, const TensorView& q, const TensorView& out) override;

  // The channels of each head that matter most to q.k, by rms(q) * deviation(k), in falling order
  // (docs/research/page-selection.md). Between forwards; kUnavailable before the first.
  Result<KeyCodes> codes() const;

 private:
  // Of a layer; [KV heads, head_dim].
  struct Layer {
    std::vector<double> key_sum, key_square, query_square;
    std::int64_t tokens = 0;
  };

  KeyProfiler(Device& device, const Model& model) : device_(device), model_(model), config_(model.config()) {}
  struct Piece {
    const void* memory = nullptr;  // of the device
    std::size_t bytes = 0;
  };
  // Pieces as the host reads them, until the next call.
  Status bring(std::span<const Piece> pieces, std::vector<const std::byte*>& places);
  Status add_queries(const TensorView& q, Layer& layer);
  Status add_keys(std::size_t layer_index, Layer& layer);

  Device& device_;
  const Model& model_;
  const ModelConfig config_;
  std::vector<Layer> layers_;
  std::vector<std::size_t> attention_of_;  // layers' attention groups
  ForwardBatch batch_;
  std::shared_ptr<void> host_;  // of copies
  std::size_t host_bytes_ = 0;
};

}  // namespace fovea
