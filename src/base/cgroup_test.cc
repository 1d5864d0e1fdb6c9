// CPU and memory limits read from fake cgroup and /proc trees.
#include "base/cgroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fovea {
namespace {

class CgroupTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) / ("fovea_cgroup_test_" + std::to_string(::getpid()) + "_" +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    put("proc/meminfo", "MemTotal:       9000 kB\nMemFree:        1000 kB\nMemAvailable:   8000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void put(const char* name, const char* text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  SystemRoots roots() const { return {(folder_ / "cg").string(), (folder_ / "proc").string()}; }
  std::filesystem::path folder_;
};

TEST_F(CgroupTest, NoCgroupsMeansNoLimits) {
  EXPECT_EQ(quota_cpus(roots()), 0);
  EXPECT_EQ(usable_cpus(roots()), affinity_cpus());
  EXPECT_EQ(available_memory_bytes(roots()), 8000u * 1024);
}

TEST_F(CgroupTest, V2TakesTheTightestOnTheWayUp) {
  put("proc/self/cgroup", "0::/pod/box\n");
  put("cg/pod/box/cpu.max", "max 100000\n");
  put("cg/pod/cpu.max", "350000 100000\n");
  put("cg/pod/box/memory.max", "max\n");
  put("cg/pod/box/memory.current", "1000\n");
  put("cg/pod/memory.max", "5000000\n");
  put("cg/pod/memory.current", "2000000\n");
  put("cg/pod/memory.stat", "anon 1\ninactive_file 500000\nactive_file 3\n");
  EXPECT_EQ(quota_cpus(roots()), 3);
  EXPECT_EQ(usable_cpus(roots()), std::min(3, affinity_cpus()));
  EXPECT_EQ(available_memory_bytes(roots()), 3500000u);
}

TEST_F(CgroupTest, V2InAContainerFindsItsRoot) {
  put("proc/self/cgroup", "0::/a/path/of/the/host\n");
  put("cg/cpu.max", "50000 100000\n");
  put("cg/memory.max", "4096\n");
  put("cg/memory.current", "8192\n");
  EXPECT_EQ(quota_cpus(roots()), 1);               // half a CPU still is one thread
  EXPECT_EQ(available_memory_bytes(roots()), 0u);  // over its limit
}

TEST_F(CgroupTest, V1Hierarchies) {
  put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n");
  put("cg/cpu,cpuacct/box/cpu.cfs_quota_us", "200000\n");
  put("cg/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
  put("cg/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  put("cg/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  put("cg/memory/box/memory.limit_in_bytes", "3000000\n");
  put("cg/memory/box/memory.usage_in_bytes", "2500000\n");
  put("cg/memory/box/memory.stat", "cache 9\ninactive_file 1\ntotal_inactive_file 1000000\n");
  put("cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("cg/memory/memory.usage_in_bytes", "7000000\n");
  EXPECT_EQ(quota_cpus(roots()), 2);
  EXPECT_EQ(available_memory_bytes(roots()), 1500000u);
}

TEST_F(CgroupTest, V1WithOneControllerAMount) {
  put("proc/self/cgroup", "2:cpu:/\n3:memory:/\n");
  put("cg/cpu/cpu.cfs_quota_us", "400000\n");
  put("cg/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota_cpus(roots()), 4);
}

TEST_F(CgroupTest, GarbageSetsNoLimit) {
  put("proc/self/cgroup", "nonsense\n::\n0::/x/../y\n");
  put("cg/cpu.max", "lots of cpus\n");
  put("cg/memory.max", "-5\n");
  put("cg/memory.current", "many\n");
  put("proc/meminfo", "MemAvailable: none\n");
  EXPECT_EQ(quota_cpus(roots()), 0);
  EXPECT_EQ(available_memory_bytes(roots()), 0u);  // nothing known is nothing promised
}

TEST(CgroupHere, ThisMachineHasCpusAndMemory) {
  EXPECT_GE(usable_cpus(), 1);
  EXPECT_LE(usable_cpus(), affinity_cpus());
  EXPECT_GT(available_memory_bytes(), 0u);
}

}  // namespace
}  // namespace fovea
