#include "ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "command.h"

namespace fovea::app {
namespace {

// "RANK/SIZE/SOCKET", in the environment of a process that rank 0 starts.
constexpr const char* kRankVariable = "FOVEA_RANK";
constexpr double kMeetingSeconds = 120.0;
// After an end: for requests to fail and for what fails to be said, before the process goes.
constexpr std::chrono::milliseconds kGrace{1000};
constexpr std::chrono::seconds kReapGrace{5};

std::optional<int> number_of(const char* text) {
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, value);
  if (error != std::errc() || at != end || value < 0) return std::nullopt;
  return value;
}

std::optional<int> variable(const char* name) { return number_of(std::getenv(name)); }

std::string text_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// The same for all ranks of one start, and for no other on this host.
std::string meeting_name() {
  std::string all = fmt::format("{}", ::getuid());
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE",
                           "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri", "SLURM_JOB_ID"}) {
    all += "|" + text_of(name);
  }
  return fmt::format("fovea-ranks-{:016x}", hash_string(all));
}

struct Children {
  std::vector<pid_t> processes;

  // They end by themselves once the group has; those that do not are ended.
  ~Children() {
    const auto deadline = std::chrono::steady_clock::now() + kReapGrace;
    for (const pid_t process : processes) {
      while (::waitpid(process, nullptr, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > deadline) {
          ::kill(process, SIGKILL);
          ::waitpid(process, nullptr, 0);
          break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
  }
};

// The group first, so that its connections close before its processes are waited for.
struct Started {
  Children children;
  std::shared_ptr<ProcessGroup> group;
};

Result<std::vector<std::string>> own_arguments() {
  std::string line;
  const int file = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return internal_error("cannot read /proc/self/cmdline: {}", std::strerror(errno));
  char buffer[4096];
  for (ssize_t got; (got = ::read(file, buffer, sizeof buffer)) > 0;)
    line.append(buffer, static_cast<std::size_t>(got));
  ::close(file);
  std::vector<std::string> arguments;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t end = std::min(line.find('\0', at), line.size());
    arguments.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return arguments;
}

Result<pid_t> start_rank(const std::vector<std::string>& arguments, int rank, int size, int socket) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with(std::string(kRankVariable) + "=")) variables.emplace_back(*entry);
  }
  variables.push_back(fmt::format("{}={}/{}/{}", kRankVariable, rank, size, socket));
  const auto pointers = [](const std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
    out.push_back(nullptr);
    return out;
  };
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, socket);  // stays open
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // The terminal's Ctrl-C is for rank 0, which then ends the others.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t process = 0;
  const int error = posix_spawn(&process, "/proc/self/exe", &actions, &attributes, pointers(arguments).data(),
                                pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return resource_exhausted("cannot start rank {} of {}: {}", rank, size, std::strerror(error));
  return process;
}

// Ends the process when the group has ended and nothing else ends it: a rank may be stuck in what the others left.
template <typename Alive>
void end_with_group(ProcessGroup& group, bool speaks, Alive alive) {
  const int rank = group.rank();
  const auto end = [rank, speaks, alive](const Status& why) {
    const auto deadline = std::chrono::steady_clock::now() + kGrace;
    while (std::chrono::steady_clock::now() < deadline) {
      if (!alive()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    // What ended the group is said once: by rank 0, or where that is what ended.
    if (speaks || why.message().starts_with("rank 0 of ")) {
      fmt::print(stderr, "fovea: {}; so rank {} ends\n", why.message(), rank);
    }
    std::_Exit(kExitFailure);
  };
  // On a thread of its own, for devices' handlers follow, which free what waits for ranks that are gone, or hang too.
  group.on_end([end](const Status& why) { std::thread(end, why).detach(); });
}

std::map<const Options*, BeforeRun>& hooks() {
  static std::map<const Options*, BeforeRun> all;
  return all;
}

}  // namespace

void before_run(const Options& options, BeforeRun hook) { hooks()[&options] = std::move(hook); }

std::optional<int> run_before(const Options& options) {
  const auto found = hooks().find(&options);
  return found == hooks().end() ? std::nullopt : found->second();
}

Result<RankPlace> find_rank_place(int size) {
  RankPlace place;
  place.size = size;
  if (const char* own = std::getenv(kRankVariable); own != nullptr) {
    int given = 0;
    if (std::sscanf(own, "%d/%d/%d", &place.rank, &given, &place.socket) != 3 || given != size || place.rank < 1 ||
        place.rank >= size || place.socket < 3) {
      return invalid_argument("{} is {}; it is set by fovea itself, take it out of the environment", kRankVariable,
                              own);
    }
    return place;
  }
  for (const auto& [rank, total, local] :
       {std::tuple{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        std::tuple{"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}}) {
    const std::optional<int> who = variable(rank), of = variable(total);
    if (!who || !of) continue;
    if (*of != size || *who >= size) {
      return invalid_argument("--tp is {}, but {} is {} and {} {}; start as many processes as --tp says", size, rank,
                              *who, total, *of);
    }
    if (variable(local).value_or(size) != size) {
      return unsupported("{} is {} of {}: all ranks must run on one host", local, *variable(local), size);
    }
    place.rank = *who;
    place.meeting = meeting_name();
    return place;
  }
  return place;
}

Result<std::shared_ptr<ProcessGroup>> lead_ranks(const RankPlace& place) {
  auto started = std::make_shared<Started>();
  std::vector<GroupSocket> sockets;
  if (!place.meeting.empty()) {
    FOVEA_ASSIGN_OR_RETURN(sockets, accept_ranks(place.meeting, place.size, kMeetingSeconds));
  } else {
    FOVEA_ASSIGN_OR_RETURN(const std::vector<std::string> arguments, own_arguments());
    for (int rank = 1; rank < place.size; ++rank) {
      FOVEA_ASSIGN_OR_RETURN(auto ends, GroupSocket::pair());
      FOVEA_ASSIGN_OR_RETURN(const pid_t process, start_rank(arguments, rank, place.size, ends.second.descriptor()));
      started->children.processes.push_back(process);
      sockets.push_back(std::move(ends.first));
    }
  }
  FOVEA_ASSIGN_OR_RETURN(started->group, ProcessGroup::lead(std::move(sockets)));
  const std::weak_ptr<Started> weak = started;
  end_with_group(*started->group, true, [weak] { return !weak.expired(); });
  return std::shared_ptr<ProcessGroup>(started, started->group.get());
}

Result<std::shared_ptr<ProcessGroup>> join_ranks(const RankPlace& place) {
  // Rank 0 says when to stop, and its end is noticed.
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_IGN);
  GroupSocket socket(place.socket);
  if (place.socket < 0) {
    FOVEA_ASSIGN_OR_RETURN(socket, connect_rank(place.meeting, kMeetingSeconds));
  } else {
    ::fcntl(place.socket, F_SETFD, FD_CLOEXEC);
  }
  FOVEA_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                         ProcessGroup::join(std::move(socket), place.rank, place.size));
  end_with_group(*group, false, [] { return true; });
  return group;
}

}  // namespace fovea::app
