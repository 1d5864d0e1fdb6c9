// Tools of the Responses API: functions, custom tools and namespaces of both, as functions that a chat template shows.
// Called by response_request.cc; ResponseWriter turns the names back.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "server/openai/api_request.h"
#include "server/openai/field_reader.h"

namespace fovea::server {

// A tool as the client knows it.
struct ResponseTool {
  std::string name, space;  // space: its namespace, or empty
  bool custom = false;      // takes text, not an object
  bool operator==(const ResponseTool&) const = default;
};

// By the name that the model sees.
using ResponseToolNames = std::map<std::string, ResponseTool>;

// "files" and "read" -> "files__read"; tools without a namespace, or in `functions`, keep their names.
std::string flat_name(const std::string& space, const std::string& name);

class ResponseToolReader {
 public:
  ResponseToolReader(FieldReader& fields, ResponseToolNames* names) : fields_(fields), names_(names) {}

  // A list of tools; where: its place, for errors. Tools of types that only a service has are passed over.
  void read(const std::string& where, const nlohmann::ordered_json& list, const std::string& space = "");
  // After all lists: tools as the template sees them, and which may be called.
  void finish(const Json* choice, bool parallel, ToolUse* out);

 private:
  void add(const std::string& where, const nlohmann::ordered_json& tool, const std::string& space, bool custom);
  void choose(const Json& choice, ToolUse* out);

  FieldReader& fields_;
  ResponseToolNames* names_;
  nlohmann::ordered_json shown_ = nlohmann::ordered_json::array();
  std::vector<Tool> tools_;  // beside shown_
};

}  // namespace fovea::server
