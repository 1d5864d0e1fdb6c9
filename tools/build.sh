#!/usr/bin/env bash
# Configures a preset where that is needed and builds targets: tools/build.sh PRESET [target...]. Called by make and by
# tools/run_tests.py. Ninja itself notices changed CMake files, so configuring happens once.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
if [ ! -f "build/$preset/build.ninja" ]; then
  cmake --preset "$preset" >&2
fi
if [ $# -gt 0 ]; then
  exec cmake --build --preset "$preset" --target "$@"
fi
exec cmake --build --preset "$preset"
