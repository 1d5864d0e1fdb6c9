"""Attention from its definition in fp64, and random paged batches, for the tests of the Python package (numpy arrays)."""

from __future__ import annotations

import numpy as np

NEG = -np.inf


def attend(q, k, v, sees, sm_scale, softcap=0.0, sink=None):
    """One head: q [rows, d], k, v [tokens, d], sees [rows, tokens]. Returns out and base-2 log-sum-exps, fp64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = q @ k.T * sm_scale
    if softcap:
        s = softcap * np.tanh(s / softcap)
    s = np.where(sees, s, NEG)
    if sink is not None:
        s = np.concatenate([s, np.full((len(q), 1), float(sink))], axis=1)
        v = np.concatenate([v, np.zeros((1, v.shape[1]))])
    top = s.max(axis=1, initial=NEG, keepdims=True)
    w = np.where(np.isneginf(s), 0.0, np.exp(s - np.where(np.isneginf(top), 0.0, top)))
    total = w.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.where(total > 0, w @ v / total, 0.0)
        lse = np.where(total > 0, top / np.log(2) + np.log2(total), NEG)
    return out, lse[:, 0]


def causal(q_len, kv_len, window_left=-1):
    """Bottom-right causal visibility, inclusive window."""
    at = np.arange(q_len)[:, None] + kv_len - q_len
    t = np.arange(kv_len)[None, :]
    return (t <= at) & ((window_left < 0) | (t >= at - window_left))


class Batch:
    """Requests over pages in random physical order; NaN wherever no token lives."""

    def __init__(self, q_lens, kv_lens, *, heads=4, kv_heads=2, dim=32, page=8, dtype=np.float32, layout="NHD", seed=0):
        rng = np.random.default_rng(seed)
        self.q_lens, self.kv_lens, self.page, self.layout = list(q_lens), list(kv_lens), page, layout
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        counts = [-(-n // page) for n in kv_lens]
        self.indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        num_pages = int(self.indptr[-1]) + 3
        self.indices = rng.permutation(num_pages)[:self.indptr[-1]].astype(np.int32)
        self.last_page_len = np.array([(n - 1) % page + 1 if n else 0 for n in kv_lens], dtype=np.int32)
        shape = (num_pages, page, kv_heads, dim) if layout == "NHD" else (num_pages, kv_heads, page, dim)
        self.k, self.v = (np.full(shape, np.nan, dtype=dtype) for _ in range(2))
        self.q = rng.standard_normal((sum(q_lens), heads, dim)).astype(dtype)
        self.keys, self.values = [], []
        for r, n in enumerate(kv_lens):
            k, v = (rng.standard_normal((n, kv_heads, dim)).astype(dtype) for _ in range(2))
            self.keys.append(k)
            self.values.append(v)
            for t in range(n):
                self.at(self.k, r, t)[...] = k[t]
                self.at(self.v, r, t)[...] = v[t]

    def at(self, pool, request, token):
        """[kv_heads, dim] of a token in a pool."""
        p = self.indices[self.indptr[request] + token // self.page]
        return pool[p, token % self.page] if self.layout == "NHD" else pool[p, :, token % self.page]

    @property
    def qo_indptr(self):
        return np.concatenate([[0], np.cumsum(self.q_lens)]).astype(np.int32)

    def oracle(self, sees=None, sm_scale=None, **variant):
        """(out, lse) fp64; sees(request) gives [q_len, kv_len], causal by default."""
        sinks = variant.pop("sinks", None)
        out, lse = np.zeros(self.q.shape), np.zeros(self.q.shape[:2])
        begins = self.qo_indptr
        for r, (q_len, kv_len) in enumerate(zip(self.q_lens, self.kv_lens)):
            rows = slice(begins[r], begins[r + 1])
            visible = causal(q_len, kv_len) if sees is None else sees(r)
            for h in range(self.heads):
                kv = h * self.kv_heads // self.heads
                out[rows, h], lse[rows, h] = attend(
                    self.q[rows, h], self.keys[r][:, kv], self.values[r][:, kv], visible,
                    self.dim ** -0.5 if sm_scale is None else sm_scale, sink=None if sinks is None else sinks[h], **variant)
        return out, lse
