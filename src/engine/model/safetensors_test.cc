// Safetensors headers, good and bad: every refusal says which file, tensor and bytes.
#include "engine/model/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace fovea {
namespace {

namespace fs = std::filesystem;

std::string with_header(const std::string& header, std::size_t data_bytes) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\1');
}

Status parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "x.safetensors").status();
}

// The header padded with spaces to a multiple of 8, as writers do.
Status parse_header(std::string header, std::size_t data_bytes) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return parse(with_header(header, data_bytes));
}

TEST(Safetensors, ReadsTensorsAndSkipsMetadata) {
  const std::string file = with_header(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"e":{"dtype":"F32","shape":[0,5],"data_offsets":[22,22]},)"
      R"("d":{"dtype":"F64","shape":[1],"data_offsets":[24,32]}}                                                )",
      32);
  const auto parsed = parse_safetensors(std::as_bytes(std::span(file.data(), file.size())), "x");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->size(), 3u);  // F64 is checked, then left out
  EXPECT_EQ(parsed->at("a").shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(parsed->at("b").dtype, DType::kBF16);
  EXPECT_EQ(parsed->at("b").end - parsed->at("b").begin, 6u);
}

struct BadHeader {
  const char* name;
  const char* header;
  std::size_t data_bytes;
  StatusCode code;
  const char* says;
};

class BadSafetensors : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadSafetensors, SaysWhatAndWhere) {
  const Status status = parse_header(GetParam().header, GetParam().data_bytes);
  EXPECT_EQ(status.code(), GetParam().code) << status.to_string();
  EXPECT_NE(status.message().find(GetParam().says), std::string::npos) << status.to_string();
  EXPECT_NE(status.message().find("x.safetensors"), std::string::npos) << status.to_string();
}

INSTANTIATE_TEST_SUITE_P(
    Headers, BadSafetensors,
    ::testing::Values(
        BadHeader{"NotJson", "{\"a\":", 0, StatusCode::kInvalidArgument, "not valid JSON"},
        BadHeader{"NotAnObject", "[1]", 0, StatusCode::kInvalidArgument, "expected an object"},
        BadHeader{"EntryNotAnObject", R"({"a":3})", 0, StatusCode::kInvalidArgument, "a"},
        BadHeader{"NoDtype", R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, StatusCode::kInvalidArgument, "dtype"},
        BadHeader{"UnknownDtype", R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}})", 4,
                  StatusCode::kUnsupported, "Q4"},
        BadHeader{"NoShape", R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, StatusCode::kInvalidArgument, "shape"},
        BadHeader{"NegativeSize", R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4,
                  StatusCode::kInvalidArgument, "negative"},
        BadHeader{"FractionalSize", R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4,
                  StatusCode::kInvalidArgument, "shape"},
        BadHeader{"Rank", R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1],"data_offsets":[0,4]}})", 4,
                  StatusCode::kUnsupported, "dimensions"},
        BadHeader{"OverflowingShape", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,4]}})",
                  4, StatusCode::kDataLoss, "shape"},
        BadHeader{"ZeroTimesHuge", R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,16],"data_offsets":[0,4]}})",
                  4, StatusCode::kDataLoss, "0 elements"},
        BadHeader{"ThreeOffsets", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 8,
                  StatusCode::kInvalidArgument, "data_offsets"},
        BadHeader{"Backwards", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", 8,
                  StatusCode::kInvalidArgument, "[8, 4]"},
        BadHeader{"NegativeOffset", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 8,
                  StatusCode::kInvalidArgument, "[-4, 0]"},
        BadHeader{"PastTheEnd", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7, StatusCode::kDataLoss,
                  "ends at byte 8"},
        BadHeader{"LengthDiffers", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 16,
                  StatusCode::kDataLoss, "spans 8 bytes"},
        BadHeader{
            "Overlap",
            R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
            16, StatusCode::kDataLoss, "overlaps"},
        BadHeader{"Misaligned", R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})", 8,
                  StatusCode::kUnsupported, "multiple of 4"}),
    [](const auto& info) { return info.param.name; });

TEST(Safetensors, RefusesTruncatedAndOversizedHeaders) {
  EXPECT_EQ(parse("").code(), StatusCode::kDataLoss);
  EXPECT_EQ(parse(std::string(7, '\0')).code(), StatusCode::kDataLoss);
  const std::string good = with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )", 8);
  ASSERT_TRUE(parse(good).ok());
  for (std::size_t length = 0; length < good.size(); ++length) {
    const Status status = parse(good.substr(0, length));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << length << ": " << status.to_string();
  }
  EXPECT_EQ(parse(std::string(16, '\xff')).code(), StatusCode::kDataLoss);
  EXPECT_FALSE(parse_header(std::string(200, '['), 0).ok());
}

class TensorStoreFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("fovea_store_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  void write_tensor(const std::string& file, const std::string& tensor) {
    std::string header = R"({")" + tensor + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    write(file, with_header(header, 8));
  }
  Status open() const { return TensorStore::open(folder_).status(); }

  fs::path folder_;
};

TEST_F(TensorStoreFiles, SaysWhenThereIsNothing) {
  EXPECT_EQ(open().code(), StatusCode::kNotFound);
  EXPECT_NE(open().message().find("model.safetensors"), std::string::npos);
}

TEST_F(TensorStoreFiles, OpensShardsAndChecksShapes) {
  write_tensor("one.safetensors", "a");
  write_tensor("two.safetensors", "b");
  write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto store = TensorStore::open(folder_);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  EXPECT_TRUE(store->find("b", {2}).ok());
  EXPECT_EQ(store->total_bytes(), 16u);
  const Status shape = store->find("b", {2, 1}).status();
  EXPECT_EQ(shape.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(shape.message().find("two.safetensors: b is [2], expected [2, 1]"), std::string::npos) << shape.message();
  const Status missing = store->find("c").status();
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("no tensor c"), std::string::npos);
}

TEST_F(TensorStoreFiles, RefusesBadIndexes) {
  write_tensor("one.safetensors", "a");
  write_tensor("two.safetensors", "a");
  const auto fails = [&](const char* index, StatusCode code, const char* says) {
    write("model.safetensors.index.json", index);
    EXPECT_EQ(open().code(), code) << index << open().to_string();
    EXPECT_NE(open().message().find(says), std::string::npos) << open().to_string();
  };
  fails(R"({"weight_map":{"a":"../one.safetensors"}})", StatusCode::kInvalidArgument, "beside the index");
  fails(R"({"weight_map":{"a":7}})", StatusCode::kInvalidArgument, "weight_map.a");
  fails(R"({"weight_map":{}})", StatusCode::kInvalidArgument, "names no files");
  fails(R"({"metadata":{}})", StatusCode::kInvalidArgument, "weight_map");
  fails(R"({"weight_map":{"a":"none.safetensors"}})", StatusCode::kNotFound, "none.safetensors");
  fails(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})", StatusCode::kDataLoss, "two.safetensors");
}

}  // namespace
}  // namespace fovea
