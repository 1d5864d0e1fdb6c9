"""One CUDA graph of a decode step serves every later batch of the declared maxima: plan outside, replay.

Needs a CUDA device: python examples/python/cuda_graph.py
"""

import torch

import fovea

if not torch.cuda.is_available():
    raise SystemExit("This needs a CUDA device and a PyTorch that can use it; torch.cuda.is_available() is False.")

BATCH, HEADS, KV_HEADS, DIM, PAGE, PAGES_EACH = 16, 32, 8, 128, 16, 64
bf16 = dict(dtype=torch.bfloat16, device="cuda")

k, v = (torch.randn(BATCH * PAGES_EACH, PAGE, KV_HEADS, DIM, **bf16) for _ in range(2))
q, out = torch.randn(BATCH, HEADS, DIM, **bf16), torch.empty(BATCH, HEADS, DIM, **bf16)
# The table's address is part of the graph; its contents may change.
table = torch.randperm(BATCH * PAGES_EACH, dtype=torch.int32, device="cuda").view(BATCH, PAGES_EACH)

attention = fovea.Attention(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_tokens=PAGE, device="cuda",
                            max_requests=BATCH, max_rows=BATCH, max_pages_per_request=PAGES_EACH)
attention.plan([1] * BATCH, [1] * BATCH, table)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    attention.run(q, (k, v), out)

for step in range(5):
    lengths = torch.randint(1, PAGES_EACH * PAGE, (BATCH,)).tolist()
    attention.plan([1] * BATCH, lengths, table)  # one small copy, in the current stream
    graph.replay()
    replayed = out.clone()
    eager = attention.run(q, (k, v))
    print(f"step {step}: {sum(lengths)} tokens, equal to eager: {torch.equal(replayed, eager)}")
