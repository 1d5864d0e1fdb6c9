// What objects compiled against Debian 12's C library ask for and glibc 2.31 lacks. Part of releases alone
// (portable.cmake); a C library that has the symbols is not disturbed, because these are hidden.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

namespace {

// The loaded object whose mapping holds `find->dlfo_map_start`, as the unwinder asks for.
int find_object(dl_phdr_info* info, std::size_t, void* data) {
  auto* find = static_cast<dl_find_object*>(data);
  const auto address = reinterpret_cast<std::uintptr_t>(find->dlfo_map_start);
  std::uintptr_t begin = UINTPTR_MAX;
  std::uintptr_t end = 0;
  void* frames = nullptr;
  bool inside = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    const std::uintptr_t start = info->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_EH_FRAME) frames = reinterpret_cast<void*>(start);
    if (header.p_type != PT_LOAD) continue;
    begin = start < begin ? start : begin;
    end = start + header.p_memsz > end ? start + header.p_memsz : end;
    inside = inside || (address >= start && address < start + header.p_memsz);
  }
  if (!inside || frames == nullptr) return 0;
  find->dlfo_map_start = reinterpret_cast<void*>(begin);
  find->dlfo_map_end = reinterpret_cast<void*>(end);
  find->dlfo_eh_frame = frames;
  return 1;
}

}  // namespace

extern "C" {

// libstdc++ and shared_ptr ask whether counters need atomic operations: always yes (glibc 2.32).
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// libgcc finds the frames of an exception's callers by it (glibc 2.35).
__attribute__((visibility("hidden"))) int _dl_find_object(void* address, dl_find_object* result) {
  *result = {};
  result->dlfo_map_start = address;
  return dl_iterate_phdr(find_object, result) == 1 ? 0 : -1;
}

// std::random_device (glibc 2.36).
__attribute__((visibility("hidden"))) std::uint32_t arc4random() {
  std::uint32_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) std::abort();
  return value;
}

}  // extern "C"
