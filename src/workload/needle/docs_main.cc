// fovea_needle_docs: writes needle documents as JSON lines. tools/needle reads its training and evaluation documents
// here.
//   fovea_needle_docs [--text FILE] < requests
// A request is a line "seed split filler characters facts questions absent made_up own_words variety"; a line of JSON
// answers it.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "workload/needle/document.h"

int main(int argc, char** argv) {
  std::string text;
  if (argc == 3 && std::string(argv[1]) == "--text") {
    std::ifstream file(argv[2], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "fovea_needle_docs: cannot read '%s'\n", argv[2]);
      return 1;
    }
    text.assign(std::istreambuf_iterator<char>(file), {});
  } else if (argc != 1) {
    std::fprintf(stderr,
                 "usage: fovea_needle_docs [--text FILE] < requests\n"
                 "request: seed train|eval FILLER characters facts questions absent made_up own_words variety\n"
                 "FILLER: templates prose salad junk text mixed; the last four in per mille\n");
    return 2;
  }
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream fields(line);
    fovea::NeedleSpec spec;
    std::string split, filler;
    fields >> spec.seed >> split >> filler >> spec.characters >> spec.facts >> spec.questions >> spec.absent >>
        spec.made_up >> spec.own_words >> spec.variety;
    if (!fields || !fovea::parse_needle_filler(filler, spec.filler) || (split != "train" && split != "eval")) {
      std::fprintf(stderr, "fovea_needle_docs: malformed request '%s'\n", line.c_str());
      return 2;
    }
    spec.split = split == "train" ? fovea::NeedleSplit::kTrain : fovea::NeedleSplit::kEval;
    spec.text = text;
    const fovea::NeedleDocument document = fovea::make_needle_document(spec);
    nlohmann::json questions = nlohmann::json::array();
    for (const fovea::NeedleQuestion& q : document.questions)
      questions.push_back({{"question", q.question},
                           {"answer", q.answer},
                           {"value", q.value},
                           {"fact", q.fact},
                           {"depth", q.depth},
                           {"absent", q.absent}});
    const nlohmann::json out = {{"document", document.text}, {"questions", questions}};
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n' << std::flush;
  }
  return 0;
}
