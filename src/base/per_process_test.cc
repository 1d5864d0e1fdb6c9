// A child of fork() has values of its own, whatever became of its parent's locks.
#include "base/per_process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mutex>

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
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Cache& there = per_process<Cache>();
    const bool own = &there != &here && there.mutex.try_lock() && there.value == 0 && &per_process<Cache>() == &there;
    ::_exit(own ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_EQ(&per_process<Cache>(), &here);
  EXPECT_EQ(here.value, 7);
}

}  // namespace
}  // namespace fovea
