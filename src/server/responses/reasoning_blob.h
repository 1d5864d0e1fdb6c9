// encrypted_content of reasoning items: what a client gets to send back with the next turn. It is opaque, versioned and
// checked, not secret: the same text stands beside it in the item. Used by ResponseWriter and the reader of input
// items.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fovea::server {

std::string seal_reasoning(std::string_view text);
// None where it is not one of ours, or damaged.
std::optional<std::string> open_reasoning(std::string_view blob);

}  // namespace fovea::server
