// WorkBudget: how much xgrammar may do in this thread while the budget is there, within the one around it. A text that
// a grammar can be read in many ways for makes xgrammar's parser walk ever more states, without an end in sight. Its
// source says where it does (cmake/xgrammar calls SpendWork there); a unit takes 0.5 to 2 ns here. Work is counted and
// not time, so that what is refused is so on every machine, busy or not.
#pragma once

#include <cstdint>
#include <exception>

namespace fovea {

// Of an answer: at once, and besides for each of its tokens. A mask of plain schemas takes thousands, the largest seen
// of counts in counts over 128k tokens 21 million.
constexpr std::uint64_t kWorkAtOnce = 200'000'000;
constexpr std::uint64_t kWorkPerToken = 16'000'000;
constexpr std::uint64_t kWorkToCompile = 2'000'000'000;

// What is thrown through xgrammar. The object that was at work must not be used again.
class WorkExceeded final : public std::exception {
 public:
  const char* what() const noexcept override { return "it takes too much work"; }
};

class WorkBudget {
 public:
  explicit WorkBudget(std::uint64_t units);
  ~WorkBudget();
  WorkBudget(const WorkBudget&) = delete;
  WorkBudget& operator=(const WorkBudget&) = delete;
  std::uint64_t spent() const;

 private:
  std::uint64_t units_, around_;
};

}  // namespace fovea
