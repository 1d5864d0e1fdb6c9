"""libfovea_c through ctypes: its records (include/fovea/fovea.h), its functions, and its errors as exceptions.

Tensors cross as DLPack: a tensor's capsule holds a DLTensor, and that is what the library takes, so nothing is copied or
converted here. Works with any Python of any version; needs no compiler and imports no framework.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint8, c_uint32, \
    c_uint64, c_void_p
from pathlib import Path

CPU, CUDA = 1, 2  # DLPack device types
DTYPES = {"f32": 0, "f16": 1, "bf16": 2, "fp8_e4m3": 3, "int8": 4, "int4": 5}
MASKS = {"none": 0, "causal": 1, "window": 2, "bits": 3}
ROTATED = 256  # of PagedKv.kv_dtype
LAYOUTS = {"NHD": 0, "HND": 1}
DECODE_KERNELS = {"auto": 0, "ctas": 1, "warps": 2, "few": 3, "prefill": 4}


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


_ERRORS = {1: InvalidArgument, 2: Unavailable, 3: Unsupported, 4: OutOfRange, 5: ResourceExhausted, 6: Unavailable}


class VariantValue(Structure):
    _fields_ = [("name", c_char_p), ("type", c_int32), ("number", c_double), ("tensor", c_void_p)]


class Options(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t), ("device", c_char_p), ("num_qo_heads", c_int32), ("num_kv_heads", c_int32),
        ("head_dim", c_int32), ("q_dtype", c_int32), ("kv_dtype", c_int32), ("page_tokens", c_int32), ("sm_scale", c_float),
        ("softcap", c_float), ("sigmoid_bias", c_float), ("sigmoid", c_int32), ("sinks", c_void_p),
        ("alibi_slopes", c_void_p), ("max_requests", c_int32), ("max_rows", c_int32), ("max_pages_per_request", c_int32),
        ("max_cascade_levels", c_int32), ("max_page_entries", c_int64), ("max_mask_bytes", c_int64),
        ("share_prefixes", c_int32), ("batch_invariant", c_int32), ("checked", c_int32), ("num_threads", c_int32),
        ("num_workers", c_int32), ("variant_name", c_char_p), ("variant_source", c_char_p),
        ("variant_values", POINTER(VariantValue)), ("num_variant_values", c_int32), ("device_growth", c_int32),
        ("max_selected", c_int32), ("decode_kernel", c_int32), ("kv_token_scales", c_int32), ("kv_rotated", c_int32),
        ("graphs_by_rows", c_int32),
    ]


class Batch(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t), ("num_requests", c_int32), ("mask", c_int32), ("q_lens", c_void_p),
        ("kv_lens", c_void_p), ("page_indices", c_void_p), ("page_indices_device", c_int32), ("window_left", c_int32),
        ("num_page_indices", c_int64), ("list_begins", c_void_p), ("page_stride", c_int64), ("mask_bits", c_void_p),
        ("mask_bytes", c_int64), ("mask_offsets", c_void_p), ("list_ends", c_void_p),
    ]


class CascadeLevel(Structure):
    _fields_ = [
        ("num_groups", c_int32), ("page_indices_device", c_int32), ("row_begins", c_void_p), ("kv_lens", c_void_p),
        ("page_indices", c_void_p), ("num_page_indices", c_int64), ("list_begins", c_void_p), ("causal", c_int32),
    ]


class SelectedBatch(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t), ("num_requests", c_int32), ("budget_tokens", c_int32), ("kv_lens", c_void_p),
        ("page_indices", c_void_p), ("num_page_indices", c_int64), ("list_begins", c_void_p), ("selected_begins", c_void_p),
        ("selected_stride", c_int64), ("list_tokens", c_void_p), ("budget_divisor", c_int32),
    ]


class PagedKv(Structure):
    _fields_ = [("k", c_void_p), ("v", c_void_p), ("k_scale", c_void_p), ("v_scale", c_void_p), ("layout", c_int32),
                ("kv_dtype", c_int32)]


class RunValues(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("logit_scale", c_float), ("sinks", c_void_p)]


class KeyCode(Structure):
    _fields_ = [("channels", c_uint8 * 32), ("mean", c_float * 32), ("step", c_float * 32)]


class SelectorOptions(Structure):
    _fields_ = [
        ("struct_bytes", c_size_t), ("device", c_char_p), ("policy", c_char_p), ("key_codes", POINTER(KeyCode)),
        ("num_key_codes", c_int32), ("num_qo_heads", c_int32), ("num_kv_heads", c_int32), ("head_dim", c_int32),
        ("q_dtype", c_int32), ("sm_scale", c_float), ("rotary_dim", c_int32), ("budget_tokens", c_int32),
        ("budget_divisor", c_int32), ("sink_tokens", c_int32), ("recent_tokens", c_int32), ("interval", c_int32),
        ("candidate_factor", c_int32), ("num_layers", c_int32), ("num_pages", c_int32), ("max_requests", c_int32),
        ("max_pages_per_request", c_int32), ("num_threads", c_int32),
    ]


class SelectStep(Structure):
    _fields_ = [("struct_bytes", c_size_t), ("kv_lens", c_void_p), ("page_table", c_void_p), ("lists", c_void_p),
                ("list_tokens", c_void_p), ("phases", c_void_p)]


class Stats(Structure):
    _fields_ = [
        ("kv_bytes", c_uint64), ("kv_bytes_unshared", c_uint64), ("partial_bytes", c_uint64), ("plan_bytes", c_uint64),
        ("num_workers", c_uint32), ("num_items", c_uint32), ("imbalance", c_double),
    ]


class _DlTensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
        ("bits", c_uint8), ("lanes", ctypes.c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


def _load() -> ctypes.CDLL:
    named = os.environ.get("FOVEA_LIBRARY")
    path = Path(named) if named else Path(__file__).parent / "lib" / "libfovea_c.so"
    if not path.exists():
        raise ImportError(f"{path} does not exist; install the package with `pip install .`, or let FOVEA_LIBRARY name a "
                          "libfovea_c.so that was built")
    library = ctypes.CDLL(str(path))
    tensor, void = c_void_p, c_void_p
    for name, result, arguments in (
        ("fovea_version", c_char_p, []),
        ("fovea_last_error", c_char_p, []),
        ("fovea_attention_options_init", None, [POINTER(Options)]),
        ("fovea_attention_create", c_int32, [POINTER(Options), POINTER(c_void_p)]),
        ("fovea_attention_destroy", None, [void]),
        ("fovea_attention_plan", c_int32, [void, POINTER(Batch), void]),
        ("fovea_attention_plan_cascade", c_int32, [void, c_int32, POINTER(CascadeLevel), c_int32, void]),
        ("fovea_attention_plan_selected", c_int32, [void, POINTER(SelectedBatch), void]),
        ("fovea_attention_grow", c_int32, [void, void, c_int32, void]),
        ("fovea_attention_grow_on_device", c_int32, [void, tensor, void]),
        ("fovea_attention_growth_status", c_int32, [void, void]),
        ("fovea_attention_run_values", c_int32, [void, tensor, POINTER(PagedKv), tensor, tensor, POINTER(RunValues), void]),
        ("fovea_attention_recorded", c_int32, [void]),
        ("fovea_attention_workspace_bytes", c_size_t, [void]),
        ("fovea_attention_get_stats", None, [void, POINTER(Stats)]),
        ("fovea_attention_explain", c_size_t, [void, c_char_p, c_size_t]),
        ("fovea_learn_key_codes", c_int32, [tensor, tensor, POINTER(KeyCode), c_int32]),
        ("fovea_page_selector_options_init", None, [POINTER(SelectorOptions)]),
        ("fovea_page_selector_create", c_int32, [POINTER(SelectorOptions), POINTER(c_void_p)]),
        ("fovea_page_selector_destroy", None, [void]),
        ("fovea_page_selector_append", c_int32, [void, c_int32] + [tensor] * 6 + [POINTER(PagedKv), void]),
        ("fovea_page_selector_select", c_int32, [void, c_int32, tensor, POINTER(SelectStep), void]),
        ("fovea_page_selector_plan", c_int32, [void, void, void, c_int32, POINTER(SelectStep), void]),
        ("fovea_page_selector_forget", c_int32, [void, c_int32, c_int32, void]),
        ("fovea_page_selector_copy_page", c_int32, [void, c_int32, c_int32, void]),
        ("fovea_page_selector_bytes_per_page", c_size_t, [void]),
        ("fovea_page_selector_workspace_bytes", c_size_t, [void]),
        ("fovea_append_paged_kv", c_int32, [tensor] * 7 + [POINTER(PagedKv), void]),
        ("fovea_merge_states", c_int32, [tensor] * 4 + [void]),
        ("fovea_merge_state", c_int32, [tensor] * 7 + [void]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


library = _load()


def check(code: int) -> None:
    """Raises what the last call of this thread reported."""
    if code:
        raise _ERRORS.get(code, Error)(library.fovea_last_error().decode(errors="replace"))


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]


def _torch_tensor(x):
    """The torch module when x is one of its tensors; torch is never imported here."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else None


class Borrowed:
    """Tensors lent to one call: their DLTensors live as long as this object does."""

    def __init__(self):
        self._capsules = []

    def __call__(self, x):
        """Pointer to the DLTensor of x, or None for None."""
        if x is None:
            return None
        torch = _torch_tensor(x)
        if torch is not None:
            if x.dtype == torch.float8_e4m3fn or x.dtype == torch.bool:
                x = x.view(torch.uint8)  # the library knows from the options what is stored
            capsule = torch.utils.dlpack.to_dlpack(x.detach() if x.requires_grad else x)
        elif not hasattr(x, "__dlpack__"):
            raise InvalidArgument(f"a {type(x).__name__} is no tensor: it has no __dlpack__")
        elif x.__dlpack_device__()[0] == CUDA:
            capsule = x.__dlpack__(stream=-1)  # no synchronization: the caller's stream orders things
        else:
            try:
                capsule = x.__dlpack__()
            except BufferError as error:  # NumPy exports no array that is read-only
                raise InvalidArgument(f"an array of shape {tuple(x.shape)} cannot be read through DLPack ({error}); "
                                      "if it is read-only, hand over a copy") from None
        self._capsules.append(capsule)
        return _capsule_pointer(capsule, b"dltensor")


def describe(pointer) -> _DlTensor:
    return ctypes.cast(pointer, POINTER(_DlTensor)).contents


def device_of(x) -> tuple[int, int]:
    """(DLPack device type, index); pinned memory counts as CPU, managed memory as CUDA."""
    torch = _torch_tensor(x)
    if torch is not None:
        return (CUDA, x.device.index or 0) if x.is_cuda else (CPU, 0)
    kind, index = x.__dlpack_device__()
    return (CUDA, int(index)) if int(kind) in (2, 13) else (CPU, 0)


def device_name(place: tuple[int, int]) -> str:
    """"cpu" or "cuda:N"."""
    return "cpu" if place[0] == CPU else f"cuda:{place[1]}"


def check_tensor(name, x, shape: str) -> None:
    """That x is a tensor of as many dims as `shape` names."""
    if not hasattr(x, "__dlpack__") or not hasattr(x, "shape"):
        raise InvalidArgument(f"{name} is {'None' if x is None else 'a ' + type(x).__name__}, expected a tensor {shape}")
    if len(x.shape) != shape.count(",") + 1:
        raise InvalidArgument(f"{name} has shape {tuple(x.shape)}, expected {shape}")


def c_text(name: str, value) -> bytes:
    """For a field that C reads up to its first NUL."""
    text = str(value)
    if "\0" in text:
        raise InvalidArgument(f"{name} is {text[:200]!r}, expected a text without NUL")
    return text.encode()


def check_integer(name, value, kind=c_int32):
    """ctypes would keep the low bits of a number that is too large."""
    bits = 8 * ctypes.sizeof(kind)
    if not hasattr(value, "__index__"):
        raise InvalidArgument(f"{name} is {value!r}, expected an integer")
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise InvalidArgument(f"{name} has {value}, which is no integer of {bits} bits")


def host_array(values, kind=c_int32, name="a list"):
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


def stream_of(stream, x):
    """The stream handle given, or the current stream of the framework that x comes from (if it is loaded already)."""
    if isinstance(stream, c_void_p):
        return stream
    if stream is not None:
        return c_void_p(int(getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))))
    torch = _torch_tensor(x)
    if torch is not None:
        return c_void_p(torch.cuda.current_stream(x.device).cuda_stream) if x.is_cuda else None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        return c_void_p(cupy.cuda.get_current_stream().ptr)
    return None


def stream_on(stream, place: tuple[int, int], x=None):
    """The stream handle given, or the current stream of the device `place`: that of x's framework wherever x lies, else of
    one that is loaded and uses CUDA."""
    if stream is not None or place[0] == CPU:
        return stream_of(stream, None)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if _torch_tensor(x) is None and cupy is not None and (isinstance(x, cupy.ndarray) or not _uses_cuda(torch)):
        return c_void_p(cupy.cuda.get_current_stream().ptr)
    return c_void_p(torch.cuda.current_stream(place[1]).cuda_stream) if _uses_cuda(torch) else None


def _uses_cuda(torch) -> bool:
    return torch is not None and torch.cuda.is_initialized()


def place_of(device: str) -> tuple[int, int]:
    """(DLPack device type, index) of "cpu", "cuda" or "cuda:N"."""
    return (CPU, 0) if device == "cpu" else (CUDA, int(device.partition(":")[2] or 0))


def empty_like(x, shape, dtype=None):
    """A new tensor of x's framework and device; dtype "float32", "int32" or None for x's own."""
    torch = _torch_tensor(x)
    if torch is not None:
        return x.new_empty(shape, dtype=getattr(torch, dtype) if dtype else x.dtype)
    module = sys.modules[type(x).__module__.split(".")[0]]
    return module.empty(shape, dtype=dtype or x.dtype)


