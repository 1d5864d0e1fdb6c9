// The fovea command line: serve, generate, chat, demo, eval, bench, plan, doctor. This file builds the tree of commands
// from commands.cc, reads --config, parses and dispatches.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/quote.h"
#include "base/status.h"
#include "command.h"
#include "config_file.h"
#include "console.h"
#include "environment.h"
#include "fovea/version.h"
#include "help.h"
#include "ranks.h"

namespace fovea::app {
namespace {

struct Declared {
  std::string name;
  CLI::App* app = nullptr;
  std::unique_ptr<Options> options;
  RunFunction run;
};

// "bench attention" -> the subcommand "attention" of "bench", made on first use.
CLI::App* command_app(CLI::App& root, const std::string& name, const char* summary) {
  const std::size_t space = name.find(' ');
  if (space == std::string::npos) return root.add_subcommand(name, summary);
  const std::string group = name.substr(0, space);
  CLI::App* parent = nullptr;
  for (CLI::App* app : root.get_subcommands([&](CLI::App* app) { return app->get_name() == group; })) parent = app;
  if (parent == nullptr) {
    parent = root.add_subcommand(group);
    parent->require_subcommand(1);
  }
  const std::string old = parent->get_description();
  parent->description(old.empty() ? name.substr(space + 1) : old + ", " + name.substr(space + 1));
  return parent->add_subcommand(name.substr(space + 1), summary);
}

// --config is needed before the rest is parsed, because the file gives defaults.
std::string find_config_path(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--config" && i + 1 < argc) return argv[i + 1];
    if (argument.rfind("--config=", 0) == 0) return argument.substr(9);
  }
  const char* env = std::getenv("FOVEA_CONFIG");
  return env != nullptr ? env : "";
}

void print_config(const Declared& command) {
  fmt::print("# fovea {}\n[{}]\n", command.name, config_section(command.name));
  for (const OptionEntry& entry : command.options->entries()) {
    if (!entry.env.empty()) fmt::print("# {}\n{} = {}\n", entry.help, entry.key, entry.render());
  }
}

int usage_error(const std::string& message) {
  fmt::print(stderr, "fovea: {}\nRun `fovea --help`.\n", message);
  return kExitUsage;
}

// What was given to the parser, as arguments and in the environment, cut where it is long: the parser repeats it whole.
std::string shorten_given(std::string message, int argc, char** argv) {
  const auto shorten_text = [&message](std::string_view given) {
    message = shorten_inside(std::move(message), given);
    if (const std::size_t at = given.find('='); at != std::string_view::npos) {
      message = shorten_inside(std::move(message), given.substr(at + 1));
    }
  };
  for (int i = 1; i < argc; ++i) shorten_text(argv[i]);
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("FOVEA_")) shorten_text(*variable);
  }
  return message;
}

// "fovea serv" -> "serv" where the root or a group has no such command; empty where the command is known or missing.
std::string unknown_command(const CLI::App& root, int argc, char** argv) {
  const CLI::App* group = &root;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const std::vector<const CLI::App*> below = group->get_subcommands([](const CLI::App*) { return true; });
    if (below.empty()) break;
    const CLI::App* next = nullptr;
    for (const CLI::App* app : below) {
      if (app->get_name() == argv[i]) next = app;
    }
    if (next == nullptr) return argv[i];
    group = next;
  }
  return "";
}

// "--modle: --model is near", a line for each argument that the command does not have.
std::string near_options(const std::vector<Declared>& declared) {
  std::string lines;
  for (const Declared& command : declared) {
    if (!command.app->parsed()) continue;
    std::vector<std::string> known;
    for (const OptionEntry& entry : command.options->entries()) known.push_back("--" + entry.flag);
    for (const std::string& argument : command.app->remaining()) {
      if (!argument.starts_with("--")) continue;
      const std::string given = argument.substr(0, argument.find('='));
      const std::string_view nearest = nearest_name(given, known);
      if (!nearest.empty()) lines += fmt::format("{}: {} is near\n", shorten(given), nearest);
    }
  }
  return lines;
}

std::vector<std::string> environment_variables() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  return variables;
}

// FOVEA_PORT=tcp://.. would be taken for --port.
void forget_service_links() {
  for (const std::string& variable : environment_variables()) {
    if (is_service_link(variable)) unsetenv(variable.substr(0, variable.find('=')).c_str());
  }
}

// Names in the environment that no command reads: most likely slips.
void warn_about_environment(const std::vector<Declared>& declared) {
  std::vector<std::string> known;
  for (const Declared& command : declared) {
    for (const OptionEntry& entry : command.options->entries()) known.push_back(entry.env);
  }
  for (const std::string& line : unknown_variables(environment_variables(), std::move(known))) {
    fmt::print(stderr, "fovea: {}\n", line);
  }
}

// What was printed may still wait in the buffer: a full disk must not look like success.
int finish(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  const int failed = fail(data_loss("cannot write to stdout"));
  return code == kExitOk ? failed : code;
}

int run(int argc, char** argv) {
  CLI::App root{"Fovea: attention engine and server for large language models", "fovea"};
  root.set_version_flag("--version", std::string("fovea ") + kVersion);
  root.require_subcommand(1);
  std::vector<Declared> declared;
  root.failure_message([argc, argv, &declared](const CLI::App* app, const CLI::Error& error) {
    const std::string message = name_variable(CLI::FailureMessage::simple(app, error), environment_variables());
    return near_options(declared) + shorten_given(message, argc, argv);
  });
  root.footer(
      "Each command has --help with examples. Every flag is also an environment variable (--max-context is\n"
      "FOVEA_MAX_CONTEXT) and a key of a TOML file (--config); --print-config shows them with their values.");

  std::string config_path;
  bool print = false;
  for (const CommandEntry& entry : commands()) {
    Declared command;
    command.name = entry.name;
    command.app = command_app(root, entry.name, entry.summary);
    command.options = std::make_unique<Options>(command.app);
    command.run = entry.declare(*command.options);
    command.app->formatter(std::make_shared<HelpFormatter>(*command.options));
    command.app->set_help_flag("-h,--help", "Print this help and exit");
    command.app->add_option("--config", config_path, "TOML file with defaults for the options")
        ->envname("FOVEA_CONFIG");
    command.app->add_flag("--print-config", print, "Print the options and their values as TOML, and exit");
    declared.push_back(std::move(command));
  }

  if (const std::string name = unknown_command(root, argc, argv); !name.empty()) {
    return usage_error(fmt::format("there is no command {}", shorten(name)));
  }
  const std::string path = find_config_path(argc, argv);
  if (!path.empty()) {
    std::vector<ConfigTarget> targets;
    for (const Declared& command : declared) targets.push_back({command.name, command.options.get()});
    if (Status status = apply_config_file(path, targets); !status.ok()) return usage_error(status.message());
  }

  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return root.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  for (const Declared& command : declared) {
    if (!command.app->parsed()) continue;
    warn_about_environment(declared);
    if (print) {
      print_config(command);
      return kExitOk;
    }
    if (const std::optional<int> code = run_before(*command.options)) return *code;
    return command.run();
  }
  return usage_error("no command given");
}

}  // namespace
}  // namespace fovea::app

int main(int argc, char** argv) {
  // The library logs nothing unless told to; whoever runs a command wants to hear what goes wrong.
  const char* const variable = std::getenv("FOVEA_LOG_LEVEL");
  const auto level = fovea::parse_log_level(variable != nullptr && *variable != 0 ? variable : "warning");
  if (!level.ok()) return fovea::app::usage_error(fmt::format("FOVEA_LOG_LEVEL: {}", level.status().message()));
  fovea::set_log_level(*level);
  fovea::app::forget_service_links();
  fovea::app::repeat_command_line = [argc, argv] { return fovea::app::run(argc, argv); };
  try {
    return fovea::app::finish(fovea::app::run(argc, argv));
  } catch (const std::exception& error) {  // stdout that cannot be written, or no memory
    fmt::print(stderr, "fovea: {}\n", error.what());
    return fovea::app::kExitFailure;
  }
}
