"""Attention on the CPU in processes that were forked from one that used it, whatever its other threads did then."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

from oracle import Batch
from attention_test import attention_for


class Asked:
    def __init__(self, **options):
        self.batch = Batch([1, 4], [30, 17])
        self.attention = attention_for(self.batch, **options)

    def answer(self):
        self.attention.plan([1, 4], [30, 17], self.batch.indices, self.batch.indptr)
        return self.attention.run(self.batch.q, (self.batch.k, self.batch.v))


def in_child(right):
    """Whether right() is true in a child; one that hangs is ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if right() else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ended, state = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(state) == 0
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.mark.parametrize("threads", [0, 3])
def test_children_and_theirs_answer_alike(threads):
    asked = Asked(num_threads=threads)
    expected = asked.answer()

    def right():
        return np.array_equal(asked.answer(), expected) and np.array_equal(Asked(num_threads=threads).answer(), expected)

    assert in_child(right)
    assert in_child(lambda: right() and in_child(right) and right())
    assert right()


def test_forks_while_another_thread_runs():
    busy, asked, stop = Asked(), Asked(), threading.Event()
    expected = asked.answer()

    def work():
        while not stop.is_set():
            busy.answer()

    other = threading.Thread(target=work)
    other.start()
    try:
        for _ in range(20):
            assert in_child(lambda: np.array_equal(asked.answer(), expected))
    finally:
        stop.set()
        other.join()


def answer_of_worker(_):
    return Asked().answer()


def test_workers_of_multiprocessing():
    expected = Asked().answer()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for out in pool.map_async(answer_of_worker, range(6)).get(120):
            np.testing.assert_array_equal(out, expected)
