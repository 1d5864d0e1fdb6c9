#include "engine/grammar/xgrammar/work.h"

#include <algorithm>
#include <limits>

namespace fovea {
namespace {

thread_local std::uint64_t work_left = std::numeric_limits<std::uint64_t>::max();

}  // namespace

WorkBudget::WorkBudget(std::uint64_t units) : units_(std::min(units, work_left)), around_(work_left) {
  work_left = units_;
}
WorkBudget::~WorkBudget() { work_left = around_ - spent(); }
std::uint64_t WorkBudget::spent() const { return units_ - work_left; }

}  // namespace fovea

namespace xgrammar {

// cmake/xgrammar declares it.
void SpendWork(unsigned long units) {
  if (units > fovea::work_left) {
    fovea::work_left = 0;
    throw fovea::WorkExceeded();
  }
  fovea::work_left -= units;
}

}  // namespace xgrammar
