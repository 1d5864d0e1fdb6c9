// Version of the library and the binary; printed by `fovea --version` and GET /version.
#pragma once

namespace fovea {
inline constexpr const char* kVersion = "0.1.0";
}  // namespace fovea
