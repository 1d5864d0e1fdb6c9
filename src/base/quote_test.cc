#include "base/quote.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fovea {
namespace {

TEST(QuoteTest, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(quote("cpu"), "\"cpu\"");
  EXPECT_EQ(quote(std::string(200, 'x')), '"' + std::string(200, 'x') + '"');
  EXPECT_EQ(quote(std::string(100000, 'x')), '"' + std::string(200, 'x') + "..\" (100000 bytes)");
  std::string umlauts = "x";
  for (int i = 0; i < 150; ++i) umlauts += "\xc3\xa4";
  EXPECT_EQ(quote(umlauts), '"' + umlauts.substr(0, 199) + "..\" (301 bytes)");
  EXPECT_EQ(shorten("cpu"), "cpu");
  EXPECT_EQ(shorten(std::string(201, 'x')), std::string(200, 'x') + ".. (201 bytes)");
  const std::string text(300, 'x');
  EXPECT_EQ(shorten_inside("a " + text + " b " + text, text), "a " + shorten(text) + " b " + shorten(text));
  EXPECT_EQ(shorten_inside("a cpu b", "cpu"), "a cpu b");
  EXPECT_EQ(quote(std::string(300, '\x80')).size(), 196 + std::string("\"..\" (300 bytes)").size());
}

TEST(QuoteTest, TheNearestNameIsOneThatMayBeMeant) {
  const std::vector<std::string> names = {"FOVEA_CACHE_DIR", "FOVEA_CACHE_LIMIT_MIB", "FOVEA_NUM_THREADS"};
  EXPECT_EQ(nearest_name("FOVEA_NUM_THREAD", names), "FOVEA_NUM_THREADS");
  EXPECT_EQ(nearest_name("FOVEA_CASHE_DIR", names), "FOVEA_CACHE_DIR");
  EXPECT_EQ(nearest_name("FOVEA_PORTRAIT_WIDTH", names), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'F'), names), "");
}

}  // namespace
}  // namespace fovea
