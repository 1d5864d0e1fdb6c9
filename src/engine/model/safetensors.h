// Safetensors: weights of a Hugging Face folder, mapped read-only and checked before anything points into them. Used by
// weights.cc, the golden tests and the fuzz target. Format: 8 bytes little-endian header length, a JSON header {name:
// {dtype, shape, data_offsets}}, then the data.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "fovea/dtype.h"
#include "fovea/status.h"
#include "fovea/tensor_view.h"

namespace fovea {

struct SafetensorsEntry {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the file
  std::uint64_t end = 0;
};

// Parses and checks the header of a file whose bytes are given: every tensor inside the file, no two overlapping,
// length equal to dtype times shape, alignment to its dtype. Messages open with `where` and name the tensor and the
// offsets. Tensors of types that no model here uses (F64, I16, ..) are checked and left out. Empty gaps are tolerated.
Result<std::map<std::string, SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file,
                                                                  std::string_view where);

// All tensors of a folder: model.safetensors, or the shards that model.safetensors.index.json lists.
class TensorStore {
 public:
  // path: a folder, or one .safetensors file.
  static Result<TensorStore> open(const std::string& path);

  bool has(const std::string& name) const { return tensors_.contains(name); }
  // A view into the mapping, valid as long as the store. kNotFound names the tensor and the place searched.
  Result<TensorView> find(const std::string& name) const;
  // As find(); kInvalidArgument with both shapes when the shape differs.
  Result<TensorView> find(const std::string& name, std::initializer_list<std::int64_t> shape) const;
  // "model-00001-of-00002.safetensors: layers.0.x", for messages about a tensor's content.
  std::string describe(const std::string& name) const;
  std::vector<std::string> names() const;
  std::size_t total_bytes() const;
  // The files, in the order of their names.
  std::span<const MappedFile> files() const { return files_; }

 private:
  struct Tensor {
    std::size_t file;  // index into files_
    SafetensorsEntry entry;
  };
  Status add_file(const std::string& path, const std::string& name);

  std::string path_;
  std::vector<MappedFile> files_;
  std::vector<std::string> file_names_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace fovea
