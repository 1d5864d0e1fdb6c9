// Feeds bytes to the reader of tokenizer.json. Input: the file, a zero byte, then a text to encode and decode with it.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = std::min(input.find('\0'), size);
  const auto tokenizer = fovea::Tokenizer::from_json(input.substr(0, zero));
  if (!tokenizer.ok()) {
    if (tokenizer.status().message().empty()) std::abort();
    return 0;
  }
  const std::string_view text = zero < size ? input.substr(zero + 1) : "Hello  w\xc3\xb6rld, 123\n";
  const auto ids = tokenizer->encode(text);
  if (!ids.ok()) return 0;
  const std::int32_t vocab_size = tokenizer->vocab_size();
  if (std::any_of(ids->begin(), ids->end(), [&](std::int32_t id) { return id < 0 || id >= vocab_size; })) std::abort();
  // A stream gives what the whole gives.
  fovea::StreamDecoder stream(*tokenizer, true);
  std::string streamed;
  for (const std::int32_t id : *ids) streamed += stream.append(id);
  streamed += stream.finish();
  if (streamed != tokenizer->decode(*ids)) std::abort();
  return 0;
}
