// Compiles every kernel that the tests and benchmarks of a GPU launch into the kernel cache (FOVEA_CACHE_DIR), on a
// machine that needs no GPU: fovea_gpu_warm ARCH. With `measured` behind it: the benchmarks' alone; `prefill`: those of
// its suite; `sweep`: of the sweep's 300 cases of seed FOVEA_SWEEP_SEED (not part of all); `agreement`: its test
// (FOVEA_GPU_CONFIGURATIONS: only configurations whose name holds it); `variants`: those of the gallery,
// examples/variants; `conformance`: of tests/conformance. Used by tools/gpu_bundle.sh, and by tools/gpu_test.py for
// what the bundle's cache lacks.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "attention/cuda_executor.h"
#include "base/thread_pool.h"
#include "jit/cache_spec.h"
#include "jit/compiler.h"
#include "tests/gpu/agreement.h"
#include "tests/gpu/gallery_options.h"
#include "workload/attention_cases.h"
#include "workload/sweep_cases.h"

namespace fovea::gpu_test {
namespace {

// Never read: options with tensors only need to have some.
float per_head[128];

AttentionOptions with_tensors(const Configuration& config) {
  AttentionOptions o = config.options;
  const TensorView some = cpu_tensor(per_head, DType::kF32, o.num_qo_heads);
  if (!config.variant.sinks.empty()) o.sinks = some;
  if (!config.variant.alibi_slopes.empty()) o.alibi_slopes = some;
  return o;
}

// Pointers of tensors are not read, so that these may lie anywhere.
std::vector<AttentionOptions> gallery_options(Place& place, std::vector<std::shared_ptr<void>>& kept) {
  std::vector<AttentionOptions> all;
  const std::map<std::string, jit::GalleryCase> cases = jit::gallery_cases();
  for (const jit::GalleryEntry& entry : jit::read_gallery()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const auto options = options_of(place, entry.spec, cases.at(entry.spec.name), dtype, kept);
      if (options.ok()) all.push_back(*options);
    }
  }
  return all;
}

// use: "measured", "prefill", "sweep", "agreement", "variants", "conformance", or nothing for all.
std::vector<AttentionOptions> wanted_options(const std::string& use, Place& place,
                                             std::vector<std::shared_ptr<void>>& kept) {
  std::vector<AttentionOptions> all;
  const auto wanted = [&](const char* name) { return use.empty() || use == name; };
  const auto measured = measured_cases("decode,skew,single,fp8,integers,page,variant,append,prefix");
  const auto prefill = measured_cases("prefill");
  std::vector<MeasuredCase> cases;
  if (measured.ok() && wanted("measured")) cases = *measured;
  if (prefill.ok() && (wanted("measured") || use == "prefill")) {
    cases.insert(cases.end(), prefill->begin(), prefill->end());
  }
  if (use == "sweep") {
    constexpr std::int32_t kCases = 300;
    const char* seed = std::getenv("FOVEA_SWEEP_SEED");
    cases = sweep_cases(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1, kCases, kMostSweepBytes);
  }
  for (const MeasuredCase& c : cases) {
    AttentionOptions o = c.options();
    if (c.sinks) o.sinks = cpu_tensor(per_head, DType::kF32, c.qo_heads);
    all.push_back(o);
  }
  if (wanted("agreement")) {
    const char* filter = std::getenv("FOVEA_GPU_CONFIGURATIONS");
    for (const Configuration& config : configurations()) {
      if (filter == nullptr || config.name.find(filter) != std::string::npos) all.push_back(with_tensors(config));
    }
  }
  if (wanted("variants")) {
    for (AttentionOptions& o : gallery_options(place, kept)) all.push_back(std::move(o));
  }
  if (!wanted("conformance")) return all;
  for (const std::int32_t head_dim : {64, 128, 256}) {
    for (const std::int32_t page : {1, 2, 4, 5, 8, 16, 32, 64}) {
      AttentionOptions o;
      o.head_dim = head_dim;
      o.page_tokens = page;
      o.q_dtype = o.kv_dtype = DType::kF16;
      all.push_back(o);
      o.softcap = 30.0f;
      all.push_back(o);
      o.softcap = 0.0f;
      o.sinks = cpu_tensor(per_head, DType::kF32, o.num_qo_heads);
      all.push_back(o);
      o.sinks = {};
      o.kv_dtype = DType::kF8E4M3;
      all.push_back(o);
    }
  }
  return all;
}

int warm(const std::string& arch, const std::string& use) {
  std::map<std::string, jit::KernelSource> sources;
  int unsupported = 0;
  const auto place = Place::open("cpu");
  std::vector<std::shared_ptr<void>> kept;
  for (const AttentionOptions& options : wanted_options(use, **place, kept)) {
    const auto kernels = attention_kernels(options, arch);
    if (kernels.status().code() == StatusCode::kUnsupported) {
      ++unsupported;
      continue;
    }
    if (!kernels.ok()) {
      std::fprintf(stderr, "%s\n", kernels.status().to_string().c_str());
      return 1;
    }
    for (const jit::KernelSource& source : *kernels) sources.emplace(source.text + source.arch, source);
  }
  if (const auto reschedule = jit::reschedule_source(arch); reschedule.ok())
    sources.emplace(reschedule->text + reschedule->arch, *reschedule);
  std::vector<jit::KernelSource> list;
  for (auto& [key, source] : sources) list.push_back(std::move(source));
  std::atomic<std::size_t> next{0};
  std::atomic<int> compiled{0}, failed{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < list.size(); i = next++) {
      jit::Origin origin{};
      const auto cubin = jit::Compiler::shared().get(list[i], &origin);
      if (!cubin.ok()) {
        std::fprintf(stderr, "%s: %s\n", list[i].name.c_str(), cubin.status().to_string().c_str());
        ++failed;
      } else if (origin == jit::Origin::kCompiled) {
        ++compiled;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < default_num_threads(); ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::printf("%zu kernels for %s in %s, %d compiled now; %d option sets have no kernel\n", list.size(), arch.c_str(),
              jit::Compiler::shared().folder().c_str(), compiled.load(), unsupported);
  return failed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace fovea::gpu_test

int main(int argc, char** argv) {
  const std::string use = argc == 3 ? argv[2] : "";
  const auto names = {"", "measured", "prefill", "sweep", "agreement", "variants", "conformance"};
  if (argc < 2 || argc > 3 || std::find(names.begin(), names.end(), use) == names.end()) {
    std::fprintf(stderr, "usage: %s ARCH [measured|prefill|sweep|agreement|variants|conformance], for example sm_90a\n",
                 argv[0]);
    return 2;
  }
  return fovea::gpu_test::warm(argv[1], use);
}
