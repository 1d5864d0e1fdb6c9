#!/usr/bin/env bash
# `make gpu-bundle`: everything that `make gpu-test` and `make gpu-bench` need on a machine with a GPU and no compiler, in
# build/gpu-bundle and, to be carried there, build/gpu-bundle.tar.xz: binaries, the Python package, the shared libraries
# that a plain machine lacks, tests, and a cache that holds every kernel compiled for ARCH (sm_90a). KERNELS=measured
# compiles those of the benchmarks alone, for quick rounds: tests then compile theirs where they run.
# Binaries need a C library and a C++ library as new as this machine's, or newer.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=${ARCH:-sm_90a}
most_mb=55
bundle=build/gpu-bundle

tools/build.sh bundle fovea fovea_c fovea_gpu_warm gpu_tests >&2
rm -rf "$bundle.new"
mkdir -p "$bundle.new"/{bin,lib,python,tests/gpu,bench}
cp build/bundle/fovea build/bundle/gpu-tests/*_test build/bundle/fovea_gpu_warm "$bundle.new/bin/"
cp build/bundle/lib/libfovea_c.so "$bundle.new/lib/"
# Of what they link, everything but what comes with the system's C and C++ compilers.
ldd "$bundle.new"/bin/* "$bundle.new"/lib/libfovea_c.so | awk '$2 == "=>" {print $3}' | sort -u \
  | grep -Ev '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so' | xargs -I{} cp -L {} "$bundle.new/lib/"
cp -r python/fovea "$bundle.new/python/"
cp -r tests/conformance tests/python "$bundle.new/tests/"
cp -r tests/gpu/python "$bundle.new/tests/gpu/"
cp -r bench/gpu bench/peers_gpu.py bench/write_h200.py bench/write_prefill.py bench/h200_figures.py bench/h200_causes.toml "$bundle.new/bench/"
find "$bundle.new" -name __pycache__ -prune -exec rm -rf {} +
# Kernels compiled before are taken over, what changed is compiled now, what nobody asked for goes: the cache renews the
# time of an entry that is used.
if [ -d "$bundle/cache" ]; then cp -r "$bundle/cache" "$bundle.new/cache"; else mkdir "$bundle.new/cache"; fi
find "$bundle.new/cache" -type f -exec touch -d '2 days ago' {} +
FOVEA_CACHE_DIR="$PWD/$bundle.new/cache" "$bundle.new/bin/fovea_gpu_warm" "$arch" ${KERNELS:-}
find "$bundle.new/cache" -type f -mtime +0 -delete
git rev-parse HEAD >"$bundle.new/COMMIT" 2>/dev/null || true
rm -rf "$bundle"
mv "$bundle.new" "$bundle"
tar -C build -cJf "$bundle.tar.xz" gpu-bundle
size_mb=$(($(stat -c %s "$bundle.tar.xz") / 1000000))
echo "$bundle.tar.xz: $size_mb MB"
if [ "$size_mb" -ge "$most_mb" ]; then
  echo "the bundle is $size_mb MB, expected less than $most_mb" >&2
  exit 1
fi
