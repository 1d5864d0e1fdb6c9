// The OpenAPI document at /openapi.json: every route that Service answers, with the fields that bodies take. Used by
// Service.
#pragma once

#include <string>

namespace fovea::server {

const std::string& openapi_json();

}  // namespace fovea::server
