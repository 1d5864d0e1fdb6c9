// Pause: says when work that can be left and taken up again is to be left. Asked between pieces of tens of microseconds
// to a few milliseconds.
#pragma once

namespace fovea {

class Pause {
 public:
  virtual ~Pause() = default;
  // Thread-safe. Once true it stays so, until the work is taken up again.
  virtual bool due() const = 0;
};

}  // namespace fovea
