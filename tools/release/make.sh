#!/usr/bin/env bash
# `make release`: build/dist/fovea-VERSION-linux-x86_64.tar.gz and the Python wheel. Both run on any x86-64 Linux with
# glibc 2.31 or later and need no package: third parties and libstdc++ are inside, the C library is bound at that version
# (cmake/portable). `make release-test` tries them in a bare Debian 11 (tools/release/try.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
glibc=2.31
version=$(sed -n 's/.*kVersion = "\([0-9.]*\)".*/\1/p' include/fovea/version.h)
name=fovea-$version-linux-x86_64
dist=build/dist
. /etc/os-release
if [ "${VERSION_CODENAME:-}" != bookworm ]; then
  echo "Releases are built on Debian 12 (bookworm), whose static libraries they take; this is \"${PRETTY_NAME:-unknown}\"." >&2
  exit 1
fi

# check_glibc FILE...: none asks for a newer C library, or for any other library.
check_glibc() {
  local file needs
  for file in "$@"; do
    needs=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
    if [ "$(printf '%s\n' "GLIBC_$glibc" "$needs" | sort -V | tail -1)" != "GLIBC_$glibc" ]; then
      echo "$file needs $needs, expected at most GLIBC_$glibc; link it as cmake/portable/portable.cmake does" >&2
      exit 1
    fi
    if objdump -p "$file" | grep NEEDED | grep -vE ' (libc|libm|libdl|librt|libpthread|ld-linux-x86-64)\.so\.[0-9]+$' >&2; then
      echo "$file needs these libraries, expected those of the C library alone" >&2
      exit 1
    fi
    echo "${file##*/}: needs $needs"
  done
}

tools/setup.sh build
tools/release/fetch.sh
nice -n 10 tools/build.sh portable fovea fovea_c
check_glibc build/portable/fovea build/portable/lib/libfovea_c.so

venv=build/release-venv
if [ ! -x $venv/bin/auditwheel ]; then
  python3 -m venv --clear $venv
  $venv/bin/pip install --quiet --disable-pip-version-check -r tools/release/requirements.txt >&2
fi
$venv/bin/kubernetes-validate --strict --quiet deploy/kubernetes/*.yaml
if command -v systemd-analyze >/dev/null; then  # which looks for the program, too
  unit=$(mktemp -d)
  sed 's#^ExecStart=[^ ]*#ExecStart=/bin/true#' deploy/fovea.service >"$unit/fovea.service"
  systemd-analyze verify "$unit/fovea.service"
  rm -r "$unit"
fi

rm -rf "$dist"
stage=$dist/$name
mkdir -p "$stage"/{bin,lib,include/fovea,licenses}
cp build/portable/fovea "$stage/bin/"
cp build/portable/lib/libfovea_c.so "$stage/lib/"
cp include/fovea/fovea.h "$stage/include/fovea/"
cp LICENSE CHANGELOG.md README.md "$stage/"
cp -r deploy "$stage/deploy"
# What others' licences ask to be passed on with their code.
for package in libfmt-dev libspdlog-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libxxhash-dev libhwy-dev \
  libpcre2-dev libutf8proc-dev libedit-dev libssl-dev libbsd-dev libmd-dev libncurses-dev libboost1.81-dev libstdc++-12-dev; do
  cp "/usr/share/doc/$package/copyright" "$stage/licenses/$package.txt"
done
cat build/third_party/xgrammar-*/{LICENSE,NOTICE} >"$stage/licenses/xgrammar.txt"
tar -C "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -cf - "$name" |
  gzip -9n >"$dist/$name.tar.gz"
rm -rf "$stage"

nice -n 10 $venv/bin/pip wheel --quiet --no-deps --no-build-isolation --disable-pip-version-check -w "$dist/raw" \
  -C cmake.define.FOVEA_PORTABLE=ON -C build-dir=build/wheel-portable .
# The tag is auditwheel's finding, not a claim: this fails where the library asks for more.
PATH=$venv/bin:$PATH auditwheel repair --plat "manylinux_${glibc/./_}_x86_64" --only-plat --wheel-dir "$dist" "$dist"/raw/*.whl >&2
rm -rf "$dist/raw"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
ls -l "$dist"
