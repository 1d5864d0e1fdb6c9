#!/usr/bin/env bash
# Fetches what a release needs beyond what a build needs, into build/third_party, once: the C library of Debian 11, which
# releases are linked against, and the sources of libraries that Debian 12 has no static archives of. By apt, from this
# machine's mirror, signatures checked, with lists of its own. Called by tools/release/make.sh; cmake/portable uses what
# it brings.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$PWD/build/third_party
glibc=2.31-13+deb11u11
wanted=(glibc-2.31 fmtlib-9.1.0+ds1 spdlog-1.10.0 highway-1.0.3)
missing=
for name in "${wanted[@]}"; do [ -d "$folder/$name" ] || missing=1; done
[ -n "$missing" ] || exit 0

mkdir -p "$folder"
work=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Codename: bookworm' | head -1)
if [ -z "$mirror" ]; then
  echo "apt knows no mirror of Debian 12 (bookworm); releases are built there" >&2
  exit 1
fi
printf '%s\n' "deb [arch=amd64] $mirror bullseye main" "deb-src $mirror bookworm main" >"$work/sources.list"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists"
  -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
echo "Fetching Debian 11's C library and the sources of fmt, spdlog and Highway" >&2
"${apt[@]}" update
cd "$work"
"${apt[@]}" download "libc6=$glibc" "libc6-dev=$glibc"
"${apt[@]}" source --download-only fmtlib spdlog highway
for package in *.deb; do dpkg-deb -x "$package" root; done
# Its links point to /lib of the machine that it is installed on.
find root -type l -lname '/*' | while read -r link; do ln -srfn "root$(readlink "$link")" "$link"; done
for archive in *.orig.tar.*; do tar -xf "$archive" --no-same-owner; done
mv root glibc-2.31
for name in "${wanted[@]}"; do
  if [ ! -d "$name" ]; then
    echo "the mirror did not give $name; what it has: $(echo *.orig.tar.* *.deb)" >&2
    exit 1
  fi
  rm -rf "${folder:?}/$name"
  mv "$name" "$folder/$name"
done
