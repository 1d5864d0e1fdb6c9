#include "options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/quote.h"

namespace fovea::app {
namespace {

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string render_value(const std::string& value) { return toml_string(value); }
std::string render_value(bool value) { return value ? "true" : "false"; }
template <typename T>
std::string render_value(const T& value) {
  return fmt::format("{}", value);
}
template <typename T>
std::string render_value(const std::vector<T>& values) {
  std::string out = "[";
  for (const auto& value : values) out += (out.size() > 1 ? ", " : "") + render_value(value);
  return out + "]";
}

// Appends the numbers of "1,2,3"; false where a piece is none.
bool parse_integers(const std::string& text, std::vector<std::int32_t>* out) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    std::int32_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return false;
    out->push_back(number);
    if (next == end) return true;
    if (*next != ',') return false;
    at = next + 1;
  }
}

}  // namespace

OptionEntry& Options::record(const std::string& name, const std::string& help, CLI::Option* option) {
  OptionEntry entry;
  entry.flag = name;
  entry.key = name;
  std::replace(entry.key.begin(), entry.key.end(), '-', '_');
  entry.env = "FOVEA_" + entry.key;
  for (char& c : entry.env) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  entry.help = help;
  entry.option = option;
  option->envname(entry.env)->group(section_);
  entries_.push_back(std::move(entry));
  return entries_.back();
}

template <typename T>
void Options::add_value(const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app_->add_option("--" + name, value, help)->capture_default_str();
  record(name, help, option).render = [&value] { return render_value(value); };
}

void Options::add(const std::string& name, std::string& value, const std::string& help) {
  add_value(name, value, help);
}
void Options::add(const std::string& name, std::int32_t& value, const std::string& help) {
  add_value(name, value, help);
}
void Options::add(const std::string& name, std::int64_t& value, const std::string& help) {
  add_value(name, value, help);
}
void Options::add(const std::string& name, std::uint64_t& value, const std::string& help) {
  add_value(name, value, help);
  // The parser takes -1 for 2^64 - 1.
  entries_.back().option->check(CLI::Validator(
      [name](std::string& text) {
        return text.find('-') == std::string::npos ? ""
                                                   : fmt::format("{} is {}, expected 0 or more", name, shorten(text));
      },
      ""));
}
void Options::add(const std::string& name, float& value, const std::string& help) { add_value(name, value, help); }
void Options::add(const std::string& name, double& value, const std::string& help) { add_value(name, value, help); }

void Options::add(const std::string& name, std::vector<std::string>& value, const std::string& help) {
  add_value(name, value, help);
  entries_.back().option->allow_extra_args(false);
  entries_.back().list = &value;
}
void Options::add(const std::string& name, std::vector<std::int32_t>& value, const std::string& help) {
  // Not the parser's own splitting, which skips an empty number silently.
  CLI::Option* option = app_->add_option(
      "--" + name,
      [name, &value](const CLI::results_t& texts) {
        std::vector<std::int32_t> numbers;
        for (const std::string& text : texts) {
          if (!parse_integers(text, &numbers)) {
            throw CLI::ValidationError("--" + name, quote(text) + " is no list of whole numbers; expected as 1,2,3");
          }
        }
        value = std::move(numbers);
        return true;
      },
      help);
  option->type_name("INT")->expected(1, CLI::detail::expected_max_vector_size)->default_str(render_value(value));
  record(name, help, option).render = [&value] { return render_value(value); };
}

void Options::add_choice(const std::string& name, std::string& value, const std::vector<std::string>& choices,
                         const std::string& help) {
  add_value(name, value, help);
  entries_.back().option->check(CLI::IsMember(choices));
  entries_.back().choices = choices;
}

void Options::add_flag(const std::string& name, bool& value, const std::string& help) {
  CLI::Option* option = app_->add_flag("--" + name + ",!--no-" + name, value, help)->default_str(value ? "on" : "off");
  OptionEntry& entry = record(name, help, option);
  entry.render = [&value] { return render_value(value); };
  entry.is_flag = true;
}

void Options::add_model(std::string& value, const std::string& help) {
  const bool bare = std::any_of(entries_.begin(), entries_.end(), [](const OptionEntry& e) { return e.env.empty(); });
  CLI::Option* option = app_->add_option(bare ? "-m,--model" : "-m,--model,MODEL", value, help);
  OptionEntry& entry = record("model", help, option);
  entry.render = [&value] { return render_value(value); };
  entry.letter = 'm';
}

void Options::hide(const std::vector<std::string>& names) {
  for (OptionEntry& entry : entries_) {
    if (std::find(names.begin(), names.end(), entry.flag) == names.end()) continue;
    entry.hidden = true;
    entry.option->group("");
  }
}

void Options::add_positional(const std::string& name, std::string& value, const std::string& help) {
  OptionEntry entry;
  entry.flag = name;
  entry.help = help;
  entry.option = app_->add_option(name, value, help);
  entries_.push_back(std::move(entry));
}

bool Options::given(const std::string& name) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const OptionEntry& entry) { return entry.flag == name && entry.option->count() > 0; });
}

bool Options::variable_is_empty(const std::string& name) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const OptionEntry& entry) {
    const char* const value = entry.flag == name ? std::getenv(entry.env.c_str()) : nullptr;
    return value != nullptr && *value == '\0' && entry.option->count() == 0;
  });
}

void Options::examples(const std::string& text) { app_->footer("Examples:\n" + text + "\n"); }

}  // namespace fovea::app
