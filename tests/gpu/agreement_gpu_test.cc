// Attention on a GPU: every kernel against the oracle over thousands of cases, the same bits again and again, graph
// replays of changing plans, plans made while work is in flight. Run by `make gpu-test`. FOVEA_GPU_CASES: cases of each
// configuration; FOVEA_GPU_CONFIGURATIONS: only those whose name holds it ("few ").
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "base/hash.h"
#include "base/status.h"
#include "tests/gpu/agreement.h"

namespace fovea::gpu_test {
namespace {

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto place = Place::open("cuda:0");
    if (!place.ok()) GTEST_SKIP() << place.status().to_string();
    place_ = std::move(*place);
  }
  std::unique_ptr<Place> place_;
};

// A decode batch over one pool that lives as long as the test: random values everywhere, so that any page list is good.
class Workload {
 public:
  static constexpr int kRequests = 48, kPages = 4096, kPage = 16, kHeads = 32, kKvHeads = 8, kDim = 128,
                       kMaxTokens = 3000;

  explicit Workload(Place& place, bool device_growth = true) : place_(place) {
    std::mt19937_64 random(7);
    const auto halves = [&](std::size_t count) {
      std::vector<std::uint16_t> values(count);  // bf16 of either sign, from 0.25 up to 1
      for (auto& x : values) x = static_cast<std::uint16_t>((random() & 0x80ff) | 0x3e80);
      auto memory = upload(place_, values);
      EXPECT_TRUE(memory.ok()) << memory.status().to_string();
      return memory.ok() ? *memory : nullptr;
    };
    const std::size_t pool = std::size_t{kPages} * kPage * kKvHeads * kDim;
    k_ = halves(pool);
    v_ = halves(pool);
    q_ = halves(out_elements());
    AttentionOptions o;
    o.device = place.name();
    o.num_qo_heads = kHeads;
    o.num_kv_heads = kKvHeads;
    o.head_dim = kDim;
    o.page_tokens = kPage;
    o.max_requests = kRequests;
    o.max_rows = kRequests;
    o.max_pages_per_request = kMaxTokens / kPage + 1;
    o.device_growth = device_growth;
    auto made = Attention::create(o);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    if (made.ok()) attention_ = std::make_unique<Attention>(std::move(*made));
  }

  static std::size_t out_elements() { return std::size_t{kRequests} * kHeads * kDim; }
  bool ok() const { return attention_ != nullptr && k_ != nullptr && v_ != nullptr && q_ != nullptr; }

  // Lengths and pages of plan number `seed`; some requests share their first pages, some are empty.
  Status plan(std::uint64_t seed, Stream stream) {
    std::mt19937_64 random(seed);
    const int requests = kRequests - static_cast<int>(random() % 8);
    const int most = 1 + static_cast<int>(random() % kMaxTokens);
    stride_ = kMaxTokens / kPage + 1;
    pages_.assign(static_cast<std::size_t>(requests) * static_cast<std::size_t>(stride_), 0);
    kv_lens_.clear();
    for (int r = 0; r < requests; ++r) {
      kv_lens_.push_back(random() % 9 == 0 ? 0 : 1 + static_cast<int>(random() % static_cast<std::uint64_t>(most)));
      for (int p = 0; p < stride_; ++p) {
        auto& page = pages_[static_cast<std::size_t>(r * stride_ + p)];
        page = static_cast<std::int32_t>(random() % kPages);
        if (r % 3 == 1 && p < 20) page = pages_[static_cast<std::size_t>((r - 1) * stride_ + p)];
      }
    }
    q_lens_.assign(kv_lens_.size(), 1);
    for (std::size_t r = 0; r < q_lens_.size(); ++r) q_lens_[r] = kv_lens_[r] > 0 ? 1 : 0;
    return plan_again(stream);
  }

  // The lengths and pages as they are.
  Status plan_again(Stream stream) {
    RequestBatch batch;
    batch.num_requests = static_cast<std::int32_t>(q_lens_.size());
    batch.q_lens = q_lens_.data();
    batch.kv_lens = kv_lens_.data();
    batch.page_indices = pages_.data();
    batch.num_page_indices = static_cast<std::int64_t>(pages_.size());
    batch.page_stride = stride_;
    if (lists_ != nullptr) {
      batch.page_indices = static_cast<const std::int32_t*>(lists_.get());
      batch.page_indices_device = DeviceKind::kCuda;
    }
    return attention_->plan(batch, stream);
  }

  // plan(), with page lists on the device: growing is a launch then.
  Status plan_on_device(std::uint64_t seed, Stream stream) {
    lists_.reset();
    FOVEA_RETURN_IF_ERROR(plan(seed, stream));
    FOVEA_ASSIGN_OR_RETURN(lists_, upload(place_, pages_));
    return plan_again(stream);
  }

  // Requests with query tokens grow by up to `most` tokens, each by another number.
  Status grow(std::uint64_t seed, int most, Stream stream) {
    std::mt19937_64 random(seed);
    for (std::size_t r = 0; r < kv_lens_.size(); ++r) {
      const int more = static_cast<int>(random() % static_cast<std::uint64_t>(most + 1));
      if (q_lens_[r] > 0) kv_lens_[r] = std::min(kv_lens_[r] + more, stride_ * kPage);
    }
    return attention_->grow(kv_lens_, stream);
  }
  std::vector<std::int32_t>& kv_lens() { return kv_lens_; }

  Status run(void* out, Stream stream) {
    PagedKv kv;
    kv.k = place_.view(k_.get(), DType::kBF16, kPages, kPage, kKvHeads, kDim);
    kv.v = place_.view(v_.get(), DType::kBF16, kPages, kPage, kKvHeads, kDim);
    return attention_->run(rows(q_.get()), kv, rows(out), {}, stream);
  }

  TensorView rows(void* data) const { return place_.view(data, DType::kBF16, kRequests, kHeads, kDim); }

  std::shared_ptr<void> output() {
    auto memory = upload(place_, std::vector<std::uint16_t>(out_elements(), 0));
    EXPECT_TRUE(memory.ok()) << memory.status().to_string();
    return memory.ok() ? *memory : nullptr;
  }
  std::vector<std::uint16_t> read(const void* out) {
    std::vector<std::uint16_t> values(out_elements());
    const Status copied = place_.download(values.data(), out, values.size() * 2);
    EXPECT_TRUE(copied.ok()) << copied.to_string();
    return values;
  }
  void clear(void* out) {
    const std::vector<std::uint16_t> zeros(out_elements(), 0);
    EXPECT_TRUE(place_.upload(out, zeros.data(), zeros.size() * 2).ok());
  }

 private:
  Place& place_;
  std::shared_ptr<void> k_, v_, q_, lists_;
  std::unique_ptr<Attention> attention_;
  std::vector<std::int32_t> q_lens_, kv_lens_, pages_;
  int stride_ = 0;
};

TEST_F(GpuTest, EveryKernelAgreesWithTheOracle) {
  const char* wanted = std::getenv("FOVEA_GPU_CASES");
  const char* filter = std::getenv("FOVEA_GPU_CONFIGURATIONS");
  const AgreementCounts counts =
      run_agreement(*place_, wanted != nullptr ? std::atoi(wanted) : 24, 20240, filter != nullptr ? filter : "");
  std::printf("%d cases of %d requests, %d configurations (%d not on this device), %d configurations failed\n",
              counts.cases, counts.requests, counts.configurations, counts.unsupported,
              static_cast<int>(counts.failures.size()));
  for (const std::string& failure : counts.failures) ADD_FAILURE() << failure;
  EXPECT_EQ(counts.unsupported, 0);
}

TEST_F(GpuTest, HiddenValuesNeverLeak) {
  for (const std::string& leak : hidden_values_that_leak(*place_)) ADD_FAILURE() << leak;
}

TEST_F(GpuTest, RowsThatSeeNaNAreNaN) {
  const char* filter = std::getenv("FOVEA_GPU_CONFIGURATIONS");
  const AgreementCounts counts = run_agreement(*place_, 6, 4711, filter != nullptr ? filter : "", true);
  for (const std::string& failure : counts.failures) ADD_FAILURE() << failure;
}

// A second object keeps the device busy on another stream, so that workers start and end at other times in every run.
TEST_F(GpuTest, TheSameInputGivesTheSameBitsUnderLoad) {
  Workload work(*place_), load(*place_);
  ASSERT_TRUE(work.ok() && load.ok());
  const auto out = work.output(), busy = load.output();
  ASSERT_TRUE(load.plan(99, place_->other_stream()).ok());
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 100; ++i) {
    for (int j = 0; j < i % 4; ++j) ASSERT_TRUE(load.run(busy.get(), place_->other_stream()).ok());
    work.clear(out.get());
    if (i % 10 == 0) {
      ASSERT_TRUE(work.plan(5, place_->stream()).ok());
    }
    ASSERT_TRUE(work.run(out.get(), place_->stream()).ok());
    const std::vector<std::uint16_t> values = work.read(out.get());
    seen.insert(hash_bytes(values.data(), values.size() * 2));
    EXPECT_EQ(seen.size(), 1u) << "run " << i;
  }
}

TEST_F(GpuTest, ReplaysOfOneGraphFollowAThousandPlans) {
  Workload work(*place_);
  ASSERT_TRUE(work.ok());
  const auto replayed = work.output(), eager = work.output();
  ASSERT_TRUE(work.plan(0, place_->stream()).ok());
  ASSERT_TRUE(work.run(replayed.get(), place_->stream()).ok());
  ASSERT_TRUE(place_->wait().ok());
  const auto graph = place_->capture([&] { return work.run(replayed.get(), place_->stream()); });
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  std::set<std::uint64_t> outputs;
  int different = 0;
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    work.clear(replayed.get());
    work.clear(eager.get());
    ASSERT_TRUE(work.plan(i, place_->stream()).ok());
    ASSERT_TRUE(place_->replay(graph->get()).ok());
    ASSERT_TRUE(work.run(eager.get(), place_->stream()).ok());
    const auto a = work.read(replayed.get()), b = work.read(eager.get());
    different += a != b ? 1 : 0;
    outputs.insert(hash_bytes(a.data(), a.size() * 2));
  }
  EXPECT_EQ(different, 0);
  EXPECT_EQ(outputs.size(), 1000u);
}

// Plans and runs enqueued one after another with no wait between give what they give one at a time.
TEST_F(GpuTest, PlansMadeWhileWorkIsInFlightDoNotRace) {
  Workload work(*place_);
  ASSERT_TRUE(work.ok());
  constexpr int kPlans = 64;
  std::vector<std::shared_ptr<void>> outs;
  for (int i = 0; i < kPlans; ++i) outs.push_back(work.output());
  for (int i = 0; i < kPlans; ++i) {
    ASSERT_TRUE(work.plan(static_cast<std::uint64_t>(i), place_->stream()).ok());
    ASSERT_TRUE(work.run(outs[static_cast<std::size_t>(i)].get(), place_->stream()).ok());
  }
  const auto alone = work.output();
  for (int i = 0; i < kPlans; ++i) {
    ASSERT_TRUE(place_->wait().ok());
    work.clear(alone.get());
    ASSERT_TRUE(work.plan(static_cast<std::uint64_t>(i), place_->stream()).ok());
    ASSERT_TRUE(work.run(alone.get(), place_->stream()).ok());
    EXPECT_EQ(work.read(outs[static_cast<std::size_t>(i)].get()), work.read(alone.get())) << "plan " << i;
  }
}

// The device cuts each plan again while runs of the plans before are on their way, more of them than lengths have room
// to wait on the host.
TEST_F(GpuTest, PlansGrownOnTheDeviceAreThoseGrownOnTheHost) {
  Workload work(*place_), host(*place_, false);
  ASSERT_TRUE(work.ok() && host.ok());
  for (const std::uint64_t seed : {1, 2, 3}) {
    ASSERT_TRUE(work.plan_on_device(seed, place_->stream()).ok());
    constexpr int kSteps = 100;
    std::vector<std::shared_ptr<void>> outs;
    std::vector<std::vector<std::int32_t>> lengths;
    for (int i = 0; i < kSteps; ++i) outs.push_back(work.output());
    for (int i = 0; i < kSteps; ++i) {
      ASSERT_TRUE(work.grow(seed * 1000 + static_cast<std::uint64_t>(i), i % 10 == 0 ? 90 : 1, place_->stream()).ok());
      ASSERT_TRUE(work.run(outs[static_cast<std::size_t>(i)].get(), place_->stream()).ok());
      lengths.push_back(work.kv_lens());
    }
    const auto alone = host.output();
    ASSERT_TRUE(host.plan_on_device(seed, place_->stream()).ok());
    for (int i = 0; i < kSteps; ++i) {
      host.kv_lens() = lengths[static_cast<std::size_t>(i)];
      ASSERT_TRUE(host.grow(0, 0, place_->stream()).ok());
      host.clear(alone.get());
      ASSERT_TRUE(host.run(alone.get(), place_->stream()).ok());
      ASSERT_EQ(work.read(outs[static_cast<std::size_t>(i)].get()), host.read(alone.get())) << "step " << i;
    }
  }
}

}  // namespace
}  // namespace fovea::gpu_test
