// Reads the output of `ptxas -v`, as NVRTC returns it in its log.
#include <charconv>

#include "jit/kernel_source.h"

namespace fovea::jit {
namespace {

// The number right before `unit`; 0 when the line does not say.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

// What stands between the quotes after `words`, or behind `words` where there are no quotes; empty when absent.
std::string_view name_after(std::string_view line, std::string_view words) {
  const std::size_t at = line.find(words);
  if (at == std::string_view::npos) return {};
  std::string_view rest = line.substr(at + words.size());
  if (!rest.empty() && rest.front() == '\'') rest = rest.substr(1, rest.find('\'', 1) - 1);
  return rest;
}

}  // namespace

std::vector<KernelResources> parse_ptxas_log(std::string_view log) {
  std::vector<KernelResources> kernels;
  std::string_view properties_of;  // functions that are not inlined have properties too
  while (!log.empty()) {
    const std::size_t newline = log.find('\n');
    const std::string_view line = log.substr(0, newline);
    log = newline == std::string_view::npos ? std::string_view() : log.substr(newline + 1);
    if (const std::string_view name = name_after(line, "Compiling entry function "); !name.empty()) {
      kernels.emplace_back().name = name;
    } else if (const std::string_view function = name_after(line, "Function properties for "); !function.empty()) {
      properties_of = function;
    } else if (!kernels.empty() && properties_of == kernels.back().name) {
      KernelResources& kernel = kernels.back();
      if (line.find(" bytes stack frame") != std::string_view::npos) {
        kernel.stack_bytes = number_before(line, " bytes stack frame");
        kernel.spill_store_bytes = number_before(line, " bytes spill stores");
        kernel.spill_load_bytes = number_before(line, " bytes spill loads");
      } else if (line.find("Used ") != std::string_view::npos && line.find(" registers") != std::string_view::npos) {
        kernel.registers = number_before(line, " registers");
        kernel.static_smem_bytes = number_before(line, " bytes smem");
      }
    }
  }
  return kernels;
}

}  // namespace fovea::jit
