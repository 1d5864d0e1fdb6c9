// A build without xgrammar says so.
#include "engine/grammar/grammar.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

TEST(Grammar, IsRefusedWithTheReason) {
  GrammarCompiler compiler([] { return std::vector<std::string>(); }, {});
  const auto refused = compiler.compile({GrammarKind::kJsonSchema, "{}"});
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.status().message().find("xgrammar"), std::string::npos);
}

}  // namespace
}  // namespace fovea
