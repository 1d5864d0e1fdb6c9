// Decode over selected pages: a request of 2,000 tokens of which one stands out, and a budget of 256. Runs on the CPU;
// on a CUDA device tensors and arrays lie there, and everything else is the same. After `make install`:
//   cmake -B build -S . -DCMAKE_PREFIX_PATH=... with find_package(fovea REQUIRED), then link fovea::fovea
#include <fovea/attention.h>
#include <fovea/page_selector.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr int kHeads = 8, kKvHeads = 2, kDim = 64, kPage = fovea::kSelectPageTokens, kPages = 126, kTokens = 2000;
constexpr int kBudget = 256, kHidden = 777;  // the token that the query looks for

int failed(const fovea::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

fovea::TensorView ints(const std::vector<std::int32_t>& data, std::int64_t at, std::int64_t count) {
  return fovea::cpu_tensor(data.data() + at, fovea::DType::kI32, count);
}

}  // namespace

int main() {
  // Keys and queries are random, but for one key that points where all query heads do; values tell which token it is.
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> q(kHeads * kDim), k(kTokens * kKvHeads * kDim), v(k.size()), out(q.size());
  for (float& x : k) x = normal(random);
  for (int d = 0; d < kDim; ++d) {
    const float direction = normal(random);
    for (int h = 0; h < kHeads; ++h) q[h * kDim + d] = direction;
    for (int h = 0; h < kKvHeads; ++h) k[(kHidden * kKvHeads + h) * kDim + d] = 3.0f * direction;
  }
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / (kKvHeads * kDim));
  const auto rows = [](const auto& x, int count, int heads) {
    return fovea::cpu_tensor(x.data(), fovea::DType::kF32, count, heads, kDim);
  };

  // Once a model, for each layer.
  const auto codes = fovea::learn_key_codes(rows(k, kTokens, kKvHeads), rows(q, 1, kHeads));
  if (!codes.ok()) return failed(codes.status());

  fovea::PageSelectorOptions selecting;
  selecting.num_qo_heads = kHeads;
  selecting.num_kv_heads = kKvHeads;
  selecting.head_dim = kDim;
  selecting.q_dtype = fovea::DType::kF32;
  selecting.key_codes = *codes;
  selecting.budget_tokens = kBudget;
  selecting.num_pages = selecting.max_pages_per_request = kPages;
  selecting.max_requests = 1;
  auto selector = fovea::PageSelector::create(selecting);
  if (!selector.ok()) return failed(selector.status());
  fovea::AttentionOptions attending;
  attending.num_qo_heads = kHeads;
  attending.num_kv_heads = kKvHeads;
  attending.head_dim = kDim;
  attending.q_dtype = attending.kv_dtype = fovea::DType::kF32;
  attending.page_tokens = kPage;
  attending.max_requests = attending.max_rows = attending.max_selected = 1;
  attending.max_pages_per_request = kPages;
  auto attention = fovea::Attention::create(attending);
  if (!attention.ok()) return failed(attention.status());

  // One array: the page table, then a list for each KV head. Then where each token goes.
  std::vector<std::int32_t> entries(kPages + kKvHeads * kBudget / kPage), lens = {kTokens}, list_tokens(1),
                                                                          slots(kTokens);
  for (int page = 0; page < kPages; ++page) entries[page] = (page * 41) % kPages;  // in any order
  for (int t = 0; t < kTokens; ++t) slots[t] = entries[t / kPage] * kPage + t % kPage;
  fovea::SelectStep step;
  step.kv_lens = ints(lens, 0, 1);
  step.page_table = fovea::cpu_tensor(entries.data(), fovea::DType::kI32, 1, kPages);
  step.lists = fovea::cpu_tensor(entries.data() + kPages, fovea::DType::kI32, 1, kKvHeads, kBudget / kPage);
  step.list_tokens = ints(list_tokens, 0, 1);

  std::vector<float> k_pages(kPages * kPage * kKvHeads * kDim), v_pages(k_pages.size());
  fovea::PagedKv kv;
  kv.k = fovea::cpu_tensor(k_pages.data(), fovea::DType::kF32, kPages, kPage, kKvHeads, kDim);
  kv.v = fovea::cpu_tensor(v_pages.data(), fovea::DType::kF32, kPages, kPage, kKvHeads, kDim);
  fovea::AppendPlaces places;
  places.slots = ints(slots, 0, kTokens);
  const auto keys = rows(k, kTokens, kKvHeads), values = rows(v, kTokens, kKvHeads);
  for (const fovea::Status& s :
       {fovea::append_paged_kv(keys, values, places, kv), selector->append(0, keys, places, kv),
        selector->select(0, rows(q, 1, kHeads), step), selector->plan(*attention, lens, step),
        attention->run(rows(q, 1, kHeads), kv, rows(out, 1, kHeads))}) {
    if (!s.ok()) return failed(s);
  }
  std::printf("%d of %d tokens read under each KV head: the query found token %.1f, hidden was %d\n", list_tokens[0],
              kTokens, out[0], kHidden);
  return out[0] > kHidden - 0.5f && out[0] < kHidden + 0.5f ? 0 : 1;
}
