#include "workload/paged_batch.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/quote.h"
#include "base/random.h"
#include "base/status.h"

namespace fovea {
namespace {

std::int32_t ceil_div(std::int32_t a, std::int32_t b) { return (a + b - 1) / b; }

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

template <typename T>
void shuffle(std::vector<T>& values, PhiloxRng& rng) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[rng.next_below(static_cast<std::uint32_t>(i))]);
  }
}

// Page lists as they are built, request by request; becomes the table of a batch.
struct PageLists {
  std::vector<std::vector<std::int32_t>> pages;
  std::int32_t next_page = 0;

  std::vector<std::int32_t> take(std::int32_t count) {
    std::vector<std::int32_t> taken(at(count));
    std::iota(taken.begin(), taken.end(), next_page);
    next_page += count;
    return taken;
  }

  void finish(PagedBatch& batch, PageOrder order, std::uint64_t seed, std::int32_t growth) {
    for (std::int32_t i = 0; i < batch.num_requests(); ++i) {
      const std::int32_t wanted = ceil_div(batch.kv_lens[at(i)] + growth, batch.page_tokens);
      for (const std::int32_t page : take(std::max(0, wanted - static_cast<std::int32_t>(pages[at(i)].size())))) {
        pages[at(i)].push_back(page);
      }
      batch.stride = std::max(batch.stride, static_cast<std::int32_t>(pages[at(i)].size()));
    }
    batch.stride = std::max(batch.stride, 1);
    batch.num_pages = std::max(next_page, 1);
    std::vector<std::int32_t> place(at(batch.num_pages));
    std::iota(place.begin(), place.end(), 0);
    PhiloxRng rng(seed, 0x9a6e);
    if (order == PageOrder::kRandom) shuffle(place, rng);
    batch.page_table.assign(at(batch.num_requests()) * at(batch.stride), 0);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      for (std::size_t j = 0; j < pages[i].size(); ++j) {
        batch.page_table[i * at(batch.stride) + j] = place[at(pages[i][j])];
      }
    }
  }
};

std::vector<std::int32_t> parse_numbers(std::string_view text) {
  std::vector<std::int32_t> numbers;
  while (!text.empty()) {
    std::int32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value < 1 || value > (1 << 24)) return {};
    numbers.push_back(value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty()) break;
    if (text.front() != ',' || text.size() == 1) return {};
    text.remove_prefix(1);
  }
  return numbers;
}

}  // namespace

std::int32_t PagedBatch::num_rows() const { return std::accumulate(q_lens.begin(), q_lens.end(), 0); }

std::int64_t PagedBatch::num_tokens() const { return std::accumulate(kv_lens.begin(), kv_lens.end(), std::int64_t{0}); }

AttentionBatch PagedBatch::view() const {
  AttentionBatch batch;
  batch.num_requests = num_requests();
  batch.q_lens = q_lens.data();
  batch.kv_lens = kv_lens.data();
  batch.page_table = page_table.data();
  batch.page_table_stride = stride;
  batch.mask = mask;
  batch.window_left = window_left;
  if (mask == abi::MaskKind::kBits) {
    batch.mask_offsets = mask_offsets.data();
    batch.mask_strides = mask_strides.data();
    batch.mask_tails = mask_tails.empty() ? nullptr : mask_tails.data();
    batch.mask_bits = mask_bits.data();
  }
  return batch;
}

PlanLimits PagedBatch::limits(std::int32_t growth) const {
  PlanLimits limits;
  limits.max_requests = std::max(num_requests(), 1);
  limits.max_rows = std::max(num_rows(), 1);
  limits.max_pages_per_request = 1;
  for (const std::int32_t length : kv_lens) {
    limits.max_pages_per_request = std::max(limits.max_pages_per_request, ceil_div(length + growth, page_tokens));
  }
  return limits;
}

PagedBatch flat_batch(std::vector<std::int32_t> q_lens, std::vector<std::int32_t> kv_lens, std::int32_t page_tokens,
                      PageOrder order, std::uint64_t seed, std::int32_t growth) {
  PagedBatch batch;
  batch.page_tokens = page_tokens;
  batch.q_lens = std::move(q_lens);
  batch.kv_lens = std::move(kv_lens);
  PageLists lists;
  lists.pages.resize(batch.q_lens.size());
  lists.finish(batch, order, seed, growth);
  return batch;
}

PagedBatch forest_batch(std::vector<std::int32_t> q_lens, std::vector<std::int32_t> kv_lens,
                        const std::vector<SharedRun>& runs, const std::vector<std::int32_t>& run_of,
                        std::int32_t page_tokens, PageOrder order, std::uint64_t seed) {
  PagedBatch batch;
  batch.page_tokens = page_tokens;
  batch.q_lens = std::move(q_lens);
  batch.kv_lens = std::move(kv_lens);
  PageLists lists;
  std::vector<std::vector<std::int32_t>> leading;  // by run, those of its parents included
  for (const SharedRun& run : runs) {
    std::vector<std::int32_t> pages = run.parent >= 0 ? leading[at(run.parent)] : std::vector<std::int32_t>();
    for (const std::int32_t page : lists.take(run.tokens / page_tokens)) pages.push_back(page);
    leading.push_back(std::move(pages));
  }
  lists.pages.resize(batch.q_lens.size());
  for (std::size_t i = 0; i < run_of.size(); ++i) {
    if (run_of[i] < 0) continue;
    lists.pages[i] = leading[at(run_of[i])];
    lists.pages[i].resize(std::min(lists.pages[i].size(), at(ceil_div(batch.kv_lens[i], page_tokens))));
  }
  lists.finish(batch, order, seed, 0);
  return batch;
}

Result<PrefixTree> parse_prefix_tree(std::string_view text) {
  const std::size_t bar = text.find('_');
  PrefixTree tree;
  if (bar != std::string_view::npos) {
    tree.nodes = parse_numbers(text.substr(0, bar));
    tree.tokens = parse_numbers(text.substr(bar + 1));
  }
  if (tree.nodes.empty() || tree.nodes.size() != tree.tokens.size()) {
    return invalid_argument(
        "prefix tree {}: expected nodes and tokens of each level as \"n1,n2,..,B_l1,l2,..,lk\", for example "
        "\"1,4,256_1024,256,32\"",
        quote(text));
  }
  for (const std::int32_t n : tree.nodes) {
    if (tree.num_requests() % n != 0) {
      return invalid_argument("prefix tree {}: {} requests do not divide evenly among {} nodes", quote(text),
                              tree.num_requests(), n);
    }
  }
  return tree;
}

const std::vector<std::string_view>& pat_trees() {
  static const std::vector<std::string_view> trees = {
      "1,10_4096,416",
      "1,256_256,32",
      "1,1024_2048,32",
      "1,2,64_1024,256,256",
      "1,4,256_32,256,32",
      "1,8,512_32,512,256",
      "1,8,512_32,2048,256",
      "1,8,512_512,512,256",
      "1,4,8,256_32,256,256,32",
      "1,4,16,512_1024,256,128,32",
      "1,4,16,64,256,1024_256,32,256,64,32,256",
      "1,16,32,64,128,1024_256,128,64,32,32,32",
      "1,16,32,64,256,1024_256,128,64,32,32,32",
      "1,8,16,32,64,128,1024_256,128,64,32,32,32,32",
      "1,8,16,32,64,256,1024_256,128,64,32,32,32,32",
      "2,8,16,256_256,256,32,32",
      "4,16,256,512_512,32,128,32",
      "8,16,32,256_512,512,256,32",
      "256_1024",
      "256_4096",
  };
  return trees;
}

PagedBatch tree_batch(const PrefixTree& tree, std::int32_t page_tokens, std::int32_t q_len, PageOrder order,
                      std::uint64_t seed, std::int32_t growth) {
  PagedBatch batch;
  batch.page_tokens = page_tokens;
  const std::int32_t n = tree.num_requests();
  const std::int32_t length = std::accumulate(tree.tokens.begin(), tree.tokens.end(), 0);
  batch.q_lens.assign(at(n), q_len);
  batch.kv_lens.assign(at(n), length);
  PageLists lists;
  lists.pages.resize(at(n));
  std::vector<std::int32_t> order_of(at(n));
  std::iota(order_of.begin(), order_of.end(), 0);
  PhiloxRng rng(seed, 0x7ee);
  shuffle(order_of, rng);
  std::int32_t depth = 0;
  for (std::size_t level = 0; level < tree.nodes.size(); ++level) {
    depth += tree.tokens[level];
    const bool last = level + 1 == tree.nodes.size();
    const std::int32_t end = last ? ceil_div(depth, page_tokens) : depth / page_tokens;
    const std::int32_t size = n / tree.nodes[level];
    for (std::int32_t node = 0; node < tree.nodes[level]; ++node) {
      const std::int32_t begin = static_cast<std::int32_t>(lists.pages[at(order_of[at(node * size)])].size());
      const std::vector<std::int32_t> pages = lists.take(std::max(0, end - begin));
      for (std::int32_t r = node * size; r < (node + 1) * size; ++r) {
        std::vector<std::int32_t>& list = lists.pages[at(order_of[at(r)])];
        list.insert(list.end(), pages.begin(), pages.end());
      }
    }
  }
  lists.finish(batch, order, seed, growth);
  return batch;
}

PagedBatch random_forest(const RandomForest& shape, std::uint64_t seed) {
  PhiloxRng rng(seed, 0xf02e57);
  const auto below = [&](std::int32_t bound) {
    return bound <= 0 ? 0 : static_cast<std::int32_t>(rng.next_below(static_cast<std::uint32_t>(bound)));
  };
  PagedBatch batch;
  batch.page_tokens = shape.page_tokens;
  const std::int32_t n = 1 + below(shape.max_requests);
  PageLists lists;
  lists.pages.resize(at(n));
  for (std::int32_t i = 0; i < n; ++i) {
    std::vector<std::int32_t>& pages = lists.pages[at(i)];
    std::int32_t length = below(shape.max_tokens + 1);
    // Most requests continue the pages of an earlier one: from its start up to some page, or all of it.
    if (i > 0 && below(4) != 0) {
      const std::int32_t other = below(i);
      const std::vector<std::int32_t>& source = lists.pages[at(other)];
      std::int32_t shared = below(3) == 0 ? static_cast<std::int32_t>(source.size())
                                          : below(static_cast<std::int32_t>(source.size()) + 1);
      pages.assign(source.begin(), source.begin() + shared);
      if (below(6) == 0) length = batch.kv_lens[at(other)];
      if (below(3) == 0) length = std::min(shape.max_tokens, shared * shape.page_tokens + below(2 * shape.page_tokens));
    }
    pages.resize(std::min(pages.size(), at(ceil_div(length, shape.page_tokens))));
    for (const std::int32_t page :
         lists.take(ceil_div(length, shape.page_tokens) - static_cast<std::int32_t>(pages.size()))) {
      pages.push_back(page);
    }
    batch.kv_lens.push_back(length);
    const std::int32_t kind = below(8);
    std::int32_t q_len = kind == 0 ? 0 : kind < 5 ? 1 : 1 + below(shape.max_q_len);
    if (below(10) != 0) q_len = std::min(q_len, length);  // now and then more query tokens than tokens
    batch.q_lens.push_back(q_len);
  }
  lists.finish(batch, below(2) == 0 ? PageOrder::kSequential : PageOrder::kRandom, seed, shape.growth);
  return batch;
}

void set_window(PagedBatch& batch, std::int32_t window_left) {
  batch.mask = abi::MaskKind::kWindow;
  batch.window_left = window_left;
}

void set_random_bits(PagedBatch& batch, std::int32_t tail, std::uint64_t seed) {
  PhiloxRng rng(seed, 0xb175);
  batch.mask = abi::MaskKind::kBits;
  batch.mask_offsets.clear();
  batch.mask_strides.clear();
  batch.mask_tails.clear();
  std::uint64_t bits = 0;
  for (std::int32_t i = 0; i < batch.num_requests(); ++i) {
    const std::int32_t length = batch.kv_lens[at(i)];
    const std::int32_t own_tail = tail == 0 ? length : std::min(tail, length);
    if (tail != 0) batch.mask_tails.push_back(own_tail);
    const std::uint32_t stride = static_cast<std::uint32_t>(own_tail) + rng.next_below(9);
    batch.mask_offsets.push_back(bits);
    batch.mask_strides.push_back(stride);
    bits += std::uint64_t{stride} * static_cast<std::uint64_t>(batch.q_lens[at(i)]) + rng.next_below(5);
  }
  batch.mask_bits.resize(bits / 8 + 1);
  for (std::uint8_t& byte : batch.mask_bits) byte = static_cast<std::uint8_t>(rng.next_u32());
}

}  // namespace fovea
