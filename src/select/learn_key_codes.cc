// learn_key_codes() of the public API: which channels of a head's keys its queries look at most, and how finely they
// are kept (docs/research/page-selection.md).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/attention_checks.h"
#include "base/half.h"
#include "base/status.h"
#include "fovea/page_selector.h"

namespace fovea {
namespace {

// A normal variable in 16 levels has the least error with steps of so many deviations.
constexpr double kStep = 0.335;

double element(const TensorView& tensor, std::int64_t at) {
  if (tensor.dtype == DType::kF32) return static_cast<const float*>(tensor.data)[at];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(tensor.data)[at];
  return tensor.dtype == DType::kF16 ? f16_to_float(bits) : bf16_to_float(bits);
}

struct Moments {
  double mean = 0.0, deviation = 0.0, rms = 0.0;
};

// Of channel d of heads [begin, end), over what is finite.
Moments moments(const TensorView& tensor, std::int64_t begin, std::int64_t end, std::int64_t d) {
  double sum = 0.0, squares = 0.0;
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < tensor.shape[0]; ++row) {
    for (std::int64_t head = begin; head < end; ++head) {
      const double x = element(tensor, row * tensor.strides[0] + head * tensor.strides[1] + d);
      if (!std::isfinite(x)) continue;
      sum += x;
      squares += x * x;
      ++count;
    }
  }
  if (count == 0) return {};
  const double n = static_cast<double>(count), mean = sum / n;
  return {mean, std::sqrt(std::max(squares / n - mean * mean, 0.0)), std::sqrt(squares / n)};
}

Status check(const char* name, const TensorView& tensor) {
  FOVEA_RETURN_IF_ERROR(check_place(name, tensor, {}));
  const bool known = tensor.dtype == DType::kF32 || tensor.dtype == DType::kF16 || tensor.dtype == DType::kBF16;
  if (tensor.rank == 3 && known && (tensor.strides[2] == 1 || tensor.shape[0] == 0)) return ok_status();
  return invalid_argument("{} is {}, expected [rows, heads, head_dim] of f32, f16 or bf16, the last dim contiguous",
                          name, describe(tensor));
}

}  // namespace

Result<std::vector<KeyCode>> learn_key_codes(const TensorView& keys, const TensorView& queries) {
  FOVEA_RETURN_IF_ERROR(check("keys", keys));
  const std::int64_t heads = keys.shape[1], dim = keys.shape[2];
  if (keys.shape[0] < 1 || heads < 1 || dim < kKeyCodeChannels || dim > 256) {
    return invalid_argument("keys is {}, expected a token and a head at least, and head_dim {} to 256", describe(keys),
                            kKeyCodeChannels);
  }
  const bool asked = !is_empty(queries);
  if (asked) {
    FOVEA_RETURN_IF_ERROR(check("queries", queries));
    if (queries.shape[1] < heads || queries.shape[1] % heads != 0 || queries.shape[2] != dim) {
      return invalid_argument("queries is {}, expected a multiple of {} heads of {}", describe(queries), heads, dim);
    }
  }
  const std::int64_t group = asked ? queries.shape[1] / heads : 0;
  std::vector<KeyCode> codes(static_cast<std::size_t>(heads));
  for (std::int64_t head = 0; head < heads; ++head) {
    std::vector<Moments> of(static_cast<std::size_t>(dim));
    std::vector<double> looked(of.size(), 0.0), weight(of.size());
    for (std::size_t d = 0; d < of.size(); ++d) {
      const auto at = static_cast<std::int64_t>(d);
      of[d] = moments(keys, head, head + 1, at);
      if (asked) looked[d] = moments(queries, head * group, (head + 1) * group, at).rms;
    }
    // Queries without rows, or without a finite number that is not 0, say nothing.
    const bool told = std::any_of(looked.begin(), looked.end(), [](double rms) { return rms > 0.0; });
    for (std::size_t d = 0; d < of.size(); ++d) weight[d] = of[d].deviation * (told ? looked[d] : 1.0);
    std::vector<std::size_t> order(of.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return weight[a] > weight[b]; });
    KeyCode& code = codes[static_cast<std::size_t>(head)];
    for (std::size_t i = 0; i < kKeyCodeChannels; ++i) {
      const Moments& m = of[order[i]];
      code.channel[i] = static_cast<std::uint8_t>(order[i]);
      code.mean[i] = static_cast<float>(std::clamp(m.mean, -65504.0, 65504.0));
      code.step[i] = static_cast<float>(std::clamp(kStep * m.deviation, 1e-6, 65504.0));
    }
  }
  return codes;
}

}  // namespace fovea
