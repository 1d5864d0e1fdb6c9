#include "server/openai/response_format.h"

#include <fmt/format.h>

#include <utility>

#include "base/quote.h"

namespace fovea::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kAnyObject = R"({"type":"object"})";

class Reader {
 public:
  Reader(FieldReader& fields, GenerationParams* params) : fields_(fields), params_(params) {}

  void set(const std::string& field, GrammarKind kind, std::string text) {
    if (params_->grammar.has_value()) {
      fields_.fail(field, fmt::format("{} and {} both say what the answer must look like; give one of them",
                                      params_->grammar_field, field));
      return;
    }
    params_->grammar = GrammarSpec{kind, std::move(text)};
    params_->grammar_field = field;
  }

  // A schema as an object, or as its text.
  void schema(const std::string& field, const OrderedJson& value) {
    if (value.is_string()) {
      set(field, GrammarKind::kJsonSchema, value.get<std::string>());
    } else if (value.is_object() || value.is_boolean()) {
      set(field, GrammarKind::kJsonSchema, value.dump());
    } else {
      fields_.fail(field, field + " must be a JSON schema: an object, or its text");
    }
  }

  void text(const std::string& field, GrammarKind kind, const OrderedJson& value) {
    if (value.is_string()) {
      set(field, kind, value.get<std::string>());
    } else {
      fields_.fail(field, field + " must be a string");
    }
  }

  void choices(const std::string& field, const OrderedJson& value) {
    std::string rules;
    if (value.is_array()) {
      for (const OrderedJson& choice : value) {
        if (!choice.is_string() || choice.get<std::string>().empty()) {
          rules.clear();
          break;
        }
        // Quotes and escapes are those of JSON.
        rules += (rules.empty() ? "root ::= " : " | ") + choice.dump();
      }
    }
    if (rules.empty()) {
      fields_.fail(field, field + " must be a list of strings, none of them empty");
    } else {
      set(field, GrammarKind::kEbnf, std::move(rules));
    }
  }

  // flat: the schema stands beside the type.
  void response_format(const std::string& field, const OrderedJson& format, bool flat) {
    const std::string type = format.is_object() && format.contains("type") && format["type"].is_string()
                                 ? format["type"].get<std::string>()
                                 : std::string();
    if (type == "text") return;
    if (type == "json_object") {
      set(field, GrammarKind::kJsonSchema, kAnyObject);
    } else if (type == "json_schema") {
      const auto found = format.find("json_schema");
      if (flat && format.contains("schema")) {
        schema(field, format["schema"]);
      } else if (flat) {
        fields_.fail(field, field + " must have a schema");
      } else if (found == format.end() || !found->is_object() || !found->contains("schema")) {
        fields_.fail(field, "response_format.json_schema must be an object with a schema");
      } else {
        schema(field, (*found)["schema"]);
      }
    } else {
      fields_.fail(field, field + R"(.type must be "text", "json_object" or "json_schema")");
    }
  }

  void structured_outputs(const OrderedJson& value) {
    if (!value.is_object()) {
      fields_.fail("structured_outputs", "structured_outputs must be an object");
      return;
    }
    for (const auto& [key, inner] : value.items()) {
      if (inner.is_null() || inner == false) continue;
      const std::string field = "structured_outputs." + key;
      if (key == "json") {
        schema(field, inner);
      } else if (key == "json_object" && inner == true) {
        set(field, GrammarKind::kJsonSchema, kAnyObject);
      } else if (key == "regex") {
        text(field, GrammarKind::kRegex, inner);
      } else if (key == "choice") {
        choices(field, inner);
      } else if (key == "grammar") {
        text(field, GrammarKind::kEbnf, inner);
      } else {
        fields_.fail(
            field,
            fmt::format("structured_outputs takes json, json_object, regex, choice or grammar, not {}", quote(key)),
            "unsupported_parameter");
      }
    }
  }

 private:
  FieldReader& fields_;
  GenerationParams* params_;
};

}  // namespace

void read_flat_format(FieldReader& fields, const std::string& field, const OrderedJson& format,
                      GenerationParams* params) {
  Reader(fields, params).response_format(field, format, true);
}

void read_response_format(FieldReader& fields, std::string_view body, GenerationParams* params) {
  static constexpr const char* kFields[] = {
      "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
      "guided_grammar",  "json_schema",        "regex",       "ebnf"};
  OrderedJson request;
  Reader reader(fields, params);
  for (const std::string field : kFields) {
    if (fields.find(field.c_str()) == nullptr) continue;
    if (request.is_null()) request = OrderedJson::parse(body);  // it was parsed before, within limits
    const OrderedJson& value = request[field];
    if (field == "response_format") reader.response_format(field, value, false);
    if (field == "structured_outputs") reader.structured_outputs(value);
    if (field == "guided_json" || field == "json_schema") reader.schema(field, value);
    if (field == "guided_regex" || field == "regex") reader.text(field, GrammarKind::kRegex, value);
    if (field == "guided_choice") reader.choices(field, value);
    if (field == "guided_grammar" || field == "ebnf") reader.text(field, GrammarKind::kEbnf, value);
  }
}

}  // namespace fovea::server
