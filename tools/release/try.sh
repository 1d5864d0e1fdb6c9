#!/usr/bin/env bash
# `make release-test`: runs what tools/release/make.sh made in a bare Debian 11 (glibc 2.31, no package beyond the base
# system): the demo, the server with one request, over HTTPS too, and the wheel with one attention call. Needs root and
# debootstrap.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1:-}" != inside ]; then
  root=build/release-root
  if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "This needs root and debootstrap (apt-get install debootstrap)" >&2
    exit 1
  fi
  if [ ! -f $root/done ]; then
    rm -rf $root
    debootstrap --variant=minbase bullseye $root >&2
    touch $root/done
  fi
  # Mounts and processes end with the shell inside.
  exec unshare --mount --pid --fork "$0" inside $root
fi

root=$2
mount -t proc proc $root/proc
mount -t tmpfs tmpfs $root/tmp
mkdir -p $root/dev/shm
mount -t tmpfs tmpfs $root/dev/shm
cp build/dist/* $root/tmp/
tar -xzf build/dist/fovea-*.tar.gz -C $root/tmp --strip-components=1 --no-same-owner
inside=(chroot $root /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp)
run() { "${inside[@]}" "$@"; }

echo "== $(run cat /etc/debian_version): $(run ldd --version | head -1)"
run /tmp/bin/fovea --version
echo "== demo"
run /tmp/bin/fovea demo --map-questions 0 --out /tmp/demo | tail -1
echo "== serve"
"${inside[@]}" /tmp/bin/fovea serve --port 0 --quiet >$root/tmp/url &
server=$!
for _ in $(seq 100); do [ -s $root/tmp/url ] && break; sleep 0.1; done
url=$(grep -o 'http://[0-9.:]*' $root/tmp/url)
curl -fsS "$url/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"messages":[{"role":"user","content":"The code is 7. What is the code?"}]}'
kill $server
wait $server
echo
echo "== serve, HTTPS"
# Trusted by --ca-file alone: the system here has no authorities, and without the file doctor must refuse.
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
  -addext subjectAltName=IP:127.0.0.1 -keyout $root/tmp/tls.key -out $root/tmp/tls.crt 2>/dev/null
"${inside[@]}" /tmp/bin/fovea serve --port 0 --quiet --tls-cert /tmp/tls.crt --tls-key /tmp/tls.key >$root/tmp/secure &
server=$!
for _ in $(seq 100); do [ -s $root/tmp/secure ] && break; sleep 0.1; done
url=$(grep -o 'https://[0-9.:]*' $root/tmp/secure)
run /tmp/bin/fovea doctor --server "$url" --ca-file /tmp/tls.crt
if run /tmp/bin/fovea doctor --server "$url" >$root/tmp/untrusted 2>&1; then
  echo "doctor took a certificate that nobody vouches for: $(cat $root/tmp/untrusted)" >&2
  exit 1
fi
kill $server
wait $server
echo "== wheel"
if ! run python3 -c 'import pip' 2>/dev/null; then
  cp /etc/resolv.conf $root/etc/
  run env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip >/dev/null
fi
# Its own numpy is older than DLPack.
build/release-venv/bin/pip download --quiet --disable-pip-version-check --only-binary :all: --python-version 3.9 \
  --platform manylinux2014_x86_64 --dest $root/tmp numpy==2.0.2
cp tests/consumer/wheel.py $root/tmp/
run sh -c 'pip3 install --quiet --no-index --target /tmp/site /tmp/*.whl'
run env PYTHONPATH=/tmp/site python3 /tmp/wheel.py /tmp/site
echo "attention: right ($(run python3 --version))"
