"""The server of the peer tests, for clients that run in a Python environment of their own (.venv-clients)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))
from test_openai import Server


@pytest.fixture(scope="session")
def url():
    one = Server("--tool-parser", "hermes", "--served-model-name", "needle")
    yield one.url
    assert one.stop() == 0
