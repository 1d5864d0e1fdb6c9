"""Decode with PyTorch tensors: a paged cache, a plan a step, a run a layer, and new tokens appended as they come.

Runs on a CUDA device where there is one, else on the CPU: python examples/python/torch_decode.py
"""

import torch

import fovea

LAYERS, HEADS, KV_HEADS, DIM, PAGE = 4, 32, 8, 128, 16
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16

# Three requests with pages in any order. The table has room to grow.
kv_lens = [500, 33, 1200]
pages_each = 128
table = torch.randperm(3 * pages_each, dtype=torch.int32).view(3, pages_each).to(device)
cache = torch.randn(LAYERS, 2, 3 * pages_each, PAGE, KV_HEADS, DIM, device=device).to(dtype)
page_indptr = torch.arange(0, 4 * pages_each, pages_each, dtype=torch.int32, device=device)

attention = fovea.Attention(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_tokens=PAGE, device=device,
                            q_dtype=dtype, max_requests=8, max_pages_per_request=pages_each)

for step in range(4):
    kv_lens = [n + 1 for n in kv_lens]  # the new token included
    positions = torch.tensor([n - 1 for n in kv_lens], dtype=torch.int32, device=device)
    requests = torch.arange(3, dtype=torch.int32, device=device)
    attention.plan([1, 1, 1], kv_lens, table)  # once a step
    for layer in range(LAYERS):
        q, k, v = (torch.randn(3, heads, DIM, device=device).to(dtype) for heads in (HEADS, KV_HEADS, KV_HEADS))
        pages = cache[layer, 0], cache[layer, 1]
        fovea.append_paged_kv(k, v, pages, batch_indices=requests, positions=positions, page_indices=table.view(-1),
                              page_indptr=page_indptr)
        out = attention.run(q, pages)
    print(f"step {step}: lengths {kv_lens}, mean of the output {out.float().mean().item():+.5f}")
print(attention.explain())
