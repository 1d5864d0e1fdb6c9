// The names of devices. Each device knows by itself whether the machine can run it.
#include "device/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"
#include "cpu/move_tokens.h"
#include "device/cpu_device.h"
#include "device/cuda/cuda_device.h"
#include "device/group/process_group.h"

namespace fovea {
namespace {

// Whoever leaves the choice to us hears of it where warnings are heard: commands by default.
void say_choice(const std::string& text) {
  if (log_level() <= LogLevel::kWarning) log_message(LogLevel::kInfo, "device auto: " + text);
}

int rank_of(const DeviceOptions& options) { return options.group == nullptr ? 0 : options.group->rank(); }

Result<std::unique_ptr<Device>> create_best_device(const DeviceOptions& options) {
  Result<std::unique_ptr<Device>> device = create_cuda_device(rank_of(options), options);
  if (device.ok()) {
    say_choice((*device)->description());
    return device;
  }
  say_choice("cpu, because " + device.status().message());
  return create_cpu_device(options);
}

}  // namespace

Status Linear::forward_fused(const TensorView&, const TensorView&) {
  return unsupported("a product of this device is computed alone");
}
Status Linear::forward_add(const TensorView&, const TensorView&) {
  return unsupported("a product of this device is not added");
}

Status check_linear(const LinearWeights& weights) {
  const auto shape_of = [](const TensorView& view) {
    return fmt::format("{} [{}]", dtype_name(view.dtype),
                       fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "));
  };
  const auto is_wide = [](DType dtype) {
    return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
  };
  if (weights.parts.empty()) return invalid_argument("a linear layer needs weights");
  const TensorView& first = weights.parts[0];
  const bool fp8 = first.dtype == DType::kF8E4M3;
  if (weights.scales.size() != (fp8 ? weights.parts.size() : 0)) {
    return invalid_argument("{} scales for {} weights of {}, expected {}", weights.scales.size(), weights.parts.size(),
                            dtype_name(first.dtype), fp8 ? "one each" : "none");
  }
  if (!weights.biases.empty() && weights.biases.size() != weights.parts.size()) {
    return invalid_argument("{} biases for {} weights", weights.biases.size(), weights.parts.size());
  }
  for (std::size_t i = 0; i < weights.parts.size(); ++i) {
    const TensorView& w = weights.parts[i];
    if (w.rank != 2 || w.shape[0] < 1 || w.shape[1] < 1 || (!is_wide(w.dtype) && w.dtype != DType::kF8E4M3) ||
        w.dtype != first.dtype || w.shape[1] != first.shape[1] || w.strides[1] != 1 || w.device != DeviceKind::kCpu) {
      return invalid_argument(
          "weight is {}, expected [., {}] of bf16, f16, f32 or fp8_e4m3 with contiguous rows on the host, as the first",
          shape_of(w), first.shape[1]);
    }
    if (fp8) {
      const TensorView& s = weights.scales[i];
      if (s.rank != 1 || s.dtype != DType::kF32 || s.shape[0] != w.shape[0] || s.strides[0] != 1) {
        return invalid_argument("scales of a weight are {}, expected f32 [{}]", shape_of(s), w.shape[0]);
      }
    }
    if (weights.biases.empty()) continue;
    const TensorView& b = weights.biases[i];
    if (b.rank != 1 || b.shape[0] != w.shape[0] || !is_wide(b.dtype)) {
      return invalid_argument("bias is {}, expected [{}] of bf16, f16 or f32", shape_of(b), w.shape[0]);
    }
  }
  return ok_status();
}

Status Device::move_tokens(const abi::MoveTokensArgs& args) {
  if (!reads_host_memory()) return unsupported("{} moves no tokens of its KV cache", name());
  cpu::move_tokens(args);
  return ok_status();
}

Status Device::reserve_upload(std::size_t) { return ok_status(); }

Result<std::shared_ptr<void>> Device::allocate_host(std::size_t bytes) {
  void* memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) return resource_exhausted("{} bytes of host memory: none left", bytes);
  return std::shared_ptr<void>(memory, std::free);
}

Status Device::copy_to_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return ok_status();
}

Status Device::copy_from_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
  return ok_status();
}

Status Device::begin_read(const TensorView&) {
  return unsupported("tensors of the device {} are read as they lie", name());
}

Result<const void*> Device::end_read() { return unsupported("tensors of the device {} are read as they lie", name()); }

Status Device::mark_time(std::size_t) { return unsupported("the device {} computes while the host waits", name()); }

std::optional<double> Device::marked_time(std::size_t) const { return std::nullopt; }

Status Device::argmax(const TensorView&, const TensorView&) {
  return unsupported("logits of the device {} are read as they lie", name());
}

Status Device::draw(const TensorView&, const abi::DrawRow*, const TensorView&) {
  return unsupported("logits of the device {} are read as they lie", name());
}

Status Device::all_reduce(const TensorView&) {
  if (group() == nullptr) return ok_status();
  return unsupported("the device {} does not compute a model with others", name());
}

Status Device::all_gather(const TensorView&, std::int64_t) {
  if (group() == nullptr) return ok_status();
  return unsupported("the device {} does not compute a model with others", name());
}

Status Device::replay(const ReplayKey&, const std::function<Status()>& enqueue) { return enqueue(); }

Result<std::unique_ptr<PageLists>> Device::create_page_lists(const PageListsOptions&) {
  return unsupported("the device {} makes no lists of pages in its own memory", name());
}

Status Device::select_pages(const TensorView&, float, const abi::KvPoolView&, const abi::PageStatsView&,
                            std::span<const SelectJob>) {
  return unsupported("the device {} makes lists of pages in its own memory", name());
}

Result<std::unique_ptr<Device>> create_device(std::string_view name, const DeviceOptions& options) {
  if (name == "auto") return create_best_device(options);
  const Result<DevicePlace> place = parse_device(std::string(name));
  if (!place.ok()) return not_found("there is no device {}, expected one of: cpu, cuda, cuda:N, auto", quote(name));
  if (place->kind == DeviceKind::kCuda) return create_cuda_device(place->index + rank_of(options), options);
  return create_cpu_device(options);
}

}  // namespace fovea
