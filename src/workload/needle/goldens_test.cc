// The documents that models/needle/goldens.json was made from come out of the generator again, byte for byte in length
// and question for question; whoever changes the generator must make the goldens again (tools/needle/export.py).
#include <gtest/gtest.h>

#include "workload/needle/goldens_test_util.h"

namespace fovea {
namespace {

TEST(NeedleGoldens, DocumentsAreMadeAgain) {
  const nlohmann::json goldens = read_needle_goldens();
  ASSERT_GE(goldens["documents"].size(), 20u);
  for (const nlohmann::json& golden : goldens["documents"]) {
    const NeedleDocument document = make_needle_document(golden_spec(golden));
    EXPECT_EQ(document.text.size(), golden["bytes"].get<std::size_t>());
    ASSERT_EQ(document.questions.size(), golden["questions_asked"].size());
    for (std::size_t i = 0; i < document.questions.size(); ++i) {
      EXPECT_EQ(document.questions[i].question, golden["questions_asked"][i]["question"].get<std::string>());
      EXPECT_EQ(document.questions[i].answer, golden["questions_asked"][i]["expected"].get<std::string>());
    }
  }
}

}  // namespace
}  // namespace fovea
