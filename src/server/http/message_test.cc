#include "server/http/message.h"

#include <gtest/gtest.h>

#include "server/http/client.h"

namespace fovea::server {
namespace {

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(&out, text);
  return out;
}

TEST(MessageTest, QuotesJsonStrings) {
  EXPECT_EQ(quoted("plain"), "\"plain\"");
  EXPECT_EQ(quoted("a\"b\\c\n\r\t\x01"), "\"a\\\"b\\\\c\\n\\r\\t\\u0001\"");
  EXPECT_EQ(quoted("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
  EXPECT_EQ(quoted(std::string_view("\0", 1)), "\"\\u0000\"");
}

TEST(MessageTest, ReplacesWhatIsNotUtf8) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(quoted("\xFF"), "\"" + bad + "\"");
  EXPECT_EQ(quoted("\xE2\x82"), "\"" + bad + bad + "\"");                      // truncated
  EXPECT_EQ(quoted("\xC0\x80"), "\"" + bad + bad + "\"");                      // overlong
  EXPECT_EQ(quoted("\xED\xA0\x80"), "\"" + bad + bad + bad + "\"");            // surrogate
  EXPECT_EQ(quoted("\xF4\x90\x80\x80"), "\"" + bad + bad + bad + bad + "\"");  // beyond U+10FFFF
  EXPECT_EQ(quoted("\xC3(x"), "\"" + bad + "(x\"");
}

TEST(MessageTest, TakesAbsoluteTargets) {
  EXPECT_EQ(origin_form("/v1/models?a=http://x/y"), "/v1/models?a=http://x/y");
  EXPECT_EQ(origin_form("http://localhost:8000/v1/models?a=1"), "/v1/models?a=1");
  EXPECT_EQ(origin_form("HTTPS://host/"), "/");
  EXPECT_EQ(origin_form("http://host"), "/");
  EXPECT_EQ(origin_form("http://host?a=1"), "?a=1");
  EXPECT_EQ(origin_form("*"), "*");
  EXPECT_EQ(origin_form("ftp://host/x"), "ftp://host/x");
  EXPECT_EQ(target_host("http://localhost:8000/v1/models?a=1"), "localhost:8000");
  EXPECT_EQ(target_host("HTTPS://host"), "host");
  EXPECT_EQ(target_host("http://host?a=1"), "host");
  EXPECT_EQ(target_host("http:///x"), "");
  EXPECT_EQ(target_host("/v1/models?a=http://x/y"), "");
}

TEST(MessageTest, WritesDates) {
  EXPECT_EQ(format_http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");  // RFC 9110's example
  EXPECT_EQ(format_http_date(951782400), "Tue, 29 Feb 2000 00:00:00 GMT");
}

TEST(MessageTest, ComparesKeys) {
  EXPECT_TRUE(equal_constant_time("secret", "secret"));
  EXPECT_FALSE(equal_constant_time("secret", "secreT"));
  EXPECT_FALSE(equal_constant_time("secre", "secret"));
  EXPECT_FALSE(equal_constant_time("secretsecret", "secret"));
  EXPECT_FALSE(equal_constant_time("x", ""));
  EXPECT_TRUE(equal_constant_time("", ""));
}

TEST(MessageTest, ShapesErrors) {
  EXPECT_EQ(error_body("m", "t"), R"({"error":{"message":"m","type":"t","param":null,"code":null}})");
  const HttpResponse response = error_response(429, "busy");
  ASSERT_EQ(response.headers.size(), 1u);
  EXPECT_EQ(response.headers[0].first, "Retry-After");
}

TEST(ClientTest, ParsesUrls) {
  auto url = parse_url("http://127.0.0.1:8123/v1");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->host, "127.0.0.1");
  EXPECT_EQ(url->port, 8123);
  EXPECT_EQ(parse_url("http://[::1]:80")->host, "::1");
  EXPECT_EQ(parse_url("http://host")->port, 80);
  url = parse_url("https://host/below");
  ASSERT_TRUE(url.ok());
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->port, 443);
  EXPECT_EQ(url->path, "/below");
  for (const char* bad :
       {"ftp://x", "https://", "x:80", "http://", "http://x:0", "http://x:99999", "http://x:8a", "http://[::1"}) {
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace fovea::server
