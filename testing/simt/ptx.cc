// Parses and runs statements of PTX; see ptx.h. A statement is parsed once a thread, by the address of its text.
#include "testing/simt/ptx.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <memory>
#include <unordered_map>

#include "testing/simt/ptx_statement.h"

namespace simt {
namespace {

struct Statement {
  std::vector<Instruction> code;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::unique_ptr<Statement> parse() {
    auto statement = std::make_unique<Statement>();
    for (std::size_t begin = 0; begin < text_.size();) {
      std::size_t end = text_.find(';', begin);
      if (end == std::string_view::npos) end = text_.size();
      line(trimmed(text_.substr(begin, end - begin)), *statement);
      begin = end + 1;
    }
    return statement;
  }

 private:
  static bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
  static std::string_view trimmed(std::string_view s) {
    while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
    while (!s.empty() && is_space(s.back())) s.remove_suffix(1);
    return s;
  }
  [[noreturn]] void fail(const std::string& what) const {
    machine_of(*current_lane()).fail(fmt::format("{} in the statement \"{}\"", what, text_));
  }

  void line(std::string_view s, Statement& statement) {
    while (!s.empty() && (s.front() == '{' || s.front() == '}')) s = trimmed(s.substr(1));  // scopes
    if (s.empty()) return;
    if (s.starts_with(".reg")) {
      s = trimmed(s.substr(4));
      while (!s.empty() && !is_space(s.front())) s.remove_prefix(1);  // its type
      for (const std::string_view name : split(s)) locals_.emplace_back(name);
      return;
    }
    Instruction i;
    i.text = std::string(s);
    if (s.front() == '@') {
      i.guard_negated = s.size() > 1 && s[1] == '!';
      s.remove_prefix(i.guard_negated ? 2 : 1);
      const auto end = static_cast<std::size_t>(std::find_if(s.begin(), s.end(), is_space) - s.begin());
      i.guard = static_cast<int>(reference(s.substr(0, end)).index);
      s = trimmed(s.substr(end));
    }
    const auto end = static_cast<std::size_t>(std::find_if(s.begin(), s.end(), is_space) - s.begin());
    i.opcode = std::string(s.substr(0, end));
    for (const std::string_view a : split(trimmed(s.substr(end)))) i.arguments.push_back(argument(a));
    if (!find_plain(i) && !find_sync(i) && !find_matrix(i) && !find_wgmma(i)) {
      fail(fmt::format("the emulator does not know {}", i.opcode));
    }
    statement.code.push_back(std::move(i));
  }

  // By commas outside of brackets.
  static std::vector<std::string_view> split(std::string_view s) {
    std::vector<std::string_view> parts;
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= s.size(); ++i) {
      if (i == s.size() || (s[i] == ',' && depth == 0)) {
        const std::string_view part = trimmed(s.substr(begin, i - begin));
        if (!part.empty()) parts.push_back(part);
        begin = i + 1;
      } else if (s[i] == '{' || s[i] == '[') {
        ++depth;
      } else if (s[i] == '}' || s[i] == ']') {
        --depth;
      }
    }
    return parts;
  }

  Argument argument(std::string_view s) {
    Argument a;
    if (s.front() == '{') {
      for (const std::string_view x : split(s.substr(1, s.size() - 2))) a.refs.push_back(reference(x));
    } else if (s.front() == '[') {
      for (std::string_view x : split(s.substr(1, s.size() - 2))) {
        if (x.front() == '{') {
          for (const std::string_view c : split(x.substr(1, x.size() - 2))) a.refs.push_back(reference(c));
          continue;
        }
        if (const std::size_t plus = x.find('+'); plus != std::string_view::npos) {
          a.offset = static_cast<std::int64_t>(number(trimmed(x.substr(plus + 1))));
          x = trimmed(x.substr(0, plus));
        }
        a.refs.push_back(reference(x));
      }
    } else if (const std::size_t bar = s.find('|'); bar != std::string_view::npos) {  // d|p
      a.refs = {reference(trimmed(s.substr(0, bar))), reference(trimmed(s.substr(bar + 1)))};
    } else {
      a.refs.push_back(reference(s));
    }
    return a;
  }

  std::uint64_t number(std::string_view s) const {
    std::uint64_t n = 0;
    const bool negative = s.starts_with('-');
    if (negative) s.remove_prefix(1);
    const bool hex = s.starts_with("0x") || s.starts_with("0f");
    const std::string_view digits = hex ? s.substr(2) : s;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n, hex ? 16 : 10);
    if (error != std::errc() || digits.empty()) fail(fmt::format("no number: \"{}\"", s));
    return negative ? 0 - n : n;
  }

  Ref reference(std::string_view s) const {
    if (s == "_") return {};
    if (s.front() == '%') {
      const std::string_view digits = s.substr(1);
      if (!digits.empty() && std::isdigit(static_cast<unsigned char>(digits[0])) != 0) {
        return {Ref::Kind::kOperand, static_cast<std::uint32_t>(number(digits)), 0};
      }
    }
    const auto local = std::find(locals_.begin(), locals_.end(), s);
    if (local != locals_.end()) return {Ref::Kind::kLocal, static_cast<std::uint32_t>(local - locals_.begin()), 0};
    return {Ref::Kind::kNumber, 0, number(s)};
  }

  std::string_view text_;
  std::vector<std::string> locals_;
};

}  // namespace

std::string_view Instruction::part(std::size_t n) const {
  std::string_view left = opcode;
  for (; n > 0; --n) {
    const std::size_t point = left.find('.');
    if (point == std::string_view::npos) return {};
    left.remove_prefix(point + 1);
  }
  return left.substr(0, left.find('.'));
}

void ptx(const char* text, std::initializer_list<Operand> operands) {
  if (*text == '\0') return;  // a wall for the compiler
  thread_local std::unordered_map<const char*, std::unique_ptr<Statement>> known;
  std::unique_ptr<Statement>& statement = known[text];
  Lane& lane = *current_lane();
  settle_store(lane);
  if (statement == nullptr) statement = Parser(text).parse();
  Frame frame{operands.begin(), {}};
  for (const Instruction& i : statement->code) {
    if (i.guard >= 0 && (frame.locals[i.guard] != 0) == i.guard_negated) continue;
    i.run(lane, i, frame);
  }
}

}  // namespace simt
