// StopMatcher: finds stop strings in a text that arrives in pieces, and holds back what may be the start of one. Used
// by the engine, one for each choice.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fovea {

class StopMatcher {
 public:
  // stops: not empty strings; whole UTF-8 characters, so that what is let through is whole characters too.
  StopMatcher(std::vector<std::string> stops, bool include_stop_text);

  struct Output {
    std::string text;      // may be shown now
    std::string stop{};    // the stop string that matched
    bool matched = false;  // the text has ended; nothing after the stop string is in `text`
  };
  // Adds a piece. The earliest stop string wins, of those that start together the longest that is complete.
  Output append(std::string_view piece);
  // What was held back when the text ended by other means.
  std::string finish();

 private:
  // Bytes at the end of held_ that a stop string may start with.
  std::size_t possible_start() const;

  std::vector<std::string> stops_;
  bool include_;
  std::string held_;
};

}  // namespace fovea
