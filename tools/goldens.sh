#!/usr/bin/env bash
# `make goldens`: runs every generator of golden files, each a make_goldens.py, with the Python given (it must have the
# heavy peers).
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
"$python" -c 'import torch, transformers' || {
  echo "$python has no torch and transformers; name one that has: make goldens PEERS_PYTHON=..." >&2
  exit 1
}
git ls-files -- '*make_goldens.py' | while read -r generator; do
  echo "$generator" >&2
  "$python" "$generator"
done
