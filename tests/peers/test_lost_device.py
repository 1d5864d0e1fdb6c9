"""A kernel's fault takes the device of `fovea serve` away for good: clients are told, and the process ends so that what
supervises it starts another. On a CUDA device without a GPU (tests/gpu/host_driver.cc)."""

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import devices

FAULT = "CUDA_ERROR_ILLEGAL_ADDRESS"


def start(fault, *arguments):
    process = subprocess.Popen(
        [devices.BINARY, "serve", "--port", "0", "--kv-cache-mib", "64", "--quiet", *devices.arguments(devices.HOST), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **devices.environment(devices.HOST, fault)})
    line = process.stdout.readline()
    return process, line.split()[-1] if line else ""


def test_the_server_ends_with_the_reason():
    # The 40th replayed graph.
    process, url = start("cuGraphLaunch:40:700")
    try:
        request = urllib.request.Request(f"{url}/v1/completions", b'{"prompt":"The lamp is","max_tokens":200,"ignore_eos":true}',
                                         {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(request, timeout=60)
        assert failed.value.code == 500 and FAULT in failed.value.read().decode()
        _, err = process.communicate(timeout=10)
        assert process.returncode == 1
        assert re.search(rf"the engine has failed, so the server ends: .*{FAULT}", err), err
    finally:
        process.kill()
        process.communicate()


def test_a_device_that_is_lost_before_it_serves():
    process, url = start("cuMemAlloc_v2:4:700")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and url == "" and FAULT in err, err
