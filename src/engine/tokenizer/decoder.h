// Decoders of tokenizer.json: they turn token strings back into text. Written as a chain of streaming steps, so that
// decoding a whole sequence and decoding token by token are the same code and give the same text. Used by the
// Tokenizer and by StreamDecoder.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/regex.h"

namespace fovea {

class Decoder {
 public:
  // Byte-fallback tokens are held until their run ends, because one bad byte turns the whole run into U+FFFD; a run
  // longer than this is passed on character by character, so that a stream never waits without end.
  static constexpr std::size_t kMaxHeldBytes = 96;

  // State of one sequence being decoded.
  class Run {
   private:
    friend class Decoder;
    struct Step {
      std::string held;        // bytes or characters that cannot be passed on yet
      std::size_t tokens = 0;  // tokens begun so far
      int start_left = 0;      // Strip: characters that may still be cut at the start of this token
      bool open = false;       // a token was begun downstream and not ended
    };
    std::vector<Step> steps_;
  };

  // From the "decoder" field; null gives the reference behaviour without a decoder: tokens joined by spaces. Supported
  // types: ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, Sequence.
  static Result<Decoder> from_json(const nlohmann::json& spec);

  Run start() const;
  // Feeds one token; appends the text that is certain by now.
  void push(Run& run, std::string_view token, std::string& out) const;
  // Ends the sequence; appends the rest.
  void finish(Run& run, std::string& out) const;

  // The bytes that a token stands for inside a text (not at its start, where some decoders drop a space).
  std::string token_bytes(std::string_view token) const;

 private:
  enum class Kind { kByteLevel, kByteFallback, kFuse, kMetaspace, kReplace, kStrip, kJoin };
  struct Step {
    Kind kind = Kind::kFuse;
    std::string text;              // Replace: the new content; Metaspace, Strip: the character; Join: the separator
    std::optional<Regex> pattern;  // Replace
    bool single_char = false;      // Replace: the pattern is one literal character
    bool drop_first = false;       // Metaspace: drop the replacement in the first token
    int start = 0;                 // Strip
    int stop = 0;
  };
  // A fragment of a token on its way down the chain. Fragments hold whole characters.
  struct Fragment {
    std::string_view text;
    bool begins = true;
    bool ends = true;
  };
  Status add(const nlohmann::json& spec, int depth);
  void feed(Run& run, std::size_t at, Fragment fragment, std::string& out) const;
  void finish_from(Run& run, std::size_t at, std::string& out) const;
  void flush_byte_run(Run& run, std::size_t at, bool whole, std::string& out) const;
  void feed_bytes(Run& run, std::size_t at, std::string& out) const;
  void feed_metaspace(Run& run, std::size_t at, Fragment fragment, std::string& out) const;
  void feed_strip(Run& run, std::size_t at, Fragment fragment, std::string& out) const;

  std::vector<Step> steps_;
};

}  // namespace fovea
