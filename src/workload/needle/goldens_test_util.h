// models/needle/goldens.json for the tests that compare with it: the file, and the request that makes each of its
// documents again. Include <gtest/gtest.h> first.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "workload/needle/document.h"

namespace fovea {

inline nlohmann::json read_needle_goldens() {
  std::ifstream file(FOVEA_SOURCE_DIR "/models/needle/goldens.json");
  return nlohmann::json::parse(file);
}

inline NeedleSpec golden_spec(const nlohmann::json& golden) {
  NeedleSpec spec;
  spec.seed = golden["seed"];
  spec.split = NeedleSplit::kEval;
  EXPECT_TRUE(parse_needle_filler(golden["filler"].get<std::string>(), spec.filler));
  spec.characters = golden["characters"];
  spec.facts = golden["facts"];
  spec.questions = golden["questions"];
  spec.absent = golden["absent"];
  spec.made_up = golden["made_up"];
  spec.own_words = golden["own_words"];
  spec.variety = golden["variety"];
  return spec;
}

}  // namespace fovea
