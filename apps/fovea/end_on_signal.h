// EndOnSignal: while it is there, SIGTERM and SIGINT end the process, for whoever does something that cannot be left,
// such as loading a model. All threads must have blocked both.
#pragma once

#include <string>
#include <thread>

namespace fovea::app {

class EndOnSignal {
 public:
  // Said on stderr when it ends so; the code is kExitOk.
  explicit EndOnSignal(std::string last_words);
  ~EndOnSignal();
  EndOnSignal(const EndOnSignal&) = delete;
  EndOnSignal& operator=(const EndOnSignal&) = delete;

 private:
  int over_;  // written to when the object goes
  std::thread thread_;
};

}  // namespace fovea::app
