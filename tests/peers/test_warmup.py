"""`fovea warmup` compiles whatever a model then asks for, alone and as a rank of --tp: on CUDA devices without a GPU
(tests/devices.py). Which kernels were asked for is seen by the times of their files, which the cache renews."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import devices

QUESTION = "The code of the amber lantern is 74912. What is the code of the amber lantern?"
LONG_AGO = 1_000_000_000


def asked_for(folder, *arguments):
    """The files of the cache that a command makes or reads."""
    for file in folder.iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))
    done = subprocess.run([devices.BINARY, *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **devices.environment(devices.HOST), "FOVEA_CACHE_DIR": str(folder)})
    assert done.returncode == 0, done.stderr
    return {file.name for file in folder.iterdir() if file.stat().st_mtime > LONG_AGO}, done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What other tests compiled: files that are there cost no time, and count only if they are read."""
    copy = tmp_path_factory.mktemp("warmup") / "kernel-cache"
    if (built := devices.BUILT / "kernel-cache").exists():
        shutil.copytree(built, copy)
    copy.mkdir(exist_ok=True)
    return copy


@pytest.mark.parametrize("tp,kv", [("1", "auto"), ("2", "auto"), ("1", "fp8"), ("2", "fp8"), ("1", "int8"), ("2", "int8"),
                                   ("1", "int4"), ("2", "int4"), ("1", "int4-hadamard")])
def test_serving_asks_for_nothing_else(folder, tp, kv):
    warmed, _ = asked_for(folder, "warmup", "--model", str(devices.ROOT / "models/needle"), "--tp", tp, "--kv-dtype", kv)
    served = [] if kv == "auto" else ["--kv-dtype", kv]
    used, out = asked_for(folder, "generate", QUESTION, "--kv-cache-mib", "64", "--tp", tp, *served,
                          *devices.arguments(devices.HOST))
    assert used and used <= warmed, sorted(used - warmed)
    assert "74912" in out or kv == "int4-hadamard"  # which loses every fourth answer


def test_what_ranks_cannot_divide_is_refused():
    for tp, says in (("3", "cannot be divided among 3 ranks"), ("0", "--tp is 0")):
        done = subprocess.run([devices.BINARY, "warmup", "--model", str(devices.ROOT / "models/needle"), "--tp", tp],
                              capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and says in done.stderr, done.stderr
