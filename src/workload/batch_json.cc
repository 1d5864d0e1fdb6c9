#include "workload/batch_json.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/quote.h"
#include "base/status.h"
#include "workload/lengths.h"

namespace fovea {
namespace {

constexpr std::int64_t kMaxTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMaxRequests = 65536;
constexpr std::int64_t kMaxEntries = std::int64_t{1} << 26;  // of a page table

Result<std::int32_t> number(const JsonReader& json, std::string_view key, std::int32_t fallback, std::int64_t min,
                            std::int64_t max) {
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t value, json.integer_or(key, fallback, min, max));
  return static_cast<std::int32_t>(value);
}

// One request's leading segments: names and tokens.
using Prefix = std::vector<std::pair<std::string, std::int32_t>>;

Result<Prefix> read_prefix(const JsonReader& request) {
  Prefix prefix;
  const Json* list = request.find("prefix");
  if (list == nullptr) return prefix;
  const auto wrong = [&] {
    return invalid_argument("{}: expected a list of [\"name\", tokens] pairs", request.path("prefix"));
  };
  if (!list->is_array()) return wrong();
  for (const Json& pair : *list) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_number_integer()) return wrong();
    const std::int64_t tokens = pair[1].get<std::int64_t>();
    if (tokens < 1 || tokens > kMaxTokens) {
      return invalid_argument("{}: segment of {} tokens, expected 1..{}", request.path("prefix"), tokens, kMaxTokens);
    }
    prefix.emplace_back(pair[0].get<std::string>(), static_cast<std::int32_t>(tokens));
  }
  return prefix;
}

// Pages of requests with named prefixes: a page belongs to the names and tokens that lie before its end.
Result<PagedBatch> named_requests(const JsonReader& root, std::int32_t page_tokens) {
  PagedBatch batch;
  batch.page_tokens = page_tokens;
  const Json& list = *root.find("requests");
  if (!list.is_array() || list.empty())
    return invalid_argument("{}: expected a list of requests", root.path("requests"));
  std::map<std::pair<std::string, std::int32_t>, std::int32_t> page_of;  // (chain of names, page index)
  std::vector<std::vector<std::int32_t>> pages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    FOVEA_ASSIGN_OR_RETURN(const JsonReader request,
                           JsonReader::create(list[i], fmt::format("{}[{}]", root.path("requests"), i)));
    FOVEA_RETURN_IF_ERROR(request.only({"kv", "q", "count", "prefix"}));
    FOVEA_ASSIGN_OR_RETURN(const std::int64_t kv, request.integer("kv", 0, kMaxTokens));
    FOVEA_ASSIGN_OR_RETURN(const std::int32_t q, number(request, "q", 1, 0, kMaxTokens));
    FOVEA_ASSIGN_OR_RETURN(const std::int32_t count, number(request, "count", 1, 1, kMaxRequests));
    FOVEA_ASSIGN_OR_RETURN(const Prefix prefix, read_prefix(request));
    for (std::int32_t c = 0; c < count; ++c) {
      if (static_cast<std::int64_t>(batch.q_lens.size()) >= kMaxRequests) {
        return invalid_argument("{}: more than {} requests", root.path("requests"), kMaxRequests);
      }
      batch.kv_lens.push_back(static_cast<std::int32_t>(kv));
      batch.q_lens.push_back(q);
      std::vector<std::int32_t>& own = pages.emplace_back();
      std::string chain;
      std::int64_t end = 0;
      for (const auto& [name, tokens] : prefix) {
        end += tokens;
        chain += fmt::format("/{}:{}", name, tokens);
        while ((static_cast<std::int64_t>(own.size()) + 1) * page_tokens <= std::min(end, kv)) {
          const auto key = std::pair(chain, static_cast<std::int32_t>(own.size()));
          own.push_back(page_of.try_emplace(key, batch.num_pages).first->second);
          batch.num_pages = std::max(batch.num_pages, own.back() + 1);
        }
      }
      while (static_cast<std::int64_t>(own.size()) * page_tokens < kv) own.push_back(batch.num_pages++);
      batch.stride = std::max(batch.stride, static_cast<std::int32_t>(own.size()));
      if (static_cast<std::int64_t>(pages.size()) * batch.stride > kMaxEntries) {
        return invalid_argument("{}: the page table has more than {} entries", root.path("requests"), kMaxEntries);
      }
    }
  }
  batch.stride = std::max(batch.stride, 1);
  batch.page_table.assign(pages.size() * static_cast<std::size_t>(batch.stride), 0);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    std::copy(pages[i].begin(), pages[i].end(),
              batch.page_table.begin() + static_cast<std::ptrdiff_t>(i * static_cast<std::size_t>(batch.stride)));
  }
  return batch;
}

Result<PagedBatch> read_requests(const JsonReader& root, std::int32_t page_tokens) {
  const int given = root.has("requests") + root.has("tree") + root.has("lengths");
  if (given != 1) {
    return invalid_argument("{}: expected exactly one of \"requests\", \"tree\" and \"lengths\", found {}",
                            root.where(), given);
  }
  if (root.has("requests")) return named_requests(root, page_tokens);
  FOVEA_ASSIGN_OR_RETURN(const std::int32_t q, number(root, "q", 1, 0, kMaxTokens));
  FOVEA_ASSIGN_OR_RETURN(const std::int32_t seed, number(root, "seed", 1, 0, 1 << 30));
  if (root.has("tree")) {
    FOVEA_ASSIGN_OR_RETURN(const std::string text, root.string("tree"));
    FOVEA_ASSIGN_OR_RETURN(const PrefixTree tree, parse_prefix_tree(text));
    std::int64_t tokens = 0;
    for (const std::int32_t level : tree.tokens) tokens += level;
    if (tree.num_requests() > kMaxRequests || tokens > kMaxTokens ||
        (tokens / page_tokens + 1) * tree.num_requests() > kMaxEntries) {
      return invalid_argument("{}: {} requests of {} tokens are too many", root.path("tree"), tree.num_requests(),
                              tokens);
    }
    return tree_batch(tree, page_tokens, q, PageOrder::kSequential, static_cast<std::uint64_t>(seed));
  }
  FOVEA_ASSIGN_OR_RETURN(const JsonReader lengths, root.child("lengths"));
  FOVEA_RETURN_IF_ERROR(lengths.only({"kind", "count", "average"}));
  FOVEA_ASSIGN_OR_RETURN(const std::string kind, lengths.string("kind"));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t count, lengths.integer("count", 1, kMaxRequests));
  FOVEA_ASSIGN_OR_RETURN(const std::int64_t average, lengths.integer("average", 1, kMaxTokens));
  FOVEA_ASSIGN_OR_RETURN(std::vector<std::int32_t> kv_lens,
                         named_lengths(kind, static_cast<std::int32_t>(count), static_cast<std::int32_t>(average),
                                       static_cast<std::uint64_t>(seed)));
  const std::int64_t longest = *std::max_element(kv_lens.begin(), kv_lens.end());
  if ((longest / page_tokens + 1) * count > kMaxEntries) {
    return invalid_argument("{}: the page table has more than {} entries", lengths.where(), kMaxEntries);
  }
  return flat_batch(constant_lengths(static_cast<std::int32_t>(count), q), std::move(kv_lens), page_tokens);
}

Status read_mask(const JsonReader& root, PagedBatch& batch) {
  FOVEA_ASSIGN_OR_RETURN(const std::string mask, root.string_or("mask", root.has("window") ? "window" : "causal"));
  if (mask == "none") {
    batch.mask = abi::MaskKind::kNone;
  } else if (mask == "causal") {
    batch.mask = abi::MaskKind::kCausal;
  } else if (mask == "window") {
    FOVEA_ASSIGN_OR_RETURN(const std::int64_t window, root.integer("window", 0, kMaxTokens));
    set_window(batch, static_cast<std::int32_t>(window));
  } else {
    return invalid_argument("{}: unknown mask {}, expected none, causal or window", root.path("mask"), quote(mask));
  }
  return ok_status();
}

}  // namespace

Result<DescribedBatch> parse_batch(std::string_view text, std::string_view where) {
  FOVEA_ASSIGN_OR_RETURN(const Json json, parse_json(text, where));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader root, JsonReader::create(json, shorten(where)));
  FOVEA_RETURN_IF_ERROR(root.only({"title", "query_heads", "kv_heads", "head_dim", "kv_bits", "page", "workers",
                                   "tile_rows", "block_tokens", "share", "batch_invariant", "invariant_chunk", "mask",
                                   "window", "seed", "requests", "tree", "lengths", "q"}));
  DescribedBatch out;
  PlannerOptions& o = out.options;
  FOVEA_ASSIGN_OR_RETURN(out.title, root.string_or("title", ""));
  FOVEA_ASSIGN_OR_RETURN(o.num_qo_heads, number(root, "query_heads", o.num_qo_heads, 1, 65536));
  FOVEA_ASSIGN_OR_RETURN(o.num_kv_heads, number(root, "kv_heads", o.num_kv_heads, 1, 256));
  FOVEA_ASSIGN_OR_RETURN(o.head_dim, number(root, "head_dim", o.head_dim, 1, 4096));
  FOVEA_ASSIGN_OR_RETURN(o.kv_element_bits, number(root, "kv_bits", o.kv_element_bits, 1, 64));
  FOVEA_ASSIGN_OR_RETURN(o.page_tokens, number(root, "page", o.page_tokens, 1, 65536));
  FOVEA_ASSIGN_OR_RETURN(o.num_workers, number(root, "workers", 8, 1, 65536));
  FOVEA_ASSIGN_OR_RETURN(o.tile_rows, number(root, "tile_rows", o.tile_rows, 1, 65536));
  FOVEA_ASSIGN_OR_RETURN(o.block_tokens, number(root, "block_tokens", o.block_tokens, 1, 65536));
  FOVEA_ASSIGN_OR_RETURN(o.share_prefixes, root.boolean_or("share", true));
  FOVEA_ASSIGN_OR_RETURN(o.batch_invariant, root.boolean_or("batch_invariant", false));
  FOVEA_ASSIGN_OR_RETURN(o.invariant_chunk, number(root, "invariant_chunk", o.invariant_chunk, 1, 1 << 24));
  FOVEA_ASSIGN_OR_RETURN(out.batch, read_requests(root, o.page_tokens));
  FOVEA_RETURN_IF_ERROR(read_mask(root, out.batch));
  if (std::int64_t{out.batch.num_rows()} > (std::int64_t{1} << 24)) {
    return invalid_argument("{}: more than 2^24 query tokens", root.where());
  }
  o.limits = out.batch.limits();
  return out;
}

}  // namespace fovea
