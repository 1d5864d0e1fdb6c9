"""Attention over paged KV: plan a batch, run it once a layer. The same on the CPU and on a CUDA device."""

from __future__ import annotations

import ctypes
import math
import numbers
import os
from ctypes import byref
from typing import Any

from . import _abi as abi
from . import _library as lib
from ._library import Integers, Stream, Tensor


def _dtype(name: Any) -> int:
    """Number of a type given as "bf16", "bfloat16", "torch.bfloat16", numpy.float16 ..."""
    text = getattr(name, "__name__", None) or str(name)
    text = text.split(".")[-1]
    text = {"float32": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "float8_e4m3fn": "fp8_e4m3",
            "float8_e4m3": "fp8_e4m3", "uint8": "int8"}.get(text, text)
    if text not in lib.DTYPES:
        raise lib.InvalidArgument(f"type {name} is none of {', '.join(lib.DTYPES)}")
    return lib.DTYPES[text]


def _number(table: dict[str, int], what: str, name: str) -> int:
    try:
        return table[name]
    except (KeyError, TypeError):
        raise lib.InvalidArgument(f"{what} is {str(name)[:200]!r}, expected one of {', '.join(table)}") from None


def split_kv(kv: Any) -> tuple[Tensor, Tensor]:
    """(k, v) of a pair, or of one tensor [pages, 2, ...]."""
    if isinstance(kv, (tuple, list)) and len(kv) == 2:
        k, v = kv
        return k, v
    shape = tuple(getattr(kv, "shape", ()))
    if len(shape) != 5 or shape[1] != 2:
        what = f"has shape {shape}" if shape else f"is a {type(kv).__name__}"
        raise lib.InvalidArgument(f"the KV cache {what}, expected a pair (k, v) or one tensor [pages, 2, ..]")
    return kv[:, 0], kv[:, 1]


def set_format(pool: abi.PagedKv, layout: str, kv_dtype: Any = None, rotated: bool = False) -> None:
    """What the pool's tensors hold."""
    pool.layout = _number(lib.LAYOUTS, "kv_layout", layout)
    pool.kv_dtype = (0 if kv_dtype is None else _dtype(kv_dtype)) | (abi.ROTATED if rotated else 0)


class Attention:
    """Plans batches of the declared maxima and runs them. One call at a time.

    device: "cpu", "cuda" or "cuda:N". q_dtype (of q and the output) and kv_dtype: "bf16", "f16", "f32" (CPU); kv_dtype
    also "fp8_e4m3", "int8" and "int4", whose pools are tensors of bytes (run() says how they lie). On CUDA a 16-bit
    kv_dtype is that of q. Types of torch and numpy do too. sm_scale: 1/sqrt(head_dim) unless given, not 0. softcap:
    logits become softcap * tanh(logit / softcap). sinks, alibi_slopes: float32 [num_qo_heads] on the device, kept alive
    here. kv_token_scales: fp8 with a scale for each token and head. kv_rotated: pools of int8 and int4 that
    append_paged_kv(rotated=True) wrote; head_dim is a power of two. sigmoid_bias: weights are sigmoid(logit + bias) instead
    of a softmax. checked: page indices are compared with the pool, and what
    would hang for good ends the launch with an error. variant: (name, C++ text) of a variant of your own
    (docs/variants.md); variant_values: its parameters by name, whose types are those of the values (float, int, float32 or
    int32 tensor). device_growth: on CUDA, plans are cut again on the device when lengths grew. decode_kernel (CUDA): "auto",
    "general", "warp_per_worker", "low_batch" or "prefill". max_selected: requests of plan_selected() that read lists. max_block_rows: those of plan_blocks(). graphs_by_rows: CUDA graphs are
    replayed only under plans of as many rows as they captured, so that each may have a kernel of its own; without, plan()
    refuses what those that were captured cannot run. max_*: memory follows from these alone, and larger batches raise
    OutOfRange.
    """

    def __init__(self, *, num_qo_heads: int, num_kv_heads: int, head_dim: int, page_tokens: int = 16, device: str = "cpu",
                 q_dtype: Any = "bf16", kv_dtype: Any = None, sm_scale: float | None = None, softcap: float = 0.0,
                 sinks: Tensor | None = None, alibi_slopes: Tensor | None = None, sigmoid_bias: float | None = None,
                 max_requests: int = 256, max_rows: int = 4096, max_pages_per_request: int = 2048, max_page_entries: int = 0,
                 max_cascade_levels: int = 0, max_mask_bytes: int = 1 << 20, share_prefixes: bool = True,
                 batch_invariant: bool = False, checked: bool = False, num_threads: int = 0, num_workers: int = 0,
                 variant: tuple[str, str] | None = None, variant_values: dict[str, Any] | None = None, device_growth: bool = True,
                 max_selected: int = 0, decode_kernel: str = "auto", kv_token_scales: bool = False, kv_rotated: bool = False,
                 graphs_by_rows: bool = False, max_block_rows: int = 0) -> None:
        given = dict(locals())
        self._handle = None
        borrow = lib.Borrowed()
        o = abi.AttentionOptions()
        lib.library.fovea_attention_options_init(byref(o))
        o.device = lib.c_text("device", device)
        for name in ("num_qo_heads", "num_kv_heads", "head_dim", "page_tokens", "max_requests", "max_rows",
                     "max_pages_per_request", "max_cascade_levels", "max_selected", "num_threads", "num_workers", "max_block_rows"):
            lib.check_integer(name, given[name])
        for name in ("max_page_entries", "max_mask_bytes"):
            lib.check_integer(name, given[name], ctypes.c_int64)
        o.num_qo_heads, o.num_kv_heads, o.head_dim, o.page_tokens = num_qo_heads, num_kv_heads, head_dim, page_tokens
        o.q_dtype = _dtype(q_dtype)
        o.kv_dtype = o.q_dtype if kv_dtype is None else _dtype(kv_dtype)
        o.sm_scale, o.softcap = lib.c_scale("sm_scale", sm_scale, "1/sqrt(head_dim)"), softcap or 0.0
        o.sinks, o.alibi_slopes = borrow(sinks, alibi_slopes)[:2]
        o.sigmoid, o.sigmoid_bias = sigmoid_bias is not None, sigmoid_bias or 0.0
        o.max_requests, o.max_rows, o.max_pages_per_request = max_requests, max_rows, max_pages_per_request
        o.max_page_entries, o.max_cascade_levels, o.max_mask_bytes = max_page_entries, max_cascade_levels, max_mask_bytes
        o.share_prefixes, o.batch_invariant, o.checked = share_prefixes, batch_invariant, checked
        o.num_threads, o.num_workers, o.device_growth = num_threads, num_workers, device_growth
        o.max_block_rows = max_block_rows
        o.max_selected, o.decode_kernel = max_selected, _number(lib.DECODE_KERNELS, "decode_kernel", decode_kernel)
        o.kv_token_scales, o.kv_rotated, o.graphs_by_rows = kv_token_scales, kv_rotated, graphs_by_rows
        values = self._set_variant(o, variant, variant_values or {}, borrow)
        handle = ctypes.c_void_p()
        lib.check(lib.library.fovea_attention_create(byref(o), byref(handle)))
        self._handle, self._process = handle, os.getpid()
        self._given = (sinks, alibi_slopes, values, variant_values)
        self._place = lib.place_of(str(device))
        self._lent: tuple[Any, ...] = ()
        self._rows = 0
        self._kv_heads = num_kv_heads

    @staticmethod
    def _set_variant(o: Any, variant: Any, values: Any, borrow: lib.Borrowed) -> Any:
        if variant is None:
            if values:
                raise lib.InvalidArgument(f"variant_values are given ({', '.join(map(str, values))}), and no variant: they would "
                                          "not be read")
            return None
        o.variant_name, o.variant_source = (lib.c_text("variant", text) for text in variant)
        records = (abi.VariantValue * max(len(values), 1))()
        for record, (name, value) in zip(records, values.items()):
            record.name = lib.c_text("the name of a value", name)
            if isinstance(value, numbers.Integral):
                lib.check_integer(f"variant_values[{name!r}]", value)
                record.type, record.number = abi.PARAM_INT, int(value)
            elif isinstance(value, numbers.Real):
                record.type, record.number = abi.PARAM_FLOAT, float(value)
            elif not hasattr(value, "__dlpack__"):
                raise lib.InvalidArgument(f"variant_values[{name!r}] is {value!r}, expected an int, a float, or a tensor of "
                                          "float32 or int32")
            else:
                record.tensor = borrow(value)[0]
                record.type = (abi.PARAM_FLOAT_TENSOR if lib.Described(record.tensor).code == lib.DL_FLOAT
                               else abi.PARAM_INT_TENSOR)
        o.variant_values, o.num_variant_values = records, len(values)
        return records

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and self._process == os.getpid():  # what a fork copied has neither threads nor CUDA
            lib.library.fovea_attention_destroy(self._handle)
            self._handle = None

    def plan(self, q_lens: Integers, kv_lens: Integers, page_indices: Any, page_indptr: Integers | None = None, *,
             mask: str = "causal", window_left: int = -1, mask_bits: Tensor | None = None, mask_offsets: Integers | None = None,
             stream: Stream = None) -> None:
        """Plans a batch; runs follow it until the next plan.

        q_lens, kv_lens: integers, one a request (lists or tensors; query tokens are the last of a request's tokens).
        page_indices: int32, either a table [requests, stride], or all lists one behind the other with page_indptr, where
        request i owns entries from page_indptr[i] on, and with one entry more than requests ends before page_indptr[i + 1]:
        more pages than that are OutOfRange, here and in grow(). On the CPU or on the device; there it is read at its address, also
        by graph replays, and kept alive here until the next plan. mask: "none", "causal", "window" (with window_left) or
        "bits" (mask_bits: uint8 on the host, contiguous; bit mask_offsets[i] + r * kv_len + t is query token r and KV token t,
        lowest bit first).
        """
        q, n = lib.host_array(q_lens, name="q_lens")
        kv, kv_count = lib.host_array(kv_lens, name="kv_lens")
        if n != kv_count:
            raise lib.InvalidArgument(f"{n} q_lens and {kv_count} kv_lens")
        borrow = lib.Borrowed()
        b = abi.Batch(struct_bytes=ctypes.sizeof(abi.Batch), num_requests=n,
                      mask=self._mask_kind(mask, window_left, mask_bits, mask_offsets), window_left=window_left,
                      q_lens=ctypes.addressof(q), kv_lens=ctypes.addressof(kv))
        keep = [page_indices, mask_bits]
        shape = self._lend_pages(b, page_indices, borrow, keep)
        if page_indptr is not None:
            begins, count = lib.host_array(page_indptr, ctypes.c_int64, "page_indptr")
            if count < n or len(shape) != 1:
                raise lib.InvalidArgument(f"page_indptr has {count} entries for {n} requests, and page_indices rank "
                                          f"{len(shape)}; expected an entry a request at least, and rank 1")
            b.list_begins = ctypes.addressof(begins)
            if count == n + 1:
                b.list_ends = ctypes.addressof(begins) + ctypes.sizeof(ctypes.c_int64)
            elif not b.num_page_indices:  # which C reads as not known
                b.list_ends = b.list_begins
            keep.append(begins)
        elif len(shape) != 2 or shape[0] < n:
            raise lib.InvalidArgument(f"page_indices has shape {tuple(shape)}, expected [{n}, stride]; lists need page_indptr")
        else:
            b.page_stride = shape[1]
        if mask_bits is not None:
            self._lend_mask(b, mask_bits, borrow)
            keep.append(self._lend_offsets(b, mask_offsets, n))
        lib.check(lib.library.fovea_attention_plan(self._handle, byref(b), lib.stream_on(stream, self._place, page_indices)))
        self._lent = (keep, borrow)  # after a refusal replays of graphs still read what the plan before named
        self._rows = sum(q[:n])

    @staticmethod
    def _mask_kind(mask: str, window_left: int = -1, mask_bits: Any = None, mask_offsets: Any = None) -> int:
        """Number of the mask, which reads what is given for one."""
        kind = _number(lib.MASKS, "mask", mask)
        lib.check_integer("window_left", window_left)
        for name, given, reader in (("window_left", window_left >= 0, "window"), ("mask_bits", mask_bits is not None, "bits"),
                                    ("mask_offsets", mask_offsets is not None, "bits")):
            if given and mask != reader:
                raise lib.InvalidArgument(f'{name} is given, and mask is "{mask}", which does not read it; give mask="{reader}", or '
                                          f"leave {name} out")
        return kind

    @staticmethod
    def _lend_mask(record: Any, mask_bits: Tensor, borrow: lib.Borrowed) -> None:
        bits, torch = lib.Described(borrow(mask_bits)[0]), lib._torch_tensor(mask_bits)
        # torch's bools are lent as uint8.
        if (bits.code, bits.bits) != (lib.DL_UINT, 8) or (torch is not None and mask_bits.dtype != torch.uint8):
            raise lib.InvalidArgument(f"mask_bits is of type {getattr(mask_bits, 'dtype', 'unknown')}, expected uint8 with eight "
                                      'pairs a byte, the first in the lowest bit; pack bools by numpy.packbits(mask, '
                                      'bitorder="little") or fovea.flashinfer.packbits(mask, bitorder="little")')
        if len(bits.shape) != 1 or not bits.contiguous:
            raise lib.InvalidArgument(f"mask_bits has shape {tuple(bits.shape)} and is {'' if bits.contiguous else 'not '}"
                                      "contiguous, expected one dim and contiguous; hand over a flat copy")
        if bits.place[0] == lib.CUDA:
            raise lib.InvalidArgument(f"mask_bits is on {lib.device_name(bits.place)}, expected it on the host; copy it there")
        record.mask_bits, record.mask_bytes = bits.address, bits.shape[0]

    @staticmethod
    def _lend_offsets(record: Any, mask_offsets: Integers | None, n: int) -> Any:
        offsets, count = lib.host_array(mask_offsets, ctypes.c_int64, "mask_offsets")
        if count < n:
            raise lib.InvalidArgument(f"{count} mask_offsets for {n} requests")
        record.mask_offsets = ctypes.addressof(offsets)
        return offsets

    def plan_ragged(self, q_lens: Integers, kv_lens: Integers, kv_begins: Integers, *, mask: str = "causal",
                    window_left: int = -1, mask_bits: Tensor | None = None, mask_offsets: Integers | None = None,
                    stream: Stream = None) -> None:
        """Plans requests whose keys and values have no pages; run() takes k and v [tokens, num_kv_heads, head_dim] (HND:
        [num_kv_heads, tokens, head_dim]).

        q_lens, kv_lens, kv_begins: integers, one a request; request i has tokens kv_begins[i] up to kv_begins[i] +
        kv_lens[i] of k and v, and may begin anywhere. Masks as in plan(). KV is read in units of page_tokens (64 is
        fastest for prompts); a request that begins inside of one takes one more of max_pages_per_request. Unsupported:
        batch_invariant, KV with a scale for each token.
        """
        q, n = lib.host_array(q_lens, name="q_lens")
        kv, kv_count = lib.host_array(kv_lens, name="kv_lens")
        begins, begins_count = lib.host_array(kv_begins, name="kv_begins")
        if n != kv_count or begins_count < n:
            raise lib.InvalidArgument(f"{n} q_lens, {kv_count} kv_lens and {begins_count} kv_begins")
        borrow = lib.Borrowed()
        b = abi.RaggedBatch(struct_bytes=ctypes.sizeof(abi.RaggedBatch), num_requests=n,
                            mask=self._mask_kind(mask, window_left, mask_bits, mask_offsets), window_left=window_left,
                            q_lens=ctypes.addressof(q), kv_lens=ctypes.addressof(kv),
                            kv_begins=ctypes.addressof(begins))
        keep: list[Any] = [None, mask_bits]
        if mask_bits is not None:
            self._lend_mask(b, mask_bits, borrow)
            keep.append(self._lend_offsets(b, mask_offsets, n))
        lib.check(lib.library.fovea_attention_plan_ragged(self._handle, byref(b), lib.stream_on(stream, self._place, q_lens)))
        self._lent = (keep, borrow)
        self._rows = sum(q[:n])

    def plan_blocks(self, indptr: Integers, indices: Integers, num_rows: int, num_tokens: int, block_rows: int,
                    block_tokens: int, *, heads_differ: bool = False, mask: str = "none", mask_bits: Tensor | None = None,
                    stream: Stream = None) -> None:
        """Plans block-sparse attention (BSR) of num_rows query tokens over num_tokens KV tokens; run() takes k and v
        without pages, as after plan_ragged().

        Query tokens [i * block_rows, ..) see the blocks of block_tokens KV tokens whose numbers are indices[indptr[i]] up
        to indices[indptr[i + 1]], ascending; sizes need not divide. heads_differ: indptr goes on with the block rows of the
        second KV head, and so on. mask: "none", "causal" (by positions, the queries being the last tokens) or "bits"
        (mask_bits: uint8, bit (n * block_rows + r) * block_tokens + t is row r and token t of the n-th block of indices,
        lowest bit first). block_tokens is a multiple of page_tokens. Needs max_block_rows. Unsupported as in plan_ragged(),
        and slopes and variants of your own.
        """
        begins, num_begins = lib.host_array(indptr, name="indptr")
        columns, num_columns = lib.host_array(indices, name="indices")
        sizes = {"num_rows": num_rows, "num_tokens": num_tokens, "block_rows": block_rows, "block_tokens": block_tokens}
        for name, value in sizes.items():
            lib.check_integer(name, value)
        lines = -(-num_rows // max(block_rows, 1)) * (self._kv_heads if heads_differ else 1)
        if block_rows > 0 and (num_begins != lines + 1 or begins[lines] > num_columns):
            raise lib.InvalidArgument(f"indptr has {num_begins} entries up to {begins[num_begins - 1]}, and there are "
                                      f"{num_columns} indices; expected {lines + 1} entries up to that")
        borrow = lib.Borrowed()
        b = abi.BlockSparseBatch(struct_bytes=ctypes.sizeof(abi.BlockSparseBatch), indptr=ctypes.addressof(begins),
                                 indices=ctypes.addressof(columns), heads_differ=heads_differ,
                                 mask=self._mask_kind(mask, mask_bits=mask_bits), **sizes)
        if mask_bits is not None:
            self._lend_mask(b, mask_bits, borrow)
        lib.check(lib.library.fovea_attention_plan_blocks(self._handle, byref(b), lib.stream_on(stream, self._place, indptr)))
        self._lent = ([None], borrow)
        self._rows = num_rows

    def _lend_pages(self, record: Any, page_indices: Any, borrow: lib.Borrowed, keep: list[Any]) -> tuple[int, ...]:
        """Fills the page_indices fields of a batch or level; returns the shape."""
        if not hasattr(page_indices, "__dlpack__"):
            if not hasattr(page_indices, "__iter__"):
                raise lib.InvalidArgument(f"page_indices is {page_indices!r}, expected integers")
            rows = [list(row) if hasattr(row, "__len__") else row for row in page_indices]
            table = bool(rows) and isinstance(rows[0], list)
            shape: tuple[int, ...] = (len(rows), len(rows[0])) if table else (len(rows),)
            if table and any(len(row) != shape[1] for row in rows):
                raise lib.InvalidArgument("rows of page_indices differ in length")
            array, count = lib.host_array([entry for row in rows for entry in row] if table else rows, name="page_indices")
            keep.append(array)
            record.page_indices, record.page_indices_device = ctypes.addressof(array), lib.CPU
            record.num_page_indices = count
            return shape
        t = lib.Described(borrow(page_indices)[0])
        if t.place[0] == lib.CUDA and t.place != self._place:
            raise lib.InvalidArgument(f"page_indices is on cuda:{t.place[1]}, expected it on the host or where the attention is")
        if t.code != lib.DL_INT or t.bits != 32 or not t.contiguous:
            raise lib.InvalidArgument("page_indices must be a contiguous int32 tensor")
        record.page_indices, record.page_indices_device = t.address, t.place[0]
        if not t.address:  # torch's tensors without elements have no memory, and C takes NULL for none given
            keep.append((ctypes.c_int32 * 1)())
            record.page_indices = ctypes.addressof(keep[-1])
        record.num_page_indices = math.prod(t.shape)
        return tuple(t.shape)

    def plan_cascade(self, num_rows: int, levels: Any, *, causal: bool = True, stream: Stream = None) -> None:
        """Plans rows that share KV by levels, in one launch.

        levels: from what most rows share to the rows' own, each (row_begins [groups + 1], kv_lens [groups], page_indices,
        page_indptr [groups or more]); rows of group i are row_begins[i] up to row_begins[i + 1]. causal: the last level's
        rows are the last tokens of their run. Needs max_cascade_levels for more than a few rows.
        """
        lib.check_integer("num_rows", num_rows)
        borrow = lib.Borrowed()
        keep = [levels]
        records = (abi.CascadeLevel * max(len(levels), 1))()
        pages = None
        for i, (row_begins, kv_lens, page_indices, page_indptr) in enumerate(levels):
            r = records[i]
            begins, count = lib.host_array(row_begins, name="row_begins")
            lens, r.num_groups = lib.host_array(kv_lens, name="kv_lens")
            lists, num_lists = lib.host_array(page_indptr, ctypes.c_int64, "page_indptr")
            if count != r.num_groups + 1 or num_lists < r.num_groups:
                raise lib.InvalidArgument(f"level {i} has {r.num_groups} kv_lens, {count} row_begins and {num_lists} lists")
            r.row_begins, r.kv_lens, r.list_begins = (ctypes.addressof(a) for a in (begins, lens, lists))
            r.causal = causal and i + 1 == len(levels)
            if len(self._lend_pages(r, page_indices, borrow, keep)) != 1:
                raise lib.InvalidArgument(f"page_indices of level {i} must have rank 1")
            pages = page_indices
            keep += [begins, lens, lists]
        lib.check(lib.library.fovea_attention_plan_cascade(self._handle, num_rows, records, len(levels),
                                                           lib.stream_on(stream, self._place, pages)))
        self._lent = (keep, borrow)
        self._rows = num_rows

    def plan_selected(self, kv_lens: Integers, page_indices: Any, page_indptr: Integers, selected_begins: Integers,
                      selected_stride: int, *, budget_tokens: int = 4096, budget_divisor: int = 0,
                      list_tokens: Tensor | None = None, stream: Stream = None) -> None:
        """Plans a decode step (one query token a request) over chosen pages, of a list a KV head.

        kv_lens: integers [requests]. page_indices: int32 of rank 1 on the attention's device, read there at every run, so
        that a kernel may write lists after this call; on the CPU lists are those of now. Request i with more than
        budget_tokens (a multiple of page_tokens) reads budget_tokens / page_tokens pages under KV head h, those of the list
        at selected_begins[i] + h * selected_stride, ascending, the newest page last; others, and those whose
        selected_begins is negative, read all of their pages, from page_indptr[i] on. budget_divisor n (2 or more): the
        budget is kv_len / n, from 256 up to budget_tokens. list_tokens: int32 [requests] on the
        attention's device, tokens in the list or lists of a request, read by run() on CUDA; the CPU does not read it, as plans
        hold lengths and lists there. None: as kv_lens say. Needs
        max_selected. OutOfRange: lists that reach beyond page_indices, more requests than declared. Unsupported: slopes,
        variants of your own, batch_invariant.
        """
        lens, n = lib.host_array(kv_lens, name="kv_lens")
        begins, num_lists = lib.host_array(page_indptr, ctypes.c_int64, "page_indptr")
        chosen, num_chosen = lib.host_array(selected_begins, ctypes.c_int64, "selected_begins")
        if num_lists < n or num_chosen < n:
            raise lib.InvalidArgument(f"{n} kv_lens, {num_lists} page_indptr and {num_chosen} selected_begins; expected one a "
                                      "request of each")
        for name, value in (("selected_stride", selected_stride), ("budget_tokens", budget_tokens),
                            ("budget_divisor", budget_divisor)):
            lib.check_integer(name, value)
        borrow = lib.Borrowed()
        b = abi.SelectedBatch(struct_bytes=ctypes.sizeof(abi.SelectedBatch), num_requests=n, budget_tokens=budget_tokens,
                              kv_lens=ctypes.addressof(lens), list_begins=ctypes.addressof(begins),
                              selected_begins=ctypes.addressof(chosen), selected_stride=selected_stride,
                              budget_divisor=budget_divisor)
        b.page_indices, b.num_page_indices = self._device_list("page_indices", page_indices, borrow)
        if list_tokens is not None:
            b.list_tokens, count = self._device_list("list_tokens", list_tokens, borrow)
            if count < n:
                raise lib.InvalidArgument(f"list_tokens has {count} entries for {n} requests")
        lib.check(lib.library.fovea_attention_plan_selected(self._handle, byref(b),
                                                            lib.stream_on(stream, self._place, page_indices)))
        self._lent = ([page_indices, list_tokens], borrow)
        self._rows = n

    def _device_list(self, name: str, x: Any, borrow: lib.Borrowed) -> tuple[int, int]:
        """(address, entries) of an int32 tensor of rank 1 where the attention is."""
        lib.check_tensor(name, x, "[entries]")
        place = lib.device_of(x)
        if place != self._place:
            raise lib.InvalidArgument(f"{name} is on {lib.device_name(place)}, expected it on {lib.device_name(self._place)}")
        t = lib.Described(borrow(x)[0])
        if t.code != lib.DL_INT or t.bits != 32 or not t.contiguous:
            raise lib.InvalidArgument(f"{name} must be a contiguous int32 tensor")
        return t.address, t.shape[0]

    def grow(self, kv_lens: Integers, *, stream: Stream = None) -> None:
        """The planned requests with lengths that grew: cheaper than plan(). Page lists must hold the new pages. With lists
        on a CUDA device the plan is cut again there, and the host only launches that. What is refused leaves the plan as
        it was."""
        lens, count = lib.host_array(kv_lens, name="kv_lens")
        pages = self._lent[0][0] if self._lent else None
        lib.check(lib.library.fovea_attention_grow(self._handle, lens, count, lib.stream_on(stream, self._place, pages)))

    def grow_on_device(self, kv_lens: Integers, *, stream: Stream = None) -> None:
        """grow() for lengths that only the device knows: int32 [requests] there. On CUDA one launch, which a graph may
        capture ahead of run(). Lengths that the device refuses leave the plan as it was; growth_status() tells."""
        borrow = lib.Borrowed()
        lib.check(lib.library.fovea_attention_grow_on_device(self._handle, borrow(kv_lens)[0],
                                                             lib.stream_on(stream, self._place, kv_lens)))

    def growth_status(self, *, stream: Stream = None) -> None:
        """Raises what the last grow_on_device(), or replay of one, refused (OutOfRange names the request). Waits for the
        stream."""
        pages = self._lent[0][0] if self._lent else None
        lib.check(lib.library.fovea_attention_growth_status(self._handle, lib.stream_on(stream, self._place, pages)))

    def run(self, q: Tensor, kv: Any, out: Tensor | None = None, *, lse: Tensor | None = None, return_lse: bool = False,
            kv_layout: str = "NHD", k_scale: Tensor | None = None, v_scale: Tensor | None = None, logit_scale: float = 1.0,
            sinks: Tensor | None = None, stream: Stream = None) -> Any:
        """Attention of q [rows, num_qo_heads, head_dim] over kv by the last plan; returns out, or (out, lse).

        q may have more rows than are planned (CUDA graphs of padded batches). An out or lse that is given keeps its rows beyond
        the planned ones; one that is made here gets those of a row that sees nothing, 0 and -inf. Replays of a graph do so for
        the rows that were beyond the plan at its capture: those that only later plans leave out hold what replays before wrote.
        kv: (k, v), or one tensor with a dim of 2 behind the pages; [pages, page_tokens, num_kv_heads, head_dim] (NHD) or
        [pages, num_kv_heads, page_tokens, head_dim] (HND), strides as they are; without pages after plan_ragged() and
        plan_blocks(). lse: float32 [rows, num_qo_heads], base
        2. k_scale, v_scale: float32 [num_kv_heads] of fp8 pools; of int8 and int4 pools, and fp8 with kv_token_scales,
        float16 [pages, num_kv_heads, page_tokens, 2], scale and zero of each token and head (see append_paged_kv). Pools of
        fp8, int8 and int4 are uint8 or int8, the last dim of int4 head_dim / 2. logit_scale: times sm_scale. sinks: instead
        of those that the attention was made with. On CUDA this only enqueues, on the caller's
        current stream unless one is given, and can be captured in a graph.
        """
        if out is None or (lse is None and return_lse):
            lib.check_tensor("q", q, "[rows, num_qo_heads, head_dim]")
            # Rows beyond the plan, ahead of the launch: replays of a graph may have plans with these rows.
            longer = q.shape[0] > self._rows
            if out is None:
                out = lib.empty_like(q)
                if longer:
                    lib.fill_rows(out, self._rows, 0.0, stream)
            if lse is None and return_lse:
                lse = lib.empty_like(q, tuple(q.shape[:2]), "float32")
                if longer:
                    lib.fill_rows(lse, self._rows, -math.inf, stream)
        k, v = kv if type(kv) is tuple and len(kv) == 2 else split_kv(kv)
        borrow = lib.borrowed()
        try:
            pool = borrow.kv
            (q_at, out_at, lse_at, sinks_at, pool.k, pool.v, pool.k_scale, pool.v_scale,
             current) = borrow(q, out, lse, sinks, k, v, k_scale, v_scale)
            set_format(pool, kv_layout)
            stream = current if stream is None and current is not lib.UNKNOWN else lib.stream_on(stream, self._place, q)
            if sinks is None and logit_scale == 1.0:
                code = lib.library.fovea_attention_run(self._handle, q_at, pool, out_at, lse_at, stream)
            else:
                values = abi.RunValues(ctypes.sizeof(abi.RunValues), logit_scale, sinks_at)
                code = lib.library.fovea_attention_run_values(self._handle, q_at, pool, out_at, lse_at, values, stream)
        except lib.InvalidArgument:
            lib.check_tensor("q", q, "[rows, num_qo_heads, head_dim]")
            raise
        finally:
            borrow.release()
        if code:
            lib.check_tensor("q", q, "[rows, num_qo_heads, head_dim]")
            lib.check(code)
        return (out, lse) if return_lse else out

    @property
    def sinks(self) -> Any:
        """Those given at the making."""
        return self._given[0]

    @property
    def num_rows(self) -> int:
        """Rows of q that the last plan covers."""
        return self._rows

    @property
    def captured(self) -> bool:
        """Whether a CUDA graph captured a run: its replays need this object."""
        return bool(lib.library.fovea_attention_captured(self._handle))

    def workspace_bytes(self) -> int:
        """Bytes of the object's buffers on its device."""
        return int(lib.library.fovea_attention_workspace_bytes(self._handle))

    def stats(self) -> dict[str, Any]:
        """Of the last plan: bytes read (and if nothing were shared), bytes of partial states and of the plan, imbalance."""
        s = abi.AttentionStats()
        lib.library.fovea_attention_get_stats(self._handle, byref(s))
        return {field[0]: getattr(s, field[0]) for field in abi.AttentionStats._fields_}

    def explain(self) -> str:
        """The last plan in words."""
        size = lib.library.fovea_attention_explain(self._handle, None, 0)
        text = ctypes.create_string_buffer(size)
        lib.library.fovea_attention_explain(self._handle, text, size)
        return text.value.decode()


def append_paged_kv(k: Tensor, v: Tensor, kv: Any, *, slots: Tensor | None = None, batch_indices: Tensor | None = None,
                    positions: Tensor | None = None, page_indices: Tensor | None = None, page_indptr: Tensor | None = None,
                    kv_layout: str = "NHD", kv_dtype: Any = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
                    rotated: bool = False, stream: Stream = None) -> None:
    """Writes rows k, v [rows, num_kv_heads, head_dim] to the pages of kv, converted to their type.

    kv: as in run(). Pools of bytes (uint8, int8) hold kv_dtype: "fp8_e4m3" (the default), with k_scale and v_scale float32
    [num_kv_heads] that stored numbers are multiplied by (None: 1); or "int8" or "int4", whose k_scale and v_scale, float16
    [pages, num_kv_heads, page_tokens, 2], are written here too: scale and zero of each token and head. A stored number u
    then stands for scale * (u - 128) + zero, of int4 for scale * (u - 8) + zero, element d in byte d // 2, even d in the
    low half. Scales of that shape make fp8_e4m3 one with a scale a token and head (zeros are 0). rotated (int8, int4;
    head_dim a power of two): rows are multiplied by a Hadamard matrix first, which evens out channels that stand out;
    Attention(kv_rotated=True) undoes it.

    Either slots (int32 [rows]: page * page_tokens + token in the page; negative skips the row), or batch_indices and
    positions (int32 [rows]) with the lists page_indices, page_indptr (int32), not both. All on the device of kv.
    """
    k_pool, v_pool = kv if type(kv) is tuple and len(kv) == 2 else split_kv(kv)
    borrow = lib.borrowed()
    try:
        pool = borrow.kv
        (k_at, v_at, slots_at, batch_at, positions_at, indices_at, indptr_at, pool.k, pool.v, pool.k_scale, pool.v_scale,
         current) = borrow(k, v, slots, batch_indices, positions, page_indices, page_indptr, k_pool, v_pool, k_scale, v_scale)
        set_format(pool, kv_layout, kv_dtype, rotated)
        stream = current if stream is None and current is not lib.UNKNOWN else lib.stream_of(stream, k)
        code = lib.library.fovea_append_paged_kv(k_at, v_at, slots_at, batch_at, positions_at, indices_at, indptr_at, pool,
                                                 stream)
    finally:
        borrow.release()
    if code:
        lib.check(code)


def merge_states(v: Tensor, lse: Tensor, *, stream: Stream = None) -> Any:
    """(out, lse) of states v [rows, states, heads, head_dim], lse float32 [rows, states, heads], base 2."""
    lib.check_tensor("v", v, "[rows, states, heads, head_dim]")
    borrow = lib.Borrowed()
    rows, _, heads, dim = v.shape
    out, lse_out = lib.empty_like(v, (rows, heads, dim)), lib.empty_like(v, (rows, heads), "float32")
    lib.check(lib.library.fovea_merge_states(*borrow(v, lse, out, lse_out)[:4], lib.stream_of(stream, v)))
    return out, lse_out


def merge_state(v_a: Tensor, lse_a: Tensor, v_b: Tensor, lse_b: Tensor, *, stream: Stream = None) -> Any:
    """(out, lse) of two states [rows, heads, head_dim], float32 [rows, heads] (base 2) over disjoint KV."""
    lib.check_tensor("v_a", v_a, "[rows, heads, head_dim]")
    out, lse_out = lib.empty_like(v_a, tuple(v_a.shape)), lib.empty_like(v_a, tuple(v_a.shape[:2]), "float32")
    _merge_pair(v_a, lse_a, v_b, lse_b, out, lse_out, None, stream)
    return out, lse_out


def merge_state_in_place(v: Tensor, lse: Tensor, v_other: Tensor, lse_other: Tensor, mask: Tensor | None = None, *,
                         stream: Stream = None) -> None:
    """Merges the other state into (v, lse). mask: uint8 or bool [rows]; rows with 0 stay as they are."""
    _merge_pair(v, lse, v_other, lse_other, v, lse, mask, stream)


def _merge_pair(v_a: Tensor, lse_a: Tensor, v_b: Tensor, lse_b: Tensor, out: Any, lse_out: Any, mask: Any,
                stream: Stream) -> None:
    borrow = lib.Borrowed()
    lib.check(lib.library.fovea_merge_state(*borrow(v_a, lse_a, v_b, lse_b, out, lse_out, mask)[:7], lib.stream_of(stream, v_a)))
