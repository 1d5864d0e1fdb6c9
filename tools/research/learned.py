"""What is learned from calibration documents (training split) for one model: rotations and codebooks by layer. run.py calls it."""
import torch
from keysketch import learn_bases, learn_codebooks
from policies import Policy
from simulate import Questions, answers, prefill

KEYS = 60_000  # keys a head kept for covariances and codebooks


def collect(model, cells, dtype, device):
    """Keys [H, N, D] and queries [H, M, D] by layer, from the questions and documents of calibration cells."""
    layers = model.config.layers
    keys, queries = [[] for _ in range(layers)], [[] for _ in range(layers)]
    for cell in cells:
        for ids, questions in cell:
            cache = prefill(model, torch.from_numpy(ids).to(device), dtype)
            for layer, (k, _) in enumerate(cache):
                keys[layer].append(k.float()[:, :: max(1, k.shape[1] // 8192)])
            answers(model, cache, Questions(questions, device), Policy("dense"), None, dtype,
                    capture=lambda layer, q: queries[layer].append(q.float()))
    keys, queries = ([torch.cat(x, 1) for x in side] for side in (keys, queries))
    generator = torch.Generator().manual_seed(3)
    some = torch.randperm(keys[0].shape[1], generator=generator)[:KEYS].to(device)
    return [k[:, some] for k in keys], queries


class Learned:
    """bases[layer][name], and product quantizers[layer][name] of the basis "joint"."""

    PRODUCTS = {"pq32x4": (4, 128, 16), "pq32x4 of 64": (2, 64, 16), "pq16x4 of 64": (4, 64, 16), "pq16x8": (8, 128, 256),
                "pq8x8 of 64": (8, 64, 256)}

    def __init__(self, keys, queries, products=()):
        self.bases = [learn_bases(k, q) for k, q in zip(keys, queries)]
        self.products = [{name: learn_codebooks(k, b["joint"], *self.PRODUCTS[name][:2], codes=self.PRODUCTS[name][2])
                          for name in products} for k, b in zip(keys, self.bases)]
