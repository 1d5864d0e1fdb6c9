// Builds needle documents: filler first, then keys (some of whose words come from that filler), then facts put in
// between.
#include "workload/needle/document.h"

#include <algorithm>
#include <array>
#include <set>

#include "workload/needle/filler.h"
#include "workload/needle/phrase.h"
#include "workload/needle/random.h"

namespace fovea {

namespace {

constexpr std::array<std::string_view, 6> kFillerNames = {"templates", "prose", "salad", "junk", "text", "mixed"};

struct Cell {
  NeedleKey key;
  std::string fact, value;
  std::size_t offset = 0;
};

class Builder {
 public:
  explicit Builder(const NeedleSpec& spec)
      : spec_(spec),
        random_(spec.seed),
        words_(needle_lexicon(spec.split)),
        filler_(random_, words_, spec.filler, spec.text) {}

  NeedleDocument build() {
    // Own words need filler to be drawn from, so a sample of it comes before the keys.
    for (int i = 0; i < 4; ++i)
      for (std::string& unit : filler_.paragraph()) sample_ += unit + " ";
    make_cells();
    assemble();
    ask();
    return {spec_, std::move(text_), std::move(questions_)};
  }

 private:
  // A word of this document's filler or, where there is a text, as often one from anywhere in it.
  std::string own_word() {
    const std::string_view source =
        !spec_.text.empty() && random_.permille(500) ? spec_.text : std::string_view(sample_);
    for (int attempt = 0; attempt < 8; ++attempt) {
      std::size_t begin = random_.below(source.size());
      while (begin > 0 && is_letter(source[begin - 1])) --begin;
      std::size_t end = begin;
      while (end < source.size() && is_letter(source[end])) ++end;
      if (end - begin >= 4 && end - begin <= 12) return std::string(source.substr(begin, end - begin));
    }
    return made_up_word(random_);
  }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  std::string key_word(const std::vector<std::string_view>& list, bool name) {
    const std::size_t draw = random_.below(1000);
    if (draw < spec_.made_up) return name ? capitalized(made_up_word(random_)) : made_up_word(random_);
    if (draw < spec_.made_up + spec_.own_words) return name ? capitalized(own_word()) : own_word();
    return std::string(random_.pick(list));
  }
  std::vector<std::string> axis(std::size_t count, const std::vector<std::string_view>& list, bool name) {
    std::vector<std::string> words;
    std::set<std::string> seen;
    for (std::size_t attempt = 0; words.size() < count; ++attempt) {
      std::string word = key_word(list, name);
      if (attempt > 8 * count)
        word += random_.below(2) == 0 ? made_up_word(random_) : capitalized(made_up_word(random_));
      if (seen.insert(word).second) words.push_back(std::move(word));
    }
    return words;
  }

  // One grid of keys: of `count` cells that are filled and some that stay empty.
  void make_grid(std::size_t count) {
    const std::size_t style = random_.weighted(std::array<int, 3>{60, 28, 12});  // things, persons, things of one word
    std::size_t sides[3] = {random_.between(1, 3), style == 2 ? 1 : random_.between(2, 3), random_.between(2, 3)};
    while (sides[0] * sides[1] * sides[2] * 5 < count * 7 + 10) {
      std::size_t side = random_.below(3);
      if (style == 2 && side == 1) side = 2;
      ++sides[side];
    }
    std::vector<std::string> attributes = axis(sides[0], words_.nouns, false);
    std::vector<NeedleAttributeKind> kinds(sides[0], NeedleAttributeKind::kWord);
    for (std::size_t i = 0; i < attributes.size(); ++i) {
      if (random_.permille(220)) {
        kinds[i] = static_cast<NeedleAttributeKind>(random_.below(4));
        continue;  // any noun, made-up or own word as an attribute
      }
      for (int attempt = 0; attempt < 8; ++attempt) {
        const NeedleAttribute& attribute = random_.pick(words_.attributes);
        std::string name(attribute.name);
        if (attempt > 4 || random_.permille(80)) name = std::string(random_.pick(words_.nouns)) + " " + name;
        if (std::find(attributes.begin(), attributes.end(), name) != attributes.end()) continue;
        attributes[i] = name;
        kinds[i] = attribute.kind;
        break;
      }
    }
    const bool person = style == 1;
    const std::vector<std::string> first =
        style == 2 ? std::vector<std::string>{""}
                   : axis(sides[1], person ? words_.first_names : words_.adjectives, person);
    const std::vector<std::string> second = axis(sides[2], person ? words_.last_names : words_.nouns, person);
    std::vector<Cell> grid;
    for (std::size_t a = 0; a < attributes.size(); ++a)
      for (const std::string& f : first)
        for (const std::string& s : second) {
          Cell cell;
          cell.key.attribute = attributes[a];
          cell.key.kind = kinds[a];
          cell.key.subject = (person ? "" : "the ") + f + (f.empty() ? "" : " ") + s;
          if (keys_.insert(cell.key.of()).second) grid.push_back(std::move(cell));
        }
    random_.shuffle(grid);
    for (std::size_t i = 0; i < grid.size(); ++i) {
      std::vector<Cell>& side = i < count ? facts_ : absent_;
      side.push_back(std::move(grid[i]));
    }
  }

  void make_cells() {
    const std::size_t grids = std::min<std::size_t>(random_.between(1, 3), std::max<std::uint32_t>(spec_.facts / 3, 1));
    std::size_t left = spec_.facts;
    for (std::size_t g = 0; g < grids; ++g) {
      const std::size_t count = g + 1 == grids ? left : left / (grids - g);
      make_grid(count);
      left -= count;
    }
    std::set<std::string> values;
    for (Cell& cell : facts_) {
      for (int attempt = 0; attempt < 12; ++attempt) {
        cell.value =
            random_.permille(spec_.text.empty() ? 60 : 160) ? own_word() : needle_value(random_, words_, cell.key.kind);
        if (values.insert(cell.value).second) break;
      }
      cell.fact = needle_fact(random_, cell.key, cell.value, spec_.variety);
    }
    random_.shuffle(facts_);
  }

  std::string mention() {
    const Cell& cell = !absent_.empty() && random_.permille(400) ? random_.pick(absent_) : random_.pick(facts_);
    return filler_.expand(random_.pick(words_.mentions), cell.key.of(), cell.key.subject);
  }

  void assemble() {
    static constexpr std::array<std::string_view, 3> kParagraphEnds = {"\n\n", "\n", "\n\n"};
    const std::string_view paragraph_end = random_.pick(kParagraphEnds);
    const bool lines = random_.permille(spec_.filler == NeedleFiller::kText ? 800 : 300);
    std::size_t fact_bytes = 0;
    for (const Cell& cell : facts_) fact_bytes += cell.fact.size() + 2;
    const std::size_t room = spec_.characters > fact_bytes ? spec_.characters - fact_bytes : 0;

    // Units with what follows them, until the room is used up.
    std::vector<std::string> units;
    std::size_t used = 0;
    std::size_t mentions_left = facts_.empty() ? 0 : std::min<std::size_t>(facts_.size() * 2, 4 + room / 1500);
    for (bool full = false; !full;) {
      std::vector<std::string> paragraph = filler_.paragraph();
      if (mentions_left > 0 && random_.permille(300)) {
        std::string sentence = mention();
        paragraph.insert(paragraph.begin() + random_.below(paragraph.size() + 1), std::move(sentence));
        --mentions_left;
      }
      for (std::size_t i = 0; i < paragraph.size(); ++i) {
        std::string& unit = paragraph[i];
        unit += i + 1 == paragraph.size() ? paragraph_end : lines ? std::string_view("\n") : std::string_view(" ");
        if (used + unit.size() > room) {
          full = true;
          break;
        }
        used += unit.size();
        units.push_back(std::move(unit));
      }
    }
    // One fact in each of `facts` equal stretches, at a random place in it: every depth is met.
    std::vector<std::size_t> place(facts_.size());
    for (std::size_t i = 0; i < facts_.size(); ++i)
      place[i] = (i * 1000 + random_.below(1000)) * (units.size() + 1) / (facts_.size() * 1000);
    text_.reserve(used + fact_bytes);
    std::size_t fact = 0;
    for (std::size_t u = 0; u <= units.size(); ++u) {
      for (; fact < facts_.size() && place[fact] == u; ++fact) {
        // A fact that does not end a sentence needs a line of its own.
        const bool own_line = facts_[fact].fact.back() != '.';
        if (own_line && !text_.empty() && text_.back() == ' ') text_.back() = '\n';
        facts_[fact].offset = text_.size();
        text_ += facts_[fact].fact;
        text_ += own_line || lines ? "\n" : " ";
      }
      if (u < units.size()) text_ += units[u];
    }
    while (!text_.empty() && (text_.back() == '\n' || text_.back() == ' ')) text_.pop_back();
  }

  void ask() {
    std::vector<std::size_t> order;
    while (spec_.questions > 0 && !facts_.empty() && order.size() < spec_.questions) {
      std::vector<std::size_t> round(facts_.size());
      for (std::size_t i = 0; i < round.size(); ++i) round[i] = i;
      random_.shuffle(round);
      order.insert(order.end(), round.begin(), round.end());
    }
    for (std::size_t q = 0; q < spec_.questions; ++q) {
      NeedleQuestion question;
      question.absent = order.empty() || (!absent_.empty() && random_.permille(spec_.absent));
      if (question.absent && absent_.empty()) break;
      const Cell& cell = question.absent ? random_.pick(absent_) : facts_[order[q]];
      const NeedleWording wording = needle_question(random_, cell.key, spec_.variety);
      question.question = wording.question;
      question.value = question.absent ? "unknown" : cell.value;
      question.answer = wording.stem + question.value + ".";
      if (!question.absent) {
        question.fact = cell.fact;
        question.offset = cell.offset;
        question.depth = static_cast<double>(cell.offset) / static_cast<double>(std::max<std::size_t>(text_.size(), 1));
      }
      questions_.push_back(std::move(question));
    }
  }

  NeedleSpec spec_;
  NeedleRandom random_;
  const NeedleLexicon& words_;
  NeedleFillerSource filler_;
  std::string sample_, text_;
  std::set<std::string> keys_;
  std::vector<Cell> facts_, absent_;
  std::vector<NeedleQuestion> questions_;
};

}  // namespace

bool parse_needle_filler(std::string_view name, NeedleFiller& filler) {
  for (std::size_t i = 0; i < kFillerNames.size(); ++i)
    if (kFillerNames[i] == name) {
      filler = static_cast<NeedleFiller>(i);
      return true;
    }
  return false;
}

std::string_view needle_filler_name(NeedleFiller filler) { return kFillerNames[static_cast<std::size_t>(filler)]; }

NeedleDocument make_needle_document(const NeedleSpec& spec) { return Builder(spec).build(); }

NeedleDocument fit_needle_document(NeedleSpec spec, std::size_t max_tokens,
                                   const std::function<std::size_t(std::string_view)>& count) {
  spec.characters = max_tokens * 3;
  NeedleDocument best;
  std::size_t best_tokens = 0;
  for (int attempt = 0; attempt < 8; ++attempt) {
    NeedleDocument document = make_needle_document(spec);
    const std::size_t tokens = std::max<std::size_t>(count(document.text), 1);
    const bool better = best_tokens == 0 || (tokens <= max_tokens ? best_tokens > max_tokens || tokens > best_tokens
                                                                  : tokens < best_tokens);
    const std::size_t size = document.text.size();
    if (better) {
      best_tokens = tokens;
      best = std::move(document);
    }
    if (tokens <= max_tokens && tokens * 100 >= max_tokens * 98) break;
    const std::size_t next = size * (max_tokens - max_tokens / 100) / tokens;
    if (next == spec.characters) break;
    spec.characters = next;
  }
  return best;
}

}  // namespace fovea
