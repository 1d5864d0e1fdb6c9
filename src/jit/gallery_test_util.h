// Reads examples/variants, and docs/variants.md, so that what they show is what the tests compile.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "fovea/variant.h"

namespace fovea::jit {

struct GalleryEntry {
  std::string title;
  VariantSpec spec;
  int lines = 0;
};

inline std::vector<std::string> variants_page() {
  std::ifstream file(FOVEA_SOURCE_DIR "/docs/variants.md");
  if (!file.good()) file.open("docs/variants.md");  // a bundle of tests on another machine, run from its root
  EXPECT_TRUE(file.good());
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// "Parameters: `slopes` float tensor, `count` int."
inline std::vector<VariantParam> read_params(const std::string& line) {
  std::vector<VariantParam> params;
  std::istringstream rest(line.substr(line.find(':') + 1));
  for (std::string one; std::getline(rest, one, ',');) {
    VariantParam param;
    param.name = one.substr(one.find('`') + 1, one.rfind('`') - one.find('`') - 1);
    const bool tensor = one.find(" tensor") != std::string::npos;
    const bool is_float = one.find("` float") != std::string::npos;
    EXPECT_TRUE(is_float || one.find("` int") != std::string::npos) << line;
    param.type = is_float ? (tensor ? VariantParamType::kFloatTensor : VariantParamType::kFloat)
                          : (tensor ? VariantParamType::kIntTensor : VariantParamType::kInt);
    params.push_back(param);
  }
  return params;
}

// Every file of examples/variants, by name: what it is and its parameters in comments, then the struct.
inline std::vector<GalleryEntry> read_gallery() {
  namespace fs = std::filesystem;
  fs::path folder = FOVEA_SOURCE_DIR "/examples/variants";
  if (!fs::exists(folder)) folder = "examples/variants";  // a bundle of tests on another machine, run from its root
  std::error_code error;
  std::vector<fs::path> paths;
  for (const fs::directory_entry& file : fs::directory_iterator(folder, error)) paths.push_back(file.path());
  EXPECT_FALSE(error) << folder;
  std::sort(paths.begin(), paths.end());
  std::vector<GalleryEntry> gallery;
  for (const fs::path& path : paths) {
    GalleryEntry& entry = gallery.emplace_back();
    entry.title = path.filename();
    std::ifstream file(path);
    bool in_code = false;
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("// Parameters:")) entry.spec.params = read_params(line);
      in_code = in_code || line.starts_with("struct ");
      if (!in_code) continue;
      if (entry.lines++ == 0) entry.spec.name = line.substr(7, line.find(" :") - 7);  // "struct NAME : Plain {"
      entry.spec.source += line + "\n";
    }
  }
  return gallery;
}

}  // namespace fovea::jit
