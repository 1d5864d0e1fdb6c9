// Generated attention cases for every kernel that a device can be asked for, run through the public API and judged by
// the fp64 oracle. Used by the tests of this folder: on the CPU a few of each, on a GPU thousands.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fovea/attention.h"
#include "testing/attention_case.h"
#include "testing/attention_oracle.h"
#include "tests/gpu/contiguous.h"
#include "tests/gpu/place.h"

namespace fovea::gpu_test {

// How cases go in: over pages, or without them by plan_ragged() or plan_blocks().
enum class Entry : std::uint8_t { kPages, kRagged, kBlocks };

// What is fixed while cases change: one Attention object, and the layout of the cache.
struct Configuration {
  std::string name;
  AttentionOptions options;  // device and tensors are filled in by AgreementRunner
  bool heads_first = false;
  int pad_elements = 0;
  // Cases go through plan_selected(): most requests read a list a KV head, their pages in another order each, of which
  // the plan knows but how many there are. A number of pages then.
  int budget_pages = 0;
  bool drafts = false;  // most requests have several query tokens and a mask by position
  Entry entry = Entry::kPages;
  testing::OracleVariant variant;
};

// Head dims, group sizes, page sizes, types, layouts and variants, spread so that every value meets every kernel.
std::vector<Configuration> configurations();

// Lengths of 0, 1, page - 1, page, page + 1 and more, 0 to 8 query tokens (now and then hundreds), shared prefixes, all
// masks, NaN and infinity where no token lives.
testing::CaseSpec random_spec(const Configuration& config, std::uint64_t seed);
// The case of a spec that goes in by the configuration's entry.
testing::AttentionCase make_case(const Configuration& config, const testing::CaseSpec& spec);

// The request batch of a case with whole masks; owns what it names and borrows the case.
struct CaseBatch {
  explicit CaseBatch(const testing::AttentionCase& c);
  RequestBatch view;
  std::vector<std::int64_t> mask_offsets;
  std::vector<std::uint8_t> mask;
};

// A case as a step over chosen pages: requests that fill the budget's last page read lists of their own under each KV
// head, their pages in another order each, because order does not matter before the last one.
struct SelectedLists {
  std::vector<std::int32_t> entries;
  std::vector<std::int64_t> begins, selected;  // by request, into entries; see SelectedBatch
  std::vector<std::int32_t> planned;           // lengths that the plan knows

  // grows: plans know some lengths as they were a few tokens before.
  SelectedLists(const testing::AttentionCase& c, int budget_pages, bool grows);
  // Without page_indices and list_tokens, whose memory is the caller's; borrows this.
  SelectedBatch batch(const testing::AttentionCase& c, int budget_pages) const;
};

// An Attention of a configuration on a place. One call at a time.
class AgreementRunner {
 public:
  static Result<AgreementRunner> create(Place& place, const Configuration& config);

  struct Output {
    std::vector<std::byte> bytes;  // of the output, as stored
    std::vector<double> out, lse;
  };
  Result<Output> run(const testing::AttentionCase& c);

 private:
  AgreementRunner(Place& place, Attention attention, const Configuration& config)
      : place_(&place), attention_(std::move(attention)), budget_pages_(config.budget_pages), entry_(config.entry) {}
  Status plan(const testing::AttentionCase& c);
  Status plan_selected(const testing::AttentionCase& c);
  Place* place_;
  Attention attention_;
  int budget_pages_;
  Entry entry_;
  // What the plan borrows.
  std::unique_ptr<CaseBatch> batch_;
  std::unique_ptr<SelectedLists> selected_;
  std::unique_ptr<RaggedLists> ragged_;
  std::unique_ptr<BlockLists> blocks_;
  std::shared_ptr<void> lists_, list_tokens_;
  std::vector<std::shared_ptr<void>> kept_;  // tensors of the variant
};

// Output and log-sum-exps against the project's bar, that is against what arithmetic in fp32 over operands of the
// query's type costs; empty when it holds. Log-sum-exps, a few of each case, have an absolute bound.
std::string judge(const testing::AttentionCase& c, const Configuration& config, const AgreementRunner::Output& actual);

struct AgreementCounts {
  int configurations = 0;
  int unsupported = 0;  // configurations that the device has no kernel for, as create() says
  int cases = 0;
  int requests = 0;
  std::vector<std::string> failures;  // the first of each configuration
};

// `cases` random cases of each configuration, on all threads that the machine has; the device is used by one at a time.
// `filter`: only configurations whose name holds it. nan: with plant_nan(), so that rows which see some have to be NaN
// and others must not.
AgreementCounts run_agreement(Place& place, int cases, std::uint64_t seed, const std::string& filter = "",
                              bool nan = false);

// NaN in some queries of a case, whole or of one element; of odd seeds in the keys of a token too.
void plant_nan(testing::AttentionCase& c, std::uint64_t seed);

// Values that are not finite, in a token that one query token sees and others of the same tile do not: these must keep
// their bits. In every configuration; what went wrong in each.
std::vector<std::string> hidden_values_that_leak(Place& place);

// K and V of a case at other addresses. Scales: of pools that have one a token and head, else null.
PagedKv paged_kv(const Place& place, const testing::AttentionCase& c, const void* k, const void* v,
                 const void* k_scales = nullptr, const void* v_scales = nullptr);

}  // namespace fovea::gpu_test
