// Unpacks the embedded model.
#include "engine/embedded_model.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/status.h"

namespace fovea {

Result<std::unique_ptr<EmbeddedFolder>> EmbeddedFolder::create(std::span<const EmbeddedFile> files) {
  if (files.empty()) {
    return not_found("this build carries no model; name a Hugging Face folder (model) or set FOVEA_MODEL_DIR");
  }
  // Memory before disk.
  std::error_code error;
  for (const std::string& parent : {std::string("/dev/shm"), std::filesystem::temp_directory_path(error).string()}) {
    std::string pattern = parent + "/fovea-model-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) continue;
    auto folder = std::unique_ptr<EmbeddedFolder>(new EmbeddedFolder(pattern));
    bool written = true;
    for (const EmbeddedFile& file : files) {
      std::ofstream out(pattern + "/" + file.name, std::ios::binary);
      out.write(file.begin, file.end - file.begin);
      written = written && out.flush().good();
    }
    if (written) return folder;
  }
  return resource_exhausted("no temporary folder has room for the embedded model (tried /dev/shm and TMPDIR)");
}

EmbeddedFolder::~EmbeddedFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace fovea
