#!/usr/bin/env bash
# Fetches the source of xgrammar, which answers in a given form are checked with, from PyPI into build/third_party, once.
# Called by tools/setup.sh; cmake/xgrammar compiles its C++ core, nothing of it in Python is used.
set -euo pipefail
cd "$(dirname "$0")/.."
name=xgrammar-0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
folder=build/third_party
[ -f "$folder/$name/include/xgrammar/xgrammar.h" ] && exit 0

echo "Fetching $name from PyPI" >&2
mkdir -p "$folder"
work=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "${name/-/==} --hash=sha256:$sha256" >"$work/requirements.txt"
python3 -m venv "$work/venv"
"$work/venv/bin/pip" download --quiet --disable-pip-version-check --require-hashes --no-deps --no-binary xgrammar \
  --dest "$work" -r "$work/requirements.txt" >&2
tar -xzf "$work/$name.tar.gz" -C "$work" --no-same-owner \
  "$name/LICENSE" "$name/NOTICE" "$name/include" "$name/cpp" "$name/3rdparty/picojson" "$name/3rdparty/dlpack/include"
rm -rf "$folder"/xgrammar-*
mv "$work/$name" "$folder/$name"
