// The processes of --tp: rank 0 starts the others, by this binary's own command line, or all were started by torchrun
// or mpirun and find each other. Used by EngineFlags.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "device/group/process_group.h"
#include "fovea/status.h"
#include "options.h"

namespace fovea::app {

// Who this process is among the ranks.
struct RankPlace {
  int rank = 0;
  int size = 1;
  int socket = -1;      // to the process that started it, where that was rank 0
  std::string meeting;  // else: where ranks that something else started meet; empty: rank 0 starts the others
};

// size: of --tp, at least 2. kInvalidArgument where what started this process has another number of ranks in mind.
Result<RankPlace> find_rank_place(int size);

// What a command with these options does first, once they are parsed: an exit code is the command's, which does not run
// then.
using BeforeRun = std::function<std::optional<int>()>;
void before_run(const Options& options, BeforeRun hook);
std::optional<int> run_before(const Options& options);

// Rank 0: the group, whose processes end with the last copy of the pointer.
Result<std::shared_ptr<ProcessGroup>> lead_ranks(const RankPlace& place);
// Another rank.
Result<std::shared_ptr<ProcessGroup>> join_ranks(const RankPlace& place);

}  // namespace fovea::app
