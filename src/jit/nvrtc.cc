// Loads NVRTC and runs it.
#include "jit/nvrtc.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>

#include "base/per_process.h"
#include "base/quote.h"
#include "base/status.h"
#include "jit/sources.h"

namespace fovea::jit {
namespace {

// Of nvrtc.h, which is not needed to build.
using Program = void*;
constexpr int kSuccess = 0;
constexpr int kOutOfMemory = 1;
constexpr int kInvalidOption = 5;
constexpr int kCompilationError = 6;
constexpr int kBuiltinFailure = 7;

}  // namespace

struct Nvrtc::Functions {
  int (*version)(int*, int*);
  int (*create)(Program*, const char* text, const char* name, int, const char* const*, const char* const*);
  int (*destroy)(Program*);
  int (*compile)(Program, int, const char* const*);
  int (*log_size)(Program, std::size_t*);
  int (*log)(Program, char*);
  int (*cubin_size)(Program, std::size_t*);
  int (*cubin)(Program, char*);
  const char* (*error_string)(int);
};

std::string Nvrtc::version() const { return fmt::format("{}.{}", major_, minor_); }

Result<const Nvrtc*> Nvrtc::load() {
  struct Kept {
    std::mutex mutex;
    const Nvrtc* loaded = nullptr;  // for the life of the process: kernels may be compiled until its end
  };
  auto& [mutex, loaded] = per_process<Kept>();
  const std::lock_guard lock(mutex);
  if (loaded != nullptr && (newest_cuda() == 0 || loaded->major_ <= newest_cuda())) return loaded;
  FOVEA_ASSIGN_OR_RETURN(const NvrtcPlace place, find_nvrtc());
  FOVEA_ASSIGN_OR_RETURN(loaded, open(place));
  return loaded;
}

Result<const Nvrtc*> Nvrtc::open(const NvrtcPlace& place) {
  // NVRTC opens its built-ins by their bare name: a copy that is loaded already is found, wherever it came from.
  if (!place.version.empty()) {
    const std::string folder = std::filesystem::path(place.path).parent_path().string();
    ::dlopen((folder + "/libnvrtc-builtins.so." + place.version).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  void* const library = ::dlopen(place.path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    return make_status(StatusCode::kUnavailable, "NVRTC cannot be loaded: {}; let FOVEA_NVRTC name another one",
                       ::dlerror());
  }
  auto functions = std::make_unique<Functions>();
  const char* missing = nullptr;
  const auto resolve = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  resolve(functions->version, "nvrtcVersion");
  resolve(functions->create, "nvrtcCreateProgram");
  resolve(functions->destroy, "nvrtcDestroyProgram");
  resolve(functions->compile, "nvrtcCompileProgram");
  resolve(functions->log_size, "nvrtcGetProgramLogSize");
  resolve(functions->log, "nvrtcGetProgramLog");
  resolve(functions->cubin_size, "nvrtcGetCUBINSize");
  resolve(functions->cubin, "nvrtcGetCUBIN");
  resolve(functions->error_string, "nvrtcGetErrorString");
  auto nvrtc = std::unique_ptr<Nvrtc>(new Nvrtc());
  nvrtc->path_ = place.path;
  if (missing != nullptr || functions->version(&nvrtc->major_, &nvrtc->minor_) != kSuccess || nvrtc->major_ < 12) {
    const std::string what = missing != nullptr ? std::string("has no ") + missing : "is version " + nvrtc->version();
    ::dlclose(library);
    return make_status(StatusCode::kUnavailable, "{} {}; expected NVRTC 12.0 or later, which FOVEA_NVRTC may name",
                       shorten(place.path), what);
  }
  if (newest_cuda() != 0 && nvrtc->major_ > newest_cuda()) {
    ::dlclose(library);
    return too_new(place.path, nvrtc->major_);
  }
  nvrtc->functions_ = functions.release();
  return nvrtc.release();
}

Result<std::vector<std::byte>> Nvrtc::compile(const KernelSource& source, std::string* log) const {
  // Others are virtual: NVRTC would make PTX of them.
  if (!source.arch.starts_with("sm_")) {
    return unsupported("{} is to be compiled for \"{}\", expected sm_80, sm_90a, ..", source.name, source.arch);
  }
  std::vector<const char*> texts, names;
  for (const SourceFile& file : device_sources()) {
    texts.push_back(file.begin);
    names.push_back(file.path);
  }
  std::vector<std::string> options = {"-arch=" + source.arch, "-std=c++20", "-default-device", "--ptxas-options=-v"};
  options.insert(options.end(), source.flags.begin(), source.flags.end());
  std::vector<const char*> option_texts;
  for (const std::string& option : options) option_texts.push_back(option.c_str());

  const Functions& f = *functions_;
  Program program = nullptr;
  int code = f.create(&program, source.text.c_str(), (source.name + ".cu").c_str(), static_cast<int>(texts.size()),
                      texts.data(), names.data());
  if (code != kSuccess) return explain(code, source, "");
  code = f.compile(program, static_cast<int>(option_texts.size()), option_texts.data());
  std::size_t size = 0;
  log->clear();
  if (f.log_size(program, &size) == kSuccess && size > 1) {
    log->resize(size);
    f.log(program, log->data());
    log->resize(size - 1);  // the terminating zero
  }
  std::vector<std::byte> cubin;
  if (code == kSuccess) code = f.cubin_size(program, &size);
  if (code == kSuccess) {
    cubin.resize(size);
    code = f.cubin(program, reinterpret_cast<char*>(cubin.data()));
  }
  f.destroy(&program);
  if (code != kSuccess) return explain(code, source, *log);
  return cubin;
}

Status Nvrtc::explain(int code, const KernelSource& source, const std::string& log) const {
  switch (code) {
    case kOutOfMemory: return resource_exhausted("NVRTC ran out of memory compiling {}", source.name);
    case kInvalidOption:
      return unsupported("NVRTC {} ({}) cannot compile {} for {}: {}; a newer one may be named by FOVEA_NVRTC",
                         version(), path_, source.name, source.arch, log);
    case kCompilationError: return invalid_argument("{} does not compile for {}:\n{}", source.name, source.arch, log);
    case kBuiltinFailure:
      return make_status(StatusCode::kUnavailable,
                         "NVRTC {} ({}) does not find libnvrtc-builtins.so.{}, which belongs beside it", version(),
                         path_, version());
    default:
      return internal_error("NVRTC {} failed on {} for {}: {}: {}", version(), source.name, source.arch,
                            functions_->error_string(code), log);
  }
}

}  // namespace fovea::jit
