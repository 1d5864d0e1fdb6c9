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
constexpr std::int64_t kBlockRows = 240;
// Steps of k whose weights (32 x 2 bytes each) stay in the L1 cache while all rows of a block go over them; even.
constexpr std::int64_t kBlockK = kPackedStride;
// From this many rows on, e4m3 is expanded to bf16 pairs: below, that costs more than it saves.
constexpr std::int64_t kExpandedRows = 8;

// Where weight (k, column c) of a panel stands, in elements. bf16 has steps k and k + 1 of a column side by side.
std::int64_t panel_element(DType dtype, std::int64_t k, std::int64_t c) {
  return dtype == DType::kBF16 ? k / 2 * 2 * kPanelWidth + c * 2 + k % 2 : k * kPanelWidth + c;
}

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
      for (std::int64_t k = k0; k < k1; ++k) out[panel_element(parts[0].dtype, k, c)] = rows[c][k];
    }
  }
}

Status check_parts(std::span<const TensorView> parts) {
  if (parts.empty()) return invalid_argument("a weight of no parts");
  for (const TensorView& part : parts) {
    if (part.rank != 2) return invalid_argument("weight has rank {}, expected 2: [out, in]", part.rank);
    if (part.dtype != DType::kBF16 && part.dtype != DType::kF16 && part.dtype != DType::kF32 &&
        part.dtype != DType::kF8E4M3) {
      return unsupported("weights of {}, expected bf16, f16, f32 or fp8_e4m3", dtype_name(part.dtype));
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

Result<PackedWeight> PackedWeight::create(std::span<const TensorView> parts, MatmulPrecision precision,
                                          ThreadPool& pool, std::span<const float> scales) {
  FOVEA_RETURN_IF_ERROR(check_parts(parts));
  PackedWeight packed;
  packed.dtype_ = parts[0].dtype;
  packed.in_features_ = parts[0].shape[1];
  for (const TensorView& part : parts) packed.out_features_ += part.shape[0];
  const bool fp8 = packed.dtype_ == DType::kF8E4M3;
  if (scales.size() != (fp8 ? static_cast<std::size_t>(packed.out_features_) : 0)) {
    return invalid_argument("{} scales for a weight of [{}, {}] {}, expected {}", scales.size(), packed.out_features_,
                            packed.in_features_, dtype_name(packed.dtype_), fp8 ? "one a row" : "none");
  }
  for (const float scale : scales) packed.scales_.push_back(scale * kE4m3Factor);
  const std::size_t bytes = static_cast<std::size_t>(packed.num_panels() * packed.panel_bytes());
  packed.data_ = AlignedBuffer(bytes);
  if (packed.data_.data() == nullptr) {
    return resource_exhausted("no memory for a weight of [{}, {}] {} ({} MB)", packed.out_features_,
                              packed.in_features_, dtype_name(packed.dtype_), bytes >> 20);
  }
  pool.parallel_for(packed.num_panels(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      std::uint8_t* out = packed.data_.as<std::uint8_t>() + panel * packed.panel_bytes();
      if (packed.dtype_ == DType::kF32) {
        pack_panel(parts, packed.out_features_, panel, reinterpret_cast<float*>(out));
      } else if (fp8) {
        pack_panel(parts, packed.out_features_, panel, out);
      } else {
        pack_panel(parts, packed.out_features_, panel, reinterpret_cast<std::uint16_t*>(out));
      }
    }
  });
  const bool even = packed.in_features_ % 2 == 0;  // bf16 pairs of a row end where the next row begins
  if (precision == MatmulPrecision::kBf16 && packed.dtype_ == DType::kBF16 && even && bf16_kernels().convert) {
    packed.dnnl_ = DnnlProduct::create(parts, packed.out_features_, pool.size());
  }
  return packed;
}

Status MatmulScratch::reserve(std::int64_t in_features, int num_threads) {
  if (in_features <= in_features_ && num_threads <= num_threads_) return ok_status();
  in_features = std::max(in_features, in_features_);
  num_threads = std::max(num_threads, num_threads_);
  const std::int64_t padded = (in_features + kBlockK - 1) / kBlockK * kBlockK;
  // A block in fp32 for all threads together, or for each a block of oneDNN's in bf16.
  const std::int64_t rows = std::max(kBlockRows, num_threads * kDnnlRows / 2);
  AlignedBuffer larger(static_cast<std::size_t>(rows * padded) * sizeof(float));
  if (larger.data() == nullptr) return resource_exhausted("no memory for {} rows of {} floats", rows, padded);
  buffer_ = std::move(larger);
  in_features_ = in_features;
  num_threads_ = num_threads;
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
  Bf16Kernels bf16;  // null functions: x stays in fp32

  bool in_bf16() const { return bf16.tile != nullptr; }
  int max_rows() const { return in_bf16() ? bf16.max_rows : kernels.max_rows; }
  // Where the piece of k from k0 of a row of a block stands in packed x.
  float* packed_at(std::int64_t block_rows, std::int64_t row, std::int64_t k0) const {
    const std::int64_t stride = in_bf16() ? kPackedStride / 2 : kPackedStride;
    return packed_x + (k0 / kBlockK * block_rows + row) * stride;
  }

  const std::uint8_t* panel_at(std::int64_t panel, std::int64_t k0) const {
    return static_cast<const std::uint8_t*>(weight.data()) + panel * weight.panel_bytes() +
           k0 * kPanelWidth * (dtype_bits(weight.dtype()) / 8);
  }

  // Outputs [row, row + num_rows) x panels [panel, panel + num_panels), steps [k0, k1). tile_x: row `row`, step k0.
  // expanded: the panel's steps [k0, k1) in bf16, or null.
  void run_tile(std::int64_t panel, std::int64_t num_panels, std::int64_t row, int num_rows, std::int64_t k0,
                std::int64_t k1, const float* tile_x, std::int64_t tile_x_stride,
                const std::uint32_t* expanded = nullptr) const {
    const std::int64_t column = panel * kPanelWidth;
    const bool last = k1 == weight.in_features();
    const void* panels = expanded != nullptr ? static_cast<const void*>(expanded) : panel_at(panel, k0);
    const MatmulTile tile{tile_x,
                          tile_x_stride,
                          panels,
                          weight.panel_bytes(),
                          num_panels,
                          k1 - k0,
                          y + row * y_stride + column,
                          y_stride,
                          weight.out_features() - column,
                          k0 > 0,
                          last && bias != nullptr ? bias + column : nullptr,
                          last && weight.scales() != nullptr ? weight.scales() + column : nullptr};
    if (in_bf16()) return bf16.tile(num_rows, tile);
    kernels.tile(weight.dtype(), num_rows, tile);
  }
};

// Panels that a thread takes at a time where each weight is read once: in multiples of `unit`, for enough independent
// chains, and in at least four pieces a thread where the weight is large.
std::int64_t panels_at_a_time(std::int64_t panels, std::int64_t unit, int num_threads) {
  const std::int64_t share = panels / (num_threads * std::int64_t{4}) / unit * unit;
  const std::int64_t even = (panels + num_threads - 1) / num_threads;
  return share > 0 ? share : std::max<std::int64_t>(1, std::min(even, unit));
}

// Up to four rows in fp32: each weight is read once, straight from memory, and x is used where it stands.
void run_few_rows(const Product& product, ThreadPool& pool) {
  const std::int64_t panels = product.weight.num_panels();
  const std::int64_t k_count = product.weight.in_features();
  const int rows = static_cast<int>(product.rows);
  const std::int64_t unit = rows == 1 ? product.kernels.panels_one_row : 1;
  pool.parallel_for(panels, panels_at_a_time(panels, unit, pool.size()), [&](std::int64_t begin, std::int64_t end) {
    product.run_tile(begin, end - begin, 0, rows, 0, k_count, product.x, product.x_stride);
  });
}

// Rows [row0, row0 + block_rows) in tiles of about equal height. Packed x is, for each piece of k and tile, its rows
// one after another, each kPackedStride floats (or half as many words of bf16 pairs) long: a tile's x then lies in a
// few KB and never meets itself in the cache, whatever the stride of x.
struct RowBlock {
  std::int64_t row0, block_rows, tiles;

  std::int64_t tile_begin(std::int64_t tile) const { return tile * block_rows / tiles; }
  int tile_rows(std::int64_t tile) const { return static_cast<int>(tile_begin(tile + 1) - tile_begin(tile)); }
};

void pack_rows(const Product& product, const RowBlock& block, std::int64_t begin, std::int64_t end) {
  const std::int64_t k_count = product.weight.in_features();
  for (std::int64_t row = begin; row < end; ++row) {
    const float* from = product.x + (block.row0 + row) * product.x_stride;
    for (std::int64_t k0 = 0; k0 < k_count; k0 += kBlockK) {
      const std::int64_t count = std::min(kBlockK, k_count - k0);
      float* to = product.packed_at(block.block_rows, row, k0);
      if (product.in_bf16()) {
        product.bf16.convert(from + k0, count, reinterpret_cast<std::uint32_t*>(to));
      } else {
        std::memcpy(to, from + k0, static_cast<std::size_t>(count) * sizeof(float));
      }
    }
  }
}

// One panel for all rows of the block. Sums between pieces of k rest in y, which keeps their order.
void run_panel(const Product& product, const RowBlock& block, std::int64_t panel, std::int64_t k0, std::int64_t k1) {
  alignas(64) std::uint32_t words[kBlockK / 2 * kPanelWidth];
  const bool expands = product.in_bf16() && product.weight.dtype() == DType::kF8E4M3;
  if (expands) product.bf16.expand(product.panel_at(panel, k0), k1 - k0, words);
  for (std::int64_t tile = 0; tile < block.tiles; ++tile) {
    const std::int64_t first = block.tile_begin(tile);
    const float* x = product.packed_at(block.block_rows, first, k0);
    product.run_tile(panel, 1, block.row0 + first, block.tile_rows(tile), k0, k1, x, kPackedStride,
                     expands ? words : nullptr);
  }
}

// One tile of bf16 rows: each weight is read once, from several panels at a time.
void run_bf16_tile(const Product& product, ThreadPool& pool) {
  const RowBlock block{0, product.rows, 1};
  const std::int64_t panels = product.weight.num_panels();
  const std::int64_t k_count = product.weight.in_features();
  pack_rows(product, block, 0, product.rows);
  const std::int64_t unit = product.bf16.panels_at_once(static_cast<int>(product.rows));
  pool.parallel_for(panels, panels_at_a_time(panels, unit, pool.size()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; panel += unit) {
      const std::int64_t count = std::min(unit, end - panel);
      for (std::int64_t k0 = 0; k0 < k_count; k0 += kBlockK) {
        product.run_tile(panel, count, 0, static_cast<int>(product.rows), k0, std::min(k0 + kBlockK, k_count),
                         product.packed_at(product.rows, 0, k0), kPackedStride);
      }
    }
  });
}

void run_many_rows(const Product& product, ThreadPool& pool) {
  const std::int64_t k_count = product.weight.in_features();
  const std::int64_t panels = product.weight.num_panels();
  for (std::int64_t row0 = 0; row0 < product.rows; row0 += kBlockRows) {
    RowBlock block{row0, std::min(kBlockRows, product.rows - row0), 0};
    block.tiles = (block.block_rows + product.max_rows() - 1) / product.max_rows();
    const std::int64_t pack_grain = std::max<std::int64_t>(8, block.block_rows / pool.size());
    pool.parallel_for(block.block_rows, pack_grain,
                      [&](std::int64_t begin, std::int64_t end) { pack_rows(product, block, begin, end); });
    const std::int64_t grain = std::max<std::int64_t>(1, panels / (pool.size() * std::int64_t{8}));
    pool.parallel_for(panels, grain, [&](std::int64_t begin, std::int64_t end) {
      if (block.tiles == 1) {  // each weight is used once, so a panel is read in one go
        for (std::int64_t panel = begin; panel < end; ++panel) {
          for (std::int64_t k0 = 0; k0 < k_count; k0 += kBlockK) {
            run_panel(product, block, panel, k0, std::min(k0 + kBlockK, k_count));
          }
        }
        return;
      }
      for (std::int64_t k0 = 0; k0 < k_count; k0 += kBlockK) {
        for (std::int64_t panel = begin; panel < end; ++panel) {
          run_panel(product, block, panel, k0, std::min(k0 + kBlockK, k_count));
        }
      }
    });
  }
}

// As many whole blocks as there are, by oneDNN; returns their rows.
std::int64_t run_dnnl_blocks(const Product& product, const DnnlProduct& dnnl, ThreadPool& pool) {
  const std::int64_t blocks = product.rows / kDnnlRows;
  const std::int64_t words = product.weight.in_features() / 2;
  pool.parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end, int worker) {
    auto* x = reinterpret_cast<std::uint32_t*>(product.packed_x) + worker * kDnnlRows * words;
    for (std::int64_t block = begin; block < end; ++block) {
      for (std::int64_t row = 0; row < kDnnlRows; ++row) {
        product.bf16.convert(product.x + (block * kDnnlRows + row) * product.x_stride, 2 * words, x + row * words);
      }
      dnnl.run(reinterpret_cast<const std::uint16_t*>(x), product.bias,
               product.y + block * kDnnlRows * product.y_stride, worker);
    }
  });
  return blocks * kDnnlRows;
}

}  // namespace

void matmul(const float* x, std::int64_t x_stride, std::int64_t rows, const PackedWeight& weight, const float* bias,
            float* y, std::int64_t y_stride, MatmulPrecision precision, const MatmulScratch& scratch,
            ThreadPool& pool) {
  if (rows <= 0) return;
  FOVEA_CHECK(scratch.in_features() >= weight.in_features() && scratch.num_threads() >= pool.size());
  const bool narrow = weight.dtype() == DType::kBF16 || (weight.dtype() == DType::kF8E4M3 && rows >= kExpandedRows);
  const bool bf16 = precision == MatmulPrecision::kBf16 && narrow;
  Product product{x, x_stride, rows,           weight,           bias,
                  y, y_stride, scratch.data(), matmul_kernels(), bf16 ? bf16_kernels() : Bf16Kernels{}};
  const DnnlProduct* dnnl = weight.dnnl();
  if (product.in_bf16() && dnnl != nullptr && dnnl->y_stride() == y_stride && rows >= kDnnlRows) {
    const std::int64_t done = run_dnnl_blocks(product, *dnnl, pool);
    product.x += done * x_stride;
    product.y += done * y_stride;
    product.rows -= done;
    if (product.rows == 0) return;
  }
  if (product.in_bf16() && product.rows <= product.max_rows() && weight.dtype() == DType::kBF16) {
    run_bf16_tile(product, pool);
  } else if (product.rows <= std::min(kUnpackedRows, product.kernels.max_rows) && !product.in_bf16()) {
    run_few_rows(product, pool);
  } else {
    run_many_rows(product, pool);
  }
}

}  // namespace fovea::cpu
