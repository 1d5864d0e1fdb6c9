// Tensors of a Python call lent at once (fovea/fovea.h): a call from Python costs more than lending a tensor. Used by
// the package python/fovea alone.
#include <cstddef>

#include "capi/records.h"

namespace {

template <typename F>
F* function(void* address) {
  return reinterpret_cast<F*>(address);
}

}  // namespace

int32_t fovea_lend(fovea_lending* lending, void* tuple) {
  if (lending->lender == nullptr) return 1;
  const fovea_lender& python = *lending->lender;
  const auto count = function<std::ptrdiff_t(void*)>(python.tuple_size)(tuple);
  if (count < 0) return -1;
  if (count > lending->end - lending->next) return 2;
  fovea_tensor* records = lending->next;
  void** addresses = lending->addresses;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    addresses[i] = nullptr;
    void* object = function<void*(void*, std::ptrdiff_t)>(python.tuple_item)(tuple, i);
    if (object == nullptr) return -1;
    if (object == python.none) continue;
    void* type = function<void*(void*)>(python.type_of)(object);
    function<void(void*)>(python.drop)(type);  // the object keeps it
    if (type != python.type) return 1;
    if (function<int(void*, fovea_tensor*)>(python.lend)(object, &records[i]) != 0) return -1;
    addresses[i] = &records[i];
  }
  lending->next = records + count;
  addresses[count] = nullptr;
  if (count == 0 || addresses[0] == nullptr) return 0;
  const auto& device = records[0].device;
  if (fovea::capi::kind_of(device.type) == fovea::DeviceKind::kCpu) return 0;
  return function<int(int, int32_t, void**)>(python.stream)(device.type, device.id, &addresses[count]);
}
