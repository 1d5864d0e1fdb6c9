"""needle in PyTorch: a Llama of 4 layers, for training and as the reference of the C++ engine.

Weights are fp32 masters; a forward runs in `dtype` (bf16 in training, fp32 for goldens). Names and arithmetic follow
transformers' LlamaForCausalLM, so that the exported folder loads there. Called by train.py and evaluate.py.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Config:
    layers: int = 4
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    mlp: int = 768
    vocabulary: int = 4096
    theta: float = 1e7
    epsilon: float = 1e-5
    positions: int = 131072


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()

        def matrix(out, inner, std=0.02):
            return nn.Parameter(torch.randn(out, inner) * std)

        residual = 0.02 / math.sqrt(2 * c.layers)
        self.q = matrix(c.heads * c.head_dim, c.hidden)
        self.k = matrix(c.kv_heads * c.head_dim, c.hidden)
        self.v = matrix(c.kv_heads * c.head_dim, c.hidden)
        self.o = matrix(c.hidden, c.heads * c.head_dim, residual)
        self.gate = matrix(c.mlp, c.hidden)
        self.up = matrix(c.mlp, c.hidden)
        self.down = matrix(c.hidden, c.mlp, residual)
        self.norm1 = nn.Parameter(torch.ones(c.hidden))
        self.norm2 = nn.Parameter(torch.ones(c.hidden))


def rotate(x, cos, sin):
    """Rotary embedding, halves (NeoX) form. x [B, T, heads, D], cos and sin [T, 1, D]."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def causal_attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def attention_with_lse(q, k, v, causal):
    """(output, natural log-sum-exp) of q [B, H, S, D] over k, v [B, H, T, D]."""
    if q.dtype != torch.float32 and q.is_cuda:
        result = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
        return result[0], result[1]
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    return (torch.softmax(scores, -1).to(v.dtype) @ v), torch.logsumexp(scores, -1)


class Needle(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.vocabulary, config.hidden) * 0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.hidden))
        self.tables = {}

    def rotary(self, begin, end, dtype):
        """cos, sin [end - begin, 1, D] of these positions; computed in fp32, kept in dtype, as transformers does."""
        key = (dtype, self.embedding.device)
        if key not in self.tables or self.tables[key][0].shape[0] < end:
            d = self.config.head_dim
            inverse = 1.0 / self.config.theta ** (torch.arange(0, d, 2, dtype=torch.float32, device=key[1]) / d)
            size = max(end, 4096)
            angle = torch.outer(torch.arange(size, dtype=torch.float32, device=key[1]), inverse)
            angle = torch.cat((angle, angle), -1)[:, None, :]
            self.tables[key] = (angle.cos().to(dtype), angle.sin().to(dtype))
        cos, sin = self.tables[key]
        return cos[begin:end], sin[begin:end]

    def run(self, ids, dtype, begin, attend):
        """Hidden states [B, T, hidden] after the last norm. `attend(layer, q, k, v)` with [B, heads, T, D] operands."""
        c = self.config
        batch, length = ids.shape
        cos, sin = self.rotary(begin, begin + length, dtype)

        def linear(x, w):
            return F.linear(x, w.to(dtype))

        def norm(x, w):
            return F.rms_norm(x, (c.hidden,), w.to(dtype), c.epsilon)

        x = F.embedding(ids, self.embedding).to(dtype)
        for index, layer in enumerate(self.layers):
            h = norm(x, layer.norm1)
            q = linear(h, layer.q).view(batch, length, c.heads, c.head_dim)
            k = linear(h, layer.k).view(batch, length, c.kv_heads, c.head_dim)
            v = linear(h, layer.v).view(batch, length, c.kv_heads, c.head_dim)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            a = attend(index, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
            x = x + linear(a.transpose(1, 2).reshape(batch, length, -1), layer.o)
            h = norm(x, layer.norm2)
            x = x + linear(F.silu(linear(h, layer.gate)) * linear(h, layer.up), layer.down)
        return norm(x, self.norm)

    def forward(self, ids, dtype=torch.bfloat16):
        return self.run(ids, dtype, 0, lambda layer, q, k, v: causal_attention(q, k, v))

    def logits(self, hidden):
        return F.linear(hidden, self.embedding.to(hidden.dtype)).float()

    @torch.no_grad()
    def prefill(self, ids, dtype):
        """KV of one document [T]: a list of (k, v), each [1, heads, T, D] (query heads, so that a group shares by copies)."""
        cache = []
        repeat = self.config.heads // self.config.kv_heads

        def attend(layer, q, k, v):
            cache.append((k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)))
            return causal_attention(q, k, v)

        self.run(ids[None], dtype, 0, attend)
        return cache

    @torch.no_grad()
    def continue_from(self, cache, ids, dtype):
        """Logits [Q, S, V] of Q continuations (right-padded) of one document, none of which sees another."""
        repeat = self.config.heads // self.config.kv_heads

        def attend(layer, q, k, v):
            queries, heads, length, dim = q.shape
            shared_k, shared_v = cache[layer]
            flat = q.permute(1, 0, 2, 3).reshape(1, heads, queries * length, dim)
            far, far_lse = attention_with_lse(flat, shared_k, shared_v, False)
            far = far.view(heads, queries, length, dim).transpose(0, 1)
            far_lse = far_lse.view(heads, queries, length).transpose(0, 1)
            k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
            near, near_lse = attention_with_lse(q.contiguous(), k.contiguous(), v.contiguous(), True)
            weight = torch.sigmoid(far_lse - near_lse)[..., None]
            return (far.float() * weight + near.float() * (1 - weight)).to(q.dtype)

        begin = cache[0][0].shape[2]
        return self.logits(self.run(ids, dtype, begin, attend))

    def folder_tensors(self):
        """Weights under the names of LlamaForCausalLM, bf16."""
        names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
                 "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "norm1": "input_layernorm",
                 "norm2": "post_attention_layernorm"}
        tensors = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.norm}
        for index, layer in enumerate(self.layers):
            for ours, theirs in names.items():
                tensors[f"model.layers.{index}.{theirs}.weight"] = getattr(layer, ours)
        return tensors

    def save(self, path):
        from safetensors.torch import save_file

        tensors = {n: t.detach().to(torch.bfloat16).cpu().contiguous() for n, t in self.folder_tensors().items()}
        save_file(tensors, path, metadata={"format": "pt"})

    def load(self, path):
        from safetensors.torch import load_file

        loaded = load_file(path)
        with torch.no_grad():
            for name, tensor in self.folder_tensors().items():
                tensor.copy_(loaded[name])
