#include "config_file.h"

#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <sstream>

#include "base/quote.h"
#include "base/status.h"
#include "console.h"

namespace fovea::app {
namespace {

// A scalar as the text a flag would take; arrays join with commas.
bool render_node(const toml::node& node, std::string* out) {
  if (const auto* text = node.as_string()) {
    *out = text->get();
  } else if (const auto* boolean = node.as_boolean()) {
    *out = boolean->get() ? "true" : "false";
  } else if (const auto* integer = node.as_integer()) {
    *out = std::to_string(integer->get());
  } else if (const auto* number = node.as_floating_point()) {
    *out = fmt::format("{}", number->get());
  } else if (const auto* array = node.as_array()) {
    std::string joined, item;
    for (const toml::node& element : *array) {
      if (element.is_array() || !render_node(element, &item)) return false;
      joined += (joined.empty() ? "" : ",") + item;
    }
    *out = joined;
  } else {
    return false;
  }
  return true;
}

Status set_default(const std::string& path, const std::string& key, const toml::node& node, const OptionEntry& entry) {
  std::string value;
  if (entry.list != nullptr && node.is_array()) {
    std::vector<std::string> texts;
    for (const toml::node& element : *node.as_array()) {
      if (element.is_array() || !render_node(element, &value)) {
        return invalid_argument("{}: {} must be a list of texts", path, shorten(key));
      }
      texts.push_back(value);
    }
    *entry.list = std::move(texts);
    return {};
  }
  if (!render_node(node, &value))
    return invalid_argument("{}: {} must be a value or a list of values", path, shorten(key));
  if (value.empty()) return {};
  try {
    entry.option->run_callback_for_default()->default_val(value);
  } catch (const CLI::Error& error) {
    return invalid_argument("{}: {} = {}: {}", path, shorten(key), shorten(value), shorten_inside(error.what(), value));
  }
  return {};
}

const OptionEntry* find_entry(const Options& options, std::string_view key) {
  for (const OptionEntry& entry : options.entries()) {
    if (!entry.env.empty() && entry.key == key) return &entry;
  }
  return nullptr;
}

Status apply_table(const std::string& path, const toml::table& table, const std::vector<ConfigTarget>& targets,
                   const std::string& section) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (section.empty() && node.is_table()) continue;
    bool known = false;
    for (const ConfigTarget& target : targets) {
      if (!section.empty() && config_section(target.command) != section) continue;
      const OptionEntry* entry = find_entry(*target.options, name);
      if (entry == nullptr) continue;
      known = true;
      FOVEA_RETURN_IF_ERROR(set_default(path, section.empty() ? name : section + "." + name, node, *entry));
    }
    if (!known) {
      return invalid_argument("{}: unknown key {}; `fovea COMMAND --print-config` lists the keys", path,
                              shorten(section.empty() ? name : section + "." + name));
    }
  }
  return {};
}

}  // namespace

std::string config_section(const std::string& command) {
  std::string section = command;
  std::replace(section.begin(), section.end(), ' ', '_');
  return section;
}

Status apply_config_file(const std::string& path, const std::vector<ConfigTarget>& targets) {
  std::string text;
  if (const Status status = read_input(path, &text); !status.ok()) {
    return not_found("the configuration file: {}", status.message());
  }
  const std::string name = shorten(path);
  toml::table file;
  try {
    file = toml::parse(text);
  } catch (const toml::parse_error& error) {
    const auto where = error.source().begin;
    return invalid_argument("{}:{}:{}: {}", name, where.line, where.column, shorten(error.description()));
  }
  FOVEA_RETURN_IF_ERROR(apply_table(name, file, targets, ""));
  for (const auto& [key, node] : file) {
    if (!node.is_table()) continue;
    const std::string section(key.str());
    const bool known = std::any_of(targets.begin(), targets.end(), [&](const ConfigTarget& target) {
      return config_section(target.command) == section;
    });
    if (!known) return invalid_argument("{}: [{}] is no command", name, shorten(section));
    FOVEA_RETURN_IF_ERROR(apply_table(name, *node.as_table(), targets, section));
  }
  return {};
}

}  // namespace fovea::app
