// Packing of weights, and how a product is cut over threads and caches.
#include "cpu/ops/matmul.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/status.h"
#include "cpu/ops/matmul_kernel.h"

namespace fovea::cpu {
namespace {

// Rows of x that one pass packs: large enough that reading the weights again for the next rows costs little.
constexpr std::int64_t kBlockRows = 224;
// Steps of k whose weights (32 x 2 bytes each) stay in the L1 cache while all rows of a block go over them.
constexpr std::int64_t kBlockK = 256;

// Where column c of a panel stands in the 32 elements of one k. bf16 stores columns i and i + 16 side by side.
std::int64_t panel_slot(DType dtype, std::int64_t c) { return dtype == DType::kBF16 ? (c % 16) * 2 + c / 16 : c; }

// The first element of row `row` of the stacked parts.
template <typename Element>
const Element* stacked_row(std::span<const TensorView> parts, std::int64_t row) {
  for (const TensorView& part : parts) {
    if (row < part.shape[0]) return static_cast<const Element*>(part.data) + row * part.strides[0];
    row -= part.shape[0];
  }
  return nullptr;
}

template <typename Element>
void pack_panel(std::span<const TensorView> parts, std::int64_t out_features, std::int64_t panel, Element* out) {
  const std::int64_t k_count = parts[0].shape[1];
  const std::int64_t columns = std::min(kPanelWidth, out_features - panel * kPanelWidth);
  const Element* rows[kPanelWidth];
  for (std::int64_t c = 0; c < columns; ++c) rows[c] = stacked_row<Element>(parts, panel * kPanelWidth + c);
  // By short runs of k, so that the lines being written stay in the cache while 32 source rows are read.
  constexpr std::int64_t kRun = 64;
  for (std::int64_t k0 = 0; k0 < k_count; k0 += kRun) {
    const std::int64_t k1 = std::min(k0 + kRun, k_count);
    for (std::int64_t c = 0; c < columns; ++c) {
      Element* to = out + panel_slot(parts[0].dtype, c);
      for (std::int64_t k = k0; k < k1; ++k) to[k * kPanelWidth] = rows[c][k];
    }
  }
}

Status check_parts(std::span<const TensorView> parts) {
  if (parts.empty()) return invalid_argument("a weight of no parts");
  for (const TensorView& part : parts) {
    if (part.rank != 2) return invalid_argument("weight has rank {}, expected 2: [out, in]", part.rank);
    if (part.dtype != DType::kBF16 && part.dtype != DType::kF16 && part.dtype != DType::kF32) {
      return unsupported("weights of {}, expected bf16, f16 or f32", dtype_name(part.dtype));
    }
    if (part.shape[0] <= 0 || part.shape[1] <= 0 || part.strides[1] != 1) {
      return invalid_argument("weight is [{}, {}] with stride {} in a row, expected positive sizes and stride 1",
                              part.shape[0], part.shape[1], part.strides[1]);
    }
    if (part.dtype != parts[0].dtype || part.shape[1] != parts[0].shape[1]) {
      return invalid_argument("weights stacked are [., {}] {} and [., {}] {}, expected one width and type",
                              parts[0].shape[1], dtype_name(parts[0].dtype), part.shape[1], dtype_name(part.dtype));
    }
  }
  return ok_status();
}

}  // namespace

Result<PackedWeight> PackedWeight::create(std::span<const TensorView> parts, ThreadPool& pool) {
  FOVEA_RETURN_IF_ERROR(check_parts(parts));
  PackedWeight packed;
  packed.dtype_ = parts[0].dtype;
  packed.in_features_ = parts[0].shape[1];
  for (const TensorView& part : parts) packed.out_features_ += part.shape[0];
  const std::int64_t panel_elements = packed.in_features_ * kPanelWidth;
  const std::size_t element_bytes = static_cast<std::size_t>(dtype_bits(packed.dtype_) / 8);
  const std::size_t bytes = static_cast<std::size_t>(packed.num_panels() * panel_elements) * element_bytes;
  packed.data_ = AlignedBuffer(bytes);
  if (packed.data_.data() == nullptr) {
    return resource_exhausted("no memory for a weight of [{}, {}] {} ({} MB)", packed.out_features_,
                              packed.in_features_, dtype_name(packed.dtype_), bytes >> 20);
  }
  pool.parallel_for(packed.num_panels(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      if (element_bytes == 2) {
        pack_panel(parts, packed.out_features_, panel, packed.data_.as<std::uint16_t>() + panel * panel_elements);
      } else {
        pack_panel(parts, packed.out_features_, panel, packed.data_.as<float>() + panel * panel_elements);
      }
    }
  });
  return packed;
}

Status MatmulScratch::reserve(std::int64_t in_features) {
  if (in_features <= in_features_) return ok_status();
  AlignedBuffer larger(static_cast<std::size_t>(kBlockRows * in_features) * sizeof(float));
  if (larger.data() == nullptr)
    return resource_exhausted("no memory for {} rows of {} floats", kBlockRows, in_features);
  buffer_ = std::move(larger);
  in_features_ = in_features;
  return ok_status();
}

namespace {

// One product, with what its workers share.
struct Product {
  const float* x;
  std::int64_t x_stride;
  std::int64_t rows;
  const PackedWeight& weight;
  const float* bias;
  float* y;
  std::int64_t y_stride;
  float* packed_x;
  MatmulKernels kernels;

  std::int64_t panel_stride() const { return weight.in_features() * kPanelWidth; }
  const void* panel_at(std::int64_t panel, std::int64_t k) const {
    const std::int64_t element = panel * panel_stride() + k * kPanelWidth;
    return static_cast<const std::uint8_t*>(weight.data()) + element * (dtype_bits(weight.dtype()) / 8);
  }
  void run_tile(std::int64_t panel, std::int64_t num_panels, std::int64_t row, int num_rows, std::int64_t k0,
                std::int64_t k1, const float* tile_x, std::int64_t x_row_stride, std::int64_t x_k_stride) const {
    const std::int64_t column = panel * kPanelWidth;
    const bool last = k1 == weight.in_features();
    const MatmulTile tile{tile_x,         x_row_stride,
                          x_k_stride,     panel_at(panel, k0),
                          panel_stride(), num_panels,
                          k1 - k0,        y + row * y_stride + column,
                          y_stride,       weight.out_features() - column,
                          k0 > 0,         last && bias != nullptr ? bias + column : nullptr};
    kernels.tile(weight.dtype(), num_rows, tile);
  }
};

// Few rows: one tile of rows, each weight read once, straight from memory.
void run_few_rows(const Product& product, ThreadPool& pool) {
  const std::int64_t panels = product.weight.num_panels();
  const std::int64_t k_count = product.weight.in_features();
  const int rows = static_cast<int>(product.rows);
  // Pieces of several panels for enough independent chains; at least four pieces a thread where the weight is large.
  const std::int64_t unit = rows == 1 ? product.kernels.panels_one_row : 1;
  const std::int64_t share = panels / (pool.size() * std::int64_t{4}) / unit * unit;
  const std::int64_t even = (panels + pool.size() - 1) / pool.size();
  const std::int64_t grain = share > 0 ? share : std::max<std::int64_t>(1, std::min(even, unit));
  pool.parallel_for(panels, grain, [&](std::int64_t begin, std::int64_t end) {
    product.run_tile(begin, end - begin, 0, rows, 0, k_count, product.x, product.x_stride, 1);
  });
}

// Many rows: x is packed by tiles of rows, k outermost; then each worker takes panels and lets all rows of the block go
// over a piece of a panel that stays in its L1 cache. Sums between pieces of k rest in y, which keeps their order.
void run_many_rows(const Product& all, ThreadPool& pool) {
  const std::int64_t k_count = all.weight.in_features();
  const std::int64_t tile_rows = all.kernels.max_rows;
  for (std::int64_t row0 = 0; row0 < all.rows; row0 += kBlockRows) {
    const std::int64_t block_rows = std::min(kBlockRows, all.rows - row0);
    const std::int64_t tiles = (block_rows + tile_rows - 1) / tile_rows;
    const auto tile_begin = [&](std::int64_t tile) { return tile * block_rows / tiles; };
    // Packed: for a piece of k from k0, tile after tile, element (k, row of the tile).
    const auto packed_at = [&](std::int64_t k0, std::int64_t k1, std::int64_t tile) {
      return all.packed_x + k0 * block_rows + tile_begin(tile) * (k1 - k0);
    };
    pool.parallel_for(tiles, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t tile = begin; tile < end; ++tile) {
        const std::int64_t first = tile_begin(tile);
        const std::int64_t count = tile_begin(tile + 1) - first;
        for (std::int64_t k0 = 0; k0 < k_count; k0 += kBlockK) {
          const std::int64_t k1 = std::min(k0 + kBlockK, k_count);
          float* to = packed_at(k0, k1, tile);
          for (std::int64_t r = 0; r < count; ++r) {
            const float* from = all.x + (row0 + first + r) * all.x_stride;
            for (std::int64_t k = k0; k < k1; ++k) to[(k - k0) * count + r] = from[k];
          }
        }
      }
    });
    const std::int64_t panels = all.weight.num_panels();
    const std::int64_t grain = std::max<std::int64_t>(1, panels / (pool.size() * std::int64_t{8}));
    pool.parallel_for(panels, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k0 = 0; k0 < k_count; k0 += kBlockK) {
        const std::int64_t k1 = std::min(k0 + kBlockK, k_count);
        for (std::int64_t panel = begin; panel < end; ++panel) {
          for (std::int64_t tile = 0; tile < tiles; ++tile) {
            const std::int64_t first = tile_begin(tile);
            const int count = static_cast<int>(tile_begin(tile + 1) - first);
            all.run_tile(panel, 1, row0 + first, count, k0, k1, packed_at(k0, k1, tile), 1, count);
          }
        }
      }
    });
  }
}

}  // namespace

void matmul(const float* x, std::int64_t x_stride, std::int64_t rows, const PackedWeight& weight, const float* bias,
            float* y, std::int64_t y_stride, const MatmulScratch& scratch, ThreadPool& pool) {
  if (rows <= 0) return;
  FOVEA_CHECK(scratch.in_features() >= weight.in_features());
  const Product product{x, x_stride, rows, weight, bias, y, y_stride, scratch.data(), matmul_kernels()};
  if (rows <= std::min(4, product.kernels.max_rows)) {
    run_few_rows(product, pool);
  } else {
    run_many_rows(product, pool);
  }
}

}  // namespace fovea::cpu
