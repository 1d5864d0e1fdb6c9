"""Selection policies: from scores to the set of document tokens that a query may read. Called by simulate.py at every layer.

Shapes: H KV heads, G query heads of one KV head, N query tokens, T document tokens, U units.
"""
import dataclasses

import torch

NEWEST = 64  # tokens charged to every budget for the tokens of question and answer, which are always read


@dataclasses.dataclass(frozen=True)
class Policy:
    name: str
    statistic: str = "dense"   # dense, exact, random, or a key of the document's statistics; "a>b": a chooses what b scores
    unit: int = 16             # tokens selected together
    budget: int | str = "T/8"  # tokens a list, everything forced included; or "T/n"
    lists: str = "group"       # group: one list per KV head, by the largest score of its query heads; head: one per query head
    normal: bool = False       # scores are compared between query heads after subtracting each head's log-sum-exp
    reuse: int = 1             # a selection serves so many steps
    candidates: float = 0.0    # with reuse: budget x this many units of the last full selection are scored at every step;
                               # with "a>b": so many are handed from a to b
    memory: int = 1            # with reuse and candidates: they come from so many of the last full selections
    mass: float = 0.0          # stop where the estimated share of attention reaches this (0: use the whole budget)
    weights: tuple = ()        # ((layer, factor), ...): budget of a layer times factor
    streaming: tuple = ()      # ((layer, kv head), ...) that read sink + local only
    dense_question: bool = False  # the question is part of the (dense) prefill, only the answer is sparse

    def tokens(self, length, layer):
        total = length // int(self.budget[2:]) if isinstance(self.budget, str) else self.budget
        return total * dict(self.weights).get(layer, 1.0)


def estimates(q, statistic):
    """[H, R, T or U] unscaled logits by a statistic of tokens or of blocks, and tokens a column. q [H, R, D]."""
    if isinstance(statistic, torch.Tensor):  # rebuilt keys
        return q @ statistic.transpose(1, 2), 1
    kind, size = statistic[:2]
    if kind == "codes":  # integer codes + 1/2 [H, T, r], turn [H, r, D] with the steps in it, mean; queries rounded to int8
        _, _, codes, turn, mean = statistic
        weights = q @ turn.transpose(1, 2)
        step = weights.abs().amax(-1, keepdim=True) / 127
        return (weights / step).round() @ codes.transpose(1, 2) * step + q @ mean.transpose(1, 2), size
    if kind == "moments":
        _, _, mean, variance, factor = statistic
        return q @ mean.transpose(1, 2) + factor * (q.square() @ variance.transpose(1, 2)).sqrt(), size
    _, _, low, high, turn, mean = statistic  # bounds, of keys or (turn given) of coordinates
    constant = 0.0
    if turn is not None:
        constant = q @ mean.transpose(1, 2)
        q = q @ turn.transpose(1, 2)
    return q.clamp_min(0) @ high.transpose(1, 2) + q.clamp_max(0) @ low.transpose(1, 2) + constant, size


def unit_scores(q, statistic, keys, unit, length, scale):
    """[H, R, U] estimate of the largest logit in each unit. q [H, R, D] with the query heads of a group one after another;
    statistic as estimates() takes it, or "exact" or "random"."""
    units = -(-length // unit)
    if isinstance(statistic, str) and statistic == "random":
        return torch.rand(*q.shape[:2], units, device=q.device)
    score, size = estimates(q, keys if isinstance(statistic, str) else statistic)
    if size > unit:  # units of one bound score the same
        return score.repeat_interleave(size // unit, -1)[..., :units] * scale
    per = unit // size
    missing = -score.shape[-1] % per
    if missing:
        score = torch.nn.functional.pad(score, (0, missing), value=float("-inf"))
    return (score.unflatten(-1, (-1, per)).amax(-1) if per > 1 else score) * scale


def merge_heads(score, policy, group):
    """[lists, N, U]: the scores that choose; lists = H (group) or H * G (head)."""
    heads, rows, units = score.shape
    score = score.view(heads, group, rows // group, units)
    if policy.lists == "head":
        return score.reshape(heads * group, rows // group, units)
    if policy.normal:
        score = score - torch.logsumexp(score, -1, keepdim=True)
    return score.amax(1)


def top(score, count):
    """Mask of the `count` best units of every row; forced units carry +inf."""
    count = max(1, min(count, score.shape[-1]))
    mask = torch.zeros_like(score, dtype=torch.bool)
    return mask.scatter_(-1, score.topk(count, -1, sorted=False).indices, True)


def choose(policy, q, statistics, keys, length, layer, refresh, before, scale, group):
    """(mask [lists, N, U] of units read, units scored a row on average by the first and by the second statistic).
    q [H, G * N, D]; refresh [N]: the row whose full selection serves this row when reuse > 1 (rows of one question follow
    each other, and its first row selects in full); before [N]: of a row with a full selection, the one before it."""
    units = -(-length // policy.unit)
    count = max(1, min(int((policy.tokens(length, layer) - NEWEST) // policy.unit), units))
    wide = int(count * policy.candidates)
    names = policy.statistic.split(">")
    hidden = float("-inf")

    def scores(name):
        value = name if name in ("exact", "random") else statistics[name]
        value = merge_heads(unit_scores(q, value, keys, policy.unit, length, scale), policy, group)
        value[..., 0] = float("inf")
        return value

    def share(mask):
        return float(mask.sum(-1).float().mean())

    full = torch.arange(refresh.shape[0], device=q.device) == refresh
    score = scores(names[-1])
    if len(names) == 2:  # the first statistic names candidates at every step; with reuse, every so often all are scored
        candidates = top(scores(names[0]), wide)
        if policy.reuse > 1:
            candidates = candidates | top(score, wide)[:, refresh] | full[:, None]
        return top(score.masked_fill(~candidates, hidden), count), units, share(candidates)
    if policy.reuse > 1 and not policy.candidates:
        return top(score, count)[:, refresh], units * float(full.float().mean()), 0.0
    if policy.reuse > 1:
        best, candidates, row = top(score, wide), full[:, None], refresh
        for _ in range(policy.memory):
            candidates = candidates | best[:, row]
            row = before[row]
        return top(score.masked_fill(~candidates, hidden), count), share(candidates.expand_as(score)), 0.0
    mask = top(score, count)
    if policy.mass:
        best, order = score.masked_fill(~mask, hidden).sort(-1, descending=True)
        best[..., 0] = hidden  # the forced first unit has no score
        part = torch.softmax(best, -1).cumsum(-1)
        keep = torch.cat((torch.zeros_like(part[..., :1]), part[..., :-1]), -1) < policy.mass
        mask = torch.zeros_like(mask).scatter_(-1, order, keep)
    return mask, units, 0.0
