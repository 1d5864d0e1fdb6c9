// The compiled half of toml++, which Debian has as a shared library only. Part of releases (portable.cmake).
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
