// Splits the two tables of words once and hands them out.
#include "workload/needle/lexicon.h"

namespace fovea {

namespace {

template <typename F>
void for_each_piece(std::string_view text, std::string_view separators, F&& f) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find_first_of(separators, begin);
    if (end == std::string_view::npos) end = text.size();
    if (end > begin) f(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  for_each_piece(text, " \n", [&](std::string_view word) { words.push_back(word); });
  return words;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  for_each_piece(text, "\n", [&](std::string_view line) { lines.push_back(line); });
  return lines;
}

std::vector<NeedleAttribute> split_attributes(std::string_view text) {
  std::vector<NeedleAttribute> attributes;
  for_each_piece(text, ",\n", [&](std::string_view entry) {
    const std::size_t colon = entry.find(':');
    NeedleAttributeKind kind = NeedleAttributeKind::kWord;
    switch (entry[colon + 1]) {
      case 'n': kind = NeedleAttributeKind::kNumber; break;
      case 'p': kind = NeedleAttributeKind::kPerson; break;
      case 'l': kind = NeedleAttributeKind::kPlace; break;
      default: break;
    }
    attributes.push_back({entry.substr(0, colon), kind});
  });
  return attributes;
}

const NeedleLexicon& needle_lexicon(NeedleSplit split) {
  static const NeedleLexicon train = make_train_lexicon();
  static const NeedleLexicon eval = make_eval_lexicon();
  return split == NeedleSplit::kTrain ? train : eval;
}

}  // namespace fovea
