#!/usr/bin/env bash
# `make bench`: all suites of `fovea bench`, or the one that the arguments name.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
  exec build/release/fovea bench "$@"
fi
for suite in attention plan serve; do
  build/release/fovea bench "$suite"
done
