// --help of a command: options under their headings, each with its default and choices, wrapped to 100 columns. Used by
// main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "options.h"

namespace fovea::app {

class HelpFormatter : public CLI::Formatter {
 public:
  // The options must outlive it.
  explicit HelpFormatter(const Options& options) : options_(options) {}
  std::string make_group(std::string group, bool is_positional, std::vector<const CLI::Option*> options) const override;
  std::string make_footer(const CLI::App* app) const override;
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;

 private:
  const Options& options_;
};

}  // namespace fovea::app
