"""Shared fixtures of the peer tests."""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import devices
from driver import Driver

# Files whose servers run on a CUDA device without a GPU too.
ON_DEVICES = ("test_anthropic", "test_openai", "test_responses", "test_scoring", "test_structured_outputs", "test_tools")


def pytest_generate_tests(metafunc):
    # Of a model that the driver without a GPU cannot compute: the CPU alone.
    if metafunc.module.__name__ in ON_DEVICES and not os.environ.get("FOVEA_TEST_MODEL"):
        metafunc.parametrize("device", [devices.CPU, devices.HOST], indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def device(request):
    """Where servers run that are not told."""
    devices.default = getattr(request, "param", devices.CPU)
    yield devices.default
    devices.default = devices.CPU


@pytest.fixture(scope="module")
def server(request, device):
    """A server with the file's SERVER_OPTIONS."""
    from test_openai import Server
    one = Server(*getattr(request.module, "SERVER_OPTIONS", ()))
    yield one
    assert one.stop() == 0


@pytest.fixture(scope="module")
def client(server):
    return server.client()


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture(scope="session")
def driver():
    made = Driver()
    yield made
    made.close()
