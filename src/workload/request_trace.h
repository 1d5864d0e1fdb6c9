// Traces of requests, as servers recorded them or made from a seed: when each arrived, how long its prompt and answer
// were, and which blocks of the prompt others have too. The format is Mooncake's JSONL. Used by `fovea bench serve`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/status.h"

namespace fovea {

struct TraceRequest {
  static constexpr std::int32_t kBlockTokens = 512;

  double arrival_ms = 0.0;  // after the first; none is less than the one before
  std::int32_t prompt_tokens = 1;
  std::int32_t answer_tokens = 1;
  // A number for each block of the prompt, the last one maybe in part. It stands for the block and all before it, so
  // prompts that begin with the same numbers begin with the same tokens.
  std::vector<std::uint64_t> hash_ids;
};

// Lines of {"timestamp", "input_length", "output_length", "hash_ids"}; other keys are ignored, and times count from the
// first line's. kInvalidArgument names the line and the key that is wrong; `where` opens every message.
Result<std::vector<TraceRequest>> parse_trace(std::string_view text, std::string_view where);
std::string trace_jsonl(const std::vector<TraceRequest>& trace);

// A chat service: four system prompts of 2,560 tokens (the first 512 the same), conversations of several turns, each of
// which has those before it in its prompt. Messages of 594 tokens and answers of 257 in the middle, as in BurstGPT's
// recordings. Poisson arrivals, one a second.
std::vector<TraceRequest> conversation_trace(std::int32_t requests, std::uint64_t seed);
// Tools and agents: the mix of Mooncake's recording. 38 % begin with the same 6,144 tokens and 12 % with other 2,560,
// both with short answers; half share 512 tokens and have long prompts and answers, some of them the next turn of an
// earlier one.
std::vector<TraceRequest> agent_trace(std::int32_t requests, std::uint64_t seed);

// The prompt's tokens, in [16, vocab_size): each block's are drawn from its number. `scale` shortens or lengthens
// blocks and prompt alike, so that what is shared stays shared.
std::vector<std::int32_t> trace_prompt(const TraceRequest& request, std::int32_t vocab_size, std::uint64_t seed,
                                       double scale = 1.0);
// Tokens of so many that a scaled prompt or answer has: at least 1.
std::int32_t scaled_tokens(std::int32_t tokens, double scale);

}  // namespace fovea
