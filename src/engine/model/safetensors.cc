// Reading and checking of safetensors files and their shard index.
#include "engine/model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "base/json.h"
#include "base/quote.h"
#include "base/status.h"

namespace fovea {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is used in place");

// The format's own limit; real headers are a few MB at most.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct StoredType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;  // none: a type that no model here uses
};
constexpr StoredType kTypes[] = {
    {"F32", 32, DType::kF32},  {"F16", 16, DType::kF16},     {"BF16", 16, DType::kBF16}, {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64},  {"I8", 8, DType::kI8},        {"U8", 8, DType::kU8},      {"F8_E4M3", 8, DType::kF8E4M3},
    {"F64", 64, std::nullopt}, {"F8_E5M2", 8, std::nullopt}, {"I16", 16, std::nullopt},  {"U16", 16, std::nullopt},
    {"U32", 32, std::nullopt}, {"U64", 64, std::nullopt},    {"BOOL", 8, std::nullopt}};

struct ParsedEntry {
  SafetensorsEntry entry;
  bool usable;
};

Result<ParsedEntry> parse_entry(const JsonReader& reader, std::uint64_t data_begin, std::uint64_t data_bytes) {
  FOVEA_ASSIGN_OR_RETURN(const std::string type_name, reader.string("dtype"));
  const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const StoredType& candidate) { return candidate.name == type_name; });
  if (type == std::end(kTypes))
    return unsupported("{} is {}, not a known type", reader.path("dtype"), quote(type_name));
  ParsedEntry parsed{{}, type->dtype.has_value()};
  parsed.entry.dtype = type->dtype.value_or(DType::kU8);
  FOVEA_ASSIGN_OR_RETURN(parsed.entry.shape, reader.integers("shape"));
  if (parsed.entry.shape.size() > TensorView::kMaxRank) {
    return unsupported("{} has {} dimensions, expected at most {}", reader.path("shape"), parsed.entry.shape.size(),
                       TensorView::kMaxRank);
  }
  std::uint64_t elements = 1;
  for (const std::int64_t size : parsed.entry.shape) {
    if (size < 0) return invalid_argument("{} holds {}, expected no negative sizes", reader.path("shape"), size);
    // Nothing larger than the file can be right, and the bound keeps the product from overflowing.
    if (size != 0 && elements > data_bytes * 8 / static_cast<std::uint64_t>(size)) {
      return data_loss("{} asks for more elements than the file's {} bytes of data hold", reader.path("shape"),
                       data_bytes);
    }
    elements *= static_cast<std::uint64_t>(size);
  }
  FOVEA_ASSIGN_OR_RETURN(const std::vector<std::int64_t> offsets, reader.integers("data_offsets"));
  if (offsets.size() != 2) {
    return invalid_argument("{} has {} numbers, expected [begin, end]", reader.path("data_offsets"), offsets.size());
  }
  if (offsets[0] < 0 || offsets[1] < offsets[0]) {
    return invalid_argument("{} is [{}, {}], expected 0 <= begin <= end", reader.path("data_offsets"), offsets[0],
                            offsets[1]);
  }
  if (static_cast<std::uint64_t>(offsets[1]) > data_bytes) {
    return data_loss("{} ends at byte {}, but the file holds {} bytes of data: it is truncated or its header is wrong",
                     reader.path("data_offsets"), offsets[1], data_bytes);
  }
  const std::uint64_t length = static_cast<std::uint64_t>(offsets[1] - offsets[0]);
  if (elements * static_cast<std::uint64_t>(type->bits) != length * 8) {
    return data_loss("{} spans {} bytes, but {} elements of {} take {}", reader.path("data_offsets"), length, elements,
                     type_name, elements * static_cast<std::uint64_t>(type->bits) / 8);
  }
  parsed.entry.begin = data_begin + static_cast<std::uint64_t>(offsets[0]);
  parsed.entry.end = data_begin + static_cast<std::uint64_t>(offsets[1]);
  if (parsed.usable && length > 0 && parsed.entry.begin % static_cast<std::uint64_t>(type->bits / 8) != 0) {
    return unsupported("{} puts {} data at byte {} of the file, which is not a multiple of {}",
                       reader.path("data_offsets"), type_name, parsed.entry.begin, type->bits / 8);
  }
  return parsed;
}

}  // namespace

Result<std::map<std::string, SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file,
                                                                  std::string_view path) {
  const std::string where = shorten(path);
  if (file.size() < 8) {
    return data_loss("{} has {} bytes, expected at least the 8 bytes of a safetensors header length", where,
                     file.size());
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), 8);
  if (header_bytes > kMaxHeaderBytes) {
    return data_loss("{} declares a header of {} bytes, expected at most {}: is it a safetensors file?", where,
                     header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > file.size() - 8) {
    return data_loss("{} declares a header of {} bytes, but only {} follow: it is truncated", where, header_bytes,
                     file.size() - 8);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  const std::string place = fmt::format("{} (header)", where);
  FOVEA_ASSIGN_OR_RETURN(const Json header, parse_json(text, place, {.max_bytes = kMaxHeaderBytes, .max_depth = 8}));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader root, JsonReader::create(header, place));

  const std::uint64_t data_begin = 8 + header_bytes;
  std::map<std::string, SafetensorsEntry> tensors;
  struct Range {
    std::uint64_t begin, end;
    std::string name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    FOVEA_ASSIGN_OR_RETURN(const JsonReader reader,
                           JsonReader::create(value, fmt::format("{}: {}", where, shorten(name))));
    FOVEA_ASSIGN_OR_RETURN(ParsedEntry parsed, parse_entry(reader, data_begin, file.size() - data_begin));
    if (parsed.entry.end > parsed.entry.begin) ranges.push_back({parsed.entry.begin, parsed.entry.end, name});
    if (parsed.usable) tensors.emplace(name, std::move(parsed.entry));
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[i - 1].end) {
      return data_loss("{}: {} (bytes {} to {}) overlaps {} (bytes {} to {})", where, shorten(ranges[i].name),
                       ranges[i].begin, ranges[i].end, shorten(ranges[i - 1].name), ranges[i - 1].begin,
                       ranges[i - 1].end);
    }
  }
  return tensors;
}

Status TensorStore::add_file(const std::string& path, const std::string& name) {
  FOVEA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  FOVEA_ASSIGN_OR_RETURN(auto entries, parse_safetensors(file.bytes(), path));
  for (auto& [tensor, entry] : entries) {
    const auto [found, added] = tensors_.emplace(tensor, Tensor{files_.size(), std::move(entry)});
    if (!added)
      return data_loss("{} is in {} and in {}", shorten(tensor), shorten(file_names_[found->second.file]),
                       shorten(name));
  }
  files_.push_back(std::move(file));
  file_names_.push_back(name);
  return ok_status();
}

Result<TensorStore> TensorStore::open(const std::string& path) {
  namespace fs = std::filesystem;
  TensorStore store;
  store.path_ = path;
  std::error_code error;
  if (fs::is_regular_file(path, error)) {
    FOVEA_RETURN_IF_ERROR(store.add_file(path, fs::path(path).filename()));
    return store;
  }
  const fs::path single = fs::path(path) / "model.safetensors";
  if (fs::is_regular_file(single, error)) {
    FOVEA_RETURN_IF_ERROR(store.add_file(single, "model.safetensors"));
    return store;
  }
  const fs::path index = fs::path(path) / "model.safetensors.index.json";
  if (!fs::is_regular_file(index, error)) {
    return not_found("{} has neither model.safetensors nor model.safetensors.index.json", shorten(path));
  }
  FOVEA_ASSIGN_OR_RETURN(const Json json, read_json_file(index, {.max_bytes = kMaxHeaderBytes, .max_depth = 8}));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader root, JsonReader::create(json, shorten(index.string())));
  FOVEA_ASSIGN_OR_RETURN(const JsonReader weight_map, root.child("weight_map"));
  std::set<std::string> files;
  for (const auto& [name, value] : weight_map.json().items()) {
    FOVEA_ASSIGN_OR_RETURN(const std::string file, weight_map.string(name));
    // A shard lies beside its index; anything else would let a model folder name files elsewhere.
    if (file.empty() || file.find('/') != std::string::npos || file == "..") {
      return invalid_argument("{} is {}, expected the name of a file beside the index", weight_map.path(name),
                              quote(file));
    }
    files.insert(file);
  }
  if (files.empty()) return invalid_argument("{} names no files", weight_map.where());
  for (const std::string& file : files) FOVEA_RETURN_IF_ERROR(store.add_file(fs::path(path) / file, file));
  return store;
}

Result<TensorView> TensorStore::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return not_found("{} has no tensor {}", shorten(path_), name);
  const SafetensorsEntry& entry = found->second.entry;
  TensorView view;
  view.data = const_cast<std::byte*>(files_[found->second.file].data() + entry.begin);
  view.dtype = entry.dtype;
  view.rank = static_cast<std::int32_t>(entry.shape.size());
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = entry.shape[i];
    view.strides[i] = stride;
    stride *= entry.shape[i];
  }
  return view;
}

Result<TensorView> TensorStore::find(const std::string& name, std::initializer_list<std::int64_t> shape) const {
  FOVEA_ASSIGN_OR_RETURN(const TensorView view, find(name));
  if (view.rank != static_cast<int>(shape.size()) || !std::equal(shape.begin(), shape.end(), view.shape.begin())) {
    return invalid_argument("{} is [{}], expected [{}] by config.json", describe(name),
                            fmt::join(view.shape.begin(), view.shape.begin() + view.rank, ", "),
                            fmt::join(shape, ", "));
  }
  return view;
}

std::string TensorStore::describe(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? name : fmt::format("{}: {}", file_names_[found->second.file], name);
}

std::vector<std::string> TensorStore::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

std::size_t TensorStore::total_bytes() const {
  std::size_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += tensor.entry.end - tensor.entry.begin;
  return total;
}

}  // namespace fovea
