#include "core/layout/ragged.h"

#include <cstring>
#include <limits>

#include "base/status.h"

namespace fovea {
namespace {

Status check_padded(std::span<const std::int32_t> indptr, std::int64_t padded_rows) {
  FOVEA_RETURN_IF_ERROR(validate_indptr(indptr, indptr.empty() ? 0 : indptr.back()));
  for (std::size_t i = 0; i + 1 < indptr.size(); ++i) {
    if (indptr[i + 1] - indptr[i] > padded_rows) {
      return invalid_argument("request {} has {} rows, the padded tensor has {} a request", i,
                              indptr[i + 1] - indptr[i], padded_rows);
    }
  }
  return ok_status();
}

}  // namespace

Status validate_indptr(std::span<const std::int32_t> indptr, std::int64_t total, const char* name) {
  if (indptr.empty()) return invalid_argument("{} is empty, expected one value more than requests", name);
  if (indptr[0] != 0) return invalid_argument("{}[0] is {}, expected 0", name, indptr[0]);
  for (std::size_t i = 1; i < indptr.size(); ++i) {
    if (indptr[i] < indptr[i - 1]) {
      return invalid_argument("{}[{}] is {}, less than the value before it ({})", name, i, indptr[i], indptr[i - 1]);
    }
  }
  if (indptr.back() != total) return invalid_argument("{} ends at {}, expected {}", name, indptr.back(), total);
  return ok_status();
}

std::vector<std::int32_t> lengths_of(std::span<const std::int32_t> indptr) {
  std::vector<std::int32_t> lengths;
  for (std::size_t i = 1; i < indptr.size(); ++i) lengths.push_back(indptr[i] - indptr[i - 1]);
  return lengths;
}

Result<std::vector<std::int32_t>> indptr_of(std::span<const std::int32_t> lengths) {
  std::vector<std::int32_t> indptr = {0};
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0) return invalid_argument("length {} is {}, expected 0 or more", i, lengths[i]);
    sum += lengths[i];
    if (sum > std::numeric_limits<std::int32_t>::max()) {
      return make_status(StatusCode::kOutOfRange, "the first {} lengths sum to {}, more than 2^31 - 1", i + 1, sum);
    }
    indptr.push_back(static_cast<std::int32_t>(sum));
  }
  return indptr;
}

Status padded_to_ragged(const void* padded, std::int64_t padded_rows, std::span<const std::int32_t> indptr,
                        std::size_t row_bytes, void* ragged) {
  FOVEA_RETURN_IF_ERROR(check_padded(indptr, padded_rows));
  const auto* from = static_cast<const std::byte*>(padded);
  auto* to = static_cast<std::byte*>(ragged);
  for (std::size_t i = 0; i + 1 < indptr.size(); ++i) {
    const std::size_t rows = static_cast<std::size_t>(indptr[i + 1] - indptr[i]);
    if (rows == 0) continue;
    std::memcpy(to + static_cast<std::size_t>(indptr[i]) * row_bytes,
                from + i * static_cast<std::size_t>(padded_rows) * row_bytes, rows * row_bytes);
  }
  return ok_status();
}

Status ragged_to_padded(const void* ragged, std::span<const std::int32_t> indptr, std::size_t row_bytes,
                        std::int64_t padded_rows, void* padded) {
  FOVEA_RETURN_IF_ERROR(check_padded(indptr, padded_rows));
  const auto* from = static_cast<const std::byte*>(ragged);
  auto* to = static_cast<std::byte*>(padded);
  for (std::size_t i = 0; i + 1 < indptr.size(); ++i) {
    const std::size_t rows = static_cast<std::size_t>(indptr[i + 1] - indptr[i]);
    if (rows == 0) continue;
    std::memcpy(to + i * static_cast<std::size_t>(padded_rows) * row_bytes,
                from + static_cast<std::size_t>(indptr[i]) * row_bytes, rows * row_bytes);
  }
  return ok_status();
}

}  // namespace fovea
