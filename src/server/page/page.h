// The page at /: a chat with the model and a live view of the engine, for browsers. Its files (this folder) are in the
// binary as they are. Used by Service.
#pragma once

#include <optional>
#include <string_view>

#include "server/http/message.h"

namespace fovea::server {

// The answer to GET of "/" or "/page/NAME"; none for other paths. It forbids the browser whatever the page does not
// need: scripts, styles and connections elsewhere, frames, forms.
std::optional<HttpResponse> page_response(std::string_view path);

}  // namespace fovea::server
