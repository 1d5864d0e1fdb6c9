// Everything goes into one text of fields and their borders, whose hash is the space.
#include "engine/store/kv_space.h"

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/status.h"
#include "engine/store/segment.h"
#include "fovea/version.h"

namespace fovea {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWholeBytes = std::size_t{256} << 20;
constexpr std::size_t kStride = std::size_t{1} << 20;
constexpr std::size_t kSample = std::size_t{64} << 10;

Hash128 combine(const Hash128& a, const Hash128& b) {
  const std::uint64_t both[4] = {a.low, a.high, b.low, b.high};
  return hash128_bytes(both, sizeof(both));
}

Hash128 hash_of(const std::string& text) { return hash128_bytes(text.data(), text.size()); }

Hash128 hash_content(std::span<const std::byte> bytes) {
  Hash128 hash = hash128_bytes(bytes.data(), std::min(bytes.size(), kWholeBytes));
  for (std::size_t at = kWholeBytes; at < bytes.size(); at += kStride) {
    hash = combine(hash, hash128_bytes(bytes.data() + at, std::min(kSample, bytes.size() - at)));
  }
  return hash;
}

}  // namespace

Result<Hash128> hash_model(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  if (fs::is_regular_file(folder, error)) {
    files.push_back(folder);
  } else {
    files.push_back(folder + "/config.json");
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      if (it->path().extension() == ".safetensors") files.push_back(it->path().string());
    }
    std::sort(files.begin() + 1, files.end());
  }
  Hash128 hash;
  for (const std::string& path : files) {
    FOVEA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    const std::string name = fmt::format("{}:{}", fs::path(path).filename().string(), file.size_bytes());
    hash = combine(combine(hash, hash_of(name)), hash_content(file.bytes()));
  }
  return hash;
}

Hash128 kv_space(const Hash128& model, const EngineOptions& options, std::string_view device,
                 const std::vector<KvGroupSpec>& groups) {
  // The version stands for every kernel that may have changed bits.
  std::string text =
      fmt::format("{} {} {}.{} {} {} kv {} {} page {} context {} exact {} simd '{}' weights {} {}", kSegmentVersion,
                  kVersion, model.high, model.low, device.substr(0, device.find(':')), groups.size(),
                  static_cast<int>(options.kv_dtype), options.kv_rotated, options.page_tokens, options.max_context,
                  options.batch_invariant, options.simd, options.load_format, options.dummy_seed);
  for (const KvGroupSpec& group : groups) {
    text += fmt::format("; {} {} {} {} {} [{}]", group.num_kv_heads, group.head_dim, group.window_tokens,
                        group.sink_tokens, group.prompt_window_tokens, fmt::join(group.layers, ","));
    for (const auto& heads : group.heads) text += fmt::format("({})", fmt::join(heads, ","));
  }
  return hash_of(text);
}

}  // namespace fovea
