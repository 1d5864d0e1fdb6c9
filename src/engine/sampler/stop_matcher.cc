// Stop strings over streamed text.
#include "engine/sampler/stop_matcher.h"

#include <algorithm>

namespace fovea {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop_text)
    : stops_(std::move(stops)), include_(include_stop_text) {}

std::size_t StopMatcher::possible_start() const {
  std::size_t most = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > most; --n) {
      if (std::string_view(held_).substr(held_.size() - n) == std::string_view(stop).substr(0, n)) {
        most = n;
        break;
      }
    }
  }
  return most;
}

StopMatcher::Output StopMatcher::append(std::string_view piece) {
  Output output;
  if (stops_.empty()) {
    output.text = piece;
    return output;
  }
  held_ += piece;
  std::size_t first = std::string::npos;
  std::size_t length = 0;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos || at > first || (at == first && stop.size() < length)) continue;
    first = at;
    length = stop.size();
  }
  if (first != std::string::npos) {
    output.text = held_.substr(0, first + (include_ ? length : 0));
    output.matched = true;
    output.stop = held_.substr(first, length);
    held_.clear();
    return output;
  }
  const std::size_t shown = held_.size() - possible_start();
  output.text = held_.substr(0, shown);
  held_.erase(0, shown);
  return output;
}

std::string StopMatcher::finish() {
  std::string rest;
  rest.swap(held_);
  return rest;
}

}  // namespace fovea
