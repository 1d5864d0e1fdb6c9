// Cases of page selection, wherever its kernels run: random pools, queries and budgets, several steps with and without
// reuse; lists must be those of core/select for scores computed here one by one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory_resource>
#include <random>
#include <vector>

#include "abi/select_args.h"
#include "core/select/choose.h"
#include "core/select/reuse.h"
#include "cpu/attention/convert.h"

namespace fovea::kernel_test {

template <typename T>
using SelectVector = std::pmr::vector<T>;

struct SelectShape {
  std::int32_t requests = 2;
  std::int32_t heads = 2;
  std::int32_t group = 4;
  std::int32_t head_dim = 64;
  std::int32_t subs_per_page = 1;
  std::int32_t max_units = 200;
  std::int32_t budget_tokens = 512;
  std::int32_t budget_divisor = 0;
  std::int32_t sink_tokens = 16;
  std::int32_t recent_tokens = 16;
  std::int32_t interval = 1;
  std::int32_t candidate_factor = 4;
  std::int32_t splits = 1;
  std::int32_t cached_keys = 0;
  std::int32_t cached_entries = 0;
  std::int32_t levels = 16;  // of codes: few make ties
  bool rows = false;         // as an engine asks: a row says what a list is made of (abi::SelectRow)
};

// Everything that a launch reads and writes.
class SelectCase {
 public:
  SelectCase(const SelectShape& shape, std::uint64_t seed) : shape_(shape), random_(seed) {
    const std::int32_t lists = shape.requests * shape.heads;
    const std::int32_t list_pages = (shape.max_units + shape.subs_per_page - 1) / shape.subs_per_page;
    const std::int32_t pages = shape.requests * list_pages + 3;
    codes_.resize(static_cast<std::size_t>(shape.heads));
    std::normal_distribution<float> normal;
    for (abi::KeyCode& code : codes_) {
      for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
        code.channel[i] = static_cast<std::uint8_t>((7 * i + 3) % shape.head_dim);
        code.mean[i] = normal(random_);
        code.step[i] = 0.1f + std::fabs(normal(random_));
      }
    }
    records_.resize(static_cast<std::size_t>(pages) * shape.subs_per_page * shape.heads * abi::kCodeRecordBytes);
    for (std::uint8_t& byte : records_) byte = static_cast<std::uint8_t>(code() | code() << 4);
    for (std::int32_t page = 0; page < pages; ++page) pages_.push_back(page);
    std::shuffle(pages_.begin(), pages_.end(), random_);
    lens_.resize(static_cast<std::size_t>(shape.requests));
    phases_.resize(lens_.size());
    for (std::uint32_t& phase : phases_) phase = static_cast<std::uint32_t>(random_());
    q_.resize(static_cast<std::size_t>(lists) * shape.group * shape.head_dim);
    const std::int32_t budget_units = shape.budget_tokens / abi::kSubPageTokens;
    lists_.resize(static_cast<std::size_t>(lists) * budget_units);
    list_tokens_.resize(static_cast<std::size_t>(shape.requests));
    keys_.resize(static_cast<std::size_t>(lists) * shape.max_units);
    const std::int32_t kept = shape.candidate_factor * budget_units;
    candidates_.resize(2 * static_cast<std::size_t>(lists) * kept);
    states_.resize(2 * static_cast<std::size_t>(lists));
    rows_.resize(static_cast<std::size_t>(shape.requests));
    banks_.resize(rows_.size());
    memories_.resize(static_cast<std::size_t>(lists));

    args_.q = q_.data();
    args_.q_head_stride = shape.head_dim;
    args_.q_row_stride = shape.heads * shape.group * shape.head_dim;
    args_.stats.data = records_.data();
    args_.stats.head_stride = shape.subs_per_page * abi::kCodeRecordBytes;
    args_.stats.page_stride = shape.heads * args_.stats.head_stride;
    args_.stats.num_pages = pages;
    args_.stats.subs_per_page = shape.subs_per_page;
    args_.stats.num_heads = shape.heads;
    args_.stats.head_dim = args_.stats.rotary_dim = shape.head_dim;
    args_.stats.kind = abi::StatKind::kCodes;
    args_.stats.codes = codes_.data();
    args_.page_entries = pages_.data();
    args_.page_stride = list_pages;
    args_.kv_lens = lens_.data();
    args_.phases = phases_.data();
    args_.lists = lists_.data();
    args_.list_stride = budget_units;
    args_.list_tokens = list_tokens_.data();
    args_.keys = keys_.data();
    if (shape.interval > 1) {
      args_.candidates = candidates_.data();
      args_.states = states_.data();
    }
    if (shape.rows) {
      args_.rows = rows_.data();
      args_.list_row_stride = shape.heads * budget_units;
    }
    args_.sm_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args_.requests = static_cast<std::uint32_t>(shape.requests);
    args_.num_heads = static_cast<std::uint32_t>(shape.heads);
    args_.group = static_cast<std::uint32_t>(shape.group);
    args_.splits = static_cast<std::uint32_t>(shape.splits);
    args_.max_units = static_cast<std::uint32_t>(shape.max_units);
    args_.budget_units = static_cast<std::uint32_t>(budget_units);
    args_.budget_divisor = static_cast<std::uint32_t>(shape.budget_divisor);
    args_.sink_tokens = static_cast<std::uint32_t>(shape.sink_tokens);
    args_.recent_tokens = static_cast<std::uint32_t>(shape.recent_tokens);
    args_.interval = static_cast<std::uint32_t>(shape.interval);
    args_.num_candidates = static_cast<std::uint32_t>(kept);
    args_.cached_keys = static_cast<std::uint32_t>(shape.cached_keys);
    args_.cached_entries = static_cast<std::uint32_t>(shape.cached_entries);
  }

  // A step with new queries, the keys of the newest unit among what is new; then the lists against core/select.
  template <typename Launch>
  void step(const std::vector<std::int32_t>& lens, const Launch& launch) {
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (std::uint16_t& x : q_) x = cpu::bf16_of(normal(random_));
    if (random_() % 16 == 0) q_[random_() % q_.size()] = 0x7fc0;  // NaN
    if (random_() % 16 == 0) std::fill(q_.begin(), q_.begin() + static_cast<std::ptrdiff_t>(q_.size() / 2), 0);
    std::copy(lens.begin(), lens.end(), lens_.begin());
    for (std::int32_t r = 0; r < shape_.requests; ++r) {
      if (lens[static_cast<std::size_t>(r)] == 0) continue;
      for (std::int32_t h = 0; h < shape_.heads; ++h) {
        std::uint8_t* const record = record_of(r, h, (lens[static_cast<std::size_t>(r)] - 1) / abi::kSubPageTokens);
        for (std::uint32_t i = 0; i < abi::kCodeRecordBytes; ++i) {
          record[i] = static_cast<std::uint8_t>(code() | code() << 4);
        }
      }
    }
    std::fill(lists_.begin(), lists_.end(), -1);
    for (std::int32_t r = 0; r < shape_.requests; ++r) say_row(r);
    launch(args_);
    for (std::int32_t r = 0; r < shape_.requests; ++r) {
      for (std::int32_t h = 0; h < shape_.heads && !testing::Test::HasFatalFailure(); ++h) check_list(r, h);
    }
  }

  std::mt19937_64& random() { return random_; }
  int scans = 0, rescores = 0, whole = 0;

 private:
  std::uint32_t code() { return static_cast<std::uint32_t>(random_() % static_cast<std::uint64_t>(shape_.levels)); }

  std::int32_t budget_at(std::int32_t tokens) const {
    if (shape_.budget_divisor == 0) return shape_.budget_tokens;
    return std::min(shape_.budget_tokens, std::max(tokens / shape_.budget_divisor, 256));
  }

  // Scans go to the memory that the last one is not in.
  void say_row(std::int32_t request) {
    const auto r = static_cast<std::size_t>(request);
    abi::SelectRow& row = rows_[r];
    const std::int32_t tokens = lens_[r];
    row.tokens = tokens;
    row.q_row = static_cast<std::uint32_t>(request);
    row.table = static_cast<std::uint32_t>(request * args_.page_stride);
    row.budget = static_cast<std::uint32_t>(budget_at(tokens) / abi::kSubPageTokens);
    row.candidates = args_.num_candidates;
    row.reads = row.writes = abi::kNone;
    ChooseRule rule;
    rule.budget_tokens = budget_at(tokens);
    if (shape_.interval == 1 || under_budget(rule, tokens)) return;
    const SelectMemory& memory = memories_[r * static_cast<std::size_t>(shape_.heads)];
    const auto bank = static_cast<std::uint32_t>(2 * request);
    if (select_work({shape_.interval, shape_.candidate_factor}, memory, tokens, phases_[r]) == SelectWork::kScan) {
      banks_[r] ^= 1;
      row.writes = bank + banks_[r];
    } else {
      row.reads = bank + banks_[r];
    }
  }

  std::int32_t entry_of(std::int32_t request, std::int32_t unit) const {
    const std::int64_t at = request * args_.page_stride + unit / shape_.subs_per_page;
    return pages_[static_cast<std::size_t>(at)] * shape_.subs_per_page + unit % shape_.subs_per_page;
  }
  std::uint8_t* record_of(std::int32_t request, std::int32_t head, std::int32_t unit) {
    const std::int32_t entry = entry_of(request, unit);
    return records_.data() + entry / shape_.subs_per_page * args_.stats.page_stride + head * args_.stats.head_stride +
           entry % shape_.subs_per_page * std::int64_t{abi::kCodeRecordBytes};
  }

  float score(std::int32_t request, std::int32_t head, std::int32_t unit) {
    const abi::KeyCode& code = codes_[static_cast<std::size_t>(head)];
    const std::uint8_t* const record = record_of(request, head, unit);
    float best = -std::numeric_limits<float>::infinity();
    for (std::int32_t g = 0; g < shape_.group; ++g) {
      const std::uint16_t* const row =
          q_.data() + (std::int64_t{request} * shape_.heads * shape_.group + head * shape_.group + g) * shape_.head_dim;
      float by_step[abi::kCodeChannels];
      float most = 0.0f;
      float constant = 0.0f;
      for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
        const float q = cpu::float_of_bf16(row[code.channel[i]]) * args_.sm_scale;
        by_step[i] = q * code.step[i];
        most = std::max(most, std::fabs(by_step[i]));
        constant += q * code.mean[i];
      }
      const float scale = most / 127.0f;
      std::int32_t weights[abi::kCodeChannels];
      std::int32_t all = 0;
      for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
        const float x = by_step[i] / scale;
        weights[i] = most > 0.0f && !std::isnan(x) ? static_cast<std::int32_t>(std::lround(x)) : 0;
        all += weights[i];
      }
      constant -= 7.5f * scale * static_cast<float>(all);
      std::int32_t largest = std::numeric_limits<std::int32_t>::min();
      for (std::uint32_t t = 0; t < abi::kSubPageTokens; ++t) {
        std::int32_t sum = 0;
        for (std::uint32_t i = 0; i < abi::kCodeChannels; ++i) {
          sum += weights[i] * (record[abi::code_place(i / 2, t)] >> i % 2 * 4 & 15);
        }
        largest = std::max(largest, sum);
      }
      best = std::max(best, constant + scale * static_cast<float>(largest));
    }
    return best;
  }

  void check_list(std::int32_t request, std::int32_t head) {
    const std::int32_t list = request * shape_.heads + head;
    const std::int32_t tokens = lens_[static_cast<std::size_t>(request)];
    ChooseRule rule;
    rule.budget_tokens = budget_at(tokens);
    rule.sink_tokens = shape_.sink_tokens;
    rule.recent_tokens = shape_.recent_tokens;
    std::vector<std::int32_t> chosen;
    if (under_budget(rule, tokens)) {
      for (std::int32_t unit = 0; unit < num_units(tokens, 16); ++unit) chosen.push_back(unit);
      ++whole;
    } else {
      SelectMemory& memory = memories_[static_cast<std::size_t>(list)];
      const ReuseRule reuse{shape_.interval, shape_.candidate_factor};
      std::vector<std::int32_t> units;
      const bool scan =
          select_work(reuse, memory, tokens, phases_[static_cast<std::size_t>(request)]) == SelectWork::kScan;
      if (scan) {
        for (std::int32_t unit = 0; unit < num_units(tokens, 16); ++unit) units.push_back(unit);
      } else {
        units_to_rescore(memory, rule, tokens, &units);
      }
      ++(scan ? scans : rescores);
      std::vector<float> scores;
      for (const std::int32_t unit : units) scores.push_back(score(request, head, unit));
      ChooseScratch scratch;
      const bool keeps = scan && shape_.interval > 1;
      choose_units(units, scores, rule, tokens, scratch, &chosen, static_cast<std::int32_t>(args_.num_candidates),
                   keeps ? &memory.candidates : nullptr);
      if (keeps) memory.scanned_tokens = tokens;
    }
    const std::int32_t last = tokens - (num_units(tokens, 16) - 1) * 16;
    const std::int32_t expected = tokens == 0 ? 0 : (static_cast<std::int32_t>(chosen.size()) - 1) * 16 + last;
    if (!shape_.rows) {
      ASSERT_EQ(list_tokens_[static_cast<std::size_t>(request)], expected) << "request " << request << " head " << head;
    }
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      ASSERT_EQ(lists_[static_cast<std::size_t>(list * args_.list_stride) + i], entry_of(request, chosen[i]))
          << "request " << request << " of " << tokens << " tokens, head " << head << ", place " << i << " of "
          << chosen.size();
    }
    if (chosen.size() < args_.budget_units) {
      ASSERT_EQ(lists_[static_cast<std::size_t>(list * args_.list_stride) + chosen.size()], -1);
    }
  }

  SelectShape shape_;
  std::mt19937_64 random_;
  SelectVector<abi::KeyCode> codes_;
  SelectVector<std::uint8_t> records_;
  SelectVector<std::int32_t> pages_;
  SelectVector<std::int32_t> lens_;
  SelectVector<std::uint32_t> phases_;
  SelectVector<std::uint16_t> q_;
  SelectVector<std::int32_t> lists_, list_tokens_;
  SelectVector<std::uint32_t> keys_;
  SelectVector<std::int32_t> candidates_;
  SelectVector<abi::SelectState> states_;
  SelectVector<abi::SelectRow> rows_;
  std::vector<std::uint32_t> banks_;  // by request: of its two memories, that of the last scan
  std::vector<SelectMemory> memories_;
  abi::SelectArgs args_{};
};

// launch(args) runs the kernel. scale: how large pools may be.
template <typename Launch>
void check_selections(std::uint64_t num_seeds, std::int32_t scale, const Launch& launch) {
  int scans = 0, rescores = 0, whole = 0;
  for (std::uint64_t seed = 0; seed < num_seeds && !testing::Test::HasFatalFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](std::initializer_list<std::int32_t> choices) {
      return choices.begin()[random() % choices.size()];
    };
    SelectShape shape;
    shape.requests = pick({1, 2, 3});
    shape.heads = pick({1, 2, 3});
    shape.group = pick({1, 2, 4, 5, 8});
    shape.head_dim = pick({64, 128});
    shape.subs_per_page = pick({1, 1, 2, 4});
    shape.max_units = pick({60, 90, 300}) * scale;
    shape.budget_tokens = pick({256, 300, 512});
    shape.budget_divisor = pick({0, 0, 8});
    shape.sink_tokens = pick({16, 16, 20, 0});
    shape.recent_tokens = pick({16, 16, 64});
    shape.interval = pick({1, 4, 4});
    shape.splits = pick({1, 2, 4, 8});
    shape.cached_keys = pick({0, 100, 40000});
    shape.cached_entries = pick({0, 100, 40000});
    shape.levels = pick({16, 16, 2, 1});
    shape.rows = pick({0, 1}) != 0;
    SelectCase one(shape, seed);
    std::vector<std::int32_t> lens;
    const std::int32_t most = shape.max_units * 16;
    for (std::int32_t r = 0; r < shape.requests; ++r) {
      const std::int32_t any = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(most - 40)) + 1;
      const std::int32_t budget = shape.budget_tokens / 16 * 16;
      lens.push_back(pick({any, any, most - 40, 0, 1, 15, 16, 17, budget - 1, budget, budget + 1, budget + 17}));
    }
    for (int step = 0; step < (shape.interval > 1 ? 8 : 2); ++step) {
      one.step(lens, launch);
      if (testing::Test::HasFatalFailure()) return;
      for (std::int32_t& length : lens) {
        if (length > 0) length = std::min(most, length + pick({1, 1, 1, 1, 1, 1, 3, 0}));
      }
    }
    scans += one.scans;
    rescores += one.rescores;
    whole += one.whole;
  }
  const int cases = static_cast<int>(num_seeds);
  EXPECT_GT(scans, cases);
  EXPECT_GT(rescores, cases);
  EXPECT_GT(whole, cases);
}

// Codes of new keys: launch(args) runs the kernel. Rows go to random slots, some to none.
template <typename Launch>
void check_key_codes(std::uint64_t seed, const Launch& launch) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const std::int32_t heads = 1 + static_cast<std::int32_t>(random() % 3);
  const std::int32_t head_dim = random() % 2 == 0 ? 64 : 128;
  const std::int32_t subs = 1 << random() % 3;
  const std::int32_t pages = 5;
  const std::int32_t page_tokens = subs * abi::kSubPageTokens;
  const std::int32_t rows = static_cast<std::int32_t>(random() % 30);
  SelectVector<abi::KeyCode> codes(static_cast<std::size_t>(heads));
  for (abi::KeyCode& code : codes) {
    for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
      code.channel[i] = static_cast<std::uint8_t>(random() % static_cast<std::uint64_t>(head_dim));
      code.mean[i] = normal(random);
      code.step[i] = 0.05f + std::fabs(normal(random));
    }
  }
  SelectVector<std::uint16_t> keys(static_cast<std::size_t>(rows * heads * head_dim) + 1);
  for (std::uint16_t& x : keys)
    x = random() % 100 == 0 ? static_cast<std::uint16_t>(random()) : cpu::bf16_of(normal(random));
  std::vector<std::int32_t> free_slots(static_cast<std::size_t>(pages * page_tokens));
  for (std::size_t i = 0; i < free_slots.size(); ++i) free_slots[i] = static_cast<std::int32_t>(i);
  std::shuffle(free_slots.begin(), free_slots.end(), random);
  SelectVector<std::int32_t> slots(free_slots.begin(), free_slots.begin() + rows);
  for (std::int32_t& slot : slots) slot = random() % 8 == 0 ? -1 : random() % 20 == 0 ? pages * page_tokens : slot;
  const std::int64_t head_stride = subs * std::int64_t{abi::kCodeRecordBytes};
  SelectVector<std::uint8_t> records(static_cast<std::size_t>(pages * heads * head_stride));
  for (std::uint8_t& byte : records) byte = static_cast<std::uint8_t>(random());
  std::vector<std::uint8_t> expected(records.begin(), records.end());

  abi::CodesArgs args{};
  args.rows.k = keys.data();
  args.rows.k_head_stride = head_dim;
  args.rows.k_row_stride = heads * head_dim;
  args.rows.slots = slots.data();
  args.rows.rows = static_cast<std::uint32_t>(rows);
  args.rows.num_kv_heads = static_cast<std::uint32_t>(heads);
  args.rows.pool.page_stride = args.rows.pool.page_tokens = args.rows.pool.entry_tokens = page_tokens;
  args.rows.pool.token_stride = args.rows.pool.entries_per_page = 1;
  args.rows.pool.num_pages = pages;
  args.stats = {records.data(), heads * head_stride,   head_stride, pages, subs, heads, head_dim,
                head_dim,       abi::StatKind::kCodes, codes.data()};
  launch(args);

  for (std::int32_t row = 0; row < rows; ++row) {
    const std::int32_t slot = slots[static_cast<std::size_t>(row)];
    if (slot < 0 || slot >= pages * page_tokens) continue;
    for (std::int32_t h = 0; h < heads; ++h) {
      std::uint8_t* const record = expected.data() + slot / page_tokens * heads * head_stride + h * head_stride +
                                   slot % page_tokens / 16 * abi::kCodeRecordBytes;
      for (std::int32_t i = 0; i < abi::kCodeChannels; ++i) {
        const abi::KeyCode& code = codes[static_cast<std::size_t>(h)];
        float x = cpu::float_of_bf16(keys[static_cast<std::size_t>((row * heads + h) * head_dim + code.channel[i])]);
        x = std::isnan(x) ? 0.0f : std::clamp(x, -65504.0f, 65504.0f);
        const float level = (x - code.mean[i]) * (1.0f / code.step[i]) + 8.0f;
        const auto nibble = static_cast<std::uint8_t>(std::clamp(level, 0.0f, 15.0f));
        std::uint8_t& byte =
            record[abi::code_place(static_cast<std::uint32_t>(i) / 2, static_cast<std::uint32_t>(slot) % 16)];
        byte = static_cast<std::uint8_t>(i % 2 == 0 ? (byte & 0xf0) | nibble : (byte & 0x0f) | nibble << 4);
      }
    }
  }
  ASSERT_TRUE(std::equal(expected.begin(), expected.end(), records.begin()));
}

}  // namespace fovea::kernel_test
