// A child of fork() has values of its own, whatever became of its parent's locks.
#include "base/per_process.h"

#include <gtest/gtest.h>

#include <mutex>

#include "base/fork_test_util.h"

namespace fovea {
namespace {

struct Cache {
  std::mutex mutex;
  int value = 0;
};

TEST(PerProcessTest, AChildMakesItsOwn) {
  Cache& here = per_process<Cache>();
  EXPECT_EQ(&per_process<Cache>(), &here);
  const std::lock_guard lock(here.mutex);  // as another thread may hold it at the time of a fork
  here.value = 7;
  EXPECT_STREQ(in_child([&] {
                 Cache& there = per_process<Cache>();
                 return &there != &here && there.mutex.try_lock() && there.value == 0 &&
                        &per_process<Cache>() == &there;
               }),
               "well");
  EXPECT_EQ(&per_process<Cache>(), &here);
  EXPECT_EQ(here.value, 7);
}

}  // namespace
}  // namespace fovea
