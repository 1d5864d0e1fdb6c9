"""needle with selected attention, simulated by masks: dense prefill of a document, then questions and answers (expected
tokens fed, which judges greedy decoding exactly) whose every token reads the chosen units of the document in all layers.

Called by run.py. The tokens of question and answer attend each other always; they stand for the newest pages.
"""
import math
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "needle"))
from model import Config, Needle
from policies import choose

SINK, LOCAL = 64, 256  # of streaming heads


def load(folder, device):
    model = Needle(Config()).to(device).eval()
    model.load(os.path.join(folder, "model.safetensors"))
    return model


def fake_quantize(x, bits, rotation):
    """Asymmetric rounding per token and head over the channels [..., D], after an orthogonal rotation where given."""
    shape, kind = x, x.dtype
    x = x.float()
    if rotation is not None:
        x = x @ rotation
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = ((high - low) / (2**bits - 1)).clamp_min(1e-8).half().float()
    zero = low.half().float()
    x = ((x - zero) / step).round().clamp(0, 2**bits - 1) * step + zero
    if rotation is not None:
        x = x @ rotation.t()
    return x.to(kind).view_as(shape)


class KvFormat:
    """How KV is kept: bits of keys and values in full heads (16: as they are); streaming heads stay as they are."""

    def __init__(self, bits=16, rotation=None):
        self.bits, self.rotation = bits if isinstance(bits, tuple) else (bits, bits), rotation

    def __call__(self, layer, k, v, streaming):
        outs = []
        for x, bits in zip((k, v), self.bits):
            y = fake_quantize(x, bits, self.rotation) if bits < 16 else x
            for head in range(x.shape[1]):
                if y is not x and (layer, head) in streaming:
                    y[:, head] = x[:, head]
            outs.append(y)
        return outs


def window_attention(q, k, v):
    """Causal attention of q, k, v [1, G or 1, T, D] over the first SINK and the last LOCAL tokens, own token included."""
    size = LOCAL
    _, group, length, dim = q.shape
    missing = -length % size
    pad = torch.nn.functional.pad
    blocks = (length + missing) // size
    q = pad(q, (0, 0, 0, missing)).view(group, blocks, size, dim).transpose(0, 1)
    k, v = (pad(x[0, 0], (0, 0, size, missing)) for x in (k, v))
    sink = SINK
    near = [torch.stack((x[:-size].view(blocks, size, dim), x[size:].view(blocks, size, dim)), 1).view(blocks, 2 * size, dim)
            for x in (k, v)]
    far = [x[size : size + sink].expand(blocks, sink, dim) for x in (k, v)]
    keys, values = (torch.cat((f, n), 1)[:, None].expand(-1, group, -1, -1) for f, n in zip(far, near))
    row = torch.arange(blocks, device=q.device)[:, None, None] * size + torch.arange(size, device=q.device)[None, :, None]
    column = torch.arange(2 * size, device=q.device)[None, None] + (torch.arange(blocks, device=q.device) - 1)[:, None, None] * size
    local = (column <= row) & (row - column < size) & (column >= 0)
    # A sink token inside the window counts once, there.
    begin = torch.arange(sink, device=q.device)[None, None]
    mask = torch.cat(((begin <= row) & (row - begin >= size), local), -1)[:, None]
    out = torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
    return out.transpose(0, 1).reshape(1, group, -1, dim)[:, :, :length]


def prefill(model, ids, dtype, streaming=frozenset(), kv=KvFormat()):
    """KV of one document [T] after dense attention (windows where heads stream): list of (k, v) [H, T, D] by layer."""
    cache = []
    group = model.config.heads // model.config.kv_heads

    def attend(layer, q, k, v):
        k, v = kv(layer, k, v, streaming)
        cache.append((k[0].contiguous(), v[0].contiguous()))
        heads = range(k.shape[1])
        if not any((layer, h) in streaming for h in heads):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out = []
        for h in heads:
            part = q[:, h * group : (h + 1) * group]
            one = k[:, h : h + 1], v[:, h : h + 1]
            if (layer, h) in streaming:
                out.append(window_attention(part, *one))
            else:
                out.append(torch.nn.functional.scaled_dot_product_attention(part, *one, is_causal=True, enable_gqa=True))
        return torch.cat(out, 1)

    model.run(ids[None], dtype, 0, attend)
    return cache


class Questions:
    """Questions about one document, right-padded, with flat indices of the tokens that are there."""

    def __init__(self, questions, device):
        sizes = torch.tensor([len(q[0]) for q in questions])
        width = int(sizes.max())
        self.ids = torch.zeros(len(questions), width, dtype=torch.int64)
        for i, (ids, _, _) in enumerate(questions):
            self.ids[i, : len(ids)] = torch.from_numpy(ids)
        there = torch.arange(width)[None] < sizes[:, None]
        self.flat = there.view(-1).nonzero()[:, 0].to(device)
        step = torch.arange(width)[None].expand(len(questions), -1)
        phase = torch.arange(len(questions))[:, None] % 4
        asked = torch.tensor([q[1] for q in questions])
        self.step, self.in_question = step[there].to(device), (step < asked[:, None] - 1)[there].to(device)
        # Row (among the tokens that are there) whose full selection serves a row when selections last 4 steps.
        behind = torch.minimum((step + phase) % 4, step)
        rows = torch.arange(int(there.sum()))
        refresh, first = rows - behind[there], rows - step[there]
        self.refresh = refresh.to(device)
        # Of the row of a full selection: the row of the one before in the same question, or itself.
        self.before = torch.where(refresh > first, refresh[(refresh - 1).clamp_min(0)], refresh).to(device)
        answer = there & (step >= asked[:, None] - 1) & (step < sizes[:, None] - 1)
        self.answer = answer.to(device)
        self.expected = torch.roll(self.ids, -1, 1).to(device)
        self.ids = self.ids.to(device)

    def right(self, logits):
        """Per question: is the expected token the most likely one all along the answer?"""
        return ((logits.argmax(-1) == self.expected) | ~self.answer).all(-1)


def far_attention(q, k, v, mask, scale):
    """Output [H, G * N, D] and log-sum-exp [H, G * N, 1] of q over the tokens of mask, which is broadcast onto the logits
    viewed as [..., U, unit] or is None."""
    logits = q.float() @ k.float().transpose(1, 2)  # TF32 is exact for bf16 operands and sums in fp32
    logits *= scale
    if mask is not None:
        mask(logits)
    most = logits.amax(-1, keepdim=True).clamp_min(-1e30)
    logits.sub_(most).exp_()
    total = logits.sum(-1, keepdim=True)
    out = (logits.to(v.dtype) @ v).float() / total.clamp_min(1e-30)
    return out, most + total.log()


def answers(model, cache, questions, policy, statistics, dtype, kv=KvFormat(), capture=None):
    """(right [Q], (document tokens read, scored by the first and by the second statistic) on average a list) of one policy. `statistics`: by layer, name -> statistic.
    `capture(layer, q [H, G * N, D])` sees the queries (calibration)."""
    c = model.config
    group = c.heads // c.kv_heads
    length = cache[0][0].shape[1]
    streaming = set(policy.streaming)
    read = []

    def attend(layer, q, k, v):
        count, heads, width, dim = q.shape
        scale = 1 / math.sqrt(dim)
        k, v = kv(layer, k, v, streaming)
        far_k, far_v = cache[layer]
        flat = q.permute(1, 0, 2, 3).reshape(heads, count * width, dim)[:, questions.flat]
        rows = flat.shape[1]
        flat = flat.reshape(c.kv_heads, group * rows, dim)
        if capture:
            capture(layer, flat)
        far_mask = None
        if policy.statistic != "dense" or streaming:
            chosen = None
            if policy.statistic != "dense":
                chosen, first, second = choose(policy, flat.float(), statistics[layer], far_k.float(), length, layer, questions.refresh,
                                                questions.before, scale, group)
                if policy.dense_question:
                    chosen |= questions.in_question[None, :, None]
                full = [h for h in range(c.kv_heads) if (layer, h) not in streaming]
                per_head = chosen.view(c.kv_heads, -1, rows, chosen.shape[-1])
                read.extend((float(per_head[h].sum(-1).float().mean()) * policy.unit, first * policy.unit, second * policy.unit) for h in full)

            def far_mask(logits):
                if chosen is not None:
                    hide = ~chosen.view(c.kv_heads, -1, rows, chosen.shape[-1]).expand(-1, group, -1, -1)
                    whole = length // policy.unit * policy.unit
                    view = logits.view(c.kv_heads, group, rows, length)
                    view[..., :whole].unflatten(-1, (-1, policy.unit)).masked_fill_(hide[..., : whole // policy.unit, None], float("-inf"))
                    if whole < length:
                        view[..., whole:].masked_fill_(hide[..., -1:], float("-inf"))
                for h in range(c.kv_heads):
                    if (layer, h) in streaming:
                        # Streaming replaces selection in this head.
                        exact = (flat[h : h + 1].float() @ far_k[h : h + 1].float().transpose(1, 2)) * scale
                        at = torch.arange(length, device=q.device)
                        own = (questions.step + length).repeat(group)
                        exact[0].masked_fill_((at[None] >= SINK) & (own[:, None] - at[None] >= LOCAL), float("-inf"))
                        logits[h] = exact[0]

        far, far_lse = far_attention(flat, far_k, far_v, far_mask, scale)
        far = far.view(heads, rows, dim)
        out = torch.zeros(heads, count * width, dim, device=q.device)
        out[:, questions.flat] = far
        lse = torch.full((heads, count * width, 1), -1e30, device=q.device)
        lse[:, questions.flat] = far_lse.view(heads, rows, 1)
        out, lse = (x.view(heads, count, width, -1).transpose(0, 1) for x in (out, lse))
        near_logits = (q.float() @ k.float().repeat_interleave(group, 1).transpose(-1, -2)) * scale
        near_logits.masked_fill_(torch.ones(width, width, dtype=torch.bool, device=q.device).triu(1), float("-inf"))
        near_lse = torch.logsumexp(near_logits, -1, keepdim=True)
        near = torch.softmax(near_logits, -1) @ v.float().repeat_interleave(group, 1)
        weight = torch.sigmoid(lse - near_lse)
        return (out * weight + near * (1 - weight)).to(q.dtype)

    logits = model.logits(model.run(questions.ids, dtype, length, attend))
    return questions.right(logits), (tuple(sum(r[i] for r in read) / len(read) for i in range(3)) if read else (length, 0, 0))
