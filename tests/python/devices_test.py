"""Which device and stream calls are for, seen by a library that only notes what it is asked: needs no GPU and no PyTorch."""

import contextlib
import sys
import types

import numpy as np
import pytest

import fovea
import fovea.flashinfer as flashinfer
from fovea import _library as lib

STREAMS = {0: 70, 1: 71}


class Library:
    """Answers every function with 0; objects have no handle, so nothing of theirs is destroyed."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def function(*arguments):
            self.calls.append((name, [getattr(a, "_obj", a) for a in arguments]))
            return 0
        return function

    def streams(self, name):
        """Of the calls of a function: the last argument."""
        return [getattr(arguments[-1], "value", arguments[-1]) for called, arguments in self.calls if called == name]


class OnDevice:
    """A tensor of no framework on a CUDA device."""
    shape = (1,)

    def __init__(self, index):
        self.index = index

    def __dlpack__(self, stream=None):
        raise AssertionError("not to be looked at")

    def __dlpack_device__(self):
        return lib.CUDA, self.index


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(lib, "library", made)
    torch = types.ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})
    torch.cuda = types.SimpleNamespace(
        is_initialized=lambda: True,
        current_stream=lambda index: types.SimpleNamespace(cuda_stream=STREAMS[index]))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return made


def test_host_lists_go_to_the_stream_that_runs(library):
    attention = fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=32, page_tokens=8, device="cuda:1", q_dtype="f16")
    lists, q = np.arange(4, dtype=np.int32), np.zeros((2, 4, 32), np.float16)
    kv = (np.zeros((4, 8, 2, 32), np.float16),) * 2
    attention.plan([1, 1], [9, 9], lists, [0, 2, 4])
    attention.plan([1, 1], [9, 9], [[0, 1], [2, 3]])
    attention.plan_cascade(2, [([0, 2], [16], lists, [0])])
    attention.grow([10, 10])
    attention.run(q, kv)
    attention.plan([1, 1], [9, 9], lists, [0, 2, 4], stream=5)
    assert library.streams("fovea_attention_plan") == [71, 71, 5]
    for name in ("fovea_attention_plan_cascade", "fovea_attention_grow", "fovea_attention_run"):
        assert library.streams(name) == [71], name
    sys.modules["torch"].cuda.is_initialized = lambda: False  # whoever has not used CUDA has one stream
    attention.plan([1, 1], [9, 9], lists, [0, 2, 4])
    assert library.streams("fovea_attention_plan")[-1] is None


def test_wrappers_are_for_the_device_of_the_workspace(library):
    indptr, indices, last = np.array([0, 1], np.int32), np.zeros(1, np.int32), np.ones(1, np.int32)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(OnDevice(1))
    wrapper.plan(indptr, indices, last, 4, 2, 32, 8)
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(OnDevice(0))
    prefill.plan(indptr, indptr, indices, last, 4, 2, 32, 8)
    devices = [arguments[0].device for name, arguments in library.calls if name == "fovea_attention_create"]
    assert devices == [b"cuda:1", b"cuda:0"]
    assert library.streams("fovea_attention_plan") == [71, 70]


def test_what_a_graph_captured_outlives_the_plan_that_outgrows_it(library):
    indices = np.zeros(64, np.int32)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(OnDevice(0))

    def plan(requests):
        wrapper.plan(np.arange(requests + 1, dtype=np.int32), indices, np.ones(requests, np.int32), 4, 2, 32, 8)
        return wrapper._ready[False]

    first = plan(3)
    assert plan(16) is first
    library.fovea_attention_captured = lambda handle: 1
    second = plan(17)
    assert second is not first and wrapper._replaced == [first]
    library.fovea_attention_captured = lambda handle: 0
    assert plan(60) is not second and wrapper._replaced == [first]


@pytest.mark.parametrize("handle", [None, 5, types.SimpleNamespace(cuda_stream=6)])
def test_rows_are_filled_in_the_order_of_the_stream(library, handle):
    torch, entered, filled = sys.modules["torch"], [], []

    class Tensor(torch.Tensor):  # type: ignore[name-defined]
        is_cuda, device = True, types.SimpleNamespace(index=1)

        def __setitem__(self, rows, value):
            filled.append((rows, value, list(entered)))

    @contextlib.contextmanager
    def within(stream):
        entered.append(stream)
        yield
        entered.pop()

    torch.cuda.stream, torch.cuda.ExternalStream = within, lambda pointer, device: (pointer, device.index)
    lib.fill_rows(Tensor(), 3, 0.0, handle)
    expected = [] if handle is None else [(getattr(handle, "cuda_stream", handle), 1)]
    assert filled == [(slice(3, None), 0.0, expected)] and not entered
