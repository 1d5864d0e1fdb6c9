#!/usr/bin/env python3
"""Times PyTorch's CPU scaled_dot_product_attention, for `fovea bench attention --peers FILE`.

Usage: attention_cpu.py --threads 2 --json OUT
Causal prefill of one request, head_dim 128, at the shapes of the `prefill` suite, in fp32 and bf16, contiguous K and V.
Grouped queries run with enable_gqa. Writes [{"peer", "tokens", "qo_heads", "kv_heads", "seconds"}], medians.
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

SHAPES = [(2048, 8, 8), (2048, 32, 8), (8192, 8, 8), (8192, 32, 8)]


def time_sdpa(tokens, qo_heads, kv_heads, dtype, repeats):
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, qo_heads, tokens, 128, generator=generator).to(dtype)
    k = torch.randn(1, kv_heads, tokens, 128, generator=generator).to(dtype)
    v = torch.randn(1, kv_heads, tokens, 128, generator=generator).to(dtype)
    times = []
    with torch.inference_mode():
        for _ in range(repeats + 1):
            start = time.perf_counter()
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=qo_heads != kv_heads)
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", required=True)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for tokens, qo_heads, kv_heads in SHAPES:
            seconds = time_sdpa(tokens, qo_heads, kv_heads, dtype, args.repeats)
            name = f"torch {torch.__version__.split('+')[0]} SDPA {str(dtype).split('.')[1]}"
            rows.append({"peer": name, "tokens": tokens, "qo_heads": qo_heads, "kv_heads": kv_heads, "seconds": seconds})
            print(f"{name} {tokens} tokens {qo_heads}/{kv_heads}: {seconds * 1e3:.1f} ms", file=sys.stderr)
    with open(args.json, "w") as out:
        json.dump(rows, out, indent=1)


if __name__ == "__main__":
    main()
