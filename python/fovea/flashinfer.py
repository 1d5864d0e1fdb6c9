"""FlashInfer's names and signatures (flashinfer 0.6) over Fovea: `import fovea.flashinfer as flashinfer`.

Same meaning: causal masks align bottom-right, window_left is inclusive, log-sum-exps are base 2, page tables are CSR
(indptr, indices, last_page_len), custom masks are one flat mask a request, packed lowest bit first. What differs: head dims
are multiples of 16 up to 256; workspaces given are not used (sizes follow from the first plan, or from the buffers of
use_cuda_graph=True); rotary embedding inside of attention (pos_encoding_mode) and k/v scales as tensors need fp8 pools or
are refused with NotImplementedError. Any group size and query length is served by one kernel, so use_tensor_cores, backend
and the like change nothing.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from . import _library as lib
from ._library import Tensor
from .attention import Attention, _dtype, append_paged_kv, merge_state, merge_state_in_place, merge_states

__all__ = [
    "BatchAttention", "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper",
    "BlockSparseAttentionWrapper", "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
    "MultiLevelCascadeAttentionWrapper", "append_paged_kv_cache", "get_batch_indices_positions", "get_seq_lens", "merge_state",
    "merge_state_in_place", "merge_states", "packbits", "segment_packbits", "single_decode_with_kv_cache",
    "single_prefill_with_kv_cache", "single_prefill_with_kv_cache_return_lse",
]


def _refuse_encoding(pos_encoding_mode: str) -> None:
    if pos_encoding_mode != "NONE":
        raise lib.Unsupported(f"pos_encoding_mode is {pos_encoding_mode!r}; rotate q and k before, expected 'NONE'")


def _ints(values: Any) -> list[int]:
    array, count = lib.host_array(values)
    return list(array[:count])


def _device_name(x: Any) -> str:
    kind, index = lib.device_of(x)
    return "cpu" if kind == lib.CPU else f"cuda:{index}"


def get_seq_lens(kv_indptr: Tensor, kv_last_page_len: Tensor, page_size: int) -> Any:
    """Tokens of each request of a CSR page table: (pages - 1) * page_size + last_page_len, 0 without pages."""
    pages = kv_indptr[1:] - kv_indptr[:-1]
    return ((pages - 1) * page_size + kv_last_page_len) * (pages > 0)


def get_batch_indices_positions(append_indptr: Tensor, seq_lens: Tensor, nnz: int) -> Any:
    """(batch_indices, positions), int32 [nnz], of rows appended at the ends of requests whose lengths are seq_lens then."""
    counts = append_indptr[1:] - append_indptr[:-1]
    torch = lib._torch_tensor(append_indptr)
    if torch is not None:
        requests = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=nnz)
        rows = torch.arange(nnz, device=counts.device)
        positions = rows - append_indptr[requests] + (seq_lens - counts)[requests]
        return requests.to(torch.int32), positions.to(torch.int32)
    import numpy
    requests = numpy.repeat(numpy.arange(len(counts)), counts)
    positions = numpy.arange(nnz) - append_indptr[requests] + (seq_lens - counts)[requests]
    return requests.astype(numpy.int32), positions.astype(numpy.int32)


def append_paged_kv_cache(append_key: Tensor, append_value: Tensor, batch_indices: Tensor, positions: Tensor,
                          paged_kv_cache: Any, kv_indices: Tensor, kv_indptr: Tensor, kv_last_page_len: Tensor,
                          kv_layout: str = "NHD") -> None:
    """Writes row i to token positions[i] of request batch_indices[i]; the table counts the new tokens already."""
    append_paged_kv(append_key, append_value, paged_kv_cache, batch_indices=batch_indices, positions=positions,
                    page_indices=kv_indices, page_indptr=kv_indptr, kv_layout=kv_layout)


def packbits(x: Tensor, bitorder: str = "big") -> Any:
    """Bits of x (not 0: 1), eight a byte, as numpy.packbits has them: uint8 [(len(x) + 7) / 8] where x lies."""
    return _packed(x.reshape(-1), bitorder)


def segment_packbits(x: Tensor, indptr: Tensor, bitorder: str = "big") -> tuple[Any, Any]:
    """packbits() of every x[indptr[i]:indptr[i + 1]], each from a byte of its own on: (bytes, int32 indptr of these)."""
    ends = _ints(indptr)
    segments = [_packed(x[begin:end], bitorder) for begin, end in zip(ends, ends[1:])]
    begins = [0]
    for segment in segments:
        begins.append(begins[-1] + len(segment))
    torch = lib._torch_tensor(x)
    if torch is not None:
        return (torch.cat(segments) if segments else torch.empty(0, dtype=torch.uint8, device=x.device),
                torch.tensor(begins, dtype=torch.int32, device=indptr.device))
    import numpy
    return numpy.concatenate(segments or [numpy.empty(0, numpy.uint8)]), numpy.array(begins, numpy.int32)


def _packed(bits: Tensor, bitorder: str) -> Any:
    if bitorder not in ("big", "little"):
        raise lib.InvalidArgument(f"bitorder is {bitorder!r}, expected 'big' or 'little'")
    torch = lib._torch_tensor(bits)
    if torch is None:
        import numpy
        return numpy.packbits(numpy.asarray(bits) != 0, bitorder="big" if bitorder == "big" else "little")
    padded = torch.nn.functional.pad(bits.ne(0).to(torch.uint8), (0, -len(bits) % 8))
    values = torch.tensor([1 << i for i in range(8)][::-1 if bitorder == "big" else 1], dtype=torch.uint8, device=bits.device)
    return (padded.reshape(-1, 8) * values).sum(1, dtype=torch.uint8)


def _pack_masks(mask: Tensor, mask_lens: list[int]) -> tuple[bytes, list[int]]:
    """Masks one behind the other, each packed lowest bit first into bytes of its own: (bytes, begin of each in bytes)."""
    bits = mask.reshape(-1)
    if len(bits) != sum(mask_lens):
        raise lib.InvalidArgument(f"custom_mask has {len(bits)} elements, the batch needs {sum(mask_lens)}")
    data, begins, at = bytearray(), [], 0
    for count in mask_lens:
        begins.append(len(data))
        data += bytes(_packed(bits[at:at + count], "little").tolist())
        at += count
    return bytes(data), begins


class _PagedWrapper:
    """What the wrappers share: an Attention made for the first plan, and made anew when a plan needs more."""

    def __init__(self, float_workspace_buffer: Any, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 indptr_buffer: Any = None, indices_buffer: Any = None) -> None:
        if kv_layout not in lib.LAYOUTS:
            raise lib.InvalidArgument(f"kv_layout is {kv_layout!r}, expected 'NHD' or 'HND'")
        if use_cuda_graph and (indptr_buffer is None or indices_buffer is None):
            raise lib.InvalidArgument("use_cuda_graph needs the indptr and indices buffers: they declare the maxima")
        self._workspace = float_workspace_buffer
        self._layout = kv_layout
        self._graph = use_cuda_graph
        self._indptr_buffer = indptr_buffer
        self._indices_buffer = indices_buffer
        # Whether run() gives sinks: (attention, configuration, capacity).
        self._made: dict[bool, tuple[Attention, dict[str, Any], tuple[int, ...]]] = {}
        self._ready: dict[bool, Attention] = {}    # of these, the attentions that hold the last plan
        self._replaced: list[Attention] = []  # attentions that graphs captured
        self._planned: tuple[Callable[[Attention], None], dict[str, Any], tuple[int, ...]] | None = None
        self._window: int | None = None

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._graph

    def reset_workspace_buffer(self, float_workspace_buffer: Any, int_workspace_buffer: Any = None) -> None:
        """Kept for callers: Fovea's buffers are its own."""
        self._workspace = float_workspace_buffer

    def end_forward(self) -> None:
        """Kept for callers."""

    def workspace_bytes(self) -> int:
        """Bytes that the planned attention holds on its device."""
        return sum(attention.workspace_bytes() for attention, _, _ in self._made.values())

    def _plan(self, plan: Callable[[Attention], None], config: dict[str, Any], *capacity: int) -> None:
        """plan(attention), now for the attentions that a replay may meet, or else for that of the last run. capacity:
        requests, rows, mask bytes, page entries."""
        kinds = list(self._made if self._graph else self._ready) or [False]
        self._ready, self._planned = {}, (plan, config, capacity)
        for with_sinks in kinds:
            self._attention(with_sinks, None)

    def _attention(self, with_sinks: bool, sinks: Any) -> Attention:
        """The attention that holds the last plan. With sinks its kernels are others, so it is another object."""
        if self._planned is None:
            raise lib.InvalidArgument("run() needs a plan; call plan() first")
        if with_sinks not in self._ready:
            plan, config, capacity = self._planned
            attention = self._object(with_sinks, sinks, config, capacity)
            plan(attention)
            self._ready[with_sinks] = attention
        return self._ready[with_sinks]

    def _object(self, with_sinks: bool, sinks: Any, config: dict[str, Any], capacity: tuple[int, ...]) -> Attention:
        made, made_for, holds = self._made.get(with_sinks, (None, {}, ()))
        if made is not None and made_for == config and all(a <= b for a, b in zip(capacity, holds)):
            return made
        if made is not None and self._graph:
            raise lib.OutOfRange("a graph's wrapper keeps its settings and maxima (requests, rows, mask bytes: "
                                 f"{holds[:3]}); this plan needs {capacity[:3]}, or other settings")
        requests, rows, mask_bytes, entries = capacity
        if self._graph:
            requests = max(requests, len(self._indptr_buffer) - 1)
            rows = max(rows, requests)
        else:  # room to grow, so that few plans make a new object
            requests, rows, mask_bytes, entries = (1 << max(n - 1, 15).bit_length() for n in capacity)
        sinks = made.sinks if made is not None and sinks is None else sinks
        attention = Attention(max_requests=requests, max_rows=rows, max_mask_bytes=max(mask_bytes, 1), sinks=sinks,
                              max_page_entries=entries, max_pages_per_request=(1 << 22) // config["page_tokens"], **config)
        if made is not None and made.captured:
            self._replaced.append(made)  # replays need its memory
        self._made[with_sinks] = attention, config, (requests, rows, mask_bytes, entries)
        return attention

    def _device_indices(self, indices: Tensor) -> Any:
        """Indices at an address that graph replays may read."""
        if not self._graph:
            return indices
        if len(indices) > len(self._indices_buffer):
            raise lib.OutOfRange(f"{len(indices)} indices, the buffer given holds {len(self._indices_buffer)}")
        self._indices_buffer[:len(indices)] = indices
        return self._indices_buffer

    def _config(self, indices: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, q_data_type: Any,
                kv_data_type: Any, sm_scale: float | None, logits_soft_cap: float | None, o_data_type: Any = None,
                fixed_split_size: Any = None, disable_split_kv: bool = False, levels: int = 0) -> dict[str, Any]:
        workspace = self._workspace if hasattr(self._workspace, "__dlpack__") else indices
        q_dtype = str(q_data_type).split(".")[-1]
        if o_data_type is not None and _dtype(o_data_type) != _dtype(q_dtype):
            raise lib.Unsupported(f"o_data_type is {o_data_type}, expected {q_data_type}: outputs have the type of q")
        # Of splits FlashInfer says that they be the same whatever the batch: that is what callers set these two for.
        invariant = bool(disable_split_kv) or (fixed_split_size is not None and fixed_split_size > 0)
        return dict(device=_device_name(workspace), num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
                    page_tokens=page_size, q_dtype=q_dtype, kv_dtype=str(kv_data_type or q_data_type).split(".")[-1],
                    sm_scale=sm_scale, softcap=logits_soft_cap or 0.0, batch_invariant=invariant,
                    max_cascade_levels=levels)

    def _run(self, q: Tensor, paged_kv_cache: Any, q_scale: Any, k_scale: Any, v_scale: Any, out: Any, lse: Any,
             return_lse: bool, sinks: Any, window_left: int | None = None) -> Any:
        if window_left is not None and window_left != self._window:
            raise lib.Unsupported(f"window_left is {window_left} in run() and {self._window} in plan(); give it to plan()")
        tensors = [hasattr(scale, "__dlpack__") for scale in (k_scale, v_scale)]
        if any(tensors) and not all(tensors):
            raise lib.InvalidArgument("one of k_scale and v_scale is a tensor; expected two tensors or two numbers")
        attention = self._attention(sinks is not None, sinks)
        scales = dict(k_scale=k_scale, v_scale=v_scale) if any(tensors) else {}
        logit_scale = _number("q_scale", q_scale) * (1.0 if scales else _number("k_scale", k_scale))
        value_scale = 1.0 if scales else _number("v_scale", v_scale)
        out = attention.run(q, paged_kv_cache, out, lse=lse, return_lse=return_lse or lse is not None,
                            kv_layout=self._layout, logit_scale=logit_scale, sinks=sinks, **scales)
        result, lse = out if isinstance(out, tuple) else (out, None)
        if value_scale != 1.0:
            result *= value_scale
        return (result, lse) if return_lse else result


def _number(name: str, scale: Any) -> float:
    """A scale that folds into the logits or the output; 1 for None."""
    if hasattr(scale, "__dlpack__"):
        raise lib.Unsupported(f"{name} is a tensor, expected a number")
    return 1.0 if scale is None else float(scale)


def _refuse(**given: Any) -> None:
    """Arguments that mean something in FlashInfer and nothing here."""
    for name, (value, instead) in given.items():
        if value is not None:
            raise lib.Unsupported(f"{name} is not supported; {instead}")


_JIT = "a variant of your own is fovea.Attention(variant=(name, text))"


class BatchDecodeWithPagedKVCacheWrapper(_PagedWrapper):
    """Decode of a batch over paged KV: one query token a request, or q_len_per_req of them (causal)."""

    def __init__(self, float_workspace_buffer: Any = None, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 use_tensor_cores: bool = False, paged_kv_indptr_buffer: Any = None, paged_kv_indices_buffer: Any = None,
                 paged_kv_last_page_len_buffer: Any = None, backend: str = "auto", jit_args: Any = None) -> None:
        _refuse(jit_args=(jit_args, _JIT))
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, paged_kv_indptr_buffer, paged_kv_indices_buffer)

    def plan(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim: int,
             page_size: int, pos_encoding_mode: str = "NONE", window_left: int = -1, logits_soft_cap: float | None = None,
             q_data_type: Any = "float16", kv_data_type: Any = None, o_data_type: Any = None, data_type: Any = None,
             sm_scale: float | None = None, rope_scale: Any = None, rope_theta: Any = None, non_blocking: bool = True,
             block_tables: Any = None, seq_lens: Any = None, fixed_split_size: Any = None, disable_split_kv: bool = False,
             q_len_per_req: int = 1) -> None:
        """indptr [batch + 1], indices, last_page_len [batch]: int32. indptr and last_page_len are read on the host."""
        _refuse_encoding(pos_encoding_mode)
        q_data_type = data_type if data_type is not None else q_data_type
        begins, last = _ints(indptr), _ints(last_page_len)
        kv_lens = [0 if b == a else (b - a - 1) * page_size + n for a, b, n in zip(begins, begins[1:], last)]
        config = self._config(indices, num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type, kv_data_type, sm_scale,
                              logits_soft_cap, o_data_type, fixed_split_size, disable_split_kv)
        indices = self._device_indices(indices)
        mask = dict(mask="window", window_left=window_left) if window_left >= 0 else dict(mask="causal")
        q_lens = [q_len_per_req] * len(kv_lens)
        self._window, self._q_len = window_left, q_len_per_req
        self._plan(lambda attention: attention.plan(q_lens, kv_lens, indices, begins, **mask), config, len(kv_lens),
                   sum(q_lens), 0, 1)

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Any, *args: Any, q_scale: Any = None, k_scale: Tensor | None = None,
            v_scale: Tensor | None = None, out: Tensor | None = None, lse: Tensor | None = None, return_lse: bool = False,
            enable_pdl: Any = None, window_left: int | None = None, sinks: Tensor | None = None,
            q_len_per_req: int | None = None) -> Any:
        """q: [batch * q_len_per_req, num_qo_heads, head_dim]; returns out of the same shape, or (out, lse)."""
        _refuse(args=(args or None, f"further tensors of run() belong to jit_args; {_JIT}"))
        if self._planned is not None and q_len_per_req not in (None, self._q_len):
            raise lib.Unsupported(f"q_len_per_req is {q_len_per_req} in run() and {self._q_len} in plan(); give it to plan()")
        return self._run(q, paged_kv_cache, q_scale, k_scale, v_scale, out, lse, return_lse, sinks, window_left)

    def run_return_lse(self, q: Tensor, paged_kv_cache: Any, **options: Any) -> Any:
        """(out, lse)."""
        return self.run(q, paged_kv_cache, return_lse=True, **options)

    forward_return_lse = run_return_lse


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """The decode wrapper for graphs: the buffers given declare the maxima and stay where they are."""

    def __init__(self, workspace_buffer: Any, indptr_buffer: Any, indices_buffer: Any, last_page_len_buffer: Any,
                 kv_layout: str = "NHD", use_tensor_cores: bool = False) -> None:
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, indptr_buffer, indices_buffer,
                         last_page_len_buffer)


def _bit_mask(custom_mask: Any, packed_custom_mask: Any, q_lens: list[int], kv_lens: list[int]) -> tuple[dict[str, Any], int]:
    counts = [q * kv for q, kv in zip(q_lens, kv_lens)]
    if packed_custom_mask is not None:
        offsets, at = [], 0
        for count in counts:
            offsets.append(at * 8)
            at += (count + 7) // 8
        packed = packed_custom_mask
        if not hasattr(packed, "__dlpack__") or lib.device_of(packed)[0] != lib.CPU:
            packed = packed.cpu() if hasattr(packed, "cpu") else packed.get()
    else:
        data, begins = _pack_masks(custom_mask, counts)
        offsets, at = [b * 8 for b in begins], len(data)
        packed = _bytes_tensor(data)
    return dict(mask="bits", mask_bits=packed, mask_offsets=offsets), at


def _mask_arguments(custom_mask: Any, packed_custom_mask: Any, causal: bool, window_left: int, q_lens: list[int],
                    kv_lens: list[int]) -> tuple[dict[str, Any], int]:
    """What Attention.plan() is told of masks, and the bytes of their bits."""
    if custom_mask is not None or packed_custom_mask is not None:
        if window_left >= 0:
            raise lib.Unsupported("a custom mask with window_left; put the window into the mask")
        return _bit_mask(custom_mask, packed_custom_mask, q_lens, kv_lens)
    if window_left < 0:
        return dict(mask="causal" if causal else "none"), 0
    if not causal and any(n > 1 for n in q_lens):
        raise lib.Unsupported("window_left without causal; windows here are causal")
    return dict(mask="window", window_left=window_left), 0


class BatchPrefillWithPagedKVCacheWrapper(_PagedWrapper):
    """Prefill, append and verify over paged KV: any number of query tokens a request."""

    def __init__(self, float_workspace_buffer: Any = None, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf: Any = None, paged_kv_indptr_buf: Any = None, paged_kv_indices_buf: Any = None,
                 paged_kv_last_page_len_buf: Any = None, custom_mask_buf: Any = None, mask_indptr_buf: Any = None,
                 backend: str = "auto", jit_args: Any = None, jit_kwargs: Any = None) -> None:
        _refuse(jit_args=(jit_args, _JIT), jit_kwargs=(jit_kwargs, _JIT))
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, paged_kv_indptr_buf, paged_kv_indices_buf)

    def plan(self, qo_indptr: Any, paged_kv_indptr: Any, paged_kv_indices: Any, paged_kv_last_page_len: Any, num_qo_heads: int,
             num_kv_heads: int, head_dim_qk: int, page_size: int, head_dim_vo: int | None = None, custom_mask: Any = None,
             packed_custom_mask: Any = None, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, sm_scale: float | None = None, window_left: int = -1,
             logits_soft_cap: float | None = None, rope_scale: Any = None, rope_theta: Any = None, q_data_type: Any = "float16",
             kv_data_type: Any = None, o_data_type: Any = None, non_blocking: bool = True, prefix_len_ptr: Any = None,
             token_pos_in_items_ptr: Any = None, token_pos_in_items_len: int = 0, max_item_len_ptr: Any = None,
             seq_lens: Any = None, block_tables: Any = None, fixed_split_size: Any = None,
             disable_split_kv: bool = False) -> None:
        """Query tokens of request i are rows [qo_indptr[i], qo_indptr[i + 1]) of q.

        custom_mask: bool, flat, [q_len, kv_len] of every request one behind the other; packed_custom_mask: the same packed,
        each request from a byte of its own. They replace causal.
        """
        _refuse_encoding(pos_encoding_mode)
        if head_dim_vo not in (None, head_dim_qk):
            raise lib.Unsupported(f"head_dim_vo is {head_dim_vo}, expected {head_dim_qk} as for queries and keys")
        items = "multi-item scoring is a custom_mask here"
        _refuse(prefix_len_ptr=(prefix_len_ptr, items), token_pos_in_items_ptr=(token_pos_in_items_ptr, items),
                max_item_len_ptr=(max_item_len_ptr, items))
        rows, begins, last = _ints(qo_indptr), _ints(paged_kv_indptr), _ints(paged_kv_last_page_len)
        q_lens = [b - a for a, b in zip(rows, rows[1:])]
        kv_lens = [0 if b == a else (b - a - 1) * page_size + n for a, b, n in zip(begins, begins[1:], last)]
        config = self._config(paged_kv_indices, num_qo_heads, num_kv_heads, head_dim_qk, page_size, q_data_type, kv_data_type,
                              sm_scale, logits_soft_cap, o_data_type, fixed_split_size, disable_split_kv)
        mask, mask_bytes = _mask_arguments(custom_mask, packed_custom_mask, causal, window_left, q_lens, kv_lens)
        indices = self._device_indices(paged_kv_indices)
        self._window = window_left
        self._plan(lambda attention: attention.plan(q_lens, kv_lens, indices, begins, **mask), config, len(kv_lens),
                   sum(q_lens), mask_bytes, 1)

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Any, *args: Any, q_scale: Any = None, k_scale: Tensor | None = None,
            v_scale: Tensor | None = None, out: Tensor | None = None, lse: Tensor | None = None, return_lse: bool = False,
            enable_pdl: Any = None, window_left: int | None = None, sinks: Tensor | None = None) -> Any:
        """q: [rows, num_qo_heads, head_dim]; returns out of the same shape, or (out, lse)."""
        _refuse(args=(args or None, f"further tensors of run() belong to jit_args; {_JIT}"))
        return self._run(q, paged_kv_cache, q_scale, k_scale, v_scale, out, lse, return_lse, sinks, window_left)

    def run_return_lse(self, q: Tensor, paged_kv_cache: Any, **options: Any) -> Any:
        """(out, lse)."""
        return self.run(q, paged_kv_cache, return_lse=True, **options)

    forward_return_lse = run_return_lse


class BatchAttention(_PagedWrapper):
    """Any mix of prefill and decode over paged KV, by lengths; run() returns (out, lse)."""

    def __init__(self, kv_layout: str = "NHD", device: str = "cuda") -> None:
        super().__init__(None, kv_layout)
        self._soft_cap = 0.0

    def plan(self, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_len_arr: Any, num_qo_heads: int, num_kv_heads: int,
             head_dim_qk: int, head_dim_vo: int, page_size: int, causal: bool = False, sm_scale: float | None = None,
             logits_soft_cap: float | None = None, q_data_type: Any = "bfloat16", kv_data_type: Any = None,
             use_profiler: bool = False) -> None:
        """As BatchPrefillWithPagedKVCacheWrapper's; kv_len_arr: tokens of each request."""
        if head_dim_vo != head_dim_qk:
            raise lib.Unsupported(f"head_dim_vo is {head_dim_vo}, expected {head_dim_qk} as for queries and keys")
        rows, begins, kv_lens = _ints(qo_indptr), _ints(kv_indptr), _ints(kv_len_arr)
        q_lens = [b - a for a, b in zip(rows, rows[1:])]
        config = self._config(kv_indices, num_qo_heads, num_kv_heads, head_dim_qk, page_size, q_data_type, kv_data_type,
                              sm_scale, logits_soft_cap)
        indices = self._device_indices(kv_indices)
        self._window, self._soft_cap = -1, logits_soft_cap or 0.0
        self._plan(lambda attention: attention.plan(q_lens, kv_lens, indices, begins, mask="causal" if causal else "none"),
                   config, len(kv_lens), sum(q_lens), 0, 1)

    def run(self, q: Tensor, kv_cache: Any, out: Tensor | None = None, lse: Tensor | None = None, k_scale: Any = None,
            v_scale: Any = None, logits_soft_cap: float | None = None, profiler_buffer: Any = None) -> Any:
        """q: [rows, num_qo_heads, head_dim]. logits_soft_cap: as in plan()."""
        if logits_soft_cap is not None and logits_soft_cap != self._soft_cap:
            raise lib.Unsupported(f"logits_soft_cap is {logits_soft_cap} in run() and {self._soft_cap} in plan(); give it to "
                                  "plan()")
        return self._run(q, kv_cache, None, k_scale, v_scale, out, lse, True, None)


_UNIT = 64  # tokens of KV without pages that are read at once


class BatchPrefillWithRaggedKVCacheWrapper(_PagedWrapper):
    """Prefill of requests whose keys and values lie one behind the other, without pages."""

    def __init__(self, float_workspace_buffer: Any = None, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf: Any = None, kv_indptr_buf: Any = None, custom_mask_buf: Any = None, mask_indptr_buf: Any = None,
                 backend: str = "auto", jit_args: Any = None, jit_kwargs: Any = None) -> None:
        _refuse(jit_args=(jit_args, _JIT), jit_kwargs=(jit_kwargs, _JIT))
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf, kv_indptr_buf)

    def plan(self, qo_indptr: Any, kv_indptr: Any, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
             head_dim_vo: int | None = None, custom_mask: Any = None, packed_custom_mask: Any = None, causal: bool = False,
             pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, window_left: int = -1,
             logits_soft_cap: float | None = None, sm_scale: float | None = None, rope_scale: Any = None, rope_theta: Any = None,
             q_data_type: Any = "float16", kv_data_type: Any = None, o_data_type: Any = None, non_blocking: bool = True,
             prefix_len_ptr: Any = None, token_pos_in_items_ptr: Any = None, token_pos_in_items_len: int = 0,
             max_item_len_ptr: Any = None, fixed_split_size: Any = None, disable_split_kv: bool = False) -> None:
        """Request i has rows [qo_indptr[i], qo_indptr[i + 1]) of q and tokens [kv_indptr[i], kv_indptr[i + 1]) of k and v.
        Masks as in the paged wrapper."""
        _refuse_encoding(pos_encoding_mode)
        if head_dim_vo not in (None, head_dim_qk):
            raise lib.Unsupported(f"head_dim_vo is {head_dim_vo}, expected {head_dim_qk} as for queries and keys")
        items = "multi-item scoring is a custom_mask here"
        _refuse(prefix_len_ptr=(prefix_len_ptr, items), token_pos_in_items_ptr=(token_pos_in_items_ptr, items),
                max_item_len_ptr=(max_item_len_ptr, items))
        rows, begins = _ints(qo_indptr), _ints(kv_indptr)
        q_lens, kv_lens = ([b - a for a, b in zip(ends, ends[1:])] for ends in (rows, begins))
        config = self._config(kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, _UNIT, q_data_type, kv_data_type, sm_scale,
                              logits_soft_cap, o_data_type, fixed_split_size, disable_split_kv)
        mask, mask_bytes = _mask_arguments(custom_mask, packed_custom_mask, causal, window_left, q_lens, kv_lens)
        self._window = window_left
        entries = max(sum(n // _UNIT + 2 for n in kv_lens), 1 << 16)
        self._plan(lambda attention: attention.plan_ragged(q_lens, kv_lens, begins[:-1], **mask), config, len(kv_lens),
                   sum(q_lens), mask_bytes, entries)

    begin_forward = plan

    def run(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, q_scale: Any = None, k_scale: Any = None, v_scale: Any = None,
            out: Any = None, lse: Any = None, return_lse: bool = False, enable_pdl: Any = None, sinks: Any = None) -> Any:
        """k, v: [tokens, num_kv_heads, head_dim]; returns out, or (out, lse)."""
        _refuse(args=(args or None, f"further tensors of run() belong to jit_args; {_JIT}"))
        return self._run(q, (k, v), q_scale, k_scale, v_scale, out, lse, return_lse, sinks)

    def run_return_lse(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
        """(out, lse)."""
        return self.run(q, k, v, return_lse=True, **options)

    forward_return_lse = run_return_lse


class BlockSparseAttentionWrapper(_PagedWrapper):
    """Block-sparse attention of one request, its pattern in BSR: blocks of R query tokens and C KV tokens."""

    def __init__(self, float_workspace_buffer: Any = None, backend: str = "auto") -> None:
        super().__init__(float_workspace_buffer)

    def plan(self, indptr: Any, indices: Any, M: int, N: int, R: int, C: int, num_qo_heads: int, num_kv_heads: int,
             head_dim: int, mask: Any = None, packed_mask: Any = None, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, logits_soft_cap: float | None = None, sm_scale: float | None = None,
             rope_scale: Any = None, rope_theta: Any = None, q_data_type: Any = "float16", kv_data_type: Any = None,
             o_data_type: Any = None, non_blocking: bool = True) -> None:
        """indptr [M / R + 1], indices [blocks]: numbers of the columns of blocks, as scipy's bsr_matrix has them. mask: bool
        [blocks, R, C], which pairs inside of blocks are seen; None: all."""
        _refuse_encoding(pos_encoding_mode)
        _refuse(packed_mask=(packed_mask, "give mask"),
                causal=(causal or None, "leave blocks behind the queries out, and give a mask for those that hold them"))
        begins, columns = _ints(indptr), _ints(indices)
        unit = next(n for n in range(min(C, 64), 0, -1) if C % n == 0)
        config = self._config(indptr, num_qo_heads, num_kv_heads, head_dim, unit, q_data_type, kv_data_type, sm_scale,
                              logits_soft_cap, o_data_type)
        config["max_block_rows"] = 1 << max(len(begins), 1024).bit_length()
        bits: dict[str, Any] = {}
        if mask is not None:
            # A row's blocks may stand in any order: each goes with its bits.
            packed, _ = _pack_masks(mask, [len(columns) * R * C])
            bits = dict(mask="bits", mask_bits=_bytes_tensor(packed))
        for begin, end in zip(begins, begins[1:]):
            if any(a >= b for a, b in zip(columns[begin:end], columns[begin + 1:end])):
                raise lib.Unsupported("indices of a block row do not ascend; sort them, as scipy's sorted_indices() does")
        self._window = -1
        self._plan(lambda attention: attention.plan_blocks(begins, columns, M, N, R, C, **bits), config, 1, M,
                   len(bits) and (M * N + 7) // 8 + len(begins), len(columns) * (C // unit) + 1)

    begin_forward = plan

    def run(self, q: Tensor, k: Tensor, v: Tensor, scale_q: Any = None, scale_k: Any = None, scale_v: Any = None,
            out: Any = None, lse: Any = None, return_lse: bool = False, enable_pdl: Any = None) -> Any:
        """q: [M, num_qo_heads, head_dim]; k, v: [N, num_kv_heads, head_dim]; returns out, or (out, lse)."""
        return self._run(q, (k, v), scale_q, scale_k, scale_v, out, lse, return_lse, None)

    forward = run


class MultiLevelCascadeAttentionWrapper(_PagedWrapper):
    """Shared prefixes by levels. All levels are one plan and one launch."""

    def __init__(self, num_levels: int, float_workspace_buffer: Any = None, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, qo_indptr_buf_arr: Any = None, paged_kv_indptr_buf_arr: Any = None,
                 paged_kv_indices_buf_arr: Any = None, paged_kv_last_page_len_buf_arr: Any = None,
                 backend: str = "auto") -> None:
        if use_cuda_graph:
            raise lib.Unsupported("use_cuda_graph of this wrapper; fovea.Attention.plan_cascade serves graphs")
        super().__init__(float_workspace_buffer, kv_layout)
        self._num_levels = num_levels

    def plan(self, qo_indptr_arr: Any, paged_kv_indptr_arr: Any, paged_kv_indices_arr: Any, paged_kv_last_page_len: Any,
             num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, causal: bool = False,
             pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None,
             window_left: int = -1, logits_soft_cap: float | None = None, rope_scale: Any = None, rope_theta: Any = None,
             q_data_type: Any = "float16", kv_data_type: Any = None) -> None:
        """Arrays of num_levels tensors, from what most rows share to the rows' own; causal is about the last level."""
        _refuse_encoding(pos_encoding_mode)
        if window_left >= 0:
            raise lib.Unsupported("window_left in a cascade")
        levels, groups, entries = [], 0, 0
        for qo_indptr, indptr, indices, last_page_len in zip(qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr,
                                                             paged_kv_last_page_len):
            begins, last = _ints(indptr), _ints(last_page_len)
            kv_lens = [0 if b == a else (b - a - 1) * page_size + n for a, b, n in zip(begins, begins[1:], last)]
            levels.append((_ints(qo_indptr), kv_lens, indices, begins))
            groups, entries = groups + len(kv_lens), entries + len(indices)
        if len(levels) != self._num_levels:
            raise lib.InvalidArgument(f"{len(levels)} levels, the wrapper was made for {self._num_levels}")
        rows = levels[-1][0][-1]
        config = self._config(paged_kv_indices_arr[0], num_qo_heads, num_kv_heads, head_dim, page_size, q_data_type,
                              kv_data_type, sm_scale, logits_soft_cap, levels=self._num_levels)
        self._plan(lambda attention: attention.plan_cascade(rows, levels, causal=causal), config, groups, rows, 0, entries)

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Any, out: Tensor | None = None, lse: Tensor | None = None,
            return_lse: bool = False) -> Any:
        """q: [rows, num_qo_heads, head_dim]."""
        return self._run(q, paged_kv_cache, None, None, None, out, lse, return_lse, None)

    forward = run


def _bytes_tensor(data: bytes) -> Any:
    """uint8 on the host, of whatever framework is loaded."""
    import sys
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)
    import numpy
    return numpy.frombuffer(bytearray(data or b"\0"), dtype=numpy.uint8)


_SINGLES_BYTES = 64 << 20  # of objects that are kept for later calls, the one used last aside
_singles: dict[tuple[Any, ...], Attention] = {}  # the one used last at the end
_singles_lock = threading.Lock()
_captured_singles: list[Attention] = []  # replays need their memory


def _forget_singles() -> None:  # a fork copies neither threads nor CUDA
    global _singles, _singles_lock
    _singles, _singles_lock = {}, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_singles)


def _single_object(key: tuple[Any, ...], make: Callable[[], Attention]) -> Attention:
    """The object for a key, which names thread and stream: objects serve one call at a time."""
    with _singles_lock:
        attention = _singles.pop(key, None)
    if attention is None:
        attention = make()
    with _singles_lock:
        _singles[key] = attention
        held = {k: a.workspace_bytes() for k, a in _singles.items()}
        for old in list(_singles)[:-1]:
            if sum(held.values()) <= _SINGLES_BYTES:
                break
            del held[old]
            if _singles[old].captured:
                _captured_singles.append(_singles[old])
            del _singles[old]
    return attention


def _kv_len(k: Tensor, kv_layout: str) -> int:
    return int(k.shape[0 if kv_layout == "NHD" else 1])


def _single(q: Tensor, k: Tensor, v: Tensor, q_len: int, kv_layout: str, mask: dict[str, Any], mask_bytes: int,
            sm_scale: float | None, soft_cap: float | None, return_lse: bool, q_scale: Any, k_scale: Any, v_scale: Any) -> Any:
    """One request whose KV lies in one piece, taken as pages of the largest size that divides it."""
    kv_len = _kv_len(k, kv_layout)
    kv_heads, dim = k.shape[1 if kv_layout == "NHD" else 0], k.shape[2]
    page = next(p for p in (64, 32, 16, 8, 4, 2, 1) if kv_len % p == 0) if kv_len else 1
    pages = kv_len // page
    if kv_layout == "NHD":
        k, v = (x.reshape(pages, page, kv_heads, dim) for x in (k, v))
    else:
        k, v = (x.reshape(kv_heads, pages, page, dim).swapaxes(0, 1) for x in (k, v))
    heads, stream = q.shape[1], lib.stream_of(None, q)
    key = (_device_name(q), heads, kv_heads, dim, page, str(q.dtype), str(k.dtype), sm_scale, soft_cap,
           1 << max(q_len - 1, 0).bit_length(), 1 << max(pages, 1).bit_length(), 1 << mask_bytes.bit_length(),
           threading.get_ident(), getattr(stream, "value", None))
    attention = _single_object(key, lambda: Attention(
        device=key[0], num_qo_heads=heads, num_kv_heads=kv_heads, head_dim=dim, page_tokens=page, q_dtype=q.dtype,
        kv_dtype=k.dtype, softcap=soft_cap or 0.0, sm_scale=sm_scale, max_requests=1, max_rows=key[9],
        max_pages_per_request=key[10], max_mask_bytes=key[11], share_prefixes=False))
    attention.plan([q_len], [kv_len], [list(range(pages)) or [0]], stream=stream, **mask)
    result = attention.run(q, (k, v), return_lse=return_lse, kv_layout=kv_layout, stream=stream,
                           logit_scale=_number("q_scale", q_scale) * _number("k_scale", k_scale))
    if _number("v_scale", v_scale) != 1.0:
        out = result[0] if return_lse else result
        out *= float(v_scale)
    return result


def single_decode_with_kv_cache(q: Tensor, k: Tensor, v: Tensor, kv_layout: str = "NHD", pos_encoding_mode: str = "NONE",
                                use_tensor_cores: bool = False, q_scale: Any = None, k_scale: Tensor | None = None,
                                v_scale: Tensor | None = None, window_left: int = -1, logits_soft_cap: float | None = None,
                                sm_scale: float | None = None, rope_scale: Any = None, rope_theta: Any = None,
                                return_lse: bool = False) -> Any:
    """q: [num_qo_heads, head_dim]; k, v: [kv_len, num_kv_heads, head_dim] (NHD) or [num_kv_heads, kv_len, head_dim]."""
    _refuse_encoding(pos_encoding_mode)
    mask, mask_bytes = _mask_arguments(None, None, True, window_left, [1], [_kv_len(k, kv_layout)])
    result = _single(q[None], k, v, 1, kv_layout, mask, mask_bytes, sm_scale, logits_soft_cap, return_lse, q_scale, k_scale,
                     v_scale)
    return (result[0][0], result[1][0]) if return_lse else result[0]


def single_prefill_with_kv_cache(q: Tensor, k: Tensor, v: Tensor, scale_q: Any = None, scale_k: Any = None,
                                 scale_v: Any = None, o_dtype: Any = None, custom_mask: Any = None,
                                 packed_custom_mask: Any = None, causal: bool = False, kv_layout: str = "NHD",
                                 pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False,
                                 sm_scale: float | None = None, window_left: int = -1, logits_soft_cap: float | None = None,
                                 rope_scale: Any = None, rope_theta: Any = None, backend: str = "auto",
                                 return_lse: bool = False) -> Any:
    """q: [q_len, num_qo_heads, head_dim]; k, v as in single_decode_with_kv_cache. custom_mask: bool [q_len, kv_len], which
    pairs are seen, in place of causal; packed_custom_mask: the same packed, lowest bit first."""
    _refuse_encoding(pos_encoding_mode)
    if o_dtype is not None and _dtype(o_dtype) != _dtype(q.dtype):
        raise lib.Unsupported(f"o_dtype is {o_dtype}, expected {q.dtype} as q")
    mask, mask_bytes = _mask_arguments(custom_mask, packed_custom_mask, causal, window_left, [q.shape[0]], [_kv_len(k, kv_layout)])
    return _single(q, k, v, q.shape[0], kv_layout, mask, mask_bytes, sm_scale, logits_soft_cap, return_lse, scale_q, scale_k,
                   scale_v)


single_prefill_with_kv_cache_return_lse = functools.partial(single_prefill_with_kv_cache, return_lse=True)  # (out, lse)
