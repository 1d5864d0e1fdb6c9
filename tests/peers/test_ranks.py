"""Tensor parallelism from the command line, on the CPU: ranks that fovea starts, and ranks that something else starts as
torchrun and mpirun do; the same answers; and deaths that end everybody with a message."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from processes import alive, children, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("FOVEA_BINARY", str(ROOT / "build/release/fovea"))
QUESTION = "The code of the amber lantern is 74912. What is the code of the amber lantern?"
# Of one thread a rank: the machines that run this have few.
OPTIONS = ["--num-threads", "1", "--kv-cache-mib", "64"]


def start(*arguments, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FOVEA_")}
    return subprocess.Popen([BINARY, *arguments, *OPTIONS], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**clean, **env})


@pytest.fixture
def server():
    """A server over two ranks, and the process of rank 1."""
    process = start("serve", "--port", "0", "--tp", "2", "--quiet")
    url = process.stdout.readline().split()[-1]
    assert urllib.request.urlopen(f"{url}/health", timeout=10).status == 200
    ranks = children(process.pid)
    assert len(ranks) == 1
    yield process, ranks[0]
    if process.poll() is None:
        process.kill()
    process.communicate()


@pytest.mark.parametrize("arguments", [["--tp", "1"], ["--tp", "2"], ["--tp", "2", "--weight-dtype", "fp8"]])
def test_ranks_answer_alike(arguments):
    done = start("generate", QUESTION, *arguments)
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0, err
    assert "74912" in out


@pytest.mark.parametrize("names", [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")])
def test_ranks_that_were_started_find_each_other(names):
    job = {"MASTER_PORT": str(os.getpid()), names[1]: "2"}
    ranks = [start("generate", QUESTION, "--tp", "2", **job, **{names[0]: str(rank)}) for rank in range(2)]
    answers = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], answers
    assert "74912" in answers[0][0] and answers[1][0] == ""


@pytest.mark.parametrize("arguments,env,code,says", [
    (["--tp", "3"], {}, 1, "cannot be divided among 3 ranks"), (["--tp", "0"], {}, 2, "--tp is 0"),
    (["--tp", "2"], {"RANK": "1", "WORLD_SIZE": "4"}, 2, "WORLD_SIZE 4"),
    (["--tp", "2"], {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}, 1, "one host"),
    (["--tp", "2", "--sparse", "quest"], {}, 1, "sparse is"),
    (["--tp", "2", "--kv-spill-gib", "1"], {}, 1, "kv_spill")])
def test_what_cannot_be_is_refused(arguments, env, code, says):
    done = start("generate", QUESTION, *arguments, **env)
    out, err = done.communicate(timeout=60)
    assert done.returncode == code and says in err and out == "", err


def test_a_rank_that_dies_ends_the_server(server):
    process, rank = server
    os.kill(rank, signal.SIGKILL)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 1
    assert f"rank 1 of 2 (process {rank}) has ended" in err


def test_rank_zeros_death_ends_the_others(server):
    process, rank = server
    process.kill()
    assert wait_until(lambda: not alive(rank), seconds=10.0)


def test_the_server_ends_its_ranks(server):
    process, rank = server
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert not alive(rank)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_still_loads_ends_at_once(number):
    # For a rank that never comes.
    process = start("serve", "--port", "0", "--tp", "2", RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    status = Path(f"/proc/{process.pid}/status")
    assert wait_until(lambda: int(re.search(r"SigBlk:\s+(\w+)", status.read_text()).group(1), 16) >> (number - 1) & 1)
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0 and "while the model was loading" in err and out == "", err
