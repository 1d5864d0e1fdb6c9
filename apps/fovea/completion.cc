// `fovea completion bash|zsh|fish`: a script for the shell, from the options that the commands declare. Values of
// options complete to their choices, where they have some, else to names of files, as bare arguments do.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/quote.h"
#include "base/status.h"
#include "commands.h"
#include "console.h"

namespace fovea::app {
namespace {

struct Word {
  std::string text, help;
};

struct Completed {
  std::string name, summary;  // "bench plan"
  std::vector<OptionEntry> options;
};

// Of the first words of names: commands, and groups of commands with the second words below them.
struct Tree {
  std::vector<Completed> commands;

  static std::string first(const std::string& name) { return name.substr(0, name.find(' ')); }
  static std::string second(const std::string& name) {
    const std::size_t space = name.find(' ');
    return space == std::string::npos ? "" : name.substr(space + 1);
  }
  std::vector<Word> firsts() const {
    std::vector<Word> words;
    for (const Completed& command : commands) {
      const auto same = [&](const Word& word) { return word.text == first(command.name); };
      if (std::any_of(words.begin(), words.end(), same)) continue;
      words.push_back({first(command.name), second(command.name).empty() ? command.summary : "Commands of this group"});
    }
    return words;
  }
  std::vector<Word> seconds(const std::string& group) const {
    std::vector<Word> words;
    for (const Completed& command : commands) {
      if (first(command.name) == group && !second(command.name).empty()) {
        words.push_back({second(command.name), command.summary});
      }
    }
    return words;
  }
};

Tree read_tree() {
  Tree tree;
  for (const CommandEntry& entry : commands()) {
    CLI::App app;
    Options options(&app);
    entry.declare(options);
    Completed command{entry.name, entry.summary, {}};
    for (const OptionEntry& option : options.entries()) {
      if (!option.env.empty() && !option.hidden) command.options.push_back(option);
    }
    OptionEntry config, print, help;
    config.flag = "config";
    config.help = "TOML file with defaults for the options";
    print.flag = "print-config";
    print.help = "Print the options and their values as TOML, and exit";
    help.flag = "help";
    help.letter = 'h';
    help.help = "Print help and exit";
    print.is_flag = help.is_flag = true;
    for (const OptionEntry& option : {config, print, help}) command.options.push_back(option);
    tree.commands.push_back(std::move(command));
  }
  return tree;
}

// The names of an option on the command line. Only those that declare a negation have one.
std::vector<std::string> names_of(const OptionEntry& option) {
  std::vector<std::string> names = {"--" + option.flag};
  if (option.is_flag && !option.env.empty()) names.push_back("--no-" + option.flag);
  if (option.letter != '\0') names.push_back(fmt::format("-{}", option.letter));
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    if (!word.empty()) out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

// Inside of single quotes; `escape` are characters that the shell's own notation needs a backslash before.
std::string quoted(const std::string& text, std::string_view escape = "") {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      if (escape.find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out + "'";
}

std::string bash_script(const Tree& tree) {
  std::vector<std::string> firsts;
  std::string groups, values, options;
  for (const Word& word : tree.firsts()) {
    firsts.push_back(word.text);
    std::vector<std::string> below;
    for (const Word& second : tree.seconds(word.text)) below.push_back(second.text);
    if (below.empty()) continue;
    groups += fmt::format(
        "    {})\n      if ((COMP_CWORD == 2)); then COMPREPLY=($(compgen -W {} -- \"$word\")); return; fi\n"
        "      command+=\" ${{COMP_WORDS[2]}}\" ;;\n",
        word.text, quoted(joined(below)));
  }
  for (const Completed& command : tree.commands) {
    std::vector<std::string> names, with_value;
    for (const OptionEntry& option : command.options) {
      for (const std::string& name : names_of(option)) names.push_back(name);
      if (option.is_flag) continue;
      if (option.choices.empty()) {
        for (const std::string& name : names_of(option)) with_value.push_back(quoted(command.name + " " + name));
      } else {
        values += fmt::format("    {}) COMPREPLY=($(compgen -W {} -- \"$word\")); return ;;\n",
                              quoted(command.name + " --" + option.flag), quoted(joined(option.choices)));
      }
    }
    std::string pattern;
    for (const std::string& name : with_value) pattern += (pattern.empty() ? "" : " | ") + name;
    if (!pattern.empty()) values += fmt::format("    {}) return ;;\n", pattern);
    options += fmt::format("    {}) COMPREPLY=($(compgen -W {} -- \"$word\")) ;;\n", quoted(command.name),
                           quoted(joined(names)));
  }
  return "# Completion of fovea for bash: source <(fovea completion bash)\n"
         "_fovea() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}\n"
         "  COMPREPLY=()\n"
         "  if ((COMP_CWORD == 1)); then\n"
         "    COMPREPLY=($(compgen -W " +
         quoted(joined(firsts) + " --help --version") +
         " -- \"$word\"))\n    return\n  fi\n"
         "  case $command in\n" +
         groups +
         "  esac\n"
         "  case \"$command ${COMP_WORDS[COMP_CWORD-1]}\" in\n" +
         values +
         "  esac\n"
         "  [[ $word == -* ]] || return\n"
         "  case $command in\n" +
         options +
         "  esac\n"
         "}\n"
         "complete -o bashdefault -o default -F _fovea fovea\n";
}

std::string zsh_words(const std::vector<Word>& words) {
  std::string out;
  for (const Word& word : words) out += " " + quoted(word.text + ":" + word.help);
  return out;
}

std::string zsh_script(const Tree& tree) {
  std::string groups, options;
  for (const Word& word : tree.firsts()) {
    const std::vector<Word> below = tree.seconds(word.text);
    if (below.empty()) continue;
    groups += fmt::format(
        "    {})\n      if ((CURRENT == 3)); then words_=({}); _describe command words_; return; fi\n"
        "      command+=\" $words[3]\" ;;\n",
        word.text, zsh_words(below));
  }
  for (const Completed& command : tree.commands) {
    options += fmt::format("    {})\n      _arguments", quoted(command.name));
    for (const OptionEntry& option : command.options) {
      for (const std::string& name : names_of(option)) {
        const std::string action = option.is_flag           ? ""
                                   : option.choices.empty() ? ":value:_files"
                                                            : ":value:(" + joined(option.choices) + ")";
        std::string help;  // a bracket ends it
        for (const char c : option.help)
          help += c == '[' || c == ']' || c == ':' ? std::string("\\") + c : std::string(1, c);
        options += " \\\n        " + quoted(name + "[" + help + "]" + action);
      }
    }
    options += " \\\n        '*:file:_files' ;;\n";
  }
  return "#compdef fovea\n"
         "# Completion of fovea for zsh: fovea completion zsh >\"${fpath[1]}/_fovea\"\n"
         "_fovea() {\n"
         "  local command=$words[2]\n"
         "  local -a words_\n"
         "  if ((CURRENT == 2)); then\n"
         "    words_=(" +
         zsh_words(tree.firsts()) +
         ")\n    _describe command words_\n    return\n  fi\n"
         "  case $command in\n" +
         groups + "  esac\n  case $command in\n" + options +
         "  esac\n"
         "}\n"
         "if [[ ${funcstack[1]} == _fovea ]]; then _fovea \"$@\"; else compdef _fovea fovea; fi\n";
}

std::string fish_script(const Tree& tree) {
  std::string out = "# Completion of fovea for fish: fovea completion fish >~/.config/fish/completions/fovea.fish\n";
  const auto line = [&](const std::string& when, const std::string& what, const std::string& help) {
    out += fmt::format("complete -c fovea -n {} {} -d {}\n", quoted(when), what, quoted(help));
  };
  std::vector<std::string> groups;
  for (const Word& word : tree.firsts()) {
    line("__fish_use_subcommand", "-f -a " + word.text, word.help);
    if (!tree.seconds(word.text).empty()) groups.push_back(word.text);
  }
  for (const Completed& command : tree.commands) {
    const std::string first = Tree::first(command.name), second = Tree::second(command.name);
    std::string when = "__fish_seen_subcommand_from " + first;
    if (second.empty()) {
      when += "; and not __fish_seen_subcommand_from " + joined(groups);
    } else {
      std::vector<std::string> others;
      for (const Word& word : tree.seconds(first)) others.push_back(word.text);
      line(when + "; and not __fish_seen_subcommand_from " + joined(others), "-f -a " + second, command.summary);
      when += "; and __fish_seen_subcommand_from " + second;
    }
    for (const OptionEntry& option : command.options) {
      std::string what = "-l " + option.flag;
      if (option.letter != '\0') what += fmt::format(" -s {}", option.letter);
      if (!option.is_flag) what += option.choices.empty() ? " -r" : " -x -a " + quoted(joined(option.choices));
      line(when, what, option.help);
    }
  }
  return out;
}

}  // namespace

RunFunction declare_completion(Options& options) {
  auto shell = std::make_shared<std::string>();
  options.add_positional("shell", *shell, "bash, zsh or fish");
  options.examples(
      "  source <(fovea completion bash)\n"
      "  fovea completion zsh >\"${fpath[1]}/_fovea\"\n"
      "  fovea completion fish >~/.config/fish/completions/fovea.fish");
  return [shell] {
    using Script = std::string (*)(const Tree&);
    const Script script = *shell == "bash" ? bash_script : *shell == "zsh" ? zsh_script : fish_script;
    if (*shell != "bash" && *shell != "zsh" && *shell != "fish") {
      return fail(invalid_argument("the shell is {}, expected bash, zsh or fish", quote(*shell)));
    }
    const Status status = write_output("-", script(read_tree()));
    return status.ok() ? kExitOk : fail(status);
  };
}

}  // namespace fovea::app
