// The version, here and nowhere else: CMakeLists.txt and pyproject.toml read it from this line, CHANGELOG.md says what
// is in it. Printed by `fovea --version` and GET /version.
#pragma once

namespace fovea {
inline constexpr const char* kVersion = "0.1.0";
}  // namespace fovea
