"""fovea.flashinfer against the definition: FlashInfer's names, arguments and meanings on numpy arrays."""

import numpy as np
import pytest

import fovea
import fovea.flashinfer as flashinfer
from oracle import Batch, attend, causal
from attention_test import check


def decode_plan(batch, **options):
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(None, batch.layout)
    wrapper.plan(batch.indptr, batch.indices, batch.last_page_len, batch.heads, batch.kv_heads, batch.dim, batch.page,
                 q_data_type=batch.q.dtype, **options)
    return wrapper


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("heads", [4, 14])
@pytest.mark.parametrize("page", [1, 8, 16])
def test_decode(layout, heads, page):
    batch = Batch([1] * 5, [54, 97, 1, 0, 33], heads=heads, page=page, layout=layout)
    wrapper = decode_plan(batch)
    kv = np.stack([batch.k, batch.v], axis=1)
    check(wrapper.run(batch.q, kv, return_lse=True), batch.oracle())
    check(wrapper.run_return_lse(batch.q, (batch.k, batch.v)), batch.oracle())
    np.testing.assert_allclose(wrapper.run(batch.q, kv), batch.oracle()[0], atol=2e-5)
    assert wrapper.workspace_bytes() > 0


def test_decode_options():
    batch = Batch([1, 1], [54, 33])
    kv = (batch.k, batch.v)
    window = decode_plan(batch, window_left=13, logits_soft_cap=5.0)
    expected = batch.oracle(lambda r: causal(1, batch.kv_lens[r], 13), softcap=5.0)
    check(window.run(batch.q, kv, return_lse=True), expected, 1e-4)
    scaled = decode_plan(batch, sm_scale=0.3)
    out, lse = scaled.run(batch.q, kv, k_scale=0.5, v_scale=2.0, return_lse=True)
    whole = batch.oracle(sm_scale=0.15)
    check((out, lse), (whole[0] * 2, whole[1]))
    sinks = np.array([0.0, 1.0, -1.0, 2.0], np.float32)
    check(decode_plan(batch).run(batch.q, kv, sinks=sinks, return_lse=True), batch.oracle(sinks=sinks))
    check(decode_plan(batch).run(batch.q, kv, return_lse=True), batch.oracle())
    with pytest.raises(fovea.Unsupported, match="pos_encoding_mode"):
        decode_plan(batch, pos_encoding_mode="ROPE_LLAMA")


def test_decode_of_a_graph_keeps_its_buffers():
    batch = Batch([1, 1, 1], [54, 33, 8])
    indices = np.zeros(64, np.int32)
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(None, np.zeros(4, np.int32), indices,
                                                                     np.zeros(3, np.int32))
    for _ in range(2):
        wrapper.plan(batch.indptr, batch.indices, batch.last_page_len, batch.heads, batch.kv_heads, batch.dim, batch.page,
                     q_data_type="float32")
        check(wrapper.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle())
    np.testing.assert_array_equal(indices[:len(batch.indices)], batch.indices)
    with pytest.raises(fovea.OutOfRange, match="indices"):
        wrapper.plan(batch.indptr, np.zeros(65, np.int32), batch.last_page_len, 4, 2, 32, 8, q_data_type="float32")


@pytest.mark.parametrize("mask", ["causal", "none", "window", "custom", "packed"])
def test_prefill(mask):
    q_lens, kv_lens = [37, 1, 17, 5], [54, 12, 17, 40]
    batch = Batch(q_lens, kv_lens)
    rng = np.random.default_rng(3)
    bits = [rng.random((q, kv)) < 0.6 for q, kv in zip(q_lens, kv_lens)]
    bits[0][5] = False  # a row that sees nothing
    options, sees = {
        "causal": (dict(causal=True), None),
        "none": ({}, lambda r: np.ones((q_lens[r], kv_lens[r]), bool)),
        "window": (dict(causal=True, window_left=7), lambda r: causal(q_lens[r], kv_lens[r], 7)),
        "custom": (dict(custom_mask=np.concatenate([b.reshape(-1) for b in bits])), lambda r: bits[r]),
        "packed": (dict(packed_custom_mask=np.concatenate([np.packbits(b.reshape(-1), bitorder="little") for b in bits])),
                   lambda r: bits[r]),
    }[mask]
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(None, "NHD")
    wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last_page_len, batch.heads, batch.kv_heads, batch.dim,
                 batch.page, q_data_type="float32", **options)
    check(wrapper.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle(sees))


@pytest.mark.parametrize("causally", [True, False])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_batches_by_lengths(layout, causally):
    batch = Batch([37, 1, 17, 5], [54, 12, 17, 40], layout=layout)
    attention = flashinfer.BatchAttention(kv_layout=layout)
    plan = lambda batch, **options: attention.plan(
        batch.qo_indptr, batch.indptr, batch.indices, np.array(batch.kv_lens, np.int32), batch.heads, batch.kv_heads, batch.dim,
        batch.dim, batch.page, causal=causally, q_data_type="float32", **options)
    sees = None if causally else lambda r: np.ones((batch.q_lens[r], batch.kv_lens[r]), bool)
    plan(batch)
    check(attention.run(batch.q, (batch.k, batch.v)), batch.oracle(sees))
    out, lse = attention.run(batch.q, (batch.k, batch.v), v_scale=2.0, logits_soft_cap=0.0)
    check((out, lse), (batch.oracle(sees)[0] * 2, batch.oracle(sees)[1]))
    with pytest.raises(fovea.Unsupported, match="logits_soft_cap is 3.0 in run"):
        attention.run(batch.q, (batch.k, batch.v), logits_soft_cap=3.0)
    plan(batch, logits_soft_cap=3.0)
    check(attention.run(batch.q, (batch.k, batch.v), logits_soft_cap=3.0), batch.oracle(sees, softcap=3.0))


@pytest.mark.parametrize("is_causal", [True, False])
def test_cascade(is_causal):
    """One shared run under all rows, then each request's own."""
    own = Batch([3, 1, 4], [9, 5, 4], seed=1)
    shared = Batch([8], [24], seed=2)
    shared_pages, offset = shared.indices + len(own.k), len(own.k)
    k, v = np.concatenate([own.k, shared.k]), np.concatenate([own.v, shared.v])
    assert offset > 0
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, None, "NHD")
    wrapper.plan([np.array([0, 8], np.int32), own.qo_indptr], [shared.indptr, own.indptr],
                 [shared_pages.astype(np.int32), own.indices], [shared.last_page_len, own.last_page_len], own.heads, own.kv_heads,
                 own.dim, own.page, causal=is_causal, q_data_type="float32")
    expected = np.zeros(own.q.shape)
    for r, (q_len, kv_len) in enumerate(zip(own.q_lens, own.kv_lens)):
        rows = slice(own.qo_indptr[r], own.qo_indptr[r + 1])
        keys, values = (np.concatenate([a, b]) for a, b in ((shared.keys[0], own.keys[r]), (shared.values[0], own.values[r])))
        sees = np.ones((q_len, 24 + kv_len), bool)
        if is_causal:
            sees[:, 24:] = causal(q_len, kv_len)
        for h in range(own.heads):
            kv = h * own.kv_heads // own.heads
            expected[rows, h] = attend(own.q[rows, h], keys[:, kv], values[:, kv], sees, own.dim ** -0.5)[0]
    np.testing.assert_allclose(wrapper.run(own.q, (k, v)), expected, atol=2e-5)


def test_append():
    batch = Batch([1, 1, 1], [10, 17, 3])
    new = [4, 0, 3]
    indptr = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    lens = flashinfer.get_seq_lens(batch.indptr, batch.last_page_len, batch.page)
    np.testing.assert_array_equal(lens, batch.kv_lens)
    requests, positions = flashinfer.get_batch_indices_positions(indptr, lens, 7)
    np.testing.assert_array_equal(requests, [0, 0, 0, 0, 2, 2, 2])
    np.testing.assert_array_equal(positions, [6, 7, 8, 9, 0, 1, 2])
    cache = np.full((len(batch.k), 2, batch.page, batch.kv_heads, batch.dim), np.nan, np.float32)
    keys = np.concatenate([batch.keys[0][6:], batch.keys[2]])
    values = np.concatenate([batch.values[0][6:], batch.values[2]])
    flashinfer.append_paged_kv_cache(keys, values, requests, positions, cache, batch.indices, batch.indptr,
                                     batch.last_page_len)
    for r, t in zip(requests, positions):
        np.testing.assert_array_equal(batch.at(cache[:, 0], r, t), batch.keys[r][t])
        np.testing.assert_array_equal(batch.at(cache[:, 1], r, t), batch.values[r][t])
    assert np.isfinite(cache).sum() == 2 * 7 * batch.kv_heads * batch.dim


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kv_len", [1, 54, 128])
def test_single(layout, kv_len):
    batch = Batch([1], [kv_len], page=kv_len if kv_len <= 128 else 1)
    k, v = batch.keys[0], batch.values[0]
    if layout == "HND":
        k, v = k.swapaxes(0, 1).copy(), v.swapaxes(0, 1).copy()
    out, lse = flashinfer.single_decode_with_kv_cache(batch.q[0], k, v, layout, return_lse=True)
    expected = batch.oracle()
    check((out[None], lse[None]), expected)
    check(flashinfer.single_prefill_with_kv_cache(batch.q, k, v, causal=True, kv_layout=layout, return_lse=True), expected)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("q_len, kv_len", [(17, 54), (5, 5)])
def test_single_prefill_with_a_mask(q_len, kv_len, layout):
    batch = Batch([q_len], [kv_len])
    k, v = batch.keys[0], batch.values[0]
    if layout == "HND":
        k, v = k.swapaxes(0, 1).copy(), v.swapaxes(0, 1).copy()
    for seed in range(2):  # the second call finds the object of the first
        seen = np.random.default_rng(seed).random((q_len, kv_len)) < 0.5
        seen[1] = False
        expected = batch.oracle(lambda r, seen=seen: seen)
        for mask in (dict(custom_mask=seen), dict(custom_mask=seen.reshape(-1)),
                     dict(packed_custom_mask=flashinfer.packbits(seen, bitorder="little"))):
            check(flashinfer.single_prefill_with_kv_cache(batch.q, k, v, kv_layout=layout, return_lse=True, **mask), expected)
    check(flashinfer.single_prefill_with_kv_cache(batch.q, k, v, causal=True, kv_layout=layout, return_lse=True), batch.oracle())
    check(flashinfer.single_prefill_with_kv_cache_return_lse(batch.q, k, v, kv_layout=layout, custom_mask=seen), expected)
    check(flashinfer.single_prefill_with_kv_cache(batch.q, k, v, 0.5, None, 2.0, kv_layout=layout, custom_mask=np.ones_like(seen)),
          batch.oracle(lambda r: np.ones_like(seen), sm_scale=batch.dim ** -0.5 * 0.5)[0] * 2)
    with pytest.raises(fovea.InvalidArgument, match="the batch needs"):
        flashinfer.single_prefill_with_kv_cache(batch.q, k, v, kv_layout=layout, custom_mask=seen[:1])


@pytest.mark.parametrize("bitorder", ["big", "little"])
def test_packed_bits(bitorder):
    bits = np.random.default_rng(1).random(77) < 0.5
    np.testing.assert_array_equal(flashinfer.packbits(bits, bitorder), np.packbits(bits, bitorder=bitorder))
    packed, begins = flashinfer.segment_packbits(bits, np.array([0, 3, 3, 40, 77], np.int32), bitorder)
    np.testing.assert_array_equal(begins, [0, 1, 1, 6, 11])
    assert packed.dtype == np.uint8 and begins.dtype == np.int32
    np.testing.assert_array_equal(packed[1:6], np.packbits(bits[3:40], bitorder=bitorder))
    with pytest.raises(fovea.InvalidArgument, match="bitorder"):
        flashinfer.packbits(bits, "middle")
