// What each kernel takes of a GPU, as ptxas says, against ledger.txt: what it may take at most. Compiles with NVRTC for
// sm_90a and sm_80 and needs no GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/cuda_executor.h"
#include "jit/cache_spec.h"
#include "jit/compiler.h"
#include "jit/linear_spec.h"
#include "jit/op_spec.h"

namespace fovea {
namespace {

// Cubins are kept in the build folder, unless the environment names another place.
const bool kPrepared = ::setenv("FOVEA_CACHE_DIR", FOVEA_LEDGER_FOLDER "/kernel-cache", 0) == 0;

struct Entry {
  std::string name;
  jit::KernelSource source;
};

// The kernels that differ in more than a constant.
std::vector<Entry> entries() {
  std::vector<Entry> all;
  static float slopes = 0.0f;
  TensorView heads;
  heads.data = &slopes;
  heads.rank = 1;
  heads.shape[0] = 32;
  heads.strides[0] = 1;
  using Change = std::function<void(AttentionOptions&)>;
  std::vector<std::pair<std::string, Change>> kinds;
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const int page_tokens : {1, 16}) {
      kinds.emplace_back(" pages of " + std::to_string(page_tokens), [=](AttentionOptions& o) {
        o.head_dim = head_dim;
        o.page_tokens = page_tokens;
      });
    }
  }
  kinds.emplace_back("", [](AttentionOptions& o) { o.q_dtype = o.kv_dtype = DType::kF16; });
  kinds.emplace_back("", [](AttentionOptions& o) { o.kv_dtype = DType::kF8E4M3; });
  for (const int head_dim : {64, 128, 256}) {
    kinds.emplace_back(" as asked for", [=](AttentionOptions& o) {
      o.head_dim = head_dim;
      o.kv_dtype = DType::kF8E4M3;
      o.decode_kernel = DecodeKernel::kPrefill;
    });
  }
  for (const auto& [head_dim, dtype, rotated] :
       {std::tuple{64, DType::kI4, true}, std::tuple{64, DType::kI8, false}, std::tuple{80, DType::kF8E4M3, false},
        std::tuple{96, DType::kI4, false}, std::tuple{112, DType::kI8, false}, std::tuple{128, DType::kI8, true},
        std::tuple{192, DType::kI8, false}, std::tuple{256, DType::kI4, true}}) {
    kinds.emplace_back(rotated ? " rotated" : " as asked for", [=](AttentionOptions& o) {
      o.head_dim = head_dim;
      o.kv_dtype = dtype;
      o.kv_rotated = rotated;
      o.decode_kernel = DecodeKernel::kPrefill;
    });
  }
  for (const int head_dim : {128, 256}) {
    kinds.emplace_back(" capped", [=](AttentionOptions& o) {
      o.head_dim = head_dim;
      o.kv_dtype = DType::kF8E4M3;
      o.softcap = 30.0f;
      o.decode_kernel = DecodeKernel::kPrefill;
    });
  }
  for (const int head_dim : {96, 112, 192}) {
    kinds.emplace_back(" as asked for", [=](AttentionOptions& o) {
      o.head_dim = head_dim;
      o.decode_kernel = DecodeKernel::kPrefill;
    });
  }
  kinds.emplace_back("", [](AttentionOptions& o) { o.kv_dtype = DType::kI8; });
  kinds.emplace_back("", [](AttentionOptions& o) { o.kv_dtype = DType::kI4; });
  kinds.emplace_back(" checked", [](AttentionOptions& o) { o.checked = true; });
  kinds.emplace_back("", [](AttentionOptions& o) { o.softcap = 30.0f; });
  kinds.emplace_back("", [=](AttentionOptions& o) { o.sinks = heads; });
  kinds.emplace_back("", [=](AttentionOptions& o) { o.alibi_slopes = heads; });
  kinds.emplace_back("", [](AttentionOptions& o) { o.sigmoid = true; });
  for (const std::string arch : {"sm_90a", "sm_80"}) {
    for (const auto& [what, change] : kinds) {
      AttentionOptions options;
      options.device = "cuda";
      change(options);
      const Result<std::vector<jit::KernelSource>> sources = attention_kernels(options, arch);
      EXPECT_TRUE(sources.ok()) << sources.status().to_string();
      if (!sources.ok()) continue;
      // Attention, append, merge of states.
      const std::string types =
          fmt::format(" d{} {} {}", options.head_dim, dtype_name(options.q_dtype), dtype_name(options.kv_dtype));
      for (const jit::KernelSource& source : *sources) {
        const bool attention = source.name.starts_with("attention");
        all.push_back({arch + " " + source.name + (attention ? what : types), source});
      }
    }
    const Result<jit::KernelSource> rotate = jit::append_source({.arch = arch, .rotate = true});
    EXPECT_TRUE(rotate.ok());
    if (rotate.ok()) all.push_back({arch + " append, rotating", *rotate});
    for (const auto& source :
         {jit::select_source(arch, abi::KvDType::kBF16), jit::key_codes_source(arch, abi::KvDType::kBF16)}) {
      EXPECT_TRUE(source.ok());
      if (source.ok()) all.push_back({arch + " " + source->name + " bf16", *source});
    }
    // Between the matrix products of a model.
    const auto add = [&](const std::string& what, const Result<jit::KernelSource>& source) {
      EXPECT_TRUE(source.ok()) << source.status().to_string();
      if (source.ok()) all.push_back({arch + " " + source->name + what, *source});
    };
    for (const std::uint32_t runs : {1, 4}) {
      add(fmt::format(" bf16, {} runs", runs), jit::norm_source(arch, abi::KvDType::kBF16, 8, runs));
    }
    add(" bf16", jit::fp8_rows_source(arch, abi::KvDType::kBF16, 8));
    add("", jit::argmax_source(arch, 4));
    add("", jit::draw_source(arch, 4));
    add("", jit::move_tokens_source(arch));
    add(" bf16", jit::all_reduce_source(arch, abi::KvDType::kBF16));
    add(" bf16", jit::elementwise_source(arch, abi::KvDType::kBF16, 8));
    add(" f32", jit::elementwise_source(arch, abi::KvDType::kF32, 4));
    for (const int head_dim : {64, 80, 128, 256}) {
      add(fmt::format(" bf16 d{}", head_dim),
          jit::rope_append_source(arch, abi::KvDType::kBF16, head_dim, jit::rope_vec(head_dim, head_dim)));
    }
  }
  for (const std::uint32_t tokens : {8u, 16u}) {
    for (const std::uint32_t split : {1u, 2u, 4u, 8u}) {
      for (const auto& [what, change] :
           std::vector<std::pair<std::string, std::function<void(jit::LinearKernelSpec&)>>>{
               {"", [](jit::LinearKernelSpec&) {}},
               {", norm and gate",
                [](jit::LinearKernelSpec& s) {
                  s.norm = true;
                  s.activation = abi::LinearActivation::kSilu;
                }},
               {", fp8", [](jit::LinearKernelSpec& s) { s.fp8 = true; }},
               {", norm and gate, fp8", [](jit::LinearKernelSpec& s) {
                  s.fp8 = s.norm = true;
                  s.activation = abi::LinearActivation::kSilu;
                }}}) {
        jit::LinearKernelSpec spec{.tokens = tokens, .split = split, .ring = abi::linear_ring(tokens / 8)};
        change(spec);
        if (spec.fp8 && tokens > 8) continue;
        const Result<jit::KernelSource> source = jit::linear_source(spec);
        EXPECT_TRUE(source.ok());
        if (source.ok())
          all.push_back({fmt::format("sm_90a linear {} rows, split {}{}", tokens, split, what), *source});
      }
    }
  }
  for (const std::uint32_t tokens : {8u, 16u, 32u, 64u}) {
    for (const bool streamed : {false, true}) {
      for (const bool gated : {false, true}) {
        const Result<jit::KernelSource> source =
            jit::batch_linear_source({.norm = gated,
                                      .activation = gated ? abi::LinearActivation::kSilu : abi::LinearActivation::kNone,
                                      .streamed = streamed,
                                      .batch = abi::linear_batch(tokens)});
        EXPECT_TRUE(source.ok());
        if (!source.ok()) continue;
        all.push_back({fmt::format("sm_90a linear of a batch, {} rows{}{}", tokens, streamed ? ", streamed" : "",
                                   gated ? ", norm and gate" : ""),
                       *source});
      }
    }
  }
  return all;
}

// By kernel: registers, bytes spilled, bytes of stack, bytes of static shared memory.
using Ledger = std::map<std::string, std::array<int, 4>>;

Ledger read_ledger() {
  Ledger ledger;
  std::ifstream in(FOVEA_SOURCE_DIR "/tests/kernels/ledger.txt");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.rfind(':');
    if (line.empty() || line[0] == '#' || colon == std::string::npos) continue;
    std::array<int, 4>& numbers = ledger[line.substr(0, colon)];
    std::istringstream rest(line.substr(colon + 1));
    for (int& number : numbers) rest >> number;
  }
  return ledger;
}

void write_ledger(const Ledger& ledger, const std::string& path) {
  std::ofstream out(path);
  out << "# What each kernel may take of a GPU: registers a thread, bytes spilled, bytes of stack, bytes of static "
         "shared\n"
         "# memory, as ptxas says. ledger_test.cc fails where a kernel takes more and writes a new one to copy here.\n";
  for (const auto& [name, n] : ledger) out << fmt::format("{}: {} {} {} {}\n", name, n[0], n[1], n[2], n[3]);
}

TEST(LedgerTest, NoKernelTakesMoreThanItMay) {
  const std::vector<Entry> all = entries();
  Ledger actual;
  std::mutex mutex;
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < all.size(); i = next++) {
        const Result<jit::CubinPtr> cubin = jit::Compiler::shared().get(all[i].source);
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(cubin.ok()) << all[i].name << ": " << cubin.status().to_string();
        if (!cubin.ok()) continue;
        for (const jit::KernelResources& k : (*cubin)->kernels) {
          actual[all[i].name + " " + k.name] = {k.registers, k.spill_store_bytes + k.spill_load_bytes, k.stack_bytes,
                                                k.static_smem_bytes};
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(kPrepared);
  const std::string path = FOVEA_LEDGER_FOLDER "/kernel_ledger.txt";
  write_ledger(actual, path);

  const Ledger ledger = read_ledger();
  const std::string advice = "; if that is meant: cp " + path + " tests/kernels/ledger.txt";
  for (const auto& [name, taken] : actual) {
    EXPECT_EQ(taken[1] + taken[2], 0) << name << " spills, or keeps something in local memory";
    const auto may = ledger.find(name);
    if (may == ledger.end()) {
      ADD_FAILURE() << name << ": not in the ledger" << advice;
      continue;
    }
    for (std::size_t i = 0; i < taken.size(); ++i) {
      EXPECT_LE(taken[i], may->second[i])
          << name << ": more " << std::array{"registers", "spills", "stack", "shared memory"}[i] << advice;
    }
  }
  for (const auto& [name, may] : ledger) EXPECT_TRUE(actual.contains(name)) << name << ": no such kernel" << advice;
  EXPECT_GT(actual.size(), 30u);
}

}  // namespace
}  // namespace fovea
