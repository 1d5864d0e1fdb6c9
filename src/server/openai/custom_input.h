// CustomInput: the text inside the arguments {"input": "..."} of a custom tool's call, while they come. Used by
// AnswerParser.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fovea::server {

class CustomInput {
 public:
  // More of the arguments; returns what they add to the text.
  std::string append(std::string_view arguments);
  // The end of the arguments. Where they were no such object, all of them are the text.
  std::string finish();

 private:
  enum class Where { kBefore, kText, kAfter, kOther };
  void text_step(char c, std::string* out);
  void end_escape(std::string* out);

  Where where_ = Where::kBefore;
  std::string raw_;          // kBefore, kOther: what came
  std::string escape_;       // from the backslash on
  std::uint32_t first_ = 0;  // half of a character
};

}  // namespace fovea::server
