"""--tp 2 on CUDA devices without a GPU, over an NCCL without a network (src/cuda/testing/fake_nccl.cc): the right answer, and
whichever call of NCCL fails, dies or hangs, both processes end with a message."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import devices
from processes import alive, children, wait_until

QUESTION = "The code of the amber lantern is 74912. What is the code of the amber lantern?"


def start(command, *arguments, nccl_fault="", fault=""):
    return subprocess.Popen([devices.BINARY, command, *arguments, "--tp", "2", "--kv-cache-mib", "64", "--num-threads", "1",
                             *devices.arguments(devices.HOST)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **devices.environment(devices.HOST, fault, nccl_fault)})


def test_ranks_answer():
    done = start("generate", QUESTION)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0 and "74912" in out, err


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("fault", ["ncclCommInitRank:1:fail", "ncclCommInitRank:1:die", "ncclAllReduce:2:fail",
                                   "ncclAllReduce:9:fail", "ncclAllReduce:9:die", "ncclAllGather:1:fail", "ncclAllGather:1:die",
                                   "ncclGetUniqueId:1:fail"])
def test_no_fault_is_a_hang(fault, rank):
    if fault.startswith("ncclGetUniqueId") and rank == 1:
        return  # rank 0 alone asks for one
    done = start("generate", QUESTION, nccl_fault=f"{fault}:{rank}")
    begin = time.monotonic()
    out, err = done.communicate(timeout=20)
    assert done.returncode not in (0, -9), (out, err)
    assert time.monotonic() - begin < 10.0
    dies = fault.endswith("die")
    says = fault.partition(":")[0] if not dies else "" if rank == 0 else "rank 1 of 2"
    assert says in err, err


@pytest.fixture
def server():
    """Starts a server with a fault; its URL and the process of rank 1. Both processes are gone behind the test."""
    started = []

    def make(**faults):
        process = start("serve", "--port", "0", "--quiet", **faults)
        started.append(process)
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return process, line.split()[-1], children(process.pid)[0]
    yield make
    for process in started:
        process.kill()
        process.communicate()


def completion(url, **fields):
    body = json.dumps({"prompt": "The lamp is", "max_tokens": 300, "ignore_eos": True, **fields}).encode()
    return urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})


# The abort that ends what waits may hang as well.
@pytest.mark.parametrize("faults", [
    {"nccl_fault": "ncclAllGather:1:die:1"}, {"nccl_fault": "ncclAllGather:1:fail:1"}, {"nccl_fault": "ncclAllGather:1:fail:0"},
    {"fault": "cuGraphLaunch:20:700:1"}, {"fault": "cuGraphLaunch:20:700:0"}, {"fault": "cuGraphLaunch:20:13:1"},
    {"fault": "cuGraphLaunch:20:13:1", "nccl_fault": "ncclCommAbort:1:hang:0"},
    {"fault": "cuGraphLaunch:20:13:1", "nccl_fault": "ncclCommAbort:1:fail:0"}], ids=str)
def test_a_server_ends_with_both_ranks(server, faults):
    process, url, rank = server(**faults)
    begin = time.monotonic()
    try:
        urllib.request.urlopen(completion(url), timeout=20)
        raise AssertionError("the fault did not come")
    except urllib.error.HTTPError as error:
        assert error.code in (500, 503)
        assert "rank 1" in (text := error.read().decode()) or "cuGraphLaunch" in text or "nccl" in text, text
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1, err
    assert time.monotonic() - begin < 10.0
    assert "rank 1" in err or "cuGraphLaunch" in err or "ncclAllGather" in err, err
    assert wait_until(lambda: not alive(rank), seconds=10.0)


def test_a_rank_that_is_killed_between_two_replays(server):
    process, url, rank = server()
    stream = urllib.request.urlopen(completion(url, stream=True), timeout=20)
    assert stream.readline().startswith(b"data: ")
    os.kill(rank, signal.SIGKILL)
    begin = time.monotonic()
    try:
        rest = stream.read().decode()
    except http.client.IncompleteRead as error:  # an error ends a stream without its last chunk
        rest = error.partial.decode()
    assert f"rank 1 of 2 (process {rank}) has ended" in rest, rest[-300:]
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1 and f"rank 1 of 2 (process {rank}) has ended" in err, err
    assert time.monotonic() - begin < 10.0
