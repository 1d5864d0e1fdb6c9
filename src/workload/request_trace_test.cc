// Traces: what is read, what is refused and how, and that prompts share what their hash ids say.
#include "workload/request_trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace fovea {
namespace {

std::size_t common_prefix(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin()).first -
                                  a.begin());
}

TEST(RequestTrace, ReadsMooncakesLines) {
  const auto trace = parse_trace(
      "{\"timestamp\": 0, \"input_length\": 1053, \"output_length\": 26, \"hash_ids\": [0, 773, 774]}\n\n"
      "{\"timestamp\": 2999.5, \"input_length\": 512, \"output_length\": 0, \"hash_ids\": [0], \"type\": \"chat\"}\r\n",
      "t");
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].prompt_tokens, 1053);
  EXPECT_EQ((*trace)[0].answer_tokens, 26);
  EXPECT_EQ((*trace)[0].hash_ids, (std::vector<std::uint64_t>{0, 773, 774}));
  EXPECT_EQ((*trace)[1].arrival_ms, 2999.5);
  EXPECT_EQ((*trace)[1].answer_tokens, 1);
}

TEST(RequestTrace, TimesCountFromTheFirstRequest) {
  const auto trace = parse_trace(
      "{\"timestamp\": 1763870000000, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [0]}\n"
      "{\"timestamp\": 1763870000250, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [0]}\n",
      "t");
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ((*trace)[0].arrival_ms, 0.0);
  EXPECT_EQ((*trace)[1].arrival_ms, 250.0);
}

TEST(RequestTrace, PromptsEndSomewhereWhateverTheScale) {
  TraceRequest request{0.0, 1 << 24, 1, {}};
  for (std::uint64_t i = 0; i < (1u << 24) / TraceRequest::kBlockTokens; ++i) request.hash_ids.push_back(i);
  EXPECT_LE(trace_prompt(request, 100, 1, 100.0).size(), std::size_t{1} << 25);
}

TEST(RequestTrace, RefusesByLineAndName) {
  const std::string good = R"({"timestamp": 5, "input_length": 1, "output_length": 1, "hash_ids": [1]})";
  const std::map<std::string, std::string> wrong = {
      {"", "t has no request"},
      {"nonsense", "t line 1"},
      {"[1]", "t line 1"},
      {R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})", "timestamp"},
      {R"({"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]})", "timestamp is -1"},
      {R"({"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []})", "input_length"},
      {R"({"timestamp": 0, "input_length": 99999999999, "output_length": 1, "hash_ids": [1]})", "input_length"},
      {R"({"timestamp": 0, "input_length": "1", "output_length": 1, "hash_ids": [1]})", "input_length"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": -1, "hash_ids": [1]})", "output_length"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1})", "hash_ids"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]})", "hash_ids"},
      {R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]})", "has 1 numbers, expected 2"},
      {R"({"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]})", "expected 1"},
      {good + "\n" + R"({"timestamp": 4, "input_length": 1, "output_length": 1, "hash_ids": [1]})",
       "t line 2: timestamp"},
      {good + "\n" + R"({"timestamp": 100000000000000, "input_length": 1, "output_length": 1, "hash_ids": [1]})",
       "t goes on for"},
  };
  for (const auto& [text, says] : wrong) {
    const auto trace = parse_trace(text, "t");
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_EQ(trace.status().code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(std::string(trace.status().message()).find(says), std::string::npos) << trace.status().message();
  }
}

TEST(RequestTrace, PromptsShareWhatTheirNumbersSay) {
  const TraceRequest a{0.0, 1500, 1, {7, 8, 9}}, b{0.0, 1300, 1, {7, 8, 10}}, c{0.0, 700, 1, {7, 8}};
  for (const double scale : {1.0, 0.1, 2.0}) {
    const auto block = static_cast<std::size_t>(scaled_tokens(TraceRequest::kBlockTokens, scale));
    const auto first = trace_prompt(a, 1000, 3, scale), second = trace_prompt(b, 1000, 3, scale);
    EXPECT_NEAR(static_cast<double>(first.size()), 1500 * scale, 3.0);
    EXPECT_EQ(common_prefix(first, second), 2 * block);
    const auto third = trace_prompt(c, 1000, 3, scale);
    EXPECT_EQ(common_prefix(first, third), third.size());
    EXPECT_LT(common_prefix(first, trace_prompt(a, 1000, 4, scale)), block);
    EXPECT_TRUE(std::all_of(first.begin(), first.end(), [](std::int32_t t) { return t >= 16 && t < 1000; }));
  }
}

// Whole blocks over distinct ones: 1 where nothing is shared.
double sharing(const std::vector<TraceRequest>& trace) {
  std::map<std::uint64_t, int> seen;
  double all = 0.0;
  for (const TraceRequest& request : trace) {
    for (const std::uint64_t id : request.hash_ids) ++seen[id], ++all;
  }
  return all / static_cast<double>(seen.size());
}

TEST(RequestTrace, MadeTracesAreReadBack) {
  for (const bool agents : {false, true}) {
    const auto make = agents ? agent_trace : conversation_trace;
    const std::vector<TraceRequest> trace = make(400, 1);
    ASSERT_EQ(trace.size(), 400u);
    EXPECT_EQ(trace[0].arrival_ms, 0.0);
    EXPECT_GT(sharing(trace), 1.5);
    const auto read = parse_trace(trace_jsonl(trace), "t");
    ASSERT_TRUE(read.ok()) << read.status().message();
    for (std::size_t i = 0; i < trace.size(); ++i) {
      EXPECT_EQ((*read)[i].hash_ids, trace[i].hash_ids);
      EXPECT_EQ((*read)[i].prompt_tokens, trace[i].prompt_tokens);
    }
    EXPECT_NE(trace_jsonl(trace), trace_jsonl(make(400, 2)));
    EXPECT_EQ(trace_jsonl(trace), trace_jsonl(make(400, 1)));
  }
}

}  // namespace
}  // namespace fovea
