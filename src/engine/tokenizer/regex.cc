// Implementation of regex.h: the translation from Oniguruma's syntax, and bounded matching.
#include "engine/tokenizer/regex.h"

#include <algorithm>
#include <ctime>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/quote.h"
#include "engine/tokenizer/unicode.h"

namespace fovea {
namespace {

constexpr std::size_t kMaxPattern = 64 * 1024;
constexpr std::uint32_t kMatchLimit = 1'000'000;  // backtracking steps from one starting place ...
constexpr std::uint32_t kMatchLimitPerByte = 4;   // ... and for each byte of the text: a run may be walked back whole
constexpr std::uint32_t kStartWindow = 256;       // starting places one call may try before the clock is read
constexpr std::size_t kJitStackBytes = 1024 * 1024;
constexpr double kBaseSeconds = 2.0;      // processor time a text may take ...
constexpr double kSecondsPerByte = 4e-6;  // ... and for each of its bytes (250 kB/s; good patterns do 20 MB/s)

constexpr std::string_view kSpaceInClass = "\\x09-\\x0d\\x{85}\\p{Z}";
constexpr std::string_view kWordInClass = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// Rewrites an Oniguruma pattern for PCRE2. PCRE2's own \s also takes U+180E and its \w lacks marks, so both are spelled
// out; in Oniguruma (Ruby syntax) a class may intersect with && and nest, which PCRE2 would silently misread.
Result<std::string> translate(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  std::size_t class_start = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      switch (next) {
        case 's': out.append(in_class ? std::string(kSpaceInClass) : fmt::format("[{}]", kSpaceInClass)); break;
        case 'w': out.append(in_class ? std::string(kWordInClass) : fmt::format("[{}]", kWordInClass)); break;
        case 'S':
        case 'W':
          if (in_class) {
            return unsupported("regular expression '{}': \\{} inside a character class is not supported",
                               shorten(pattern), next);
          }
          out.append(fmt::format("[^{}]", next == 'S' ? kSpaceInClass : kWordInClass));
          break;
        case 'h':
        case 'H':
        case 'C': return unsupported("regular expression '{}': \\{} is not supported", shorten(pattern), next);
        default: out.push_back('\\'); out.push_back(next);
      }
      continue;
    }
    if (!in_class) {
      if (c == '[') {
        in_class = true;
        class_start = i + 1 < pattern.size() && pattern[i + 1] == '^' ? i + 2 : i + 1;
      }
    } else if (c == '[') {
      const std::size_t close = pattern.find(":]", i);
      if (i + 1 >= pattern.size() || pattern[i + 1] != ':' || close == std::string_view::npos) {
        return unsupported("regular expression '{}': nested character classes are not supported", shorten(pattern));
      }
      out.append(pattern.substr(i, close + 2 - i));
      i = close + 1;
      continue;
    } else if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
      return unsupported("regular expression '{}': intersections of character classes are not supported",
                         shorten(pattern));
    } else if (c == ']' && i != class_start) {
      in_class = false;
    }
    out.push_back(c);
  }
  return out;
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// What a thread needs to match, made once a thread: limits, the stack of compiled code, and one pair of offsets.
struct Scratch {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  Scratch() {
    pcre2_set_heap_limit(context, 16 * 1024);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Scratch() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

Scratch& scratch() {
  thread_local Scratch made;
  return made;
}

std::string error_text(int code) {
  PCRE2_UCHAR text[160];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  bool jit = false;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(compiled); }
};

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPattern) {
    return out_of_range("regular expression of {} bytes, expected at most {}", pattern.size(), kMaxPattern);
  }
  FOVEA_ASSIGN_OR_RETURN(const std::string translated, translate(pattern));
  auto code = std::make_shared<Code>();
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE where = 0;
  code->compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error,
                    &where, context.get());
  if (code->compiled == nullptr) {
    return invalid_argument("regular expression '{}' does not compile: {} near character {}", shorten(pattern),
                            error_text(error), where);
  }
  code->jit = pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE) == 0;
  Regex regex;
  regex.source_ = pattern;
  regex.code_ = std::move(code);
  return regex;
}

Result<Regex> Regex::literal(std::string_view text) {
  Regex regex;
  regex.is_literal_ = true;
  regex.source_ = text;
  return regex;
}

Status Regex::split(std::string_view text, std::vector<Span>& spans) const {
  if (text.empty()) {
    spans.push_back({0, 0, false});
    return ok_status();
  }
  if (!is_literal_) return split_regex(text, spans);
  if (source_.empty()) {
    spans.push_back({0, static_cast<std::uint32_t>(text.size()), false});
    return ok_status();
  }
  std::size_t previous = 0;
  for (std::size_t at = text.find(source_); at != std::string_view::npos; at = text.find(source_, previous)) {
    if (at != previous) spans.push_back({static_cast<std::uint32_t>(previous), static_cast<std::uint32_t>(at), false});
    previous = at + source_.size();
    spans.push_back({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(previous), true});
  }
  if (previous != text.size()) {
    spans.push_back({static_cast<std::uint32_t>(previous), static_cast<std::uint32_t>(text.size()), false});
  }
  return ok_status();
}

Status Regex::split_regex(std::string_view text, std::vector<Span>& spans) const {
  Scratch& mine = scratch();
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE size = text.size();
  constexpr std::size_t kMostBytes = (UINT32_MAX - kMatchLimit) / kMatchLimitPerByte;
  pcre2_set_match_limit(mine.context,
                        kMatchLimit + kMatchLimitPerByte * static_cast<std::uint32_t>(std::min(size, kMostBytes)));
  const PCRE2_SIZE* found = pcre2_get_ovector_pointer(mine.data);
  std::size_t previous = 0;                      // end of what has been handed out
  std::size_t start = 0;                         // where the next search starts
  std::size_t last_match_end = std::size_t(-1);  // an empty match right behind a match does not count
  double deadline = 0;
  std::uint32_t calls = 0;
  while (start <= size) {
    const PCRE2_SIZE limit = start + kStartWindow;
    pcre2_set_offset_limit(mine.context, limit);
    const int rc =
        code_->jit ? pcre2_jit_match(code_->compiled, subject, size, start, 0, mine.data, mine.context)
                   : pcre2_match(code_->compiled, subject, size, start, PCRE2_NO_UTF_CHECK, mine.data, mine.context);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
      return invalid_argument("regular expression '{}' gave up at byte {} of {}: {}", shorten(source_), start, size,
                              error_text(rc));
    }
    if ((++calls & 255) == 0 || rc < 0) {
      const double now = thread_seconds();
      if (deadline == 0) deadline = now + kBaseSeconds + kSecondsPerByte * static_cast<double>(size);
      if (now > deadline) {
        return invalid_argument("regular expression '{}' is too slow: it reached byte {} of {} in {:.1f} s",
                                shorten(source_), start, size,
                                kBaseSeconds + kSecondsPerByte * static_cast<double>(size));
      }
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
      if (limit >= size) break;
      start = limit + 1;  // no match starts at or before the limit
      while (start < size && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) ++start;
      continue;
    }
    // \K can put the start of a match behind its end or before the search; such a match is taken as empty.
    const std::size_t begin = std::max<std::size_t>(found[0], previous);
    const std::size_t end = std::max<std::size_t>(found[1], begin);
    if (begin == end && end == last_match_end) {
      if (start >= size) break;
      start += unicode::lead_length(text[start]);
      continue;
    }
    if (begin != previous) {
      spans.push_back({static_cast<std::uint32_t>(previous), static_cast<std::uint32_t>(begin), false});
    }
    spans.push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end), true});
    previous = last_match_end = end;
    start = end;
  }
  if (previous != size)
    spans.push_back({static_cast<std::uint32_t>(previous), static_cast<std::uint32_t>(size), false});
  return ok_status();
}

Result<std::string> Regex::replace_all(std::string_view text, std::string_view with) const {
  std::vector<Span> spans;
  FOVEA_RETURN_IF_ERROR(split(text, spans));
  std::string out;
  for (const Span& span : spans) {
    out.append(span.match ? with : text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

}  // namespace fovea
