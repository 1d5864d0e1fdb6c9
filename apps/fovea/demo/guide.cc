#include "demo/guide.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/random.h"

namespace fovea::app {
namespace {

constexpr std::array kAdjectives = {"amber",  "crimson", "hollow",  "eastern", "northern", "silver",
                                    "copper", "painted", "crooked", "quiet",   "golden",   "scarlet",
                                    "misty",  "iron",    "marble",  "gilded"};
constexpr std::array kNouns = {"lantern", "anchor", "heron",  "compass", "lobster", "bell",   "harp",   "kettle",
                               "orchard", "chapel", "falcon", "garden",  "barrel",  "mirror", "rudder", "pelican"};
constexpr std::array kFirstNames = {"Marisol", "Benedict", "Ottilie",  "Cornelius", "Philippa", "Leopold",   "Rosalind",
                                    "Ambrose", "Beatrix",  "Casimir",  "Dorothea",  "Edmund",   "Gwendolyn", "Horatio",
                                    "Isolde",  "Jasper",   "Katarina", "Lysander",  "Matilda",  "Nathaniel"};
constexpr std::array kLastNames = {"Vane",     "Ashworth", "Blackwood", "Crane",    "Dunmore",   "Ellery",
                                   "Fairfax",  "Gresham",  "Hawthorne", "Ingram",   "Jessop",    "Kingsley",
                                   "Lockhart", "Osborne",  "Pemberton", "Sinclair", "Underhill", "Whitlock"};
constexpr std::array kStreets = {"Quay Street",     "Rope Walk",      "Fish Lane", "the Upper Market", "Mill Road",
                                 "the Old Slipway", "Chandler's Row", "Salt Hill", "the Sea Wall",     "Ferry Square"};
constexpr std::array kTrades = {"baker",      "sailmaker", "bookbinder", "cooper",  "chandler",
                                "clockmaker", "cobbler",   "net mender", "printer", "boat builder"};
constexpr std::array kMonths = {"January", "March",     "April",   "May",     "June",
                                "August",  "September", "October", "December"};

// {h} the house, {s} a street, {t} a trade, {m} a month, {d} a small number.
constexpr std::array kSentences = {
    "It stands on {s}, two doors from the {t}, and is easy to miss after dark.",
    "The stairs are steep, and the rail was put in the wrong side for reasons nobody remembers.",
    "On clear days the islands can be seen from the attic window.",
    "Visitors who come in {m} should bring a coat, because the wind finds every gap in the shutters.",
    "A {t} worked on the ground floor until the flood, and his bench is still there.",
    "The sign was repainted by a {t} who had never seen the original.",
    "There are {d} tables in the front room and a bench along the wall.",
    "The kitchen closes early, but soup is kept warm for the crew of the last ferry.",
    "Dogs are welcome, provided that they agree with the cat.",
    "In {m} the yard fills with nets that are hung up to dry.",
    "The door sticks when it rains; push with the shoulder, not with the handle.",
    "Readers of the first edition wrote that the tea was better than described, and we agree.",
    "A narrow passage leads from {s} to the back yard, where the bicycles stand.",
    "The cellar was once joined to that of the {t} next door, and the bricked arch can still be made out.",
    "Music is played on {d} evenings of the month, mostly by people who live nearby.",
    "Half of the furniture came out of a wreck, and the other half was made to match.",
    "The windows were replaced in {m}, a year later than promised.",
    "Children are given a piece of chalk and the whole of one wall.",
    "If nobody answers, ask the {t} across the way, who knows where everyone is.",
    "The weather vane points north whatever the wind does.",
    "A storm took the chimney in {m}, and it was rebuilt a little shorter.",
    "The clock over the counter is {d} minutes fast, and regulars allow for it.",
    "Its garden goes down to the water, with {d} pear trees and a swing.",
    "Painters like the light here, and some of them paid with pictures.",
    "The floor slopes toward {s}, which a marble will demonstrate.",
    "No two of the chairs are alike, and guests tend to become attached to one of them.",
    "Deliveries arrive by handcart, since the lane is too narrow for anything else.",
    "During the fair in {m} it is full by noon, and people sit on the steps.",
    "A brass plate by the gate thanks the {t} for the roof.",
    "The best seat is by the stove, and it is never free.",
    "Letters left here are taken across by the morning boat.",
    "The ceiling is low enough that tall guests are given a cushion to hang over the beam.",
    "Its bread comes from {s} and is gone by ten.",
    "The book of guests goes back {d} generations, with a gap where the mice were.",
    "At high tide the waves can be heard under the floor.",
    "An old map on the wall shows a bridge that was never built.",
    "The {t} of the quarter meets his friends here after work.",
    "Ask to see the model of the ship in the back room; it took {d} winters to make.",
    "The yard is swept every morning, and every morning the gulls undo it.",
    "It was closed for the whole of {m} while the drains were dug up.",
};

struct Attribute {
  const char* name;
  const char* asks;  // "Who" or "What"
};
constexpr std::array<Attribute, 6> kAttributes = {{{"owner", "Who"},
                                                   {"phone number", "What"},
                                                   {"caretaker", "Who"},
                                                   {"door code", "What"},
                                                   {"founder", "Who"},
                                                   {"room number", "What"}}};

class Writer {
 public:
  explicit Writer(std::uint64_t seed) : rng_(seed) {}

  template <typename List>
  auto& pick(const List& list) {
    return list[static_cast<std::size_t>(rng_.next_below(static_cast<std::uint32_t>(list.size())))];
  }
  std::uint32_t below(std::uint32_t count) { return rng_.next_below(count); }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(static_cast<std::uint32_t>(i))]);
  }
  // The next sentence; all are used before one comes again.
  std::string sentence() {
    if (left_.empty()) {
      for (const char* text : kSentences) left_.emplace_back(text);
      shuffle(left_);
    }
    const std::string pattern = left_.back();
    left_.pop_back();
    std::string out;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      if (pattern[i] != '{') {
        out += pattern[i];
        continue;
      }
      const char slot = pattern[i + 1];
      out += slot == 's'   ? pick(kStreets)
             : slot == 't' ? pick(kTrades)
             : slot == 'm' ? pick(kMonths)
                           : std::to_string(2 + below(7));
      i += 2;
    }
    return out;
  }

 private:
  PhiloxRng rng_;
  std::vector<std::string> left_;
};

std::string capitalized(std::string text) {
  text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

}  // namespace

Guide write_guide(std::uint64_t seed, std::int32_t houses, std::int32_t sentences) {
  Writer writer(seed);
  std::vector<std::pair<std::string, std::string>> names;
  for (const char* adjective : kAdjectives) {
    for (const char* noun : kNouns) names.emplace_back(adjective, noun);
  }
  writer.shuffle(names);
  houses = std::min(houses, static_cast<std::int32_t>(names.size()));
  Guide guide;
  guide.text = "A guide to the houses of the harbour\n";
  for (std::int32_t i = 0; i < houses; ++i) {
    const auto& [adjective, noun] = names[static_cast<std::size_t>(i)];
    const Attribute& attribute = writer.pick(kAttributes);
    GuideFact fact;
    fact.value = attribute.asks == std::string_view("Who")
                     ? fmt::format("{} {}", writer.pick(kFirstNames), writer.pick(kLastNames))
                     : fmt::format("{}", 10000 + writer.below(90000));
    const std::string key = fmt::format("{} of the {} {}", attribute.name, adjective, noun);
    fact.sentence = fmt::format("The {} is {}.", key, fact.value);
    fact.question = fmt::format("{} is the {}?", attribute.asks, key);
    guide.text += fmt::format("\n{}. The {} {}\n", i + 1, capitalized(adjective), capitalized(noun));
    const std::int32_t others = sentences / houses + (i < sentences % houses ? 1 : 0);
    const auto at = static_cast<std::int32_t>(writer.below(static_cast<std::uint32_t>(others + 1)));
    for (std::int32_t s = 0; s <= others; ++s) {
      if (s > 0) guide.text += s % 4 == 0 ? "\n" : " ";
      if (s == at) fact.offset = guide.text.size();
      guide.text += s == at ? fact.sentence : writer.sentence();
    }
    guide.text += "\n";
    guide.facts.push_back(std::move(fact));
  }
  return guide;
}

Guide fit_guide(std::uint64_t seed, std::int32_t houses, std::size_t max_tokens,
                const std::function<std::size_t(std::string_view)>& count) {
  const auto tokens_of = [&](const Guide& guide) { return std::max<std::size_t>(count(guide.text), 1); };
  Guide least = write_guide(seed, houses, 0);
  std::size_t tokens = tokens_of(least);
  while (tokens > max_tokens && houses > 1) {
    houses = std::max(1, static_cast<std::int32_t>(static_cast<std::size_t>(houses) * max_tokens / (tokens + 1)));
    least = write_guide(seed, houses, 0);
    tokens = tokens_of(least);
  }
  // A sentence takes about 20 tokens; the next guess is by what those of the last one took.
  double each = 20.0;
  for (int attempt = 0; attempt < 4 && tokens < max_tokens; ++attempt) {
    const auto sentences = static_cast<std::int32_t>(static_cast<double>(max_tokens - tokens) / each);
    Guide guide = write_guide(seed, houses, sentences);
    const std::size_t got = tokens_of(guide);
    if (got <= max_tokens && got * 100 >= max_tokens * 98) return guide;
    if (sentences < 1) break;
    each = std::max(1.0, static_cast<double>(got - tokens) / sentences + 0.1);
    if (got <= max_tokens) least = std::move(guide);
  }
  return least;
}

std::vector<GuideFact> choose_facts(const Guide& guide, std::uint64_t seed, std::size_t count) {
  count = std::min(count, guide.facts.size());
  std::vector<GuideFact> facts;
  for (std::size_t i = 0; i < count; ++i) facts.push_back(guide.facts[(2 * i + 1) * guide.facts.size() / (2 * count)]);
  Writer writer(seed + 1);
  writer.shuffle(facts);
  return facts;
}

}  // namespace fovea::app
