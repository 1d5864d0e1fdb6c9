#include "engine/grammar/repetition.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fovea {
namespace {

constexpr std::uint64_t kMaxWrittenOut = 20'000;                  // characters; classes count as one
constexpr std::size_t kMaxGroups = 200;                           // in one another
constexpr std::uint64_t kCheapCount = 16, kCheapCharacters = 64;  // of one, of all together
constexpr std::uint64_t kFar = kMaxWrittenOut + 1;

// {n}, {n,} or {n,m} at `begin`: the larger number and the end; false where the brace is something else.
bool read_count(std::string_view text, std::size_t begin, std::uint64_t* count, std::size_t* end) {
  std::size_t at = begin + 1;
  bool digit = false;
  *count = 0;
  std::uint64_t number = 0;
  for (; at < text.size() && text[at] != '}'; ++at) {
    const char c = text[at];
    if (c >= '0' && c <= '9') {
      digit = true;
      number = std::min(number * 10 + static_cast<std::uint64_t>(c - '0'), kFar);
      *count = std::max(*count, number);
    } else if (c == ',' || c == ' ') {
      number = 0;
    } else {
      return false;
    }
  }
  *end = at + 1;
  return digit && at < text.size();
}

std::size_t skip_until(std::string_view text, std::size_t at, char closing) {
  for (; at < text.size() && text[at] != closing; ++at) at += text[at] == '\\' ? 1 : 0;
  return at;
}

}  // namespace

namespace {

// Characters of the text with its counts written out.
Result<std::uint64_t> written_out(std::string_view text, bool quoted) {
  const auto too_large = [] {
    return invalid_argument("with its counted repetitions written out it has more than {} characters", kMaxWrittenOut);
  };
  std::vector<std::uint64_t> groups = {0};  // characters of each open group
  std::uint64_t last = 0;                   // of what a count would repeat; already in its group
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    std::uint64_t size = 1;
    if (c == '(') {
      if (groups.size() > kMaxGroups) return invalid_argument("more than {} groups are in one another", kMaxGroups);
      groups.push_back(0);
      last = 0;
      continue;
    }
    if (c == ')' && groups.size() > 1) {
      size = groups.back();
      groups.pop_back();
    } else if (c == '\\') {
      ++i;
    } else if (c == '[') {
      i = skip_until(text, i + 1, ']');
    } else if (c == '"' && quoted) {
      const std::size_t end = skip_until(text, i + 1, '"');
      size = end - i;
      i = end;
    } else if (c == '{') {
      std::uint64_t count = 0;
      std::size_t end = 0;
      if (read_count(text, i, &count, &end)) {
        if (count > 1) groups.back() += last * (count - 1);
        if (groups.back() > kMaxWrittenOut) return too_large();
        last = last * std::max<std::uint64_t>(count, 1);
        i = end - 1;
        continue;
      }
    }
    last = size;
    groups.back() += size;
    // A grammar may be long by itself; of a pattern as long the compiler would take minutes.
    if (groups.back() > kMaxWrittenOut + (quoted ? text.size() : 0)) return too_large();
  }
  return groups.back();
}

// The end of what begins at `at` and is taken as it stands: an escape, a class, a literal, or one character.
std::size_t end_of_atom(std::string_view text, std::size_t at, bool quoted) {
  std::size_t end = at + 1;
  if (text[at] == '\\') end = at + 2;
  if (text[at] == '[') end = skip_until(text, at + 1, ']') + 1;
  if (text[at] == '"' && quoted) end = skip_until(text, at + 1, '"') + 1;
  return std::min(end, text.size());
}

// For each character, of how many groups that are repeated as a whole it is inside.
std::vector<int> repeated_depth(std::string_view text, bool quoted) {
  std::vector<int> depth(text.size() + 1, 0);  // changes first, then their sums
  std::vector<std::size_t> open;
  for (std::size_t i = 0, end = 0; i < text.size(); i = end) {
    end = end_of_atom(text, i, quoted);
    if (text[i] == '(') open.push_back(i);
    if (text[i] != ')' || open.empty()) continue;
    if (end < text.size() && std::string_view("*+{").find(text[end]) != std::string_view::npos) {
      ++depth[open.back() + 1];
      --depth[i];
    }
    open.pop_back();
  }
  std::partial_sum(depth.begin(), depth.end(), depth.begin());
  return depth;
}

// `*` for counts of more than `most`. Not of groups and rules, nor in what is itself repeated: a repetition in another
// one can be read in so many ways that it takes longer still.
std::string without_counts(std::string_view text, bool quoted, std::uint64_t most) {
  const auto once = [&](std::string_view name) { return text.find(name) == text.rfind(name); };
  if (quoted && !(once("::=") && once("root"))) return std::string(text);  // rules may repeat each other
  const std::vector<int> depth = repeated_depth(text, quoted);
  std::string out;
  char before = '\0';  // the latest atom's last
  for (std::size_t i = 0, end = 0; i < text.size(); i = end) {
    end = end_of_atom(text, i, quoted);
    std::uint64_t count = 0;
    std::size_t after = 0;
    const bool counts = text[i] == '{' && read_count(text, i, &count, &after);
    if (counts) end = after;
    const bool alone = before != ')' && (!quoted || before == ']' || before == '"') && depth[i] == 0;
    if (counts && alone && count > most) {
      out.push_back('*');
    } else {
      out += text.substr(i, end - i);
    }
    before = text[i] == '\\' ? '\\' : text[end - 1];
  }
  return out;
}

}  // namespace

Status check_repetitions(std::string_view text, bool quoted) { return written_out(text, quoted).status(); }

bool repeats_groups(std::string_view regex) {
  const std::vector<int> depth = repeated_depth(regex, false);
  return std::any_of(depth.begin(), depth.end(), [](int groups) { return groups > 0; });
}

std::string without_costly_counts(std::string_view text, bool quoted) {
  std::string bare = without_counts(text, quoted, 0);
  const auto rest = written_out(bare, quoted);
  for (const std::uint64_t most : {kCheapCount, kCheapCount / 4}) {
    std::string kept = without_counts(text, quoted, most);
    const auto all = written_out(kept, quoted);
    if (all.ok() && rest.ok() && *all <= *rest + kCheapCharacters) return kept;
  }
  return bare;
}

}  // namespace fovea
