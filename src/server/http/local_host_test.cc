// Host names that a loopback server answers to.
#include "server/http/local_host.h"

#include <gtest/gtest.h>

namespace fovea::server {
namespace {

TEST(LocalHost, KnowsLoopbackAddresses) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost", "LocalHost"}) EXPECT_TRUE(is_loopback(host));
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "127.evil.com", ""}) EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(LocalHost, CutsThePort) {
  EXPECT_EQ(host_name("localhost:8000"), "localhost");
  EXPECT_EQ(host_name("[::1]:8000"), "[::1]");
  EXPECT_EQ(host_name("[::1"), "");
  EXPECT_EQ(host_name(""), "");
}

TEST(LocalHost, KnowsHostHeaders) {
  for (const char* host : {"", "a", "a.b-c_d~", "localhost:8000", "host:", "[::1]", "[::1]:80", "%41"}) {
    EXPECT_TRUE(is_host(host)) << host;
  }
  for (const char* host : {"a b", "a/b", "u@h", "http://a", "a:8x", "a:-1", "::1", "[::1", "[::1]x", "a#", "\\"}) {
    EXPECT_FALSE(is_host(host)) << host;
  }
}

TEST(LocalHost, TellsAddressesFromNames) {
  for (const char* name : {"localhost", "app.localhost", "LOCALHOST.", "127.0.0.1", "192.168.0.7", "[::1]"}) {
    EXPECT_TRUE(is_local_name(name)) << name;
  }
  for (const char* name : {"evil.com", "localhost.evil.com", "127.0.0.1.evil.com", "notlocalhost", "[evil]", "", "x"}) {
    EXPECT_FALSE(is_local_name(name)) << name;
  }
}

}  // namespace
}  // namespace fovea::server
