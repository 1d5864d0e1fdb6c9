// Literals of Python as JSON. Used by PythonicCallParser.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace fovea::server {

// Finds where a value ends in text that comes piece by piece: at a comma or closing bracket that is in no string and
// not of the value. Looks at every character once.
class PythonValueEnd {
 public:
  // text: the value from its beginning on, longer at each call. npos: more is needed.
  std::size_t find(std::string_view text);
  void reset() { *this = {}; }

 private:
  std::size_t at_ = 0;
  int depth_ = 0;
  std::size_t quotes_ = 0;  // 1 or 3 in a string
  char quote_ = 0;
};

// "{'a': (1, None)}" -> {"a": [1, null]}; JSON is taken too. What is no literal becomes a string of itself.
std::string python_to_json(std::string_view text);

}  // namespace fovea::server
