// The options of one command, from one table: each is a flag (--max-context), an environment variable
// (FOVEA_MAX_CONTEXT) and a TOML key (max_context, at the top of the --config file or under [command]); the flag wins
// over the variable, the variable over the file. Commands declare, main.cc parses.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace fovea::app {

struct OptionEntry {
  std::string flag;    // "max-context"
  char letter = '\0';  // 'm' of -m, or none
  std::string env;     // "FOVEA_MAX_CONTEXT"; empty for positional arguments
  std::string key;     // "max_context"
  std::string help;
  bool is_flag = false;              // --NAME and --no-NAME
  bool hidden = false;               // works, and --help leaves it out
  std::vector<std::string> choices;  // of add_choice
  CLI::Option* option = nullptr;
  std::function<std::string()> render;       // its value now, as TOML
  std::vector<std::string>* list = nullptr;  // of an option that takes several texts
};

class Options {
 public:
  explicit Options(CLI::App* app) : app_(app) {}

  // --NAME VALUE; the variable's value at the call is the default. The variable must live until the command has run.
  void add(const std::string& name, std::string& value, const std::string& help);
  void add(const std::string& name, std::int32_t& value, const std::string& help);
  void add(const std::string& name, std::int64_t& value, const std::string& help);
  void add(const std::string& name, std::uint64_t& value, const std::string& help);
  void add(const std::string& name, float& value, const std::string& help);
  void add(const std::string& name, double& value, const std::string& help);
  // Repeatable; commas are part of the text.
  void add(const std::string& name, std::vector<std::string>& value, const std::string& help);
  // Repeatable, or separated by commas.
  void add(const std::string& name, std::vector<std::int32_t>& value, const std::string& help);
  // One of `choices`.
  void add_choice(const std::string& name, std::string& value, const std::vector<std::string>& choices,
                  const std::string& help);
  // --NAME and --no-NAME.
  void add_flag(const std::string& name, bool& value, const std::string& help);
  // The model's folder: -m and --model, and, in a command without other bare arguments, a bare one.
  void add_model(std::string& value, const std::string& help);
  // Options from here on stand under this heading of --help.
  void section(const std::string& title) { section_ = title; }
  // Options of other commands that mean nothing to this one: configuration files may hold them.
  void hide(const std::vector<std::string>& names);
  // A bare argument; not in the environment, not in the file.
  void add_positional(const std::string& name, std::string& value, const std::string& help);
  // Whether the option was given (flag or environment), not left at its default.
  bool given(const std::string& name) const;
  // Whether the option's variable is set to nothing, which the parser takes for unset, and nothing else gives it.
  bool variable_is_empty(const std::string& name) const;
  // Shown at the end of the command's --help, one a line.
  void examples(const std::string& text);

  const std::vector<OptionEntry>& entries() const { return entries_; }

 private:
  template <typename T>
  void add_value(const std::string& name, T& value, const std::string& help);
  OptionEntry& record(const std::string& name, const std::string& help, CLI::Option* option);

  CLI::App* app_;
  std::string section_ = "Options";
  std::vector<OptionEntry> entries_;
};

}  // namespace fovea::app
