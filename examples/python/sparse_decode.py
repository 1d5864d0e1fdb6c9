"""Decode over selected pages with PyTorch tensors: append, statistics of keys, lists of pages, and attention over them.

Runs on a CUDA device where there is one, else on the CPU: python examples/python/sparse_decode.py
"""

from typing import Any

import torch

import fovea

LAYERS, HEADS, KV_HEADS, DIM, PAGE, PAGES_EACH = 2, 32, 8, 128, 16, 256
device = "cuda" if torch.cuda.is_available() else "cpu"
bf16 = dict(dtype=torch.bfloat16, device=device)
i32 = dict(dtype=torch.int32, device=device)

kv_lens = [3000, 900, 3500]  # two of them are beyond the budget
requests = len(kv_lens)
pages = requests * PAGES_EACH
cache = torch.zeros(LAYERS, 2, pages, PAGE, KV_HEADS, DIM, **bf16)

# Once a model: which channels of its keys its queries look at. Here keys and queries are random.
sample = [torch.randn(2000, heads, DIM) for heads in (KV_HEADS, HEADS)]
codes = [fovea.learn_key_codes(*sample) for _ in range(LAYERS)]

shape: dict[str, Any] = dict(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, device=device, max_requests=requests,
             max_pages_per_request=PAGES_EACH)
selector = fovea.PageSelector(**shape, key_codes=codes, num_layers=LAYERS, num_pages=pages, budget_tokens=1024, interval=4)
attention = fovea.Attention(**shape, max_selected=requests)
print(f"{selector.bytes_per_page() // PAGE // KV_HEADS} bytes of statistics a token and KV head, {4 * DIM} of KV")

# Page table and lists are one array; pages of requests stand in any order.
table, lists, list_tokens = selector.allocate(cache)
table.copy_(torch.randperm(pages).view(requests, PAGES_EACH))
indptr = torch.arange(0, pages + 1, PAGES_EACH, **i32)


def append(layer, k, v, request, positions):
    """New tokens into the pages, and their keys into the statistics."""
    places = dict(batch_indices=request, positions=positions, page_indices=table.view(-1), page_indptr=indptr)
    fovea.append_paged_kv(k, v, (cache[layer, 0], cache[layer, 1]), **places)
    selector.append(k, layer=layer, **places)


for layer in range(LAYERS):  # the prompts
    for r, tokens in enumerate(kv_lens):
        k, v = (torch.randn(tokens, KV_HEADS, DIM, **bf16) for _ in range(2))
        append(layer, k, v, torch.full((tokens,), r, **i32), torch.arange(tokens, **i32))

for step in range(4):
    kv_lens = [n + 1 for n in kv_lens]
    lengths = torch.tensor(kv_lens, **i32)
    rows = torch.arange(requests, **i32)
    if device == "cuda":  # one plan serves all layers: lists are read when attention runs
        selector.plan(attention, kv_lens, table, lists, list_tokens)
    for layer in range(LAYERS):
        q, k, v = (torch.randn(requests, heads, DIM, **bf16) for heads in (HEADS, KV_HEADS, KV_HEADS))
        append(layer, k, v, rows, lengths - 1)
        selector.select(q, lengths, table, lists, list_tokens, layer=layer)
        if device == "cpu":
            selector.plan(attention, kv_lens, table, lists, list_tokens)
        out = attention.run(q, (cache[layer, 0], cache[layer, 1]))
    print(f"step {step}: of {kv_lens} tokens {list_tokens.tolist()} read, mean of the output {out.float().mean().item():+.5f}")
