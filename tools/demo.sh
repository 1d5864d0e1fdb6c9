#!/usr/bin/env bash
# `make demo`: set-up, build, and `fovea demo`, with the time that each took. Arguments go to `fovea demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
begin=$(date +%s.%N)
tools/setup.sh build
set_up=$(date +%s.%N)
tools/build.sh release fovea >&2
built=$(date +%s.%N)
status=0
build/release/fovea demo "$@" || status=$?
awk -v a="$begin" -v b="$set_up" -v c="$built" -v d="$(date +%s.%N)" \
  'BEGIN { printf "set-up %.1f s, build %.1f s, run %.1f s\n", b - a, c - b, d - c }' >&2
exit $status
