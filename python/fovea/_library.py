"""libfovea_c through ctypes: its functions (declared in _abi.py), its errors as exceptions, and tensors lent to calls.

Tensors cross as DLPack's DLTensor, which is what the library takes, so nothing is copied or converted here: all tensors of a
call at once by the functions of DLPack's C exchange API where their framework has it, else by a capsule each. Works with any
Python of any version; needs no compiler and imports no framework.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import nullcontext
from ctypes import Structure, addressof, c_char_p, c_float, c_int32, c_int64, c_uint32, c_void_p, cast, pythonapi
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import _abi as abi

Tensor = Any  # of any framework that has DLPack
Integers = Iterable[Any]  # a sequence of integers, or a tensor of them
Stream = Any  # a framework's stream, its handle, or None for the current one

CPU, CUDA = 1, 2  # DLPack device types
DL_INT, DL_UINT, DL_FLOAT = 0, 1, 2  # DLPack type codes
DTYPES = {"f32": abi.F32, "f16": abi.F16, "bf16": abi.BF16, "fp8_e4m3": abi.F8E4M3, "int8": abi.I8, "int4": abi.I4}
MASKS = {"none": abi.MASK_NONE, "causal": abi.MASK_CAUSAL, "window": abi.MASK_WINDOW, "bits": abi.MASK_BITS}
LAYOUTS = {"NHD": abi.NHD, "HND": abi.HND}
DECODE_KERNELS = {"auto": abi.DECODE_AUTO, "general": abi.DECODE_GENERAL, "warp_per_worker": abi.DECODE_WARP_PER_WORKER,
                  "low_batch": abi.DECODE_LOW_BATCH, "prefill": abi.DECODE_PREFILL}


class Error(RuntimeError):
    """What the library refused, in its words."""


class InvalidArgument(Error, ValueError):
    """Something malformed: wrong type, shape, stride, device, alignment or option."""


class OutOfRange(Error, ValueError):
    """Beyond a declared maximum, or a page outside of the pool."""


class Unsupported(Error, NotImplementedError):
    """Understood, but this device or build cannot do it; the message says why."""


class ResourceExhausted(Error, MemoryError):
    """Memory ran out."""


class Unavailable(Error):
    """No such device, driver or compiler; the message says what to do."""


_ERRORS = {abi.INVALID_ARGUMENT: InvalidArgument, abi.NOT_FOUND: Unavailable, abi.UNSUPPORTED: Unsupported,
           abi.OUT_OF_RANGE: OutOfRange, abi.RESOURCE_EXHAUSTED: ResourceExhausted, abi.UNAVAILABLE: Unavailable}


def _load() -> tuple[ctypes.CDLL, Any]:
    """The library, and fovea_lend(), which needs the GIL that all others let go."""
    named = os.environ.get("FOVEA_LIBRARY")
    path = Path(named) if named else Path(__file__).parent / "lib" / "libfovea_c.so"
    if not path.exists():
        raise ImportError(f"{path} does not exist; install the package with `pip install .`, or let FOVEA_LIBRARY name a "
                          "libfovea_c.so that was built")
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in abi.FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    lend = ctypes.PyDLL(str(path)).fovea_lend
    lend.restype, (lending, _) = abi.FUNCTIONS["fovea_lend"]
    lend.argtypes = [lending, ctypes.py_object]
    return library, lend


library, _lend = _load()


def check(code: int) -> None:
    """Raises what the last call of this thread reported."""
    if code:
        raise _ERRORS.get(code, Error)(library.fovea_last_error().decode(errors="replace"))


_capsule_pointer = pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]


def _torch_tensor(x: Any) -> Any:
    """The torch module when x is one of its tensors; torch is never imported here."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else None


class _ExchangeApi(Structure):
    """DLPackExchangeAPI of dlpack.h 1.3: what a tensor's type offers to those that do not want capsules."""
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("older", c_void_p), ("allocate", c_void_p), ("give", c_void_p),
                ("take", c_void_p), ("lend", c_void_p), ("stream", c_void_p)]


class Framework:
    """Of a type of tensors: the record for fovea_lend(), and stream(device type, index, address), which writes the current
    stream."""
    __slots__ = ("lender", "stream")

    def __init__(self, api: Any, kind: type) -> None:
        functions = (pythonapi.PyTuple_Size, pythonapi.PyTuple_GetItem, pythonapi.PyObject_Type, pythonapi.Py_DecRef)
        self.lender = ctypes.pointer(abi.Lender(api.lend, api.stream, *(cast(f, c_void_p).value for f in functions), id(kind),
                                                id(None)))
        self.stream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, c_int32, c_void_p)(api.stream)


_frameworks: dict[type, Framework | None] = {}  # by type of tensors; None: by capsules


def _framework_of(x: Any) -> Framework | None:
    kind = type(x)
    return _frameworks[kind] if kind in _frameworks else _find_framework(kind)


def _find_framework(kind: type) -> Framework | None:
    found = None
    capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
    if capsule is not None:
        try:
            api = _ExchangeApi.from_address(_capsule_pointer(capsule, b"dlpack_exchange_api"))
            found = Framework(api, kind) if api.major == 1 and api.lend and api.stream else None
        except (ValueError, TypeError, ctypes.ArgumentError):  # of another name: of a version to come
            pass
    _frameworks[kind] = found
    return found


UNKNOWN = object()  # a stream that only stream_of() and stream_on() find


class Borrowed:
    """Tensors lent to one call of the library: their DLTensors live as long as this object does."""
    __slots__ = ("_addresses", "_begin", "_kept", "_lending", "_pointer", "_room", "kv")
    _ROOM = 12  # records made at once: no run or append has more

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._addresses = (c_void_p * (self._ROOM + 1))()
        self._lending = abi.Lending(addresses=self._addresses)
        self._pointer = ctypes.pointer(self._lending)
        self._make_room()
        self.kv = abi.PagedKv()

    def _make_room(self) -> None:
        self._room = (abi.Tensor * self._ROOM)()
        self._begin = self._lending.next = addressof(self._room)
        self._lending.end = self._begin + ctypes.sizeof(self._room)

    def __call__(self, *tensors: Any) -> list[Any]:
        """Addresses of the DLTensors of at most 12 tensors, None for None; behind them the current stream of the first one's
        device, or UNKNOWN."""
        self._kept.append(tensors)
        if _lend(self._pointer, tensors):
            return self._lend_otherwise(tensors)
        return self._addresses[:len(tensors) + 1]

    def _lend_otherwise(self, tensors: tuple[Any, ...]) -> list[Any]:
        """Where the tensors are not all of the last call's type, or there is no room."""
        framework = _framework_of(tensors[0])
        if framework is not None:
            self._kept.append(self._room)
            self._make_room()
            self._lending.lender = framework.lender
            code = _lend(self._pointer, tensors)
            if code == 0:
                return self._addresses[:len(tensors) + 1]
            if code < 0:
                raise InvalidArgument(f"tensors of type {type(tensors[0]).__name__} are not lent by their DLPack exchange API")
        one = lambda x: None if x is None else self._by_capsule(x) if _framework_of(x) is None else self(x)[0]
        return [*map(one, tensors), UNKNOWN]

    def _by_capsule(self, x: Any) -> Any:
        capsule = _capsule_of(x)
        self._kept.append(capsule)
        return _capsule_pointer(capsule, b"dltensor")

    def release(self) -> None:
        """After the call: room for the next one, since making records takes longer than filling them."""
        self._kept.clear()
        self._lending.next = self._begin
        _released.append(self)


_released: list[Borrowed] = []


def borrowed() -> Borrowed:
    """For a call that releases it."""
    try:
        return _released.pop()
    except IndexError:
        return Borrowed()


def _capsule_of(x: Any) -> Any:
    torch = _torch_tensor(x)
    if torch is not None:
        if x.dtype == torch.float8_e4m3fn or x.dtype == torch.bool:
            x = x.view(torch.uint8)  # the library knows from the options what is stored
        return torch.utils.dlpack.to_dlpack(x.detach() if x.requires_grad else x)
    if not hasattr(x, "__dlpack__"):
        raise InvalidArgument(f"a {type(x).__name__} is no tensor: it has no __dlpack__")
    if x.__dlpack_device__()[0] == CUDA:
        return x.__dlpack__(stream=-1)  # no synchronization: the caller's stream orders things
    try:
        return x.__dlpack__()
    except BufferError as error:  # NumPy exports no array that is read-only
        raise InvalidArgument(f"an array of shape {tuple(x.shape)} cannot be read through DLPack ({error}); "
                              "if it is read-only, hand over a copy") from None


class Described:
    """A lent tensor as its DLTensor says."""
    __slots__ = ("address", "bits", "code", "contiguous", "place", "shape")

    def __init__(self, address: int) -> None:
        t = abi.Tensor.from_address(address)
        self.address = (t.data or 0) + t.byte_offset
        self.code, self.bits = t.dtype.code, t.dtype.bits
        self.place = (t.device.type, t.device.id)
        self.shape = (c_int64 * t.ndim).from_address(t.shape)[:] if t.ndim else []
        stride, self.contiguous = 1, True
        strides = (c_int64 * t.ndim).from_address(t.strides)[:] if t.strides and t.ndim else None
        if 0 in self.shape:
            return  # whatever the strides are: NumPy's are 0
        for i in reversed(range(t.ndim)):
            self.contiguous = self.contiguous and (strides is None or self.shape[i] == 1 or strides[i] == stride)
            stride *= self.shape[i]


def device_of(x: Any) -> tuple[int, int]:
    """(DLPack device type, index); pinned memory counts as CPU, managed memory as CUDA."""
    torch = _torch_tensor(x)
    if torch is not None:
        return (CUDA, x.device.index or 0) if x.is_cuda else (CPU, 0)
    kind, index = x.__dlpack_device__()
    return (CUDA, int(index)) if int(kind) in (2, 13) else (CPU, 0)


def device_name(place: tuple[int, int]) -> str:
    """"cpu" or "cuda:N"."""
    return "cpu" if place[0] == CPU else f"cuda:{place[1]}"


def check_tensor(name: str, x: Any, shape: str) -> None:
    """That x is a tensor of as many dims as `shape` names."""
    if not hasattr(x, "__dlpack__") or not hasattr(x, "shape"):
        raise InvalidArgument(f"{name} is {'None' if x is None else 'a ' + type(x).__name__}, expected a tensor {shape}")
    if len(x.shape) != shape.count(",") + 1:
        raise InvalidArgument(f"{name} has shape {tuple(x.shape)}, expected {shape}")


def c_text(name: str, value: Any) -> bytes:
    """For a field that C reads up to its first NUL."""
    text = str(value)
    if "\0" in text:
        raise InvalidArgument(f"{name} is {text[:200]!r}, expected a text without NUL")
    return text.encode()


def check_integer(name: str, value: Any, kind: Any = c_int32) -> None:
    """ctypes would keep the low bits of a number that is too large."""
    bits = 8 * ctypes.sizeof(kind)
    if not hasattr(value, "__index__"):
        raise InvalidArgument(f"{name} is {value!r}, expected an integer")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise InvalidArgument(f"{name} has {value}, which is no integer of {bits} bits")


def c_scale(name: str, value: Any, default: str) -> float:
    """For a float in which C reads 0 as `default`, which None stands for here."""
    if value is None:
        return 0.0
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{name} is {value!r}, expected a number, or None for {default}") from None
    if c_float(number).value == 0.0:
        raise InvalidArgument(f"{name} is {value!r}, which is 0 as a float32; expected another number, or None for {default}")
    return number


def host_array(values: Any, kind: Any = c_int32, name: str = "a list") -> Any:
    """(ctypes array, length) of integers from a sequence or a tensor; a tensor on a device is copied, which waits for it."""
    if hasattr(values, "__dlpack__"):
        values = (values if device_of(values)[0] == CPU else values.get() if hasattr(values, "get") else values.cpu()).tolist()
    if not hasattr(values, "__iter__"):
        raise InvalidArgument(f"{name} is {values!r}, expected integers")
    values = list(values)
    if not all(hasattr(value, "__index__") for value in values):
        raise InvalidArgument(f"{name} holds {next(v for v in values if not hasattr(v, '__index__'))!r}, expected integers")
    for extreme in (min(values), max(values)) if values else ():
        check_integer(name, extreme, kind)
    return (kind * max(len(values), 1))(*values), len(values)


def stream_of(stream: Stream, x: Any) -> Any:
    """The stream handle given, or the current stream of the framework that x comes from (if it is loaded already)."""
    if isinstance(stream, c_void_p):
        return stream
    if stream is not None:
        handle: Any = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
        return c_void_p(int(handle))
    torch = _torch_tensor(x)
    if torch is not None:
        return stream_on(None, (CUDA, x.get_device()), x) if x.is_cuda else None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return c_void_p(cupy.cuda.get_current_stream().ptr)
    return None


def stream_on(stream: Stream, place: tuple[int, int], x: Any = None) -> Any:
    """The stream handle given, or the current stream of the device `place`: that of x's framework wherever x lies, else of
    one that is loaded and uses CUDA."""
    if stream is not None or place[0] == CPU:
        return stream_of(stream, None)
    framework = _frameworks.get(type(x))
    if framework is not None:
        handle = c_void_p()
        framework.stream(CUDA, place[1], addressof(handle))
        return handle
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if _torch_tensor(x) is None and cupy is not None and (isinstance(x, cupy.ndarray) or not _uses_cuda(torch)):
        return c_void_p(cupy.cuda.get_current_stream().ptr)
    if torch is None or not _uses_cuda(torch):
        return None
    return c_void_p(torch.cuda.current_stream(place[1]).cuda_stream)


def _uses_cuda(torch: Any) -> bool:
    return torch is not None and torch.cuda.is_initialized()


def place_of(device: str) -> tuple[int, int]:
    """(DLPack device type, index) of "cpu", "cuda" or "cuda:N"."""
    return (CPU, 0) if device == "cpu" else (CUDA, int(device.partition(":")[2] or 0))


def empty_like(x: Any, shape: Any = None, dtype: Any = None) -> Any:
    """A new contiguous tensor of x's framework and device; dtype "float32", "int32" or None for x's own; its shape unless
    given."""
    torch = _torch_tensor(x)
    if torch is not None and shape is None and x.is_contiguous():
        return torch.empty_like(x)  # a third of what others take
    shape = x.shape if shape is None else shape
    if torch is not None:
        return x.new_empty(shape, dtype=getattr(torch, dtype) if dtype else x.dtype)
    module = sys.modules[type(x).__module__.split(".")[0]]
    if not hasattr(module, "empty"):
        raise InvalidArgument(f"no {type(x).__name__} can be made here; hand over tensors for what is computed")
    return module.empty(shape, dtype=dtype or x.dtype)


def fill_rows(x: Any, begin: int, value: float, stream: Stream) -> None:
    """Rows from `begin` on become `value`, in the order of the stream (None: the framework's current one)."""
    context: Any = nullcontext()
    if stream is not None and device_of(x)[0] == CUDA:
        handle = stream_of(stream, x).value or 0
        torch = _torch_tensor(x)
        cuda = sys.modules["cupy"].cuda if torch is None else torch.cuda
        context = cuda.ExternalStream(handle) if torch is None else cuda.stream(cuda.ExternalStream(handle, x.device))
    with context:
        x[begin:] = value
