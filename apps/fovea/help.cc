#include "help.h"

#include <fmt/format.h>

#include <algorithm>

namespace fovea::app {
namespace {

constexpr std::size_t kColumns = 100;  // of a line
constexpr std::size_t kText = 32;      // column where descriptions begin

// "Words of the text", from column `begin` on, further lines below the first.
std::string wrapped(const std::string& text, std::size_t begin) {
  std::string out;
  std::size_t column = begin;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (column > begin && column + 1 + word.size() > kColumns) {
      out += "\n" + std::string(begin, ' ');
      column = begin;
    }
    out += (column > begin ? " " : "") + word;
    column += word.size() + (column > begin ? 1 : 0);
    at = end + 1;
  }
  return out;
}

// "[[1,2,3]]" as the parser writes the default of a list -> "1,2,3".
std::string default_of(const CLI::Option& option) {
  std::string text = option.get_default_str();
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  return text;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) {
    if (!part.empty()) out += (out.empty() ? "" : ", ") + part;
  }
  return out;
}

}  // namespace

std::string HelpFormatter::make_group(std::string group, bool is_positional,
                                      std::vector<const CLI::Option*> options) const {
  std::string out = "\n" + (is_positional ? std::string("Arguments") : group) + ":\n";
  for (const CLI::Option* option : options) {
    const OptionEntry* entry = nullptr;
    for (const OptionEntry& e : options_.entries()) {
      if (e.option == option) entry = &e;
    }
    std::string name = is_positional ? option->get_name(true, false) : option->get_name(false, true);
    std::string text = option->get_description();
    if (entry != nullptr && !is_positional) {
      const char* value = !entry->choices.empty() ? " NAME" : " VALUE";
      name = fmt::format("{}--{}{}{}", entry->letter == '\0' ? "    " : fmt::format("-{}, ", entry->letter),
                         entry->is_flag ? "[no-]" : "", entry->flag, entry->is_flag ? "" : value);
      if (!entry->choices.empty()) text += "; one of " + joined(entry->choices);
      if (const std::string value_now = default_of(*option); !value_now.empty()) text += " [" + value_now + "]";
    } else if (!is_positional) {
      name = (name.rfind("--", 0) == 0 ? "    " : "") + name;
    }
    out += "  " + name;
    const std::size_t column = 2 + name.size();
    out += column + 2 > kText ? "\n" + std::string(kText, ' ') : std::string(kText - column, ' ');
    out += wrapped(text, kText) + "\n";
  }
  return out;
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
  for (std::size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
  return text;
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return CLI::Formatter::make_footer(app) +
         "Each option is also a variable of the environment and a key of the file that --config names:\n"
         "--some-name is FOVEA_SOME_NAME and some_name.\n";
}

}  // namespace fovea::app
