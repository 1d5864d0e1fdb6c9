// Lines typed at a terminal, with editing, history and completion of file names (libedit); lines of stdin where it is
// no terminal. Used by chat.cc.
#pragma once

#include <memory>
#include <string>

namespace fovea::app {

class LineEditor {
 public:
  virtual ~LineEditor() = default;
  // The next line without its end; false at the end of the input.
  virtual bool read(std::string* line) = 0;

  // An editor where stdin and stderr are a terminal. history_file keeps lines between runs; empty: nothing is kept.
  static std::unique_ptr<LineEditor> create(const std::string& prompt, const std::string& history_file);
};

// $XDG_STATE_HOME/fovea/NAME, below ~/.local/state where that is unset, its folder made; empty where neither is known.
std::string state_file(const std::string& name);

}  // namespace fovea::app
