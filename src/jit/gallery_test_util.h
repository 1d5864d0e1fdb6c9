// Reads docs/variants.md, so that what the page shows is what the tests compile.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
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

// Every code block below "## Gallery".
inline std::vector<GalleryEntry> read_gallery() {
  std::vector<GalleryEntry> gallery;
  bool in_gallery = false, in_code = false;
  for (const std::string& line : variants_page()) {
    if (line.starts_with("## ")) in_gallery = line == "## Gallery";
    if (!in_gallery) continue;
    if (line.starts_with("### ")) gallery.push_back({line.substr(4), {}, 0});
    if (gallery.empty()) continue;
    GalleryEntry& entry = gallery.back();
    if (line.starts_with("Parameters:")) entry.spec.params = read_params(line);
    if (line.starts_with("```")) {
      in_code = line == "```cpp";
    } else if (in_code) {
      if (entry.lines++ == 0) entry.spec.name = line.substr(7, line.find(" :") - 7);  // "struct NAME : Plain {"
      entry.spec.source += line + "\n";
    }
  }
  return gallery;
}

}  // namespace fovea::jit
