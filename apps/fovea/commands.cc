// The table of commands. A new command is one line here, one in commands.h and a file of its own.
#include "commands.h"

namespace fovea::app {

const std::vector<CommandEntry>& commands() {
  static const std::vector<CommandEntry> table = {
      {"doctor", "Say what this machine can run, and if not, why", declare_doctor},
  };
  return table;
}

}  // namespace fovea::app
