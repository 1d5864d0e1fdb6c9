"""Tensors lent by DLPack's C exchange API, as PyTorch has it: a class over NumPy that offers the same functions."""

import ctypes
from ctypes import addressof, c_int, c_int32, c_int64, c_void_p, py_object

import numpy as np
import pytest

import fovea
from fovea import _abi as abi
from fovea import _library as lib

LEND = ctypes.PYFUNCTYPE(c_int, py_object, c_void_p)
STREAM = ctypes.PYFUNCTYPE(c_int, c_int, c_int32, c_void_p)
DTYPES = {"f": 2, "i": 0, "u": 1}
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = py_object, [c_void_p, ctypes.c_char_p, c_void_p]
NAME = b"dlpack_exchange_api"  # capsules keep its address
lent = []


@LEND
def lend(x, address):
    if x.place is None:
        return -1
    record = abi.Tensor.from_address(address)
    record.data, record.byte_offset, record.ndim = x.array.ctypes.data, 0, x.array.ndim
    record.device.type, record.device.id = x.place
    record.dtype.code, record.dtype.bits, record.dtype.lanes = DTYPES[x.array.dtype.kind], 8 * x.array.itemsize, 1
    record.shape, record.strides = addressof(x.sizes), addressof(x.strides)
    lent.append(x)
    return 0


@STREAM
def stream(kind, index, address):
    c_void_p.from_address(address).value = 100 * kind + index
    return 0


API = lib._ExchangeApi(major=1, minor=3, lend=ctypes.cast(lend, c_void_p).value, stream=ctypes.cast(stream, c_void_p).value)
NEXT = lib._ExchangeApi(major=2, minor=0, lend=1, stream=1)


class Lent:
    __dlpack_c_exchange_api__ = new_capsule(addressof(API), NAME, None)
    place = lib.CPU, 0

    def __init__(self, array):
        self.array, self.shape = array, array.shape
        self.sizes = (c_int64 * array.ndim)(*array.shape)
        self.strides = (c_int64 * array.ndim)(*(step // array.itemsize for step in array.strides))

    def __dlpack__(self):
        raise AssertionError("not to be asked for a capsule")

    def __dlpack_device__(self):
        return lib.CPU, 0


class OnDevice(Lent):
    place = lib.CUDA, 5


class NotLent(Lent):
    place = None


class OfNextVersion(Lent):
    __dlpack_c_exchange_api__ = new_capsule(addressof(NEXT), NAME, None)

    def __dlpack__(self):
        return self.array.__dlpack__()


@pytest.mark.parametrize("kind", [Lent, OfNextVersion])
def test_the_same_answers_as_by_capsules(kind):
    rng = np.random.default_rng(1)
    numbers = lambda *shape: np.asarray(rng.standard_normal(shape, np.float32))
    q, k, v = numbers(3, 4, 32), numbers(6, 8, 2, 32), numbers(6, 8, 2, 32)
    attention = fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=32, page_tokens=8, q_dtype="f32")
    table = np.array([[0, 1], [2, 3], [4, 5]], np.int32)
    attention.plan([1, 1, 1], [9, 12, 16], table)
    wanted, wanted_lse = attention.run(q, (k, v), return_lse=True)
    attention.plan([1, 1, 1], [9, 12, 16], kind(table))
    del lent[:]
    out, lse = np.zeros_like(q), np.zeros((3, 4), np.float32)
    for _ in range(2):  # the second time in records of the first
        attention.run(kind(q), (kind(k), kind(v)), kind(out), lse=kind(lse))
        assert np.array_equal(out, wanted) and np.array_equal(lse, wanted_lse)
        out[:], lse[:] = 0, 0
    assert len(lent) == (10 if kind is Lent else 0)
    pages = (np.zeros_like(k), np.zeros_like(v))
    fovea.append_paged_kv(kind(k[0]), kind(v[0]), tuple(map(kind, pages)), slots=kind(np.arange(8, 16, dtype=np.int32)))
    assert np.array_equal(pages[0][1], k[0]) and np.array_equal(pages[1][1], v[0])


def test_the_stream_of_the_framework():
    lib.Borrowed()(Lent(np.zeros(1, np.float32)))
    assert lib.Borrowed()(OnDevice(np.zeros(1, np.float32)))[1] == 205
    assert lib.stream_on(None, (lib.CUDA, 3), Lent(np.zeros(1, np.float32))).value == 203
    assert lib.stream_on(None, (lib.CPU, 0), Lent(np.zeros(1, np.float32))) is None


def test_more_tensors_than_room_and_refusals_leave_records_whole():
    borrow = lib.Borrowed()
    arrays = [Lent(np.full(1, i, np.int32)) for i in range(25)]
    addresses = [borrow(x)[0] for x in arrays[:5]] + borrow(*arrays[5:16])[:11] + borrow(*arrays[16:])[:9]
    assert len(set(addresses)) == 25
    assert [lib.Described(a).address for a in addresses] == [x.array.ctypes.data for x in arrays]
    attention = fovea.Attention(num_qo_heads=1, num_kv_heads=1, head_dim=32, q_dtype="f32")
    q = np.zeros((1, 1, 32), np.float32)
    with pytest.raises(fovea.InvalidArgument, match="no tensor"):
        attention.run(q, (q, "pages"))
    with pytest.raises(fovea.InvalidArgument, match="q has shape"):
        attention.run(Lent(q[0]), (q, q), Lent(q))
    for wrong, words in ((None, "q is None"), ([1], "q is a list"), (Lent(q[0]), "q has shape"), (NotLent(q), "are not lent")):
        with pytest.raises(fovea.InvalidArgument, match=words):
            attention.run(wrong, (Lent(q), Lent(q)), Lent(q))


def test_tensors_of_several_types_in_one_call():
    borrow, arrays = lib.Borrowed(), [np.full(1, i, np.int32) for i in range(4)]
    given = [Lent(arrays[0]), None, arrays[1], OnDevice(arrays[2]), Lent(arrays[3])]
    *addresses, current = borrow(*given)
    assert addresses[1] is None and current is lib.UNKNOWN
    assert [lib.Described(a).address for a in addresses if a] == [x.ctypes.data for x in arrays]
    assert borrow(None, None)[:2] == [None, None] and borrow(Lent(arrays[0]), None)[1:] == [None, None]


def test_options_are_as_large_as_the_library_says():
    for kind, init in ((abi.AttentionOptions, "fovea_attention_options_init"),
                       (abi.PageSelectorOptions, "fovea_page_selector_options_init")):
        options = kind()
        getattr(lib.library, init)(options)
        assert options.struct_bytes == ctypes.sizeof(kind)
