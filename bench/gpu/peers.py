"""Other attention libraries over a measured case. Each function takes CaseData, does what a user does ahead of a step
(planning, conversions), and returns call(copy) -> output [rows, qo_heads, head_dim], one step over that copy of the KV.
Unsupported says that a library does not offer the case. A library that cannot be imported is no failure either.

    cudnn       PyTorch's SDPA with the cuDNN backend, over contiguous KV (all others read pages)
    fa3         FlashAttention-3 as vLLM builds it (folder vllm_fa3 on the path), its scheduler metadata made ahead
    fa3_dense, fa3_varlen   FlashAttention-3's own wheel over contiguous KV: equal lengths, and lengths by offsets
    fi_tc/fi_cc FlashInfer batch decode on tensor cores / CUDA cores, planned for CUDA graphs as servers do
    fi_tc0/fi_cc0   the same, planned for this batch alone
    fi_xqa      FlashInfer's XQA decode
    fi_persist  FlashInfer's BatchAttention, its balanced persistent kernel
    fi_fa2/fi_fa3   FlashInfer's prefill, paged, or ragged where KV is contiguous
    fi_blocks   FlashInfer's block-sparse attention
    fi_casc     FlashInfer's multi-level cascade on fa2, which beats its own choice for single queries
"""
import functools
import os
import sys

import torch

# Which libraries are asked for which suite.
OF_SUITE = {
    "decode": "cudnn fa3 fi_xqa fi_tc fi_tc0 fi_cc fi_cc0", "skew": "fa3 fi_xqa fi_tc fi_cc fi_persist",
    "single": "cudnn fa3 fi_xqa fi_tc fi_tc0", "fp8": "fa3 fi_xqa fi_tc", "page": "fa3 fi_xqa fi_tc",
    "variant": "fa3 fi_xqa fi_tc fi_tc0", "append": "fa3 fi_fa2 fi_persist", "prefix": "fa3 fi_tc fi_tc0 fi_casc",
    "sweep": "fa3 fi_xqa fi_tc fi_tc0 fi_cc0 fi_fa2 fi_fa3 fi_persist", "cliffs": "fa3 fi_xqa fi_tc fi_tc0 fi_fa2",
    "prefill": "cudnn fa3_dense fa3_varlen fa3 fi_fa3 fi_blocks",
}
CONTIGUOUS = {"cudnn"}


class Unsupported(Exception):
    """The library does not offer this case."""


def needs(condition, what):
    if not condition:
        raise Unsupported(what)


@functools.cache
def scratch(name):
    """Zeroed bytes; a name each, because some libraries keep semaphores in theirs."""
    return torch.zeros(1 << 30 if name == "flashinfer" else 256 << 20, dtype=torch.uint8, device="cuda")


def window_left(case):
    return case["window"] - 1 if case["window"] else -1


def cudnn(data):
    case = data.case
    from torch.nn.attention import SDPBackend, sdpa_kernel
    needs(not case["window"] and not case["softcap"] and not case["blocks"] and case["kv_dtype"] == "bf16", "not offered by SDPA")
    equal = len(set(data.kv_lens)) == 1 and not case["tree"]
    if data.contiguous and equal:
        return cudnn_prompts(data)
    needs(equal and data.max_q == 1, "one length and one query alone")
    # [requests, heads, tokens, head_dim], made anew so that it is contiguous.
    dense = [[torch.stack([data.gathered(t[copy], r, data.max_kv) for r in range(data.requests)]).transpose(1, 2)
              .contiguous() for t in (data.k, data.v)] for copy in range(data.sets)]
    queries = data.q.unsqueeze(3)

    def call(copy):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                queries[copy], *dense[copy], enable_gqa=case["qo_heads"] != case["kv_heads"])
    return call


def dense(data, tensor):
    """[sets, requests, tokens, heads, head_dim] of contiguous queries, keys or values of one length."""
    return tensor.unflatten(1, (data.requests, -1))


def cudnn_prompts(data):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    case = data.case
    # [requests, heads, tokens, head_dim], contiguous, as cuDNN is fastest.
    q, k, v = ([one.transpose(1, 2).contiguous() for one in dense(data, tensor)] for tensor in (data.q, data.k, data.v))

    def call(copy):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q[copy], k[copy], v[copy], is_causal=case["causal"],
                                                                   enable_gqa=case["qo_heads"] != case["kv_heads"])
        return out.transpose(1, 2)
    return call


def fa3_wheel(data, by_offsets):
    import fa3_fwd_interface as flash
    case = data.case
    needs(data.contiguous and not case["window"] and not case["blocks"] and case["kv_dtype"] == "bf16", "not in this build")
    first = lambda out: out[0] if isinstance(out, (tuple, list)) else out
    equal = len(set(data.kv_lens)) == 1
    if by_offsets:
        needs(not equal, "its dense call is faster")
        return lambda copy: first(flash.flash_attn_varlen_func(
            data.q[copy], data.k[copy], data.v[copy], data.cu_q, data.cu_kv, data.max_q, data.max_kv, causal=case["causal"],
            softcap=case["softcap"]))
    needs(equal, "one length alone")
    q, k, v = (dense(data, tensor) for tensor in (data.q, data.k, data.v))
    return lambda copy: first(flash.flash_attn_func(q[copy], k[copy], v[copy], causal=case["causal"], softcap=case["softcap"]))


@functools.cache
def fa3_operators():
    folders = [os.path.join(folder, "vllm_fa3") for folder in sys.path]
    found = [os.path.join(folder, name) for folder in folders if os.path.isdir(folder)
             for name in sorted(os.listdir(folder)) if name.startswith("_vllm_fa3_C") and name.endswith(".so")]
    if not found:
        raise ImportError("no folder vllm_fa3 with FlashAttention-3 on the path")
    torch.ops.load_library(found[0])
    return torch.ops._vllm_fa3_C


def fa3(data):
    case, ops = data.case, fa3_operators()
    needs(not case["sinks"] and not case["blocks"], "no sinks and no blocks in this build")
    needs(case["kv_dtype"] != "fp8_e4m3" or case["head_dim"] in (64, 128, 256), "fp8 of whole tiles")
    decode = data.max_q == 1
    q = data.q.to(data.k.dtype)
    q = q.unsqueeze(2) if decode else q
    cu_q = None if decode else data.cu_q
    # With one query causal changes nothing but the choice of tiles, and pages want it.
    left, right = (case["window"] - 1, 0) if case["window"] else (-1, -1)
    if data.contiguous:
        needs(case["window"] or case["softcap"] or len(set(data.kv_lens)) > 1, "its own wheel is there for plain prompts")

        def ragged(copy):
            none = [None] * 9
            return ops.fwd(q[copy], data.k[copy], data.v[copy], *none[:4], cu_q, data.cu_kv, *none[:3], data.max_q, data.max_kv,
                           *none, data.scale, case["causal"], left, right, case["softcap"], True, None, 0, None, 0, None, 1, 0,
                           None)[0]
        return ragged
    metadata = ops.get_scheduler_metadata(
        data.requests, data.max_q, data.max_kv, case["qo_heads"], case["kv_heads"], case["head_dim"], case["head_dim"],
        q.dtype, data.lens, cu_q, None, None, None, None, data.page, 0, True, left, right, case["softcap"] > 0, 0, None, 0)

    def call(copy):
        none = [None] * 9
        return ops.fwd(q[copy], data.k[copy], data.v[copy], *none[:4], cu_q, *none[:3], data.lens, data.max_q, data.max_kv,
                       data.table, *none[:8], data.scale, True, left, right, case["softcap"], True, metadata, 0,
                       None, 0, None, 1, 0, None)[0]
    return call


def batch_decode(data, tensor_cores, for_graphs):
    import flashinfer
    case = data.case
    needs(data.max_q == 1 and not case["sinks"], "one query a request, no sinks")
    fixed = {}
    if for_graphs:
        fixed = {"paged_kv_indptr_buffer": data.indptr_host.cuda(), "paged_kv_indices_buffer": data.indices.clone(),
                 "paged_kv_last_page_len_buffer": data.last_host.cuda()}
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        scratch("flashinfer"), "NHD", use_cuda_graph=for_graphs, use_tensor_cores=tensor_cores,
        backend="fa2" if tensor_cores else "auto", **fixed)
    wrapper.plan(data.indptr_host, data.indices, data.last_host, case["qo_heads"], case["kv_heads"], case["head_dim"],
                 data.page, window_left=window_left(case), logits_soft_cap=case["softcap"] or None,
                 q_data_type=data.q.dtype, kv_data_type=data.k.dtype, o_data_type=data.q.dtype)
    return lambda copy: wrapper.run(data.q[copy], (data.k[copy], data.v[copy]))


def fi_xqa(data):
    import flashinfer
    case = data.case
    needs(data.max_q == 1 and not case["softcap"] and not case["sinks"] and data.page in (16, 32, 64, 128), "not in XQA")
    out = torch.empty_like(data.q)
    return lambda copy: flashinfer.decode.xqa_batch_decode_with_kv_cache(
        data.q[copy], (data.k[copy], data.v[copy]), scratch("xqa"), data.table, data.lens, data.max_kv,
        bmm1_scale=data.scale, bmm2_scale=1.0, window_left=window_left(case), out=out[copy])


def fi_persist(data):
    import flashinfer
    case = data.case
    needs(not case["window"], "no window")
    wrapper = flashinfer.BatchAttention("NHD", "cuda")
    wrapper.plan(data.cu_q_host, data.indptr_host, data.indices, data.lens_host, case["qo_heads"], case["kv_heads"],
                 case["head_dim"], case["head_dim"], data.page, causal=case["causal"],
                 logits_soft_cap=case["softcap"] or None, q_data_type=data.q.dtype, kv_data_type=data.k.dtype)
    return lambda copy: wrapper.run(data.q[copy], (data.k[copy], data.v[copy]), logits_soft_cap=case["softcap"])[0]


def prefill(data, backend):
    import flashinfer
    case = data.case
    needs(data.max_q > 1 and not case["sinks"] and not case["blocks"], "long queries, no sinks, no blocks")
    options = {"causal": case["causal"], "window_left": window_left(case), "logits_soft_cap": case["softcap"] or None,
               "q_data_type": data.q.dtype, "kv_data_type": data.k.dtype}
    if data.contiguous:
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(scratch("flashinfer"), "NHD", backend=backend)
        wrapper.plan(data.cu_q_host, data.cu_kv_host, case["qo_heads"], case["kv_heads"], case["head_dim"], **options)
        return lambda copy: wrapper.run(data.q[copy], data.k[copy], data.v[copy])
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(scratch("flashinfer"), "NHD", backend=backend)
    wrapper.plan(data.cu_q_host, data.indptr_host, data.indices, data.last_host, case["qo_heads"], case["kv_heads"],
                 case["head_dim"], data.page, **options)
    return lambda copy: wrapper.run(data.q[copy], (data.k[copy], data.v[copy]))


def fi_blocks(data):
    import flashinfer
    case, pattern = data.case, data.case["blocks"]
    needs(pattern, "block-sparse rows alone")
    wrapper = flashinfer.BlockSparseAttentionWrapper(scratch("flashinfer"))
    indptr, indices = (torch.tensor(pattern[name], dtype=torch.int32, device="cuda") for name in ("indptr", "indices"))
    wrapper.plan(indptr, indices, data.rows, data.max_kv, pattern["rows"], pattern["tokens"], case["qo_heads"],
                 case["kv_heads"], case["head_dim"], q_data_type=data.q.dtype, kv_data_type=data.k.dtype)
    return lambda copy: wrapper.run(data.q[copy], data.k[copy], data.v[copy])


def fi_casc(data):
    import flashinfer
    case = data.case
    needs(case["tree"], "shared prefixes")
    levels = data.tree_levels()
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(len(levels[0]), scratch("flashinfer"), "NHD")
    for level in wrapper._batch_prefill_wrappers:  # a wrapper of its own a level; there is no public way to choose
        level._backend = "fa2"
    wrapper.plan(*levels, case["qo_heads"], case["kv_heads"], case["head_dim"], data.page, q_data_type=data.q.dtype,
                 kv_data_type=data.k.dtype)
    return lambda copy: wrapper.run(data.q[copy], (data.k[copy], data.v[copy]))


# Rows of these stand in the order of the tree's leaves.
ROWS_BY_LEAF = {"fi_casc"}

PEERS = {
    "cudnn": cudnn, "fa3": fa3, "fi_xqa": fi_xqa, "fi_persist": fi_persist, "fi_casc": fi_casc,
    "fi_tc": lambda data: batch_decode(data, True, True), "fi_tc0": lambda data: batch_decode(data, True, False),
    "fi_cc": lambda data: batch_decode(data, False, True), "fi_cc0": lambda data: batch_decode(data, False, False),
    "fi_fa2": lambda data: prefill(data, "fa2"), "fi_fa3": lambda data: prefill(data, "fa3"), "fi_blocks": fi_blocks,
    "fa3_dense": lambda data: fa3_wheel(data, False), "fa3_varlen": lambda data: fa3_wheel(data, True),
}
