"""Shared fixtures of the peer tests."""
import pytest

from driver import Driver


@pytest.fixture(scope="session")
def driver():
    made = Driver()
    yield made
    made.close()
