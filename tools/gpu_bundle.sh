#!/usr/bin/env bash
# `make gpu-bundle`: what a machine with a GPU and no compiler needs, in build/gpu-bundle and, to be carried there,
# build/gpu-bundle.tar.xz: binaries, the Python package, the shared libraries that a plain machine lacks, tests, and a
# cache of kernels compiled for ARCH (sm_90a). FOR=test packs what `make gpu-test` needs alone, every kernel with it;
# FOR=bench what measures attention (the sweep's kernels are those of SEED); FOR=serve what measures Llama-3.1-8B:
# build/gpu-bundle-test and so on, which the tools prefer. build/gpu-kernels keeps what was compiled for the next bundle.
# Binaries need a C library and a C++ library as new as this machine's, or newer.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=${ARCH:-sm_90a}
purpose=${FOR:-}
case $purpose in "" | test | bench | serve) ;; *) echo "FOR is $purpose, expected test, bench or serve" >&2; exit 2 ;; esac
most_mb=60
bundle=build/gpu-bundle${purpose:+-$purpose}
has() { [ -z "$purpose" ] || [ "$purpose" = "$1" ]; }

targets=(fovea fovea_c fovea_gpu_warm)
if has test; then targets+=(gpu_tests fovea_hollow_driver); fi
tools/build.sh bundle "${targets[@]}" >&2
rm -rf "$bundle.new"
mkdir -p "$bundle.new"/{bin,lib,python,tests/gpu,bench,cache} build/gpu-kernels
cp build/bundle/fovea build/bundle/fovea_gpu_warm "$bundle.new/bin/"
cp build/bundle/lib/libfovea_c.so "$bundle.new/lib/"
if has test; then
  cp build/bundle/gpu-tests/*_test "$bundle.new/bin/"
  cp -r tests/conformance tests/python "$bundle.new/tests/"
  cp -r tests/gpu/python "$bundle.new/tests/gpu/"
fi
# Of what they link, everything but what comes with the system's C and C++ compilers.
ldd "$bundle.new"/bin/* "$bundle.new"/lib/libfovea_c.so | awk '$2 == "=>" {print $3}' | sort -u \
  | grep -Ev '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s)\.so' | xargs -I{} cp -L {} "$bundle.new/lib/"
cp -r python/fovea "$bundle.new/python/"
cp -r bench/gpu bench/*.py bench/*.toml "$bundle.new/bench/"
find "$bundle.new" -name __pycache__ -prune -exec rm -rf {} +
# The cache renews the time of an entry that is used, and makes those that are missing: these are packed.
find build/gpu-kernels -type f -exec touch -d '2 days ago' {} +
export FOVEA_CACHE_DIR="$PWD/build/gpu-kernels"
warm="$bundle.new/bin/fovea_gpu_warm"
if has test; then
  for use in agreement variants conformance; do "$warm" "$arch" $use; done
  hollow=$PWD/build/bundle/tests/libfovea_hollow_driver.so
  for test in "$bundle.new"/bin/*_test; do  # what only running them tells; their results are wrong without a GPU
    FOVEA_LIBCUDA=$hollow FOVEA_CUBLASLT=$hollow FOVEA_GPU_CASES=1 FOVEA_TEST_NEEDLE=$PWD/models/needle \
      timeout -k 3 240 "$test" >/dev/null 2>&1 || true
  done
fi
if has bench; then
  for use in measured sweep; do FOVEA_SWEEP_SEED=${SEED:-1} "$warm" "$arch" $use; done
fi
if has serve; then
  model=$(mktemp -d)
  python3 bench/serving_gpu.py --write-config "$model"
  for kv in auto fp8; do "$bundle.new/bin/fovea" warmup --model "$model" --arch "$arch" --kv-dtype $kv --select; done
  rm -r "$model"
fi
find build/gpu-kernels -type f -mtime -1 -exec cp -p {} "$bundle.new/cache/" \;
git rev-parse HEAD >"$bundle.new/COMMIT" 2>/dev/null || true
rm -rf "$bundle"
mv "$bundle.new" "$bundle"
tar -C build -cf - "${bundle#build/}" | xz -T0 >"$bundle.tar.xz"
size_mb=$(($(stat -c %s "$bundle.tar.xz") / 1000000))
echo "$bundle.tar.xz: $size_mb MB, $(find "$bundle/cache" -type f | wc -l) kernels"
if [ "$size_mb" -ge "$most_mb" ]; then
  echo "the bundle is $size_mb MB, expected less than $most_mb" >&2
  exit 1
fi
