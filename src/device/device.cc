// The registry of backends. A backend is one line here; each knows by itself whether the machine can run it.
#include "device/device.h"

#include "base/quote.h"
#include "base/status.h"
#include "device/cpu_device.h"

namespace fovea {
namespace {

struct Entry {
  std::string_view name;
  Result<std::unique_ptr<Backend>> (*create)(const BackendOptions& options);
};
constexpr Entry kBackends[] = {{"cpu", &create_cpu_backend}};

}  // namespace

Status Backend::update_page_stats(const std::int32_t*, std::int64_t, const abi::KvPoolView&,
                                  const abi::PageStatsView&) {
  return unsupported("the backend {} selects no pages", name());
}

Status Backend::select_pages(const TensorView&, float, const abi::KvPoolView&, const abi::PageStatsView&,
                             std::span<const SelectJob>) {
  return unsupported("the backend {} selects no pages", name());
}

Result<std::unique_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options) {
  std::string known;
  for (const Entry& entry : kBackends) {
    if (entry.name == name) return entry.create(options);
    known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.name);
  }
  return not_found("there is no backend {}, expected one of: {}", quote(name), known);
}

}  // namespace fovea
