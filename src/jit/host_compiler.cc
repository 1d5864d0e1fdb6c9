// Runs the system's compiler in a private folder, and loads what it makes from memory.
#include "jit/host_compiler.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/env.h"
#include "base/file.h"
#include "base/per_process.h"
#include "base/quote.h"
#include "base/status.h"
#include "jit/sources.h"

extern char** environ;

namespace fovea::jit {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxObjectBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxLogBytes = std::uint64_t{64} << 20;
// Of what a compiler says, this much goes into a Status.
constexpr std::size_t kShownLogBytes = 8000;

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

// Empty when no folder of PATH has it.
std::string in_path(std::string_view name) {
  const char* list = std::getenv("PATH");
  std::string_view rest = list != nullptr ? list : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    const fs::path path = fs::path(rest.substr(0, colon)) / name;
    if (colon > 0 && is_program(path)) return path.string();
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return "";
}

// Tells compilers apart by their files: asking one for its version would cost more than reading the entry.
std::string tool_of(const std::string& compiler) {
  std::error_code error;
  const std::string path = fs::canonical(compiler, error).string();
  struct stat info {};
  ::stat(compiler.c_str(), &info);
  return "cxx" + cache_key({path, std::to_string(info.st_size), std::to_string(info.st_mtime)}).substr(0, 16);
}

std::string key_of(const HostSource& source) {
  static const std::string sources =
      fmt::format("{:016x}{:016x}", sources_hash(device_sources()), sources_hash(host_only_sources()));
  std::string flags;
  for (const std::string& flag : source.flags) flags += flag + "\n";
  return cache_key({"object", sources, flags, source.text});
}

// A folder of its own, removed with everything in it.
class WorkFolder {
 public:
  static Result<std::unique_ptr<WorkFolder>> create() {
    std::error_code error;
    std::string pattern = (fs::temp_directory_path(error) / "fovea-jit-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) {
      return resource_exhausted("cannot make the folder {} to compile in: {}; TMPDIR may name another place",
                                shorten(pattern), std::strerror(errno));
    }
    return std::unique_ptr<WorkFolder>(new WorkFolder(pattern));
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  Status write(const std::string& name, std::string_view text) const {
    const fs::path path = path_ / name;
    std::error_code ignored;
    fs::create_directories(path.parent_path(), ignored);
    std::ofstream out(path, std::ios::binary);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    if (out.flush().good()) return ok_status();
    return resource_exhausted("cannot write {}; TMPDIR may name another place", shorten(path.string()));
  }
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  explicit WorkFolder(fs::path path) : path_(std::move(path)) {}
  const fs::path path_;
};

// Exit code, or -1 when the program could not be started. Both outputs go to the file.
int run(const std::vector<std::string>& command, const std::string& output) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT, 0600);
  ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return -1;
  int state = 0;
  while (::waitpid(child, &state, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

Result<CacheEntry> compile(const std::string& compiler, const HostSource& source) {
  FOVEA_ASSIGN_OR_RETURN(const std::unique_ptr<WorkFolder> folder, WorkFolder::create());
  for (const std::span<const SourceFile> files : {device_sources(), host_only_sources()}) {
    for (const SourceFile& file : files) {
      FOVEA_RETURN_IF_ERROR(folder->write(std::string("include/") + file.path, file.text()));
    }
  }
  FOVEA_RETURN_IF_ERROR(folder->write("source.cc", source.text));
  // -ffp-contract=off: as the library itself is built, so that the same text gives the same bits.
  std::vector<std::string> command = {
      compiler, "-std=c++20",       "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off",
      "-I",     *folder / "include"};
  command.insert(command.end(), source.flags.begin(), source.flags.end());
  command.insert(command.end(), {*folder / "source.cc", "-o", *folder / "object.so"});
  const int code = run(command, *folder / "log");
  CacheEntry entry;
  if (Result<std::string> log = read_file(*folder / "log", kMaxLogBytes); log.ok()) entry.log = *std::move(log);
  if (code < 0)
    return make_status(StatusCode::kUnavailable, "the C++ compiler {} cannot be started", shorten(compiler));
  if (code != 0) {
    return invalid_argument("{} does not compile ({} ended with {}):\n{}", shorten(source.name), shorten(compiler),
                            code, std::string_view(entry.log).substr(0, kShownLogBytes));
  }
  FOVEA_ASSIGN_OR_RETURN(const std::string object, read_file(*folder / "object.so", kMaxObjectBytes));
  entry.data.resize(object.size());
  std::memcpy(entry.data.data(), object.data(), object.size());
  return entry;
}

}  // namespace

Result<SharedObjectPtr> SharedObject::load(const std::string& name, std::span<const std::byte> bytes) {
  const int fd = ::memfd_create("fovea-jit", MFD_CLOEXEC);
  if (fd < 0) return resource_exhausted("no memory for {}: {}", name, std::strerror(errno));
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(fd, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno != EINTR) {
      ::close(fd);
      return resource_exhausted("no memory for {}: {}", name, std::strerror(errno));
    }
    if (written > 0) done += static_cast<std::size_t>(written);
  }
  void* const handle = ::dlopen(fmt::format("/proc/self/fd/{}", fd).c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string why = handle == nullptr ? ::dlerror() : "";
  // The descriptor stays open with the code: the loader tells libraries apart by name, so the number must not return.
  if (handle == nullptr) ::close(fd);
  if (handle == nullptr) return internal_error("{} cannot be loaded: {}", name, why);
  return SharedObjectPtr(new SharedObject(handle));
}

void* SharedObject::symbol(const char* name) const { return ::dlsym(handle_, name); }

Result<std::string> find_host_compiler() {
  if (const std::string named = env_string(EnvVar::kCxx); !named.empty()) {
    if (named.find('/') != std::string::npos && is_program(named)) return named;
    if (std::string path = in_path(named); !path.empty()) return path;
    return make_status(StatusCode::kUnavailable, "FOVEA_CXX is {}, which is no program", shorten(named));
  }
  for (const char* name : {"c++", "g++", "clang++"}) {
    if (std::string path = in_path(name); !path.empty()) return path;
  }
  return make_status(StatusCode::kUnavailable,
                     "no C++ compiler was found in PATH (c++, g++, clang++); install one, or let FOVEA_CXX name it");
}

HostCompiler::HostCompiler(std::string folder, std::uint64_t limit_bytes) : disk_(std::move(folder), limit_bytes) {}

HostCompiler& HostCompiler::shared() {
  return per_process<HostCompiler>([] { return new HostCompiler(default_cache_folder(), cache_limit_bytes()); });
}

Result<SharedObjectPtr> HostCompiler::get(const HostSource& source, Origin* origin) {
  Origin unused;
  Origin& from = origin != nullptr ? *origin : unused;
  from = Origin::kMemory;
  const std::string key = key_of(source);
  return memory_.get(key, [&] { return make(source, key, &from); });
}

Result<SharedObjectPtr> HostCompiler::make(const HostSource& source, const std::string& key, Origin* origin) {
  const Result<std::string> compiler = find_host_compiler();
  std::string tool = compiler.ok() ? tool_of(*compiler) : "";
  *origin = Origin::kDisk;
  if (!compiler.ok()) {  // any compiler's object does
    if (const std::vector<std::string> tools = disk_.tools_of(key); !tools.empty()) tool = tools.front();
  }
  if (const auto entry = disk_.find(key, tool)) return SharedObject::load(source.name, entry->data);
  if (!compiler.ok()) return compiler.status();
  const DiskCache::Lock lock(disk_, key);
  if (const auto entry = disk_.find(key, tool)) return SharedObject::load(source.name, entry->data);
  *origin = Origin::kCompiled;
  FOVEA_ASSIGN_OR_RETURN(const CacheEntry entry, compile(*compiler, source));
  disk_.publish(key, tool, entry);
  return SharedObject::load(source.name, entry.data);
}

}  // namespace fovea::jit
