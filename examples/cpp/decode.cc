// Decode with the C++ API, here on the CPU: plan a batch, run it, grow it by a token, run it again.
// On a CUDA device the same calls take device memory and a stream.
#include <fovea/attention.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kHeads = 8, kKvHeads = 2, kDim = 64, kPage = 16, kPagesEach = 8, kRequests = 3;

int failed(const fovea::Status& status) {
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}

}  // namespace

int main() {
  // A paged cache [pages, page_tokens, kv_heads, head_dim] for keys and one for values, filled with something.
  std::vector<float> k(kRequests * kPagesEach * kPage * kKvHeads * kDim), v(k.size());
  for (std::size_t i = 0; i < k.size(); ++i) {
    k[i] = std::sin(0.1f * static_cast<float>(i % 1000));
    v[i] = static_cast<float>(i / (kPage * kKvHeads * kDim));  // the page's number
  }
  std::vector<float> q(kRequests * kHeads * kDim, 0.5f), out(q.size());
  fovea::PagedKv kv;
  kv.k = fovea::cpu_tensor(k.data(), fovea::DType::kF32, kRequests * kPagesEach, kPage, kKvHeads, kDim);
  kv.v = fovea::cpu_tensor(v.data(), fovea::DType::kF32, kRequests * kPagesEach, kPage, kKvHeads, kDim);
  const auto q_view = fovea::cpu_tensor(q.data(), fovea::DType::kF32, kRequests, kHeads, kDim);
  const auto out_view = fovea::cpu_tensor(out.data(), fovea::DType::kF32, kRequests, kHeads, kDim);

  fovea::AttentionOptions options;
  options.num_qo_heads = kHeads;
  options.num_kv_heads = kKvHeads;
  options.head_dim = kDim;
  options.q_dtype = options.kv_dtype = fovea::DType::kF32;
  options.page_tokens = kPage;
  options.max_requests = kRequests;
  options.max_rows = kRequests;
  options.max_pages_per_request = kPagesEach;
  fovea::Result<fovea::Attention> attention = fovea::Attention::create(options);
  if (!attention.ok()) return failed(attention.status());

  // One query token a request; the pages of request i in any order.
  std::vector<std::int32_t> q_lens(kRequests, 1), kv_lens = {40, 100, 7}, table(kRequests * kPagesEach);
  for (int i = 0; i < kRequests * kPagesEach; ++i) table[i] = (i * 7) % (kRequests * kPagesEach);
  fovea::RequestBatch batch;
  batch.num_requests = kRequests;
  batch.q_lens = q_lens.data();
  batch.kv_lens = kv_lens.data();
  batch.page_indices = table.data();
  batch.page_stride = kPagesEach;
  if (const fovea::Status s = attention->plan(batch); !s.ok()) return failed(s);
  for (int step = 0; step < 3; ++step) {
    if (const fovea::Status s = attention->run(q_view, kv, out_view); !s.ok()) return failed(s);
    std::printf("lengths %d %d %d: first outputs %.3f %.3f %.3f\n", kv_lens[0], kv_lens[1], kv_lens[2], out[0],
                out[kHeads * kDim], out[2 * kHeads * kDim]);
    for (std::int32_t& length : kv_lens) ++length;
    if (const fovea::Status s = attention->grow(kv_lens); !s.ok()) return failed(s);
  }
  std::printf("%s", attention->explain().c_str());
  return 0;
}
