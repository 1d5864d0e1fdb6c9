"""`fovea serve --kv-events`: pyzmq and msgspec, with the structs of vLLM's events, read what routers would, live and again."""

import json
import random
import socket
import struct
import subprocess
import urllib.request
from typing import Any

import msgspec
import pytest
import zmq

from test_openai import BINARY, Server


class Stored(msgspec.Struct, tag="BlockStored", kw_only=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None
    group_idx: int | None
    kv_cache_spec_kind: str | None


class Removed(msgspec.Struct, tag="BlockRemoved", kw_only=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None


class Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Router:
    """A subscriber that knows which blocks there are, as a router does."""

    def __init__(self, port, replay_port, topic):
        self.context = zmq.Context()
        self.subscriber = self.context.socket(zmq.SUB)
        self.subscriber.connect(f"tcp://127.0.0.1:{port}")
        self.subscriber.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.asker = self.context.socket(zmq.DEALER)
        self.asker.connect(f"tcp://127.0.0.1:{replay_port}")
        self.topic = topic
        self.blocks = {}
        self.next = 0

    def batches(self, seconds=5.0):
        while self.subscriber.poll(int(1000 * seconds)):
            topic, sequence, payload = self.subscriber.recv_multipart()
            assert topic.decode() == self.topic
            yield struct.unpack(">Q", sequence)[0], payload
            seconds = 0.3

    def replay(self, start):
        self.asker.send_multipart([b"", struct.pack(">Q", start)])
        found = []
        while self.asker.poll(5000):
            empty, sequence, payload = self.asker.recv_multipart()
            assert empty == b""
            if sequence == b"\xff" * 8:
                assert payload == b""
                return found
            found.append((struct.unpack(">Q", sequence)[0], payload))
        raise AssertionError("the replay has no end")

    def take(self, payload):
        batch = msgspec.msgpack.decode(payload, type=Batch)
        assert batch.ts > 1e9 and batch.data_parallel_rank == 0
        for event in batch.events:
            if isinstance(event, Cleared):
                assert not self.blocks
            elif isinstance(event, Removed):
                for block in event.block_hashes:
                    del self.blocks[block]
            else:
                parent = event.parent_block_hash
                assert event.medium == "CPU" and len(event.extra_keys) == len(event.block_hashes)
                assert len(event.token_ids) == event.block_size * len(event.block_hashes)
                for i, block in enumerate(event.block_hashes):
                    before = [] if parent is None else self.blocks[parent][0]
                    tokens = event.token_ids[i * event.block_size:(i + 1) * event.block_size]
                    self.blocks[block] = (before + tokens, event.extra_keys[i])
                    parent = block
        return batch

    def close(self):
        self.context.destroy(linger=0)


@pytest.fixture(scope="module")
def ports():
    return free_ports(2)


@pytest.fixture(scope="module")
def server(ports):
    one = Server("--kv-events", f"tcp://*:{ports[0]}", "--kv-events-replay", f"tcp://*:{ports[1]}", "--kv-events-topic",
                 "kv@test@needle", "--kv-cache-mib", "24", "--max-context", "2048")
    yield one
    assert one.stop() == 0


@pytest.fixture
def router(server, ports):
    one = Router(*ports, "kv@test@needle")
    for sequence, payload in one.replay(0):  # what there was before
        assert sequence == one.next
        one.next += 1
        one.take(payload)
    yield one
    one.close()


def complete(server, prompt, **options):
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **options}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def prompt_of(number, tokens=600):
    source = random.Random(number)
    return [source.randrange(10, 300) for _ in range(tokens)]


def test_stored_blocks_are_the_prompt(server, router):
    prompt = prompt_of(1)
    complete(server, prompt)
    numbers = []
    for number, payload in router.batches():
        numbers.append(number)
        router.take(payload)
    assert numbers == list(range(router.next, router.next + len(numbers))) and numbers
    longest = max((tokens for tokens, _ in router.blocks.values() if tokens[0] == prompt[0]), key=len)
    assert longest[:592] == prompt[:592]


def test_a_salt_is_part_of_the_event(server, router):
    complete(server, prompt_of(2), cache_salt="tenant")
    for _, payload in router.batches():
        router.take(payload)
    salted = [keys for tokens, keys in router.blocks.values() if tokens[:16] == prompt_of(2)[:16]]
    assert salted and all(keys and "tenant" in keys[0] for keys in salted)


def test_replay_is_what_was_live(server, router):
    complete(server, prompt_of(3))
    live = list(router.batches())
    assert live
    assert router.replay(live[0][0]) == live
    assert router.replay(live[-1][0] + 1) == []
    assert router.replay(0)[-len(live):] == live


def test_evicted_blocks_are_removed_and_a_flush_clears(server, router):
    for i in range(10, 40):
        complete(server, prompt_of(i, 1500))
    kinds = set()
    for _, payload in router.batches():
        kinds |= {type(event).__name__ for event in router.take(payload).events}
    assert {"Stored", "Removed"} <= kinds
    pages = json.loads(server.get("/engine.json"))["kv"]["pools"][0]
    assert len(router.blocks) == pages["cached"]
    request = urllib.request.Request(server.url + "/flush_cache", b"{}", {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).read()
    last = None
    for _, payload in router.batches():
        last = router.take(payload).events[-1]
    assert isinstance(last, Cleared) and not router.blocks


def test_questions_that_make_no_sense_are_passed_over(server, router):
    for frames in ([b""], [b"", b"short"], [b"", b"x" * 5000], [b"", b"a", b"b", b"c", b"d"]):
        router.asker.send_multipart(frames)
    assert router.replay(0)


def test_arrays():
    port, replay = free_ports(2)
    server = Server("--kv-events", f"tcp://*:{port}", "--kv-events-replay", f"tcp://*:{replay}", "--kv-events-format", "array")
    try:
        complete(server, prompt_of(1, 64))
        router = Router(port, replay, "")
        _, payload = router.replay(0)[0]
        timestamp, events, rank = msgspec.msgpack.decode(payload)
        assert timestamp > 1e9 and rank == 0
        name, hashes, parent, tokens, size, lora, medium, lora_name = events[0]
        assert (name, parent, size, lora, medium, lora_name) == ("BlockStored", None, 16, None, "CPU", None)
        assert tokens == prompt_of(1, 64)[:16 * len(hashes)]
        router.close()
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("arguments, said", [(["--kv-events", "nonsense"], "nonsense"),
                                             (["--kv-events-replay", "tcp://*:1"], "--kv-events-replay needs --kv-events")])
def test_what_cannot_be_is_refused(arguments, said):
    done = subprocess.run([BINARY, "serve", "--port", "0", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and said in done.stderr
