"""Page selection: which pages of its KV a decode query reads under each KV head. The same on the CPU and on a CUDA device."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any

from . import _abi as abi
from . import _library as lib
from ._library import Integers, Stream, Tensor
from .attention import Attention, _dtype, set_format, split_kv

PAGE_TOKENS = 16  # of the pages that lists name
_CHANNELS = 32


def learn_key_codes(keys: Tensor, queries: Tensor | None = None) -> list[dict[str, Any]]:
    """What PageSelector keeps of the keys of one layer, learned once a model from a few thousand tokens of any text.

    keys [tokens, num_kv_heads, head_dim] after RoPE, queries [rows, num_qo_heads, head_dim] of the same text (best of the
    kind that will select; None: channels are chosen by the keys alone), float tensors on the CPU. Returns for each KV head
    {"channels", "mean", "step"}, 32 numbers each: plain lists, to be kept as JSON beside the model. A model's
    key_sketch.json has them under "layers".
    """
    lib.check_tensor("keys", keys, "[tokens, num_kv_heads, head_dim]")
    borrow = lib.Borrowed()
    codes = (abi.KeyCode * max(keys.shape[1], 1))()
    lib.check(lib.library.fovea_learn_key_codes(*borrow(keys, queries)[:2], codes, keys.shape[1]))
    return [{"channels": list(c.channel), "mean": list(c.mean), "step": list(c.step)} for c in codes]


def _key_codes(layers: Any) -> Any:
    """Records of [layers][KV heads] of learn_key_codes()."""
    if not isinstance(layers, (list, tuple)) or not all(isinstance(layer, (list, tuple)) for layer in layers):
        raise lib.InvalidArgument("key_codes is no list of lists; expected for each layer what learn_key_codes() gave, as "
                                  "key_codes=[codes] for one layer")
    heads = [head for layer in layers for head in layer]
    records = (abi.KeyCode * max(len(heads), 1))()
    for at, (record, head) in enumerate(zip(records, heads)):
        for name in ("channels", "mean", "step"):
            values = list(head.get(name, ())) if isinstance(head, dict) else ()
            if len(values) != _CHANNELS:
                raise lib.InvalidArgument(f"key_codes of head {at} of all have {len(values)} {name}, expected {_CHANNELS}")
            if name == "channels" and not all(hasattr(c, "__index__") and 0 <= c < 256 for c in values):
                raise lib.InvalidArgument(f"channels of head {at} are {values}, expected integers below head_dim")
            getattr(record, "channel" if name == "channels" else name)[:] = values
    return records, len(heads)


class PageSelector:
    """Statistics of the keys of all pages, and lists of the pages that decode queries read. One call at a time.

    A page is 16 tokens of one layer (NHD pools of larger pages are viewed as such). num_pages: of the KV pools.
    key_codes: for policy "fovea", which is all that CUDA has (at most 8 query heads a KV head there): a list for each
    layer of what learn_key_codes() gave. policy on the CPU also "fovea-local", "quest", "quest-f8" and "mean-dev", which
    learn nothing; rotary_dim: for "fovea-local", leading channels that RoPE turns (None: all). budget_tokens: what a query
    reads, a multiple of 16; budget_divisor n (2 or more): the n-th part of the tokens it sees, from 256 up to
    budget_tokens. Up to its budget a request reads all. sink_tokens and recent_tokens are always read. interval: all pages
    are scored every so many steps of a request, in between the best candidate_factor budgets of them and what is new.
    num_layers and max_*: memory follows from these alone, and more raises OutOfRange.

    A decode step, once every layer's new keys went through append():

        table, lists, list_tokens = selector.allocate(q)              # once
        selector.select(q, kv_lens, table, lists, list_tokens, layer=layer)
        selector.plan(attention, lengths, table, lists, list_tokens)  # CUDA: once a step; CPU: after each select()
        out = attention.run(q, kv)
    """

    def __init__(self, *, num_qo_heads: int, num_kv_heads: int, head_dim: int, num_pages: int, key_codes: Any = None,
                 policy: str = "fovea", device: str = "cpu", q_dtype: Any = "bf16", sm_scale: float | None = None,
                 rotary_dim: int | None = None, budget_tokens: int = 4096, budget_divisor: int = 0, sink_tokens: int = 16,
                 recent_tokens: int = 16, interval: int = 1, candidate_factor: int = 4, num_layers: int = 1,
                 max_requests: int = 256, max_pages_per_request: int = 2048, num_threads: int = 0) -> None:
        given = dict(locals())
        self._handle = None
        o = abi.PageSelectorOptions()
        lib.library.fovea_page_selector_options_init(byref(o))
        for name in ("num_qo_heads", "num_kv_heads", "head_dim", "num_pages", "budget_tokens", "budget_divisor", "sink_tokens",
                     "recent_tokens", "interval", "candidate_factor", "num_layers", "max_requests", "max_pages_per_request",
                     "num_threads"):
            lib.check_integer(name, given[name])
            setattr(o, name, given[name])
        o.device, o.policy, o.q_dtype = lib.c_text("device", device), lib.c_text("policy", policy), _dtype(q_dtype)
        o.sm_scale = lib.c_scale("sm_scale", sm_scale, "1/sqrt(head_dim)")
        if rotary_dim is not None:
            lib.check_integer("rotary_dim", rotary_dim)
            o.rotary_dim = rotary_dim
        codes, o.num_key_codes = _key_codes([] if key_codes is None else key_codes)
        o.key_codes = codes
        handle = ctypes.c_void_p()
        lib.check(lib.library.fovea_page_selector_create(byref(o), byref(handle)))
        self._handle = handle
        self._place = lib.place_of(str(device))
        self._shape = (max_requests, max_pages_per_request, num_kv_heads, budget_tokens // PAGE_TOKENS)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            lib.library.fovea_page_selector_destroy(self._handle)
            self._handle = None

    def append(self, k: Tensor, kv: Any = None, *, layer: int = 0, slots: Tensor | None = None,
               batch_indices: Tensor | None = None, positions: Tensor | None = None, page_indices: Any = None,
               page_indptr: Integers | None = None, kv_layout: str = "NHD", kv_dtype: Any = None, k_scale: Tensor | None = None,
               v_scale: Tensor | None = None, rotated: bool = False, stream: Stream = None) -> None:
        """Statistics of new keys k [rows, num_kv_heads, head_dim] after RoPE, which now stand in the pages.

        Places as append_paged_kv() took them. Policy "fovea" needs k alone; the others read the pages, kv and what follows
        it as in append_paged_kv(), and need num_pages of them.
        """
        borrow = lib.Borrowed()
        if kv is not None:
            pool = borrow.kv
            pool.k, pool.v, pool.k_scale, pool.v_scale, _ = borrow(*split_kv(kv), k_scale, v_scale)
            set_format(pool, kv_layout, kv_dtype, rotated)
        lib.check_integer("layer", layer)
        lent = borrow(k, slots, batch_indices, positions, page_indices, page_indptr)[:6]
        lib.check(lib.library.fovea_page_selector_append(self._handle, layer, *lent, None if kv is None else borrow.kv,
                                                         lib.stream_of(stream, k)))

    def allocate(self, like: Tensor, requests: int | None = None) -> Any:
        """(page_table [requests, max_pages_per_request], lists [requests, num_kv_heads, budget_tokens // 16], list_tokens
        [requests]), int32, on the device and of the framework of the tensor `like`; table and lists are parts of one array,
        as plan() needs them. Nothing is filled in. requests: max_requests unless given."""
        most, pages, heads, budget = self._shape
        requests = most if requests is None else requests
        entries = lib.empty_like(like, (requests * (pages + heads * budget),), "int32")
        split = requests * pages
        return (entries[:split].reshape(requests, pages), entries[split:].reshape(requests, heads, budget),
                lib.empty_like(like, (requests,), "int32"))

    def _step(self, borrow: lib.Borrowed, page_table: Tensor, lists: Tensor, list_tokens: Tensor, kv_lens: Tensor | None = None,
              phases: Tensor | None = None) -> Any:
        return abi.SelectStep(ctypes.sizeof(abi.SelectStep),
                              *borrow(kv_lens, page_table, lists, list_tokens, phases)[:5])

    def select(self, q: Tensor, kv_lens: Integers, page_table: Tensor, lists: Tensor, list_tokens: Tensor, *,
               phases: Tensor | None = None, layer: int = 0, stream: Stream = None) -> None:
        """Writes lists and list_tokens for q [requests, num_qo_heads, head_dim] (after RoPE).

        All int32 and on the selector's device: kv_lens [requests], tokens that the query sees, its own included (0: idle);
        page_table [requests, pages], page j of a request holds tokens 16j up to 16j + 16; lists [requests, num_kv_heads,
        budget_tokens // 16 or more], page numbers, ascending by token, the newest last; list_tokens [requests]; phases
        [requests], 0 or more: with an interval all pages are scored where (tokens + phase) % interval is 0. Requests keep
        their row, or forget() is called. On CUDA one launch, which a graph may capture.
        """
        borrow = lib.Borrowed()
        lib.check_integer("layer", layer)
        step = self._step(borrow, page_table, lists, list_tokens, kv_lens, phases)
        lib.check(lib.library.fovea_page_selector_select(self._handle, layer, borrow(q)[0], byref(step),
                                                         lib.stream_of(stream, q)))

    def plan(self, attention: Attention, kv_lens: Integers, page_table: Tensor, lists: Tensor, list_tokens: Tensor, *,
             stream: Stream = None) -> None:
        """attention.plan_selected() for the lists that select() writes for the same arguments.

        kv_lens: integers, one a request, 1 or more, as select() will see them (a tensor on a device is copied, which waits
        for it). attention: of pages of 16 tokens, with the same heads and device, and max_selected. On CUDA before or after
        select(), once for all layers and replays of the step; on the CPU after each select(), for it reads the lists of now.
        """
        if not isinstance(attention, Attention):
            raise lib.InvalidArgument(f"attention is a {type(attention).__name__}, expected a fovea.Attention")
        lens, count = lib.host_array(kv_lens, name="kv_lens")
        borrow = lib.Borrowed()
        step = self._step(borrow, page_table, lists, list_tokens)
        lib.check(lib.library.fovea_page_selector_plan(self._handle, attention._handle, lens, count, byref(step),
                                                       lib.stream_of(stream, lists)))
        attention._lent = ([page_table, lists, list_tokens], borrow)  # what is refused leaves the plan before
        attention._rows = count

    def forget(self, begin: int = 0, end: int | None = None, *, stream: Stream = None) -> None:
        """Rows [begin, end) (None: all) remember nothing: their next select() scores all pages. For rows that hold another
        request now. stream: None: PyTorch's current one if it is loaded, else the device's default stream."""
        end = self._shape[0] if end is None else end
        lib.check_integer("begin", begin)
        lib.check_integer("end", end)
        lib.check(lib.library.fovea_page_selector_forget(self._handle, begin, end, lib.stream_on(stream, self._place)))

    def copy_page(self, source: int, target: int, *, stream: Stream = None) -> None:
        """Statistics of a page that was copied, in every layer. stream: as in forget()."""
        lib.check_integer("source", source)
        lib.check_integer("target", target)
        lib.check(lib.library.fovea_page_selector_copy_page(self._handle, source, target, lib.stream_on(stream, self._place)))

    def bytes_per_page(self) -> int:
        """Bytes of statistics of a page of one layer, all KV heads."""
        return int(lib.library.fovea_page_selector_bytes_per_page(self._handle))

    def workspace_bytes(self) -> int:
        """Bytes of the object's buffers on its device."""
        return int(lib.library.fovea_page_selector_workspace_bytes(self._handle))
