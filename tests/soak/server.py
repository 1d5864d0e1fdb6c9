"""A `fovea serve` to be mistreated: starts it, reads its metrics, memory and descriptors, and tells whether all that requests
took came back. Used by the scenarios beside it and by soak_test.py.

FOVEA_BINARY names the binary (default build/release/fovea)."""

from __future__ import annotations

import json
import mmap
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import devices
from devices import BINARY, ROOT  # noqa: F401


def raise_descriptor_limit(wanted: int = 8192) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


def cpu_times(pid: int) -> tuple[float, float]:
    """Seconds in the process's own code and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


def cpu_seconds(pid: int) -> float:
    return sum(cpu_times(pid))


# Tells how many bytes a process holds from malloc, when asked: a file's three numbers are what was asked, what is answered, and
# the bytes.
HEAP_COUNTER = r"""
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static void* answer(void* file) {
  _Atomic unsigned long* numbers = file;
  for (;; usleep(2000)) {
    const unsigned long asked = numbers[0];
    if (asked == numbers[1]) continue;
    const struct mallinfo2 heap = mallinfo2();
    numbers[2] = heap.uordblks + heap.hblkhd;
    numbers[1] = asked;
  }
  return NULL;
}
__attribute__((constructor)) static void start(void) {
  const int file = open(getenv("HEAP_COUNTER"), O_RDWR);
  void* numbers = mmap(NULL, 24, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  pthread_t thread;
  sigset_t all, before;  // signals are for the process's own threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  if (numbers != MAP_FAILED) pthread_create(&thread, NULL, answer, numbers);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}
"""


def preload(name: str, source: str, folder: str | Path) -> dict[str, str]:
    """The environment of a process that runs with this C source."""
    text, library = Path(folder, f"{name}.c"), Path(folder, f"{name}.so")
    text.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", library, text, "-ldl", "-pthread"], check=True)
    return {"LD_PRELOAD": str(library)}


class HeapCounter:
    """Of the server that is started with `env`, whose threads keep nothing back that they have freed."""
    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name, "counter")
        path.write_bytes(bytes(24))
        with open(path, "r+b") as file:
            self.numbers = mmap.mmap(file.fileno(), 24)
        self.env = {**preload("heap_counter", HEAP_COUNTER, self.folder.name), "HEAP_COUNTER": str(path),
                    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}

    def live_bytes(self) -> int:
        """What was allocated and not freed: what is free again counts for nothing, wherever it lies."""
        asked, _, _ = struct.unpack("3Q", self.numbers[:])
        self.numbers[:8] = struct.pack("Q", asked + 1)
        deadline = time.monotonic() + 10
        while True:
            _, answered, found = struct.unpack("3Q", self.numbers[:])
            if answered == asked + 1:
                return found
            assert time.monotonic() < deadline, "the server does not count its memory: is it not linked to glibc?"
            time.sleep(0.002)


class Server:
    def __init__(self, *arguments: str, stderr=subprocess.DEVNULL, env: dict[str, str] | None = None, preexec=None,
                 device: str = devices.CPU):
        self.process = subprocess.Popen([BINARY, "serve", "--port", "0", *devices.arguments(device), *arguments],
                                        stdout=subprocess.PIPE, stderr=stderr, text=True, preexec_fn=preexec,
                                        env={**os.environ, **devices.environment(device), **(env or {})})
        line = self.process.stdout.readline()
        found = re.search(r"http://[\d.]+:(\d+)", line)
        assert found, f"the server did not start: {line!r}"
        self.port = int(found.group(1))

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return answer.read().decode()

    def post(self, path: str, body: dict | None = None, headers: dict[str, str] | None = None) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body or {}).encode(),
                                         {"Content-Type": "application/json", **(headers or {})})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    def ask(self, tokens: int = 4, **headers: str) -> int:
        """One small answer, to see that the server still gives them; how many tokens it has."""
        answer = json.loads(self.post("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": tokens, "ignore_eos": True},
                                      headers))
        return answer["usage"]["completion_tokens"]

    def metrics(self) -> dict[str, float]:
        found = re.findall(r"^(fovea_\w+(?:\{[^}]*\})?) (\S+)$", self.get("/metrics"), re.M)
        return {name: float(value) for name, value in found}

    def memory(self) -> int:
        """Bytes of its own that are resident; pages of files are left out."""
        return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text()).group(1)) << 10

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def leaks(self, descriptors: int, patience_s: float = 20.0) -> list[str]:
        """What is still held although nobody asks for anything: empty, once all is back."""
        deadline = time.monotonic() + patience_s
        while True:
            found = []
            values = self.metrics()
            for name in ("fovea_requests_running", "fovea_requests_queued"):
                if values[name] != 0:
                    found.append(f"{name} is {values[name]:.0f}")
            if not found:
                self.post("/flush_cache")
                values = self.metrics()
                free, total = (values[f'fovea_kv_pages{{state="{state}"}}'] for state in ("free", "total"))
                if free != total:
                    found.append(f"{total - free:.0f} of {total:.0f} KV pages are held")
                if self.descriptors() > descriptors + 2:
                    found.append(f"{self.descriptors()} descriptors, {descriptors} before")
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.kill()
