#!/usr/bin/env bash
# Sets up what a build needs, once: `tools/setup.sh build` the compiler and libraries (one of them from PyPI:
# tools/fetch_xgrammar.sh), `tools/setup.sh test` also the linters and a Python environment (.venv) for the peers that tests
# compare with, `tools/setup.sh clients` one (.venv-clients) with frameworks that want other versions of them, `tools/setup.sh
# page` Chromium and one (.venv-page) that drives it. Called by make; a second call finds its stamp and does nothing. Installs with root, else with sudo, else says what to ask for.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=${1:-build}
case $profile in
  build | test | clients | page) ;;
  *) echo "usage: tools/setup.sh build|test|clients|page" >&2; exit 2 ;;
esac

stamp=build/setup-$profile.stamp
requirements=tools/requirements-test.txt
venv=.venv
if [ "$profile" = page ]; then
  requirements=tools/requirements-page.txt
  venv=.venv-page
elif [ "$profile" = clients ]; then
  requirements=tools/requirements-clients.txt
  venv=.venv-clients
fi
os_release=${FOVEA_OS_RELEASE:-/etc/os-release}  # tests name another one
key=$(cat tools/setup.sh tools/fetch_xgrammar.sh "$requirements" "$os_release" 2>/dev/null | sha256sum)
if [ -f "$stamp" ] && [ "$(<"$stamp")" = "$key" ] && { [ "$profile" = build ] || [ -x $venv/bin/python ]; }; then
  exit 0
fi

packages=(g++ cmake ninja-build ccache lld pkg-config python3 python3-venv git
  libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libxxhash-dev
  libdnnl-dev libhwy-dev libpcre2-dev libutf8proc-dev libedit-dev libssl-dev libgtest-dev libgmock-dev)
if [ "$profile" = test ]; then
  packages+=(clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev libzmq5 openssl)
elif [ "$profile" = page ]; then
  packages+=(chromium chromium-driver fonts-dejavu-core)
fi
distribution=unknown
# shellcheck disable=SC1090
[ -r "$os_release" ] && distribution=$(. "$os_release" && echo "${VERSION_CODENAME:-${ID:-unknown}}")
case $distribution in
  bookworm) packages+=(libboost1.81-dev) ;;
  noble) packages+=(libboost1.83-dev) ;;
  *)
    {
      echo "This set-up knows Debian 12 (bookworm) and Ubuntu 24.04 (noble); this is \"$distribution\"."
      echo "Install what corresponds to these packages, then run cmake --preset release by hand:"
      printf '  %s\n' "${packages[@]}" 'libboost-dev (1.81 or later)'
    } >&2
    exit 1 ;;
esac

installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "${packages[@]}" 2>/dev/null | sed -n 's/^ii *//p' || true)
missing=()
for package in "${packages[@]}"; do
  grep -qxF "$package" <<<"$installed" || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ]; then
    as_root=()
  elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    as_root=(sudo)
  else
    echo "These packages are missing and neither root nor sudo is there. Ask an administrator to run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
  echo "Installing ${#missing[@]} packages: ${missing[*]}" >&2
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
fi

if ! tools/fetch_xgrammar.sh; then
  echo "PyPI did not give xgrammar's source; without it the server refuses response_format and forced tools." >&2
  [ "$profile" = build ] || exit 1
  exit 0  # without a stamp: the next call tries again
fi

if [ "$profile" != build ]; then
  venv_key=$(sha256sum <"$requirements")
  if [ ! -x $venv/bin/python ] || [ "$(cat $venv/fovea.stamp 2>/dev/null)" != "$venv_key" ]; then
    echo "Making $venv with the packages of $requirements" >&2
    python3 -m venv --clear $venv
    $venv/bin/pip install --quiet --disable-pip-version-check -r "$requirements" >&2
    echo "$venv_key" >$venv/fovea.stamp
  fi
fi

mkdir -p build
echo "$key" >"$stamp"
