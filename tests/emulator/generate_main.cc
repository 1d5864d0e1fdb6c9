// Writes the sources that the emulator's tests are compiled from: `generate FOLDER name...` makes FOLDER/name.cc of
// each instantiation and FOLDER/source with every header of device code, rewritten, faults to plant among it.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "jit/cache_spec.h"
#include "jit/ladder_spec.h"
#include "jit/sources.h"
#include "testing/simt/rewrite.h"
#include "tests/emulator/faults.h"
#include "tests/emulator/instantiations.h"
#include "tests/emulator/linear_cases.h"

namespace {

using namespace fovea;

// Only what changed, so that what depends on the others is not compiled again.
void write(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ostringstream before;
  if (std::ifstream in(path); in) before << in.rdbuf();
  if (before.str() == text && !text.empty()) return;
  std::ofstream(path) << text;
}

// Written anew in any case: what make looks at is its time.
void write_unit(const std::filesystem::path& folder, const std::string& name, const std::string& text) {
  const std::filesystem::path path = folder / (name + ".cc");
  write(path, text);
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now());
}

void generate(int argc, char** argv) {
  if (argc < 2) throw std::runtime_error("usage: generate FOLDER name...");
  const std::filesystem::path folder = argv[1];
  for (const jit::SourceFile& file : jit::device_sources()) {
    const std::string planted = emulator_test::plant_faults(file.path, std::string(file.text()));
    write(folder / "source" / file.path, simt::rewrite(planted));
  }
  for (int i = 2; i < argc; ++i) {
    if (std::string_view(argv[i]) == "probes") {
      std::ostringstream text;
      text << std::ifstream(FOVEA_SOURCE_DIR "/tests/emulator/probes.cuh").rdbuf();
      write_unit(folder, "probes", simt::translation_unit("probes", "fovea", "fovea_probe", text.str()));
      continue;
    }
    if (std::string_view(argv[i]) == "moves") {
      const auto source = jit::move_tokens_source("sm_90a");
      if (!source.ok()) throw std::runtime_error(source.status().to_string());
      write_unit(folder, "moves", simt::translation_unit("moves", "fovea", "fovea_move_tokens", source->text));
      continue;
    }
    if (const emulator_test::LinearCase* const linear = emulator_test::find_linear_case(argv[i]); linear != nullptr) {
      const auto source = linear->source();
      if (!source.ok()) throw std::runtime_error(std::string(argv[i]) + ": " + source.status().to_string());
      write_unit(folder, argv[i], simt::translation_unit(argv[i], "fovea", linear->entry(), source->text));
      continue;
    }
    if (std::string_view(argv[i]).starts_with("ladder")) {  // ladderN
      const jit::LadderKernel& kernel = jit::ladder_kernels()[static_cast<std::size_t>(argv[i][6] - '0')];
      const auto source = jit::ladder_source(kernel, "sm_90a");
      if (!source.ok()) throw std::runtime_error(std::string(argv[i]) + ": " + source.status().to_string());
      write_unit(folder, argv[i], simt::translation_unit(argv[i], "fovea", kernel.entry, source->text));
      continue;
    }
    const emulator_test::Instantiation& instantiation = emulator_test::find_instantiation(argv[i]);
    const auto built = emulator_test::build(instantiation);
    if (!built.ok()) throw std::runtime_error(instantiation.name + ": " + built.status().to_string());
    write_unit(folder, instantiation.name,
               simt::translation_unit(instantiation.name, "fovea", "fovea_attention", built->source.text));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    generate(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
