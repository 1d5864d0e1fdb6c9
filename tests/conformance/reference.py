"""Attention in fp64 from its definition, in numpy or torch. Knows nothing of Fovea."""
import math


def attend(xp, q, k, v, seen, scale, softcap=0.0, sinks=None):
    """(out [rows, qo_heads, dim], base-2 log-sum-exp [rows, qo_heads]) of fp64 q [rows, qo_heads, dim], k and v
    [tokens, kv_heads, dim] and bool seen [rows, tokens]. A row that sees nothing: output 0, log-sum-exp -inf.
    """
    rows, heads, dim = q.shape
    tokens, kv_heads, _ = k.shape
    group = heads // kv_heads
    logits = xp.einsum("rhgd,thd->rhgt", q.reshape(rows, kv_heads, group, dim), k) * scale
    if softcap:
        logits = softcap * xp.tanh(logits / softcap)
    if tokens == 0:
        return xp.zeros_like(q), xp.full_like(q[:, :, 0], -math.inf)
    logits = xp.where(seen[:, None, None, :], logits, xp.full_like(logits, -math.inf))
    most = xp.amax(logits, -1)
    if sinks is not None:
        sink = sinks.reshape(1, kv_heads, group)
        most = xp.maximum(most, xp.zeros_like(most) + sink)
    base = xp.where(xp.isinf(most), xp.zeros_like(most), most)
    weights = xp.exp(logits - base[..., None])
    total = weights.sum(-1)
    if sinks is not None:
        total = total + xp.exp(sink - base)
    some = total > 0
    total = xp.where(some, total, xp.ones_like(total))
    out = xp.einsum("rhgt,thd->rhgd", weights, v) / total[..., None]
    lse = xp.where(some, (xp.log(total) + base) / math.log(2.0), xp.full_like(total, -math.inf))
    return out.reshape(rows, heads, dim), lse.reshape(rows, heads)


def merge(xp, outs, lses):
    """The state over the union of disjoint sets of tokens: outs [states, rows, heads, dim], base-2 lses [states, rows, heads]."""
    most = xp.amax(lses, 0)
    base = xp.where(xp.isinf(most), xp.zeros_like(most), most)
    weights = xp.exp((lses - base) * math.log(2.0))
    total = weights.sum(0)
    some = total > 0
    safe = xp.where(some, total, xp.ones_like(total))
    out = (outs * weights[..., None]).sum(0) / safe[..., None]
    lse = xp.where(some, xp.log(safe) / math.log(2.0) + base, xp.full_like(safe, -math.inf))
    return out, lse
