// The text between the facts of a needle document. Called by document.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "workload/needle/document.h"
#include "workload/needle/random.h"

namespace fovea {

// Makes units (sentences or lines) of one document's filler, each without its line end.
class NeedleFillerSource {
 public:
  NeedleFillerSource(NeedleRandom& random, const NeedleLexicon& words, NeedleFiller kind, std::string_view text);

  // The units of the next paragraph, one to eight.
  std::vector<std::string> paragraph();
  // Expands {a} {n} {p} {l} {t} {c} {d} with words of the split, and {k} {s} with what is given.
  std::string expand(std::string_view pattern, std::string_view key = {}, std::string_view subject = {});

 private:
  std::string next_unit(NeedleFiller kind);
  std::string salad();
  std::string junk();
  std::string passage();
  std::string junk_symbol();

  NeedleRandom& random_;
  const NeedleLexicon& words_;
  NeedleFiller kind_;
  std::string_view text_;
  std::size_t text_at_ = 0;
  std::size_t prose_at_ = 0;
  std::vector<std::string> alphabet_;
  std::vector<std::string> recent_;
};

}  // namespace fovea
