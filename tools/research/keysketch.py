"""What a selector may keep of a key: sketches of single tokens, and bounds of 16 tokens. Called by run.py once per document.

A token sketch is simulated by the key it stands for: `estimate = q . rebuilt(k)`, with rebuilt keys [kv heads, T, 128]. All
sketches here are linear codes: z = (k - mean) @ encode, each z_i rounded to a few bits, rebuilt = mean + z @ decode.
"""
import dataclasses
import math

import torch

# Steps of the uniform quantizer with least squared error on a normal variable, by bits (Max, 1960).
STEP = {1: 1.596, 2: 0.996, 3: 0.586, 4: 0.335, 5: 0.188, 6: 0.104, 8: 0.031}


@dataclasses.dataclass
class Basis:
    """Coordinates of one layer: mean [H, 1, D], encode [H, D, D], decode [H, D, D], sigma [H, D] descending where learned."""
    mean: torch.Tensor
    encode: torch.Tensor
    decode: torch.Tensor
    sigma: torch.Tensor


def hadamard(size, device):
    h = torch.ones(1, 1, dtype=torch.float64, device=device)
    while h.shape[0] < size:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    return h / math.sqrt(size)


def learn_bases(keys, queries, centred=True):
    """Bases of one layer by name from calibration keys [H, N, D] and queries [H, M, D] (M counts every query head).

    identity: channels as they are; channel: each weighted by the queries' size in it and sorted. hadamard: random signs, then Hadamard. pca: eigenvectors of the keys' covariance.
    joint: coordinates in which queries are white, sorted by the keys' variance there: the r first are the best rank-r
    approximation of q . (k - mean) in mean square, and equal rounding errors in all of them cost the same."""
    keys, queries = keys.double(), queries.double()
    heads, count, dim = keys.shape
    mean = keys.mean(1, keepdim=True) if centred else torch.zeros_like(keys[:, :1])
    covariance = (keys - mean).transpose(1, 2) @ (keys - mean) / count
    eye = torch.eye(dim, dtype=torch.float64, device=keys.device).expand(heads, dim, dim)

    def basis(encode, decode):
        sigma = (encode.transpose(1, 2) @ covariance @ encode).diagonal(dim1=1, dim2=2).clamp_min(1e-12).sqrt()
        return Basis(mean.float(), encode.float().contiguous(), decode.float().contiguous(), sigma.float())

    generator = torch.Generator().manual_seed(1)
    signs = (torch.randint(0, 2, (dim,), generator=generator) * 2 - 1).double().to(keys.device)
    rotation = (signs[:, None] * hadamard(dim, keys.device)).expand(heads, dim, dim)
    vectors = torch.linalg.eigh(covariance)[1].flip(-1)
    moment = queries.transpose(1, 2) @ queries / queries.shape[1]
    values, axes = torch.linalg.eigh(moment)
    values = values.clamp_min(0) + 0.003 * values.mean(-1, keepdim=True)
    root = axes @ torch.diag_embed(values.sqrt()) @ axes.transpose(1, 2)
    unroot = axes @ torch.diag_embed(values.rsqrt()) @ axes.transpose(1, 2)
    joint = torch.linalg.eigh(root @ covariance @ root)[1].flip(-1)
    weight = moment.diagonal(dim1=1, dim2=2).sqrt()
    order = (weight * covariance.diagonal(dim1=1, dim2=2).sqrt()).argsort(-1, descending=True)
    by_keys = covariance.diagonal(dim1=1, dim2=2).argsort(-1, descending=True)
    pick_keys = torch.nn.functional.one_hot(by_keys, dim).double().transpose(1, 2)
    # The 32 channels of lowest frequency first: the ends of both halves.
    low = torch.cat((torch.arange(dim // 2 - 16, dim // 2), torch.arange(dim - 16, dim)))
    low = torch.cat((low, torch.tensor([c for c in range(dim) if c not in set(low.tolist())]))).to(keys.device)
    pick_low = torch.nn.functional.one_hot(low, dim).double().t().expand(heads, dim, dim)
    pick = torch.nn.functional.one_hot(order, dim).double().transpose(1, 2)
    return {"identity": basis(eye, eye), "channel": basis(weight[..., None] * pick, pick.transpose(1, 2) / weight[:, None]),
            "by keys": basis(pick_keys, pick_keys.transpose(1, 2)), "low": basis(pick_low, pick_low.transpose(1, 2)), "hadamard": basis(rotation, rotation.transpose(1, 2)),
            "pca": basis(vectors, vectors.transpose(1, 2)), "joint": basis(root @ joint, joint.transpose(1, 2) @ unroot)}


def round_uniform(z, sigma, bits):
    """z [H, T, n] rounded by the mid-rise quantizer of 2^bits levels; sigma [H, n]."""
    step = (sigma * STEP[bits])[:, None]
    half = 2 ** (bits - 1)
    return ((z / step).floor().clamp(-half, half - 1) + 0.5) * step


def scalar_sketch(keys, basis, layout):
    """Rebuilt keys; layout = [(channels, bits), ...] from the first channel on, the rest is not kept."""
    channels = sum(n for n, _ in layout)
    z = (keys - basis.mean) @ basis.encode[..., :channels]
    parts, begin = [], 0
    for count, bits in layout:
        parts.append(round_uniform(z[..., begin : begin + count], basis.sigma[:, begin : begin + count], bits))
        begin += count
    return basis.mean + torch.cat(parts, -1) @ basis.decode[:, :channels]


def sign_sketch(keys, basis, scale):
    """One bit a channel. scale "channel": magnitudes learned, no bytes a token; "token": one factor a token (|z|^2 / sum|z|, so
    that the code has no shrinkage along the key, as RaBitQ); "mean": one factor a token (mean |z|, least squares)."""
    z = (keys - basis.mean) @ basis.encode
    sign = torch.where(z >= 0, 1.0, -1.0)
    if scale == "channel":
        size = basis.sigma[:, None] * (STEP[1] / 2)
    elif scale == "token":
        size = z.square().sum(-1, keepdim=True) / z.abs().sum(-1, keepdim=True)
    else:
        size = z.abs().mean(-1, keepdim=True)
    return basis.mean + (sign * size) @ basis.decode


def allocate(sigma, total, most=4):
    """Bits a channel [D] of one layer by greedy descent of the largest expected squared error; the heads share one layout."""
    error = sigma.square().mean(0).clone()
    left = {0: 1.0, 1: 0.363, 2: 0.1175, 3: 0.03454, 4: 0.011497, 5: 0.0035, 6: 0.001}
    bits = torch.zeros_like(error, dtype=torch.int64)
    gains = [left[b] - left[b + 1] for b in range(most)] + [0.0]
    table = torch.tensor(gains, device=sigma.device)
    for _ in range(total):
        bits[(error * table[bits]).argmax()] += 1
    return bits


def allocated_sketch(keys, basis, bits):
    """As scalar_sketch with bits [D] of allocate()."""
    z = (keys - basis.mean) @ basis.encode
    out = torch.zeros_like(z)
    for b in sorted(set(bits.tolist()) - {0}):
        at = (bits == b).nonzero()[:, 0]
        out[..., at] = round_uniform(z[..., at], basis.sigma[:, at], b)
    return basis.mean + out @ basis.decode


def learn_codebooks(keys, basis, width, channels, codes=16, rounds=12):
    """Product quantization: `channels` coordinates in groups of `width`, sorted coordinates dealt so that groups have like
    variance. Returns (order [channels], codebooks [H, groups, codes, width])."""
    z = (keys - basis.mean) @ basis.encode[..., :channels]
    groups = channels // width
    # Snake order: group g takes channels g, 2 groups - 1 - g, 2 groups + g, ...
    rows = torch.arange(channels, device=keys.device).view(width, groups)
    rows[1::2] = rows[1::2].flip(1)
    order = rows.t().reshape(-1)
    heads, count, _ = z.shape
    x = z[..., order].view(heads, count, groups, width).permute(0, 2, 1, 3).contiguous()
    generator = torch.Generator().manual_seed(2)
    centres = x[:, :, torch.randperm(count, generator=generator)[:codes].to(keys.device)]
    for _ in range(rounds):
        nearest = torch.cdist(x, centres).argmin(-1)
        counts = torch.zeros(heads, groups, codes, device=keys.device).scatter_add_(2, nearest, torch.ones_like(x[..., 0]))
        sums = torch.zeros_like(centres).scatter_add_(2, nearest[..., None].expand_as(x), x)
        centres = torch.where(counts[..., None] > 0, sums / counts[..., None].clamp_min(1), centres)
    return order, centres


def product_sketch(keys, basis, order, centres):
    heads, groups, _, width = centres.shape
    channels = groups * width
    z = (keys - basis.mean) @ basis.encode[..., :channels]
    x = z[..., order].view(heads, -1, groups, width).permute(0, 2, 1, 3).contiguous()
    nearest = torch.cdist(x, centres).argmin(-1)
    chosen = centres.gather(2, nearest[..., None].expand(-1, -1, -1, width))
    out = torch.zeros_like(z)
    out[..., order] = chosen.permute(0, 2, 1, 3).reshape(heads, -1, channels)
    return basis.mean + out @ basis.decode[:, :channels]


def integer_sketch(keys, basis, channels, bits):
    """scalar_sketch of equal bits as the kernels score it: ("codes", 1, code + 1/2 [H, T, channels], turn, mean)."""
    z = (keys - basis.mean) @ basis.encode[..., :channels]
    step = (basis.sigma[:, :channels] * STEP[bits])
    half = 2 ** (bits - 1)
    codes = (z / step[:, None]).floor().clamp(-half, half - 1) + 0.5
    return ("codes", 1, codes, basis.decode[:, :channels] * step[..., None], basis.mean)


def plane_sketch(keys, basis, channels, bits, kept):
    """The `kept` upper bits of integer_sketch's codes, in the same form: what a first look at the code reads."""
    kind, size, codes, turn, mean = integer_sketch(keys, basis, channels, bits)
    less = 2 ** (bits - kept)
    return (kind, size, ((codes - 0.5) / less).floor() + 0.5, turn * less, mean)


def code_bounds(keys, basis, channels, bits, size):
    """Bounds of `size` tokens' codes, in the form that policies.estimates() takes."""
    _, _, codes, turn, mean = integer_sketch(keys, basis, channels, bits)
    return ("bounds", size, *bounds(codes, size), turn, mean)


def bounds(keys, size):
    """Least and largest key of every `size` tokens: two [H, ceil(T / size), D]."""
    heads, count, dim = keys.shape
    missing = -count % size
    if missing:
        keys = torch.cat((keys, keys[:, -1:].expand(-1, missing, -1)), 1)
    blocks = keys.view(heads, -1, size, dim)
    return blocks.amin(2), blocks.amax(2)


def moments(keys, size):
    """Mean and variance of every `size` tokens."""
    heads, count, dim = keys.shape
    missing = -count % size
    if missing:
        keys = torch.cat((keys, keys[:, -1:].expand(-1, missing, -1)), 1)
    blocks = keys.view(heads, -1, size, dim)
    return blocks.mean(2), blocks.var(2, unbiased=False)
