"""Clients that misbehave at random: leave, reset, read slowly, send half of a request or nonsense. Each is one coroutine over a
bare socket. What they must get is what HTTP promises; what they leave behind is asked of the server afterwards."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import socket
import struct

from server import Server

# One that answers without end is told apart from one that is slow by far.
PATIENCE_S = 120.0
BAD_BODIES = [
    b"", b"{", b"[]", b"null", b'{"prompt":', b'{"prompt":1.5}', b'{"prompt":[1],"max_tokens":-1}', b"\xff\xfe{}",
    b'{"prompt":[999999999]}', b'{"prompt":"x","n":100000}', b'{"prompt":"x","temperature":"hot"}', b"[" * 5000,
    b'{"prompt":"x","nonsense":1}', b'{"messages":[]}', b'{"prompt":"' + b"a" * 300000 + b'","max_tokens":4}',
]


def request(path: str, body: bytes, length: int | None = None) -> bytes:
    return (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\n\r\n").encode() + body


def good_body(rng: random.Random, stream: bool) -> bytes:
    length = rng.choice([3, 20, 100, 400, 1500])
    body = {"prompt": [rng.randrange(100, 1000) for _ in range(length)], "max_tokens": rng.choice([1, 8, 60]),
            "ignore_eos": True, "stream": stream, "n": rng.choice([1, 1, 1, 3])}
    if rng.random() < 0.3:
        body["prompt"] = [7] * length  # a prefix that others have too
    return json.dumps(body).encode()


async def status_of(reader: asyncio.StreamReader) -> int:
    line = await reader.readline()
    return int(line.split()[1]) if line.startswith(b"HTTP/1.1 ") else 0


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status = await status_of(reader)
    length = None
    while (line := await reader.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    if length is not None:
        return status, await reader.readexactly(length)
    body = b""
    while (size := int((await reader.readline()).strip() or b"0", 16)) > 0:
        body += (await reader.readexactly(size + 2))[:-2]
    return status, body


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def whole(rng, reader, writer) -> str:
    stream = rng.random() < 0.5
    writer.write(request("/v1/completions", good_body(rng, stream)))
    status, body = await read_answer(reader)
    if status in (429, 503):
        return "refused"
    if status != 200 or (stream and not body.endswith(b"data: [DONE]\n\n")):
        return f"wrong: a good request got {status} {body[:200]!r}"
    return "answered"


async def leaves(rng, reader, writer) -> str:
    """Closes or resets: at once, with the first bytes, or somewhere in the answer."""
    writer.write(request("/v1/completions", good_body(rng, rng.random() < 0.7)))
    moment = rng.random()
    if moment > 0.3:
        await asyncio.sleep(rng.random() * 0.2)
    if moment > 0.6:
        await reader.read(rng.choice([1, 100, 2000]))
    if rng.random() < 0.5:
        reset(writer)
    return "left"


async def bad_body(rng, reader, writer) -> str:
    body = rng.choice(BAD_BODIES)
    writer.write(request(rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]), body))
    status, text = await read_answer(reader)
    if status == 200 and len(body) > 1000:  # a long prompt is a good one
        return "answered"
    if status in (429, 503):
        return "refused"
    return "told" if 400 <= status < 500 and b'"error"' in text else f"wrong: {body[:60]!r} got {status} {text[:200]!r}"


async def slow_reader(rng, reader, writer) -> str:
    body = json.dumps({"prompt": [9] * 50, "max_tokens": 300, "ignore_eos": True, "stream": True, "n": 4}).encode()
    writer.write(request("/v1/completions", body))
    for _ in range(rng.randrange(2, 8)):
        if not await reader.read(20):
            break
        await asyncio.sleep(0.2)
    return "slow"


async def half_open(rng, reader, writer) -> str:
    """A part of a request, and nothing more for a while."""
    text = request("/v1/completions", good_body(rng, True))
    writer.write(text[:rng.randrange(1, len(text))])
    await asyncio.sleep(rng.random() * 0.5)
    if rng.random() < 0.5:
        reset(writer)
    return "half"


async def nonsense(rng, reader, writer) -> str:
    writer.write(rng.choice([bytes(rng.randrange(256) for _ in range(200)), b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n",
                             b"A" * 20000 + b"\r\n\r\n", request("/nowhere", b"{}"), b"\x16\x03\x01\x02\x00\x01"]))
    writer.write_eof()
    await reader.read(1 << 16)
    return "nonsense"


KINDS = [(whole, 0.3), (leaves, 0.3), (bad_body, 0.15), (half_open, 0.1), (nonsense, 0.08), (slow_reader, 0.07)]


async def one(port: int, rng: random.Random) -> str:
    kind = rng.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    buffer = 1 << 12 if kind is slow_reader else 1 << 16
    try:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 12)
    except OSError as error:
        return f"wrong: cannot connect: {error}"
    try:
        return await asyncio.wait_for(kind(rng, reader, writer), PATIENCE_S)
    except asyncio.TimeoutError:
        return f"wrong: {kind.__name__} waited for {PATIENCE_S:.0f} s"
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        return "cut" if kind not in (whole,) else f"wrong: a good request was cut: {error!r}"
    finally:
        writer.close()


async def storm(server: Server, requests: int, seed: int, at_once: int = 64) -> collections.Counter:
    rng = random.Random(seed)
    seeds = [rng.getrandbits(64) for _ in range(requests)]
    outcomes: collections.Counter = collections.Counter()

    async def worker() -> None:
        while seeds:
            outcomes[await one(server.port, random.Random(seeds.pop()))] += 1

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return outcomes


def run(server: Server, requests: int, seed: int) -> tuple[collections.Counter, list[str]]:
    """How the requests ended, and what is wrong: outcomes that may not be, and what the server did not get back."""
    server.ask()
    before = server.descriptors()
    outcomes = asyncio.run(storm(server, requests, seed))
    wrong = [f"{count} times {outcome}" for outcome, count in outcomes.items() if outcome.startswith("wrong")]
    if server.process.poll() is not None:
        return outcomes, [*wrong, f"the server ended with {server.process.returncode}"]
    return outcomes, wrong + server.leaks(before)
