// The form that a request asks of its answer: response_format, structured_outputs, and the fields of vLLM and SGLang
// that mean the same. Called by the parsers of request bodies.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/openai/api_request.h"
#include "server/openai/field_reader.h"

namespace fovea::server {

// Fills params->grammar and its field where a form is asked for; errors go to fields. body: what fields reads; schemas
// are taken from it again, because the order of their keys is the order of the answer's.
void read_response_format(FieldReader& fields, std::string_view body, GenerationParams* params);

// A format whose members stand beside its type, as the Responses API and Anthropic's have it: {"type":"json_schema",
// "schema":...}. field: its name, for errors.
void read_flat_format(FieldReader& fields, const std::string& field, const nlohmann::ordered_json& format,
                      GenerationParams* params);

}  // namespace fovea::server
