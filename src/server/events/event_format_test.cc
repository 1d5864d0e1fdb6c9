// The bytes of KV events, read back as msgpack.
#include "server/events/event_format.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace fovea::server {
namespace {

using Json = nlohmann::json;

std::vector<KvEvent> some_events() {
  std::vector<KvEvent> events(3);
  events[0].blocks = {~std::uint64_t{0}, 2};
  events[0].parent = 7;
  events[0].tokens = {1, 2, 3, 4};
  events[0].block_tokens = 2;
  events[0].salt = "mine";
  events[0].gpu = true;
  events[1].kind = KvEvent::Kind::kRemoved;
  events[1].blocks = {2};
  events[2].kind = KvEvent::Kind::kCleared;
  return events;
}

TEST(EventFormat, MapsHoldWhatRoutersRead) {
  const Json batch = Json::from_msgpack(event_payload(some_events(), 12.5, EventShape::kMap));
  EXPECT_EQ(batch[0], 12.5);
  EXPECT_EQ(batch[2], 0);
  const Json& stored = batch[1][0];
  EXPECT_EQ(stored["type"], "BlockStored");
  EXPECT_EQ(stored["block_hashes"], Json::array({~std::uint64_t{0}, 2}));
  EXPECT_EQ(stored["parent_block_hash"], 7);
  EXPECT_EQ(stored["token_ids"], Json::array({1, 2, 3, 4}));
  EXPECT_EQ(stored["block_size"], 2);
  EXPECT_EQ(stored["medium"], "GPU");
  EXPECT_EQ(stored["extra_keys"], Json::parse(R"([["mine"],["mine"]])"));
  EXPECT_TRUE(stored.contains("lora_id") && stored["lora_id"].is_null());
  EXPECT_EQ(batch[1][1], Json::parse(R"({"type":"BlockRemoved","block_hashes":[2],"medium":"CPU","group_idx":0})"));
  EXPECT_EQ(batch[1][2], Json::parse(R"({"type":"AllBlocksCleared"})"));
}

TEST(EventFormat, ArraysBeginWithTheTag) {
  std::vector<KvEvent> events = some_events();
  events[0].parent.reset();
  const Json batch = Json::from_msgpack(event_payload(events, 1.0, EventShape::kArray));
  EXPECT_EQ(batch[1][0],
            Json::array({"BlockStored", {~std::uint64_t{0}, 2}, nullptr, {1, 2, 3, 4}, 2, nullptr, "GPU", nullptr}));
  EXPECT_EQ(batch[1][1], Json::parse(R"(["BlockRemoved",[2],"CPU"])"));
  EXPECT_EQ(batch[1][2], Json::parse(R"(["AllBlocksCleared"])"));
}

TEST(EventFormat, SequencesHaveTheHighestByteFirst) {
  EXPECT_EQ(event_sequence(0x0102030405060708), std::string("\1\2\3\4\5\6\7\10", 8));
  EXPECT_EQ(event_sequence(~std::uint64_t{0}), std::string(8, '\xff'));
}

}  // namespace
}  // namespace fovea::server
