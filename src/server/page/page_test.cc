// The page's files over real sockets: what is served, under which rules, and that they stand alone.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "server/page/page_files.h"
#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using PageTest = ServerTest;

std::string header(const HttpResponse& response, const std::string& name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return value;
  }
  return "";
}

TEST_F(PageTest, IsServedUnderAStrictPolicy) {
  start();
  const std::pair<const char*, const char*> types[] = {{"/", "text/html; charset=utf-8"},
                                                       {"/page/style.css", "text/css; charset=utf-8"},
                                                       {"/page/main.js", "text/javascript; charset=utf-8"},
                                                       {"/page/icon.svg", "image/svg+xml"}};
  for (const auto& [path, type] : types) {
    const HttpResponse response = get(path);
    EXPECT_EQ(response.status, 200) << path;
    EXPECT_EQ(response.content_type, type) << path;
    const std::string policy = header(response, "content-security-policy");
    EXPECT_EQ(policy.find("default-src 'none'; script-src 'self'; style-src 'self';"), 0u) << policy;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
    EXPECT_NE(policy.find("frame-ancestors 'none'"), std::string::npos) << policy;
    EXPECT_EQ(header(response, "x-content-type-options"), "nosniff") << path;
    EXPECT_EQ(header(response, "referrer-policy"), "no-referrer") << path;
  }
  EXPECT_NE(get("/").body.find("<script type=\"module\" src=\"page/main.js\"></script>"), std::string::npos);
}

TEST_F(PageTest, HasNoOtherFiles) {
  start();
  for (const char* path : {"/page", "/page/", "/page/page.cc", "/page/../page/main.js", "/index.html", "/main.js"}) {
    EXPECT_EQ(get(path).status, 404) << path;
  }
}

TEST_F(PageTest, CanBeSwitchedOff) {
  ServerOptions options;
  options.service.page = false;
  start({}, options);
  EXPECT_EQ(get("/").status, 404);
  EXPECT_EQ(get("/page/main.js").status, 404);
  EXPECT_EQ(get("/engine.json").status, 200);
}

TEST_F(PageTest, NeedsNoKey) {
  ServerOptions options;
  options.service.api_keys = {"secret"};
  start({}, options);
  EXPECT_EQ(get("/").status, 200);
  EXPECT_EQ(get("/page/main.js").status, 200);
}

// No other host, nothing that the policy would block, no markup from text; and every file that one names is there.
TEST(PageFiles, StandAlone) {
  std::set<std::string> names;
  for (const PageFile& file : page_files()) names.insert(file.name);
  EXPECT_TRUE(names.contains("index.html"));
  const std::regex blocked(
      R"((innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|localStorage|sessionStorage|cookie))"
      R"(|<script>|<style| style=| on[a-z]+="|@import|url\()");
  const std::regex named(R"re((?:from "\./|(?:src|href)="page/)([^"]+)")re");
  for (const PageFile& file : page_files()) {
    std::string text(file.begin, file.end);
    EXPECT_FALSE(std::regex_search(text, blocked)) << file.name;
    for (std::sregex_iterator it(text.begin(), text.end(), named), end; it != end; ++it) {
      EXPECT_TRUE(names.contains((*it)[1])) << file.name << " names " << (*it)[1];
    }
    for (const std::string host : {"http://", "https://"}) {
      for (std::size_t at = text.find(host); at != std::string::npos; at = text.find(host, at + 1)) {
        EXPECT_EQ(text.compare(at, 18, "http://www.w3.org/"), 0) << file.name;  // the name of SVG, never fetched
      }
    }
  }
}

}  // namespace
}  // namespace fovea::server
