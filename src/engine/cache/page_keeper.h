// What the prefix cache (radix_cache.h) calls pages by, and whom it tells about them: a keeper, which copies pages that
// the cache is about to give up (engine/store), and an observer, which only hears of them (KV events).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/hash128.h"

namespace fovea {

// Of a page and all that is before it: a chain from the salt over the tokens of each page. The seed is secret, so that
// nobody can make two prompts whose keys meet.
using PageKey = Hash128;

PageKey root_key(const std::string& salt, std::uint64_t seed);
PageKey next_key(const PageKey& before, std::span<const std::int32_t> page_tokens, std::uint64_t seed);

// Pages [first_page, first_page + keys.size()) of a prefix.
struct PrefixRun {
  PageKey before;  // of the page before the first, or of the root
  std::int32_t first_page = 0;
  std::span<const PageKey> keys;
  std::span<const std::int32_t> tokens;  // of the pages
  std::string_view salt;                 // told to observers
};

// Neither may call the cache.
class PageKeeper {
 public:
  virtual ~PageKeeper() = default;
  // Copies a page, which stays as it is until this returns; pages: by KV group, kDummyPage where there is none. False:
  // there is no room now. leaves: the cache gives the page up whatever the answer.
  virtual bool keep(const PrefixRun& page, std::span<const std::int32_t> pages, bool leaves) = 0;
};

class PrefixObserver {
 public:
  virtual ~PrefixObserver() = default;
  virtual void on_stored(const PrefixRun& run) = 0;
  virtual void on_removed(const PageKey& key) = 0;
  // Nothing is cached any more.
  virtual void on_cleared() = 0;
};

}  // namespace fovea
