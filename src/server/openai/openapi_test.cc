// The OpenAPI document names every route, and its examples are answered.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "server/testing/server_fixture.h"

namespace fovea::server {
namespace {

using nlohmann::json;

class OpenApiTest : public ServerTest {};

TEST_F(OpenApiTest, NamesEveryRoute) {
  start();
  const json document = json::parse(get("/openapi.json").body);
  EXPECT_EQ(document["openapi"], "3.1.0");
  std::set<std::string> described;
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      described.insert(method + " " + path);
      EXPECT_FALSE(operation["summary"].get<std::string>().empty());
    }
  }
  std::set<std::string> answered;
  for (const std::string& route : Service::routes()) {
    answered.insert(route.ends_with("/") ? route + "{model}" : route);
  }
  EXPECT_EQ(described, answered);
}

TEST_F(OpenApiTest, ItsExamplesAreAnswered) {
  start();
  int examples = 0;
  const json document = json::parse(get("/openapi.json").body);
  for (const auto& [path, methods] : document["paths"].items()) {
    if (!methods.contains("post") || !methods["post"].contains("requestBody")) continue;
    const json& content = methods["post"]["requestBody"]["content"]["application/json"];
    const HttpResponse sent = post(path, content["example"].dump());
    EXPECT_EQ(sent.status, 200) << path << sent.body;
    ++examples;
    // Every field that the document names is known: none is refused as unknown, whatever is wrong with its value.
    for (const auto& [name, schema] : content["schema"]["properties"].items()) {
      json body = content["example"];
      body[name] = json::array({json::object({{"wrong", 1}})});
      const std::string text = post(path, body.dump()).body;
      EXPECT_EQ(text.find("there is no field " + name), std::string::npos) << path << text;
    }
  }
  EXPECT_GE(examples, 8);
}

}  // namespace
}  // namespace fovea::server
