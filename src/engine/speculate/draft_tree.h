// DraftTree: draft tokens that may come after the latest token of a sequence, verified together in one step. Several
// may follow the same token; a tree without such branches is a chain. Made by NgramDrafter, on other ranks by
// StepReader; used by the scheduler, the runner and the engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

struct DraftNode {
  std::int32_t token = 0;
  std::int32_t parent = -1;  // index of the node that it follows, below its own; -1: it follows the latest token
  std::int32_t depth = 1;    // tokens behind the latest one
  float share = 1.0f;        // of what followed its parent in the text, by weight of the matches
  float acceptance = 1.0f;   // probability that it and all nodes before it are accepted
};

using DraftTree = std::vector<DraftNode>;

// The node after `parent` (-1: the latest token) that is `token`; -1: none.
inline std::int32_t find_child(std::span<const DraftNode> tree, std::int32_t parent, std::int32_t token) {
  for (std::size_t i = 0; i < tree.size(); ++i) {
    if (tree[i].parent == parent && tree[i].token == token) return static_cast<std::int32_t>(i);
  }
  return -1;
}

// Whether each node follows the one before it.
inline bool is_chain(std::span<const DraftNode> tree) {
  for (std::size_t i = 0; i < tree.size(); ++i) {
    if (tree[i].parent != static_cast<std::int32_t>(i) - 1) return false;
  }
  return true;
}

// The nodes of a tree that each stand first among those after their parent.
inline DraftTree first_chain(std::span<const DraftNode> tree) {
  DraftTree chain;
  std::int32_t parent = -1;  // in the tree
  for (std::size_t i = 0; i < tree.size(); ++i) {
    if (tree[i].parent != parent) continue;
    parent = static_cast<std::int32_t>(i);
    chain.push_back(tree[i]);
    chain.back().parent = static_cast<std::int32_t>(chain.size()) - 2;
  }
  return chain;
}

inline DraftTree chain_of(std::span<const std::int32_t> tokens) {
  DraftTree chain;
  for (const std::int32_t token : tokens) {
    const auto before = static_cast<std::int32_t>(chain.size());
    chain.push_back({.token = token, .parent = before - 1, .depth = before + 1});
  }
  return chain;
}

}  // namespace fovea
