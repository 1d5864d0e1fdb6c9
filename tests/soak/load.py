"""More than the server can do: requests at ten times its rate, thousands of streams that wait, and what a token costs. Used by
soak_test.py (a little of each) and soak.py (all)."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from server import BINARY, HeapCounter, Server, cpu_times
from storm import read_answer, request, status_of


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


async def ask(port: int, body: dict) -> tuple[int, float, str]:
    """Status, seconds and, of a refusal, Retry-After."""
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request("/v1/completions", json.dumps(body).encode()))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
        status = int(head.split()[1])
        retry = next((line for line in head.decode().lower().split("\r\n") if line.startswith("retry-after:")), "")
        await asyncio.wait_for(reader.read(1 << 12), 120)
        return status, time.monotonic() - begin, retry
    finally:
        writer.close()


MOST_GROWTH = 16 << 10  # bytes, over the second half of an overload: 3 KiB were seen, of containers that keep their largest size


def unlike_any(rng: random.Random) -> dict:
    """A request whose prompt nobody else has: it costs the server more than the client, which runs beside."""
    return {"prompt": [rng.randrange(100, 1000) for _ in range(400)], "max_tokens": 16, "ignore_eos": True}


async def closed_loop(port: int, rng: random.Random, clients: int, seconds: float) -> float:
    """Answers a second that so many clients get, each asking again at once."""
    deadline = time.monotonic() + seconds
    done = 0

    async def client() -> None:
        nonlocal done
        while time.monotonic() < deadline:
            status, _, _ = await ask(port, unlike_any(rng))
            done += status == 200
    await asyncio.gather(*(client() for _ in range(clients)))
    return done / seconds


async def open_loop(port: int, rng: random.Random, rate: float, seconds: float) -> list:
    begin = time.monotonic()
    tasks = []
    while (now := time.monotonic() - begin) < seconds:
        while len(tasks) < now * rate:
            tasks.append(asyncio.create_task(ask(port, unlike_any(rng))))
        await asyncio.sleep(0.005)
    return await asyncio.gather(*tasks, return_exceptions=True)


OVERLOADED = ("--kv-cache-mib", "64", "--max-running", "8", "--max-queued", "16", "--max-context", "2048")


def overload(factor: float, seconds: float) -> tuple[dict, list[str]]:
    """The server's rate is measured, then asked for `factor` times as much. Each request must get its answer, or 429 or 503
    with Retry-After. What is allocated once all have it must be what was when half of them had: bytes that are held, not
    resident ones, which grow with how many connections a busy machine lets come together."""
    counter = HeapCounter()
    with Server(*OVERLOADED, env=counter.env) as server:
        figures, wrong = overload_server(server, counter, factor, seconds)
        if server.stop() != 0:
            wrong.append("the server ended badly")
        return figures, wrong


def overload_server(server: Server, counter: HeapCounter, factor: float, seconds: float) -> tuple[dict, list[str]]:
    rng = random.Random(11)
    server.ask()
    descriptors = server.descriptors()
    capacity = asyncio.run(closed_loop(server.port, rng, 16, min(5.0, seconds)))
    asyncio.run(open_loop(server.port, rng, factor * capacity, seconds / 2))
    wrong = server.leaks(descriptors)
    middle = counter.live_bytes()
    answers = asyncio.run(open_loop(server.port, rng, factor * capacity, seconds / 2))
    wrong += server.leaks(descriptors)
    growth = counter.live_bytes() - middle
    if growth > MOST_GROWTH:
        wrong.append(f"{growth >> 10} KiB more are allocated than before {len(answers)} requests")
    counts = collections.Counter(a[0] if isinstance(a, tuple) else repr(a) for a in answers)
    admitted = [a[1] for a in answers if isinstance(a, tuple) and a[0] == 200]
    wrong += [f"{count} requests got {status}" for status, count in counts.items() if status not in (200, 429, 503)]
    silent = sum(isinstance(a, tuple) and a[0] in (429, 503) and not a[2] for a in answers)
    if silent:
        wrong.append(f"{silent} refusals without Retry-After")
    if not admitted:
        wrong.append("no request was answered")
    figures = {"capacity": capacity, "asked": factor * capacity, "answered": counts[200], "refused": counts[429] + counts[503],
               "p99_s": percentile(admitted, 0.99), "growth_kib": growth / 2**10}
    return figures, wrong


def requests_seen(server: Server) -> float:
    """That wait, run or have their answer: the one that runs may end while others still come."""
    found = server.metrics()
    return (found["fovea_requests_queued"] + found["fovea_requests_running"] +
            found['fovea_requests_total{outcome="finished"}'])


async def hold(server: Server, streams: int) -> tuple[int, float, list[str]]:
    """Opens streams that wait behind one that runs, and leaves again; bytes over the idle server, CPU a second meanwhile."""
    body = {"prompt": [3] * 8, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    first = await asyncio.open_connection("127.0.0.1", server.port)
    first[1].write(request("/v1/completions", json.dumps(body).encode()))
    await status_of(first[0])
    await asyncio.sleep(0.5)
    before, seen = server.memory(), requests_seen(server)
    held = []
    for i in range(streams):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request("/v1/completions", json.dumps({**body, "prompt": [i + 10] * 8}).encode()))
        held.append((reader, writer))
    deadline = time.monotonic() + 60
    while (waiting := requests_seen(server) - seen) < streams and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    grown = server.memory() - before
    for _, writer in [*held, first]:
        writer.close()
    return grown, waiting, [] if waiting == streams else [f"{waiting:.0f} of {streams} streams are held"]


def idle_streams(streams: int) -> tuple[float, list[str]]:
    """Bytes that each of so many waiting streams takes. The one that runs is slow: a token takes the rest of a full step."""
    with Server("--kv-cache-mib", "64", "--max-running", "1", "--max-queued", str(streams + 1), "--max-context", "8192",
                "--quiet") as server:
        server.ask()
        descriptors = server.descriptors()
        grown, _, wrong = asyncio.run(hold(server, streams))
        wrong += server.leaks(descriptors)
        if server.stop() != 0:
            wrong.append("the server ended badly")
        return grown, wrong


async def read_streams(port: int, streams: int, tokens: int) -> None:
    async def client(i: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        body = {"prompt": [i % 200 + 10] * 8, "max_tokens": tokens, "stream": True}
        writer.write(request("/v1/completions", json.dumps(body).encode()))
        await read_answer(reader)
        writer.close()
    await asyncio.gather(*(client(i) for i in range(streams)))


def token_cost(streams: int, tokens: int, interval: int = 1) -> tuple[float, float]:
    """Seconds of CPU that HTTP and JSON take for a token, all threads together, in the server and for it in the kernel,
    over an engine that costs nothing (fovea_fake_server, src/server/testing). interval: tokens of each event."""
    process = subprocess.Popen([str(Path(BINARY).parent / "tests/fovea_fake_server"), str(interval)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        asyncio.run(read_streams(port, streams, 10))
        begin = cpu_times(process.pid)
        asyncio.run(read_streams(port, streams, tokens))
        user, kernel = (after - before for after, before in zip(cpu_times(process.pid), begin))
        return user / (streams * tokens), kernel / (streams * tokens)
    finally:
        process.stdin.close()
        process.wait(30)


SENDER = """
import resource, socket, sys, time
streams, steps = int(sys.argv[1]), int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0), backlog=streams)
print(listener.getsockname()[1], flush=True)
held = [listener.accept()[0] for _ in range(streams)]
for one in held:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
for _ in range(steps):
    time.sleep(0.02)
    for one in held:
        one.send(b"x" * 200)
print((resource.getrusage(resource.RUSAGE_SELF).ru_stime - before) / (streams * steps), flush=True)
"""


def send_cost(streams: int, steps: int) -> float:
    """Seconds of CPU that the kernel takes to send as many pieces of a token's size alone: what token_cost() cannot go below."""
    process = subprocess.Popen([sys.executable, "-c", SENDER, str(streams), str(steps)], stdout=subprocess.PIPE, text=True)
    port = int(process.stdout.readline())

    async def read() -> None:
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        while await reader.read(1 << 16):
            pass

    async def read_all() -> None:
        await asyncio.gather(*(read() for _ in range(streams)))
    asyncio.run(read_all())
    cost = float(process.stdout.readline())
    process.wait(30)
    return cost


async def pace(server: Server, prompts: int, tokens: int, streamed: int = 60000) -> tuple[list[float], float]:
    """The gaps between the tokens of one stream while prompts of so many tokens are read one after the other, and the
    server's CPU seconds a prompt, without what as many tokens of the stream took alone before."""
    rng = random.Random(7)
    gaps: list[float] = []
    reading = False
    streamed_tokens = 0

    async def stream() -> None:
        nonlocal streamed_tokens
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 20)
        body = {"prompt": [5] * 200, "max_tokens": streamed, "ignore_eos": True, "stream": True}
        writer.write(request("/v1/completions", json.dumps(body).encode()))
        last = 0.0
        try:
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    streamed_tokens += 1
                    now = time.perf_counter()
                    if reading and last:
                        gaps.append(now - last)
                    last = now if reading else 0.0
        finally:
            writer.close()
    task = asyncio.create_task(stream())
    await asyncio.sleep(0.5)
    begin, first = server.cpu_seconds(), streamed_tokens
    await asyncio.sleep(2.0)
    a_token = (server.cpu_seconds() - begin) / max(1, streamed_tokens - first)
    begin, first = server.cpu_seconds(), streamed_tokens
    reading = True
    for _ in range(prompts):
        body = {"prompt": [rng.randrange(100, 1000) for _ in range(tokens)], "max_tokens": 1, "ignore_eos": True}
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request("/v1/completions", json.dumps(body).encode()))
        status, text = await read_answer(reader)
        assert status == 200, text
        writer.close()
    reading = False
    cpu = (server.cpu_seconds() - begin - a_token * (streamed_tokens - first)) / prompts
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return gaps, cpu


def pacing(prompts: int, tokens: int, target_ms: float) -> tuple[float, float, float]:
    """99th percentile and median of a stream's gaps beside prompts, and CPU seconds that a prompt takes."""
    with Server("--itl-target-ms", str(target_ms), "--no-prefix-cache", "--quiet", "--max-context", "131072",
                "--kv-cache-mib", "1024") as server:
        gaps, cpu = asyncio.run(pace(server, prompts, tokens))
        return percentile(gaps, 0.99), percentile(gaps, 0.5), cpu
