"""Fovea over a measured case, through its Python package; FOVEA_LIBRARY names the library where it is not installed."""
import torch

import fovea


def prepare(data):
    """call(copy) -> output, planned. Page lists are given on the host, where shared prefixes are found; KV without pages
    goes in as it is."""
    case, pattern = data.case, data.case["blocks"]
    longest = max(-(-n // data.page) + 1 for n in data.kv_lens)
    blocks = len(pattern["indptr"]) if pattern else 0
    attention = fovea.Attention(
        device="cuda", num_qo_heads=case["qo_heads"], num_kv_heads=case["kv_heads"], head_dim=case["head_dim"],
        page_tokens=data.page, q_dtype=case["q_dtype"], kv_dtype=case["kv_dtype"], softcap=case["softcap"], sinks=data.sinks,
        max_requests=data.requests, max_rows=data.rows, max_pages_per_request=longest, max_block_rows=blocks,
        max_page_entries=blocks * longest)
    mask = {"mask": "window", "window_left": case["window"] - 1} if case["window"] else {"mask": "causal"}
    if data.contiguous and not case["causal"] and not case["window"]:
        mask = {"mask": "none"}
    stream = torch.cuda.current_stream()
    if pattern:
        attention.plan_blocks(pattern["indptr"], pattern["indices"], data.rows, data.max_kv, pattern["rows"], pattern["tokens"],
                              stream=stream)
    elif data.contiguous:
        attention.plan_ragged(data.q_lens, data.kv_lens, data.cu_kv_host[:-1], stream=stream, **mask)
    else:
        attention.plan(data.q_lens, data.kv_lens, data.table_host, stream=stream, **mask)
    torch.cuda.synchronize()
    out = torch.empty_like(data.q)
    return lambda copy: attention.run(data.q[copy], (data.k[copy], data.v[copy]), out[copy])
