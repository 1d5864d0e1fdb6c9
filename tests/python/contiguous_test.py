"""fovea.Attention and fovea.flashinfer over keys and values without pages, against the definition, on numpy arrays."""

import numpy as np
import pytest

import fovea
import fovea.flashinfer as flashinfer
from attention_test import check
from oracle import attend, causal

HEADS, KV_HEADS, DIM = 4, 2, 32


def tensors(rows, tokens, layout="NHD", seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, HEADS, DIM), dtype=np.float32)
    k, v = (rng.standard_normal((tokens, KV_HEADS, DIM), dtype=np.float32) for _ in "kv")
    given = (k, v) if layout == "NHD" else tuple(np.ascontiguousarray(x.swapaxes(0, 1)) for x in (k, v))
    return q, k, v, given


def expected(q, k, v, sees):
    """(out, lse) where sees(head) is bool [rows, tokens]."""
    parts = [attend(q[:, h], k[:, h // 2], v[:, h // 2], sees(h // 2), DIM ** -0.5) for h in range(HEADS)]
    return np.stack([out for out, _ in parts], 1), np.stack([lse for _, lse in parts], 1)


def attention(page=4, **options):
    return fovea.Attention(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_tokens=page, q_dtype="f32", **options)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page", [1, 16])
def test_requests_may_begin_anywhere(layout, page):
    q_lens, kv_lens, begins = [3, 1, 20], [40, 7, 20], [2, 44, 51]
    q, k, v, given = tensors(24, 75, layout)
    planned = attention(page)
    planned.plan_ragged(q_lens, np.array(kv_lens), begins)
    out, lse = planned.run(q, given, kv_layout=layout, return_lse=True)
    assert planned.num_rows == 24
    row = 0
    for q_len, kv_len, begin in zip(q_lens, kv_lens, begins):
        rows, own = slice(row, row + q_len), slice(begin, begin + kv_len)
        check((out[rows], lse[rows]), expected(q[rows], k[own], v[own], lambda h, seen=causal(q_len, kv_len): seen))
        row += q_len


@pytest.mark.parametrize("mask", ["none", "causal", "bits"])
def test_a_pattern_for_each_head(mask):
    rng = np.random.default_rng(3)
    q, k, v, given = tensors(30, 46)
    there = rng.random((KV_HEADS, 5, 6)) < 0.5
    there[1, 2] = False  # sees nothing
    indptr = np.cumsum([0, *there.sum(2).reshape(-1)])
    places = np.argwhere(there)
    inside = rng.random((len(places), 7, 8)) < 0.5
    seen = np.zeros((KV_HEADS, 35, 48), dtype=bool)
    for (head, line, column), block in zip(places, inside):
        seen[head, line * 7:line * 7 + 7, column * 8:column * 8 + 8] = block if mask == "bits" else True
    seen = seen[:, :30, :46] & (causal(30, 46) if mask == "causal" else True)
    planned = attention(max_block_rows=256)
    bits = {"mask_bits": np.packbits(inside.reshape(-1), bitorder="little")} if mask == "bits" else {}
    planned.plan_blocks(indptr, places[:, 2], 30, 46, 7, 8, heads_differ=True, mask=mask, **bits)
    check(planned.run(q, given, return_lse=True), expected(q, k, v, lambda h: seen[h]))


def test_what_makes_no_sense_is_told():
    planned = attention(max_block_rows=8)
    with pytest.raises(fovea.InvalidArgument, match="2 q_lens, 1 kv_lens"):
        planned.plan_ragged([1, 1], [1], [0, 0])
    with pytest.raises(fovea.InvalidArgument, match="begins at token -1"):
        planned.plan_ragged([1], [1], [-1])
    with pytest.raises(fovea.InvalidArgument, match="expected 3 entries"):
        planned.plan_blocks([0, 1], [0], 10, 8, 5, 4)
    with pytest.raises(fovea.InvalidArgument, match="there are 1 indices"):
        planned.plan_blocks([0, 1, 2], [0], 10, 8, 5, 4)
    with pytest.raises(fovea.InvalidArgument, match='mask_bits is given, and mask is "none"'):
        planned.plan_blocks([0, 1, 1], [1], 10, 8, 5, 4, mask_bits=np.zeros(3, np.uint8))
    with pytest.raises(fovea.InvalidArgument, match="1 x 1"):
        planned.plan_blocks([0], [], 0, 8, 0, 4)
    planned.plan_blocks([0, 1, 1], [1], 10, 8, 5, 4)
    q, _, _, given = tensors(10, 8)
    with pytest.raises(fovea.InvalidArgument, match="8 tokens or more"):
        planned.run(q, tuple(x[:7] for x in given))
    out = planned.run(q, given)
    assert np.all(out[5:] == 0) and np.all(np.isfinite(out))


def test_flashinfers_wrappers():
    q, k, v, given = tensors(12, 50)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(None)
    wrapper.plan(np.array([0, 2, 12]), np.array([0, 20, 50]), HEADS, KV_HEADS, DIM, causal=True, q_data_type="float32")
    out, lse = wrapper.run(q, given[0], given[1], return_lse=True)
    check((out[2:], lse[2:]), expected(q[2:], k[20:], v[20:], lambda h: causal(10, 30)))
    blocks = flashinfer.BlockSparseAttentionWrapper(None)
    plan = dict(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, q_data_type="float32")
    blocks.plan(np.array([0, 2, 3, 3]), np.array([0, 4, 1]), 12, 50, 4, 10, **plan)
    seen = np.zeros((12, 50), dtype=bool)
    seen[:4, :10] = seen[:4, 40:] = seen[4:8, 10:20] = True
    check(blocks.run(q, given[0], given[1], return_lse=True), expected(q, k, v, lambda h: seen))
    with pytest.raises(NotImplementedError, match="ascend"):
        blocks.plan(np.array([0, 2, 3, 3]), np.array([4, 0, 1]), 12, 50, 4, 10, **plan)
    with pytest.raises(NotImplementedError, match="causal"):
        blocks.plan(np.array([0, 2, 3, 3]), np.array([0, 4, 1]), 12, 50, 4, 10, causal=True, **plan)
