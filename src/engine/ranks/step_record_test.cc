// Steps survive the way to another rank, lists of pages grow on both sides alike, and words that are no step are
// refused.
#include "engine/ranks/step_record.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace fovea {
namespace {

class StepRecord : public ::testing::Test {
 protected:
  StepRecord() : rows_(3, 2, 8), mirror_(3, 2, 8), writer_(rows_), reader_(mirror_) {
    sequence_.id = (std::uint64_t{1} << 40) + 5;
    sequence_.tokens = {10, 11, 12, 13, 14};
    sequence_.prompt_length = 4;
    sequence_.draft = chain_of(std::vector{20, 21, 22});
    sequence_.greedy = true;
    sequence_.draw = {0.5f, 0.9f, 0.1f, ~std::uint64_t{3}};
    sequence_.slot = rows_.allocate();
    for (std::int32_t group = 0; group < 2; ++group) {
      rows_.push(sequence_.slot, group, 4 + group);
      rows_.push(sequence_.slot, group, 6 + group);
    }
    step_.copies = {{1, 2, 3}};
    step_.items = {{&sequence_, 3, 4, true, 2, 3, 1}};
    step_.num_tokens = 4;
  }

  void expect_same_lists() {
    for (std::int32_t group = 0; group < 2; ++group) {
      const std::int32_t length = rows_.length(sequence_.slot, group);
      ASSERT_EQ(mirror_.length(sequence_.slot, group), length);
      EXPECT_EQ(mirror_.version(sequence_.slot, group), rows_.version(sequence_.slot, group));
      const auto a = rows_.row(sequence_.slot, group), b = mirror_.row(sequence_.slot, group);
      EXPECT_TRUE(std::equal(a.begin(), a.begin() + length, b.begin()));
    }
  }

  ReqToTokenPool rows_, mirror_;
  StepWriter writer_;
  StepReader reader_;
  Sequence sequence_;
  Step step_;
};

TEST_F(StepRecord, SaysWhatTheRunnerReads) {
  const auto read = reader_.read(writer_.write(step_));
  ASSERT_TRUE(read.ok()) << read.status().message();
  const Step& step = **read;
  ASSERT_EQ(step.copies.size(), 1u);
  EXPECT_EQ(step.copies[0].group, 1u);
  EXPECT_EQ(step.copies[0].from, 2);
  EXPECT_EQ(step.copies[0].to, 3);
  EXPECT_EQ(step.num_tokens, 4);
  ASSERT_EQ(step.items.size(), 1u);
  const StepItem& item = step.items[0];
  EXPECT_EQ(item.begin, 3);
  EXPECT_EQ(item.count, 4);
  EXPECT_TRUE(item.sample);
  EXPECT_EQ(item.drafts, 2);
  EXPECT_EQ(item.score_begin, 3);
  EXPECT_EQ(item.scores, 1);
  const Sequence& sequence = *item.sequence;
  EXPECT_EQ(sequence.id, sequence_.id);
  EXPECT_EQ(sequence.length(), 5);
  EXPECT_EQ(sequence.prompt_length, 4);
  EXPECT_TRUE(sequence.greedy);
  EXPECT_EQ(sequence.draw.temperature, 0.5f);
  EXPECT_EQ(sequence.draw.top_p, 0.9f);
  EXPECT_EQ(sequence.draw.min_p, 0.1f);
  EXPECT_EQ(sequence.draw.seed, ~std::uint64_t{3});
  EXPECT_EQ(sequence.tokens[3], 13);
  EXPECT_EQ(sequence.tokens[4], 14);
  ASSERT_EQ(sequence.draft.size(), 2u);
  EXPECT_EQ(sequence.draft[0].token, 20);
  EXPECT_EQ(sequence.draft[1].token, 21);
  EXPECT_TRUE(is_chain(sequence.draft));
  expect_same_lists();
}

TEST_F(StepRecord, ListsAreSentOnce) {
  ASSERT_TRUE(reader_.read(writer_.write(step_)).ok());
  const std::size_t first = writer_.write(step_).size();
  ASSERT_TRUE(reader_.read(writer_.write(step_)).ok());
  rows_.push(sequence_.slot, 1, 7);
  EXPECT_EQ(writer_.write(step_).size(), first + 1);
  rows_.push(sequence_.slot, 0, 5);
  // The step before was lost on purpose: a reader must see all of them. From here on a new one with its own writer.
  StepWriter writer(rows_);
  ASSERT_TRUE(reader_.read(writer.write(step_)).ok());
  expect_same_lists();
  rows_.set(sequence_.slot, 0, 0, 1);
  ASSERT_TRUE(reader_.read(writer.write(step_)).ok());
  expect_same_lists();
  // The slot goes to another sequence, with a shorter list.
  rows_.release(sequence_.slot);
  sequence_.slot = rows_.allocate();
  rows_.push(sequence_.slot, 0, 2);
  ASSERT_TRUE(reader_.read(writer.write(step_)).ok());
  expect_same_lists();
}

TEST_F(StepRecord, Stops) {
  const auto read = reader_.read(StepWriter::stop());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, nullptr);
}

TEST_F(StepRecord, RefusesWhatIsNoStep) {
  const std::vector<std::int32_t> words = writer_.write(step_);
  for (std::size_t length = 0; length < words.size(); ++length) {
    EXPECT_FALSE(reader_.read(std::span(words).first(length)).ok()) << length;
  }
  PhiloxRng rng(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::int32_t> wrong = words;
    const auto at = static_cast<std::size_t>(rng.next_below(static_cast<std::uint32_t>(wrong.size())));
    // Lengths of sequences are bounded by memory alone, so small numbers and negative ones.
    wrong[at] = static_cast<std::int32_t>(rng.next_below(4096)) - 2048;
    (void)reader_.read(wrong);
  }
}

}  // namespace
}  // namespace fovea
