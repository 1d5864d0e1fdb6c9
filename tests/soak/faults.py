"""What goes wrong around a server: it is killed, the disk is full, the clock jumps, descriptors or memory run out. Each function
returns what was wrong, which should be nothing. Used by soak_test.py and soak.py."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import tempfile
import time
import urllib.error
from pathlib import Path

from server import BINARY, Server, preload
from storm import request

SMALL = ("--kv-cache-mib", "64", "--max-context", "4096")


def killed_and_started_again() -> list[str]:
    """The port is free at once, and nothing that was left behind is in the way of the next one."""
    first = Server(*SMALL)
    streams = []
    for _ in range(8):
        connection = socket.create_connection(("127.0.0.1", first.port))
        connection.sendall(request("/v1/completions", json.dumps({"prompt": [5], "max_tokens": 3000, "stream": True}).encode()))
        streams.append(connection)
    streams[0].recv(10)
    first.kill()
    ended = all(ends(connection) for connection in streams)
    again = subprocess.Popen([BINARY, "serve", "--port", str(first.port), *SMALL], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    try:
        line = again.stdout.readline()
        if str(first.port) not in line:
            return [f"the second server did not start: {line!r} {again.stderr.read()!r}"]
        first.process = again
        wrong = [] if ended else ["a stream of the killed server goes on"]
        return wrong if first.ask() == 4 else [*wrong, "the second server does not answer"]
    finally:
        again.kill()
        again.communicate()


def ends(connection: socket.socket) -> bool:
    connection.settimeout(5)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def full_disk() -> list[str]:
    """The log goes to a disk that takes nothing. Answers must not wait for it."""
    with open("/dev/full", "w") as full, Server(*SMALL, "--log-format", "json", stderr=full) as server:
        for _ in range(20):
            if server.ask() != 4:
                return ["no answer while the log cannot be written"]
        return [] if server.stop() == 0 else ["the server ended badly"]


JUMPING_CLOCK = r"""
#include <dlfcn.h>
#include <stdatomic.h>
#include <time.h>
static atomic_long calls;
static long jump(void) { return (atomic_fetch_add(&calls, 1) % 3 - 1) * 86400; }
int clock_gettime(clockid_t id, struct timespec* now) {
  static int (*real)(clockid_t, struct timespec*);
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(id, now);
  if (id == CLOCK_REALTIME) now->tv_sec += jump();
  return result;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""


def clock_jumps() -> list[str]:
    """The time of day goes a day forth and back with every look at it; only dates in answers may show that."""
    with tempfile.TemporaryDirectory() as folder:
        with Server(*SMALL, env=preload("clock", JUMPING_CLOCK, folder)) as server:
            begin = time.monotonic()
            dates = set()
            for _ in range(20):
                answer = json.loads(server.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 4, "ignore_eos": True}))
                dates.add(answer["created"] // 40000)
                if answer["usage"]["completion_tokens"] != 4:
                    return ["an answer was cut"]
            time.sleep(1.1)
            wrong = [] if len(dates) > 1 else ["the clock did not jump: this test shows nothing"]
            server.get("/health")  # 503 is an exception
            if time.monotonic() - begin > 60:
                wrong.append("answers took too long")
            return wrong if server.stop() == 0 else [*wrong, "the server ended badly"]


def too_few_descriptors() -> list[str]:
    """More clients than descriptors: those inside are served, the others wait, and all is well when some leave."""
    with Server(*SMALL, preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))) as server:
        crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        crowd[0].sendall(request("/v1/completions", json.dumps({"prompt": [5], "max_tokens": 4}).encode()))
        crowd[0].settimeout(20)
        wrong = [] if crowd[0].recv(12) == b"HTTP/1.1 200" else ["a client inside was not served"]
        begin = server.cpu_seconds()
        time.sleep(1.0)
        if server.cpu_seconds() - begin > 0.5:
            wrong.append("the server is busy with what it cannot accept")
        for connection in crowd:
            connection.close()
        return wrong if server.ask() == 4 else [*wrong, "no answer after the crowd has left"]


def out_of_memory() -> list[str]:
    """Memory ends just above what the server has: large bodies fail alone, and all is well when there is some again."""
    with Server(*SMALL, "--max-body-mib", "256") as server:
        server.ask()
        used = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
        free = resource.prlimit(server.process.pid, resource.RLIMIT_AS)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (used + (48 << 20), free[1]))
        huge = b'{"prompt":"' + b"a " * (60 << 19) + b'"}'
        outcomes = []
        for _ in range(3):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.settimeout(30)
                with contextlib.suppress(ConnectionError):
                    connection.sendall(request("/v1/completions", huge))
                outcomes.append(connection.recv(12))
        if server.process.poll() is not None:
            return [f"the server ended with {server.process.returncode}"]
        wrong = []
        try:
            if server.ask() != 4:
                wrong.append("a small request got no answer beside")
        except urllib.error.HTTPError as error:
            wrong.append(f"a small request got {error.code} beside")
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, free)
        if any(outcome == b"HTTP/1.1 200" for outcome in outcomes):
            wrong.append("memory did not run out: this test shows nothing")
        return wrong if server.ask() == 4 else [*wrong, "no answer when there is memory again"]


ALL = (killed_and_started_again, full_disk, clock_jumps, too_few_descriptors, out_of_memory)
