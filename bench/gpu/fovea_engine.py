"""Fovea over a measured case, through its Python package; FOVEA_LIBRARY names the library where it is not installed."""
import torch

import fovea


def prepare(data):
    """call(copy) -> output, planned. Page lists are given on the host, where shared prefixes are found."""
    case = data.case
    attention = fovea.Attention(
        device="cuda", num_qo_heads=case["qo_heads"], num_kv_heads=case["kv_heads"], head_dim=case["head_dim"],
        page_tokens=data.page, q_dtype=case["q_dtype"], kv_dtype=case["kv_dtype"], softcap=case["softcap"], sinks=data.sinks,
        max_requests=data.requests, max_rows=data.rows, max_pages_per_request=data.table_host.shape[1])
    mask = {"mask": "window", "window_left": case["window"] - 1} if case["window"] else {"mask": "causal"}
    attention.plan(data.q_lens, data.kv_lens, data.table_host, stream=torch.cuda.current_stream(), **mask)
    torch.cuda.synchronize()
    out = torch.empty_like(data.q)
    return lambda copy: attention.run(data.q[copy], (data.k[copy], data.v[copy]), out[copy])
