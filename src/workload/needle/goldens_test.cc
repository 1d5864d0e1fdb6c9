// The documents that models/needle/goldens.json was made from come out of the generator again, byte for byte in length
// and question for question; whoever changes the generator must make the goldens again (tools/needle/export.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "workload/needle/document.h"

namespace fovea {
namespace {

TEST(NeedleGoldens, DocumentsAreMadeAgain) {
  std::ifstream file(FOVEA_SOURCE_DIR "/models/needle/goldens.json");
  ASSERT_TRUE(file);
  const nlohmann::json goldens = nlohmann::json::parse(file);
  ASSERT_GE(goldens["documents"].size(), 20u);
  for (const nlohmann::json& golden : goldens["documents"]) {
    NeedleSpec spec;
    spec.seed = golden["seed"];
    spec.split = NeedleSplit::kEval;
    ASSERT_TRUE(parse_needle_filler(golden["filler"].get<std::string>(), spec.filler));
    spec.characters = golden["characters"];
    spec.facts = golden["facts"];
    spec.questions = golden["questions"];
    spec.absent = golden["absent"];
    spec.made_up = golden["made_up"];
    spec.own_words = golden["own_words"];
    spec.variety = golden["variety"];
    const NeedleDocument document = make_needle_document(spec);
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
