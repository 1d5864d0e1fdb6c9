// Asks cuBLASLt for an algorithm once a spec, and runs it.
#include "cuda/matmul.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "base/hash.h"
#include "base/status.h"
#include "cuda/cublaslt.h"
#include "cuda/cublaslt_api.h"
#include "cuda/memory.h"

namespace fovea::cuda {
namespace {

using Owned = std::shared_ptr<void>;  // destroyed by the library

// More alignment than this helps no algorithm.
constexpr std::uint32_t kMaxAlignment = 256;

// What an algorithm was chosen for.
struct Key {
  MatmulSpec spec;
  std::uint32_t alignment[3];  // bytes, of x, w and y

  bool operator==(const Key&) const = default;
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    const MatmulSpec& s = key.spec;
    std::uint64_t hash = 0;
    for (const std::int64_t part : {s.rows, s.in, s.out, s.x_stride, s.w_stride, s.y_stride}) {
      hash = hash_combine(hash, static_cast<std::uint64_t>(part));
    }
    const auto kind = static_cast<std::uint64_t>(s.type) | static_cast<std::uint64_t>(s.y_type) << 8 |
                      static_cast<std::uint64_t>(s.bias) << 16 | static_cast<std::uint64_t>(s.row_scales) << 17 |
                      static_cast<std::uint64_t>(s.fixed) << 18;
    return hash_combine(hash, kind);
  }
};

struct Product {
  Owned desc, a, b, d;
  LtAlgorithm algorithm;
};

// Rows that algorithms of fixed products are asked for: about as many as decode together.
constexpr std::int64_t kFixedRows = 64;

std::uint32_t alignment_of(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  return address == 0
             ? kMaxAlignment
             : std::min<std::uint32_t>(kMaxAlignment, std::uint32_t{1} << std::min(std::countr_zero(address), 8));
}

int lt_type(MatmulType type) {
  switch (type) {
    case MatmulType::kF16: return kLtF16;
    case MatmulType::kBF16: return kLtBF16;
    case MatmulType::kF32: return kLtF32;
    case MatmulType::kE4M3: return kLtE4M3;
  }
  return -1;
}

Status check(const MatmulSpec& s, const Key& key, const void* x, const void* w, const void* y, const void* bias,
             const MatmulScales& scales) {
  if (s.rows < 0 || s.in < 1 || s.out < 1) {
    return invalid_argument("a matrix product has {} rows, {} in and {} out, expected at least 0, 1 and 1", s.rows,
                            s.in, s.out);
  }
  if (s.x_stride < s.in || s.w_stride < s.in || s.y_stride < s.out) {
    return invalid_argument("a matrix product has strides x {}, w {}, y {}, expected at least {}, {}, {}", s.x_stride,
                            s.w_stride, s.y_stride, s.in, s.in, s.out);
  }
  const bool fp8 = s.type == MatmulType::kE4M3;
  if (s.type == MatmulType::kF32 || (s.y_type != s.type && s.y_type != MatmulType::kF32 && !fp8) ||
      s.y_type == MatmulType::kE4M3) {
    return invalid_argument("a matrix product takes f16 or bf16 and makes the same or f32, of fp8_e4m3 any of them");
  }
  if ((s.row_scales && !fp8) || s.row_scales != (scales.x != nullptr) || s.row_scales != (scales.w != nullptr)) {
    return invalid_argument("a matrix product has scales of the rows of x and w where it asks for both, of fp8_e4m3");
  }
  if (s.rows > 0 && (x == nullptr || w == nullptr || y == nullptr)) {
    return invalid_argument("a matrix product was given no {}", x == nullptr ? "x" : w == nullptr ? "w" : "y");
  }
  if (s.bias != (bias != nullptr)) {
    return invalid_argument("a matrix product {} bias was given {}", s.bias ? "with a" : "without",
                            bias ? "one" : "none");
  }
  const std::uint32_t y_bytes = s.y_type == MatmulType::kF32 ? 4 : 2;
  const std::uint32_t x_bytes = fp8 ? 1 : 2;
  if (key.alignment[0] < x_bytes || key.alignment[1] < x_bytes || key.alignment[2] < y_bytes) {
    return invalid_argument("a matrix product has x, w, y aligned to {}, {}, {} bytes, expected their elements' size",
                            key.alignment[0], key.alignment[1], key.alignment[2]);
  }
  return ok_status();
}

}  // namespace

struct Matmul::State {
  Device device;
  const CublasLt* library;
  Owned handle;
  DeviceBuffer workspace;
  std::mutex mutex;
  std::unordered_map<Key, std::unique_ptr<const Product>, KeyHash> products;
  std::unordered_map<Key, LtAlgorithm, KeyHash> fixed;  // for kFixedRows rows

  explicit State(const Device& d, const CublasLt* l) : device(d), library(l) {}
  ~State() {
    const ScopedContext context(device);
    products.clear();
    handle.reset();
  }

  const CublasLtFunctions& functions() const { return library->functions(); }

  template <typename Create>
  Result<Owned> make(int (*destroy)(void*), const char* what, const Create& create) const {
    void* made = nullptr;
    FOVEA_RETURN_IF_ERROR(library->status(create(&made), what));
    return Owned(made, [destroy](void* p) { destroy(p); });
  }
  Result<Owned> layout(MatmulType type, std::int64_t rows, std::int64_t columns, std::int64_t stride) const {
    return make(functions().layout_destroy, "cublasLtMatrixLayoutCreate", [&](void** to) {
      return functions().layout_create(to, lt_type(type), static_cast<std::uint64_t>(rows),
                                       static_cast<std::uint64_t>(columns), stride);
    });
  }
  Result<std::unique_ptr<Product>> choose(const Key& key, const MatmulScales& scales) const;
  Result<LtAlgorithm> fixed_algorithm(const Key& key, const MatmulScales& scales);
  Result<const Product*> product(const Key& key, const MatmulScales& scales);
  Status set(void* desc, int attribute, const auto& value) const {
    return library->status(functions().desc_set(desc, attribute, &value, sizeof value),
                           "cublasLtMatmulDescSetAttribute");
  }
  // w is the library's A.
  Status set_scales(void* desc, const MatmulScales& scales) const {
    FOVEA_RETURN_IF_ERROR(set(desc, kLtScalePointerA, scales.w));
    return set(desc, kLtScalePointerB, scales.x);
  }
};

// Row-major y = x * transposed(w) is, read column by column as the library does, transposed(y) = transposed(A) * B with
// A = w as [in, out] and B = x as [in, rows].
Result<std::unique_ptr<Product>> Matmul::State::choose(const Key& key, const MatmulScales& scales) const {
  const MatmulSpec& s = key.spec;
  const CublasLtFunctions& f = functions();
  auto product = std::make_unique<Product>();
  FOVEA_ASSIGN_OR_RETURN(product->desc, make(f.desc_destroy, "cublasLtMatmulDescCreate",
                                             [&](void** to) { return f.desc_create(to, kLtComputeF32, kLtF32); }));
  FOVEA_RETURN_IF_ERROR(set(product->desc.get(), kLtTransposeA, kLtTransposed));
  if (s.bias) FOVEA_RETURN_IF_ERROR(set(product->desc.get(), kLtEpilogue, kLtEpilogueBias));
  if (s.row_scales) {
    for (const int mode : {kLtScaleModeA, kLtScaleModeB}) {
      const Status status = set(product->desc.get(), mode, kLtScaleOuterVector);
      if (!status.ok()) return unsupported("cuBLASLt {} has no scales a row: {}", library->version(), status.message());
    }
    FOVEA_RETURN_IF_ERROR(set_scales(product->desc.get(), scales));
  }
  FOVEA_ASSIGN_OR_RETURN(product->a, layout(s.type, s.in, s.out, s.w_stride));
  FOVEA_ASSIGN_OR_RETURN(product->b, layout(s.type, s.in, s.rows, s.x_stride));
  FOVEA_ASSIGN_OR_RETURN(product->d, layout(s.y_type, s.out, s.rows, s.y_stride));
  FOVEA_ASSIGN_OR_RETURN(const Owned preference,
                         make(f.preference_destroy, "cublasLtMatmulPreferenceCreate", f.preference_create));
  const std::uint64_t workspace_bytes = workspace.size_bytes();
  int code = f.preference_set(preference.get(), kLtMaxWorkspaceBytes, &workspace_bytes, sizeof workspace_bytes);
  const std::pair<int, std::uint32_t> alignments[] = {{kLtAlignmentA, key.alignment[1]},
                                                      {kLtAlignmentB, key.alignment[0]},
                                                      {kLtAlignmentC, key.alignment[2]},
                                                      {kLtAlignmentD, key.alignment[2]}};
  for (const auto& [attribute, bytes] : alignments) {
    if (code == 0) code = f.preference_set(preference.get(), attribute, &bytes, sizeof bytes);
  }
  const std::uint32_t none = 0;
  if (code == 0 && s.fixed) code = f.preference_set(preference.get(), kLtReductions, &none, sizeof none);
  FOVEA_RETURN_IF_ERROR(library->status(code, "cublasLtMatmulPreferenceSetAttribute"));
  LtHeuristic best{};
  int count = 0;
  code = f.heuristic(handle.get(), product->desc.get(), product->a.get(), product->b.get(), product->d.get(),
                     product->d.get(), preference.get(), 1, &best, &count);
  if (code == kLtNotSupported || (code == 0 && (count == 0 || best.status != 0))) {
    return unsupported(
        "cuBLASLt {} has no algorithm for {} rows of {} by {} with strides {}, {}, {} on {}; strides and addresses "
        "that are multiples of 16 bytes always have one",
        library->version(), s.rows, s.in, s.out, s.x_stride, s.w_stride, s.y_stride, device.info().name);
  }
  FOVEA_RETURN_IF_ERROR(library->status(code, "cublasLtMatmulAlgoGetHeuristic"));
  product->algorithm = best.algorithm;
  return Result<std::unique_ptr<Product>>(std::move(product));
}

Result<LtAlgorithm> Matmul::State::fixed_algorithm(const Key& key, const MatmulScales& scales) {
  Key shared = key;
  shared.spec.rows = kFixedRows;
  if (const auto known = fixed.find(shared); known != fixed.end()) return known->second;
  FOVEA_ASSIGN_OR_RETURN(const auto product, choose(shared, scales));
  return fixed.emplace(shared, product->algorithm).first->second;
}

Result<const Product*> Matmul::State::product(const Key& key, const MatmulScales& scales) {
  const std::lock_guard lock(mutex);
  if (const auto known = products.find(key); known != products.end()) return known->second.get();
  FOVEA_ASSIGN_OR_RETURN(auto chosen, choose(key, scales));
  if (key.spec.fixed) {
    FOVEA_ASSIGN_OR_RETURN(chosen->algorithm, fixed_algorithm(key, scales));
  }
  return products.emplace(key, std::move(chosen)).first->second.get();
}

Matmul::Matmul(std::unique_ptr<State> state) : state_(std::move(state)) {}
Matmul::Matmul(Matmul&&) noexcept = default;
Matmul& Matmul::operator=(Matmul&&) noexcept = default;
Matmul::~Matmul() = default;

Result<Matmul> Matmul::create(const Device& device, std::size_t workspace_bytes) {
  FOVEA_ASSIGN_OR_RETURN(const CublasLt* const library, CublasLt::load());
  const ScopedContext context(device);
  FOVEA_RETURN_IF_ERROR(context.status());
  auto state = std::make_unique<State>(device, library);
  const CublasLtFunctions& f = library->functions();
  FOVEA_ASSIGN_OR_RETURN(state->handle, state->make(f.destroy, "cublasLtCreate", f.create));
  FOVEA_ASSIGN_OR_RETURN(state->workspace, DeviceBuffer::create(device, workspace_bytes));
  return Matmul(std::move(state));
}

Status Matmul::run(const MatmulSpec& spec, const void* x, const void* w, void* y, StreamHandle stream, const void* bias,
                   const MatmulScales& scales) {
  const Key key = {spec, {alignment_of(x), alignment_of(w), alignment_of(y)}};
  FOVEA_RETURN_IF_ERROR(check(spec, key, x, w, y, bias, scales));
  if (spec.rows == 0) return ok_status();
  State& s = *state_;
  const ScopedContext context(s.device);
  FOVEA_RETURN_IF_ERROR(context.status());
  FOVEA_ASSIGN_OR_RETURN(const Product* const p, s.product(key, scales));
  if (spec.bias) FOVEA_RETURN_IF_ERROR(s.set(p->desc.get(), kLtBiasPointer, bias));
  if (spec.row_scales) FOVEA_RETURN_IF_ERROR(s.set_scales(p->desc.get(), scales));
  const float one = 1.0f;
  const float zero = 0.0f;
  return s.library->status(
      s.functions().matmul(s.handle.get(), p->desc.get(), &one, w, p->a.get(), x, p->b.get(), &zero, y, p->d.get(), y,
                           p->d.get(), &p->algorithm, s.workspace.data(), s.workspace.size_bytes(), stream),
      "cublasLtMatmul");
}

}  // namespace fovea::cuda
