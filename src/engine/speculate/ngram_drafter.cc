#include "engine/speculate/ngram_drafter.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fovea {
namespace {

constexpr std::int32_t kLongMatch = 16;  // no longer one is looked for
constexpr std::size_t kMostMatches = 8;  // the longest, of equal ones the latest
constexpr float kShorter = 0.25f;        // weight of a match for each token that it is shorter than the longest
constexpr float kEarlier = 0.8f;         // ..., and for each of the same length that comes later in the text
constexpr std::int32_t kFailures = 3;
constexpr std::int32_t kMostPause = 256;
// How often what followed a match follows again, before a choice has shown it: by the classes of length_class().
constexpr std::array<float, 8> kTrust = {0.3f, 0.45f, 0.6f, 0.7f, 0.8f, 0.88f, 0.93f, 0.96f};
constexpr float kTrustWeight = 4.0f;  // tries that these stand for
constexpr float kForget = 0.95f;      // what a record keeps of the earlier tries with each new one

struct Match {
  std::size_t end = 0;  // index of its last token
  std::int32_t length = 0;
};

// Places where the last tokens stood before, best first.
std::vector<Match> find_matches(std::span<const std::int32_t> tokens) {
  std::vector<Match> matches;
  if (tokens.empty()) return matches;
  const std::size_t end = tokens.size() - 1;
  for (std::size_t i = end; i-- > 0;) {
    if (tokens[i] != tokens[end]) continue;
    std::int32_t length = 1;
    while (length < kLongMatch && static_cast<std::size_t>(length) <= i &&
           tokens[i - static_cast<std::size_t>(length)] == tokens[end - static_cast<std::size_t>(length)]) {
      ++length;
    }
    // Behind those of its length: they stand later in the text.
    const auto place = std::find_if(matches.begin(), matches.end(), [&](const Match& m) { return m.length < length; });
    if (place == matches.end() && matches.size() == kMostMatches) continue;
    matches.insert(place, {i, length});
    if (matches.size() > kMostMatches) matches.pop_back();
    if (matches.size() == kMostMatches && matches.back().length == kLongMatch) break;
  }
  return matches;
}

// What followed the matches, up to `most` tokens deep; acceptance is the weight of the matches behind a node.
DraftTree grow_tree(std::span<const std::int32_t> tokens, const std::vector<Match>& matches, std::int32_t most) {
  DraftTree tree;
  float weight = 1.0f;
  for (std::size_t m = 0; m < matches.size(); ++m) {
    if (m > 0) {
      const std::int32_t shorter = matches[m - 1].length - matches[m].length;
      weight *= shorter == 0 ? kEarlier : std::pow(kShorter, static_cast<float>(shorter));
    }
    const std::size_t period = tokens.size() - 1 - matches[m].end;
    std::int32_t at = -1;
    std::vector<std::int32_t> followed;
    for (std::size_t k = 0; k < static_cast<std::size_t>(most); ++k) {
      // Where the text ends it goes on with what follows: a loop goes on.
      followed.push_back(k < period ? tokens[matches[m].end + 1 + k] : followed[k - period]);
      std::int32_t next = find_child(tree, at, followed.back());
      if (next < 0) {
        next = static_cast<std::int32_t>(tree.size());
        tree.push_back(
            {.token = followed.back(), .parent = at, .depth = static_cast<std::int32_t>(k) + 1, .acceptance = 0.0f});
      }
      tree[static_cast<std::size_t>(next)].acceptance += weight;
      at = next;
    }
  }
  return tree;
}

// Puts nodes into an order in which none stands before its parent.
void reorder(DraftTree& tree, const std::vector<std::int32_t>& order) {
  std::vector<std::int32_t> place(tree.size(), -1);
  DraftTree sorted;
  for (const std::int32_t i : order) {
    DraftNode node = tree[static_cast<std::size_t>(i)];
    if (node.parent >= 0) node.parent = place[static_cast<std::size_t>(node.parent)];
    place[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(sorted.size());
    sorted.push_back(node);
  }
  tree = std::move(sorted);
}

std::vector<std::int32_t> indices(std::size_t count) {
  std::vector<std::int32_t> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

void sort_by_depth(DraftTree& tree) {
  std::vector<std::int32_t> order = indices(tree.size());
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return tree[static_cast<std::size_t>(a)].depth < tree[static_cast<std::size_t>(b)].depth;
  });
  reorder(tree, order);
}

std::size_t NgramDrafter::length_class(std::int32_t length) {
  constexpr std::array<std::int32_t, kLengths - 1> kFirst = {2, 3, 4, 5, 7, 10, 16};
  return static_cast<std::size_t>(std::upper_bound(kFirst.begin(), kFirst.end(), length) - kFirst.begin());
}

float NgramDrafter::trust(std::int32_t length) const {
  const std::size_t at = length_class(length);
  const Record& record = records_[at];
  return std::min(0.99f, (record.accepted + kTrustWeight * kTrust[at]) / (record.tries + kTrustWeight));
}

DraftTree NgramDrafter::draft(std::span<const std::int32_t> tokens, std::int32_t most, bool branches,
                              std::span<const std::int32_t> forced) {
  match_ = 0;
  if (pause_ > 0) {
    --pause_;
    return {};
  }
  const std::int32_t room = std::clamp(most, 0, kMostTokens);
  if (room == 0) return {};
  if (!forced.empty()) return chain_of(forced.first(std::min(forced.size(), static_cast<std::size_t>(room))));
  const std::vector<Match> matches = find_matches(tokens);
  if (matches.empty()) return {};
  match_ = matches.front().length;
  DraftTree tree = grow_tree(tokens, matches, room);
  // From weights to probabilities: parents stand before their children.
  std::vector<float> weights;
  float total = 0.0f;
  for (const DraftNode& node : tree) {
    weights.push_back(node.acceptance);
    total += node.parent < 0 ? node.acceptance : 0.0f;
  }
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const auto parent = static_cast<std::size_t>(std::max(tree[i].parent, 0));
    const bool first = tree[i].parent < 0;
    tree[i].share = weights[i] / (first ? total : weights[parent]);
    tree[i].acceptance = (first ? 1.0f : tree[parent].acceptance) * tree[i].share * trust(match_ + tree[i].depth - 1);
  }
  std::vector<std::int32_t> order = indices(tree.size());
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return tree[static_cast<std::size_t>(a)].acceptance > tree[static_cast<std::size_t>(b)].acceptance;
  });
  if (!branches) {  // the best node after each of the chain
    std::vector<std::int32_t> chain;
    for (const std::int32_t i : order) {
      if (tree[static_cast<std::size_t>(i)].parent == (chain.empty() ? -1 : chain.back())) chain.push_back(i);
    }
    order = std::move(chain);
  }
  order.resize(std::min(order.size(), static_cast<std::size_t>(room)));
  reorder(tree, order);
  return tree;
}

void NgramDrafter::verified(std::span<const DraftNode> tree, std::int32_t last) {
  if (tree.empty()) return;
  // The nodes that were accepted, from the latest token on, and behind them the place where none was.
  std::vector<std::int32_t> path = {-1};
  for (std::int32_t at = last; at >= 0; at = tree[static_cast<std::size_t>(at)].parent) {
    path.insert(path.begin() + 1, at);
  }
  for (std::size_t level = 0; match_ > 0 && level < path.size(); ++level) {
    float share = 0.0f;  // of what followed there, verified
    for (const DraftNode& node : tree) share += node.parent == path[level] ? node.share : 0.0f;
    if (share <= 0.0f) break;
    Record& record = records_[length_class(match_ + static_cast<std::int32_t>(level))];
    record.accepted = kForget * record.accepted + (level + 1 < path.size() ? 1.0f : 0.0f);
    record.tries = kForget * record.tries + share;
  }
  if (last >= 0) {
    failures_ = 0;
    next_pause_ = kFirstPause;
    return;
  }
  if (++failures_ < kFailures) return;
  failures_ = 0;
  pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kMostPause);
}

}  // namespace fovea
