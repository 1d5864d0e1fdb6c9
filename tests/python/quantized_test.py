"""Quantized KV and decode steps over chosen pages through Python, on numpy arrays against the definition."""

import numpy as np
import pytest

import fovea
from oracle import Batch, attend

Q_LENS, KV_LENS = [1, 3, 1], [40, 33, 7]


def stored_elements(pool, dtype):
    """Numbers 0..255, or 0..15 with even dims in the low halves, of a pool of bytes; of fp8_e4m3 what they stand for."""
    if dtype == "int8":
        return pool.astype(np.float64)
    if dtype == "fp8_e4m3":
        sign, exponent, mantissa = 1.0 - 2.0 * (pool >> 7), (pool >> 3 & 15).astype(int), (pool & 7) / 8.0
        return sign * np.where(exponent == 0, mantissa * 2.0 ** -6, (1.0 + mantissa) * 2.0 ** (exponent - 7.0))
    return np.stack([pool & 15, pool >> 4], axis=-1).reshape(*pool.shape[:-1], -1).astype(np.float64)


def quantized(batch, dtype, layout, rotated=False):
    """(pools, scales) of bytes that the batch's keys and values were appended to."""
    pages = len(batch.k)
    dim = batch.dim // 2 if dtype == "int4" else batch.dim
    shape = (pages, batch.page, batch.kv_heads, dim) if layout == "NHD" else (pages, batch.kv_heads, batch.page, dim)
    pools = [np.full(shape, 0xa5, np.uint8) for _ in range(2)]
    scales = [np.full((pages, batch.kv_heads, batch.page, 2), np.nan, np.float16) for _ in range(2)]
    for r, tokens in enumerate(batch.kv_lens):
        fovea.append_paged_kv(batch.keys[r], batch.values[r], tuple(pools), batch_indices=np.full(tokens, r, np.int32),
                              positions=np.arange(tokens, dtype=np.int32), page_indices=batch.indices,
                              page_indptr=batch.indptr, kv_layout=layout, kv_dtype=dtype, k_scale=scales[0],
                              v_scale=scales[1], rotated=rotated)
    return pools, scales


def hadamard(dim):
    """Its own inverse, Sylvester's order."""
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(dim)


def attend_to_what_is_stored(batch, pools, scales, dtype, layout, rotated=False):
    """The batch's keys and values become what the pools hold of them."""
    zero = {"int8": 128, "int4": 8, "fp8_e4m3": 0}[dtype]
    for which, given in enumerate((batch.keys, batch.values)):
        elements = stored_elements(pools[which], dtype)
        for r, tokens in enumerate(batch.kv_lens):
            stored = np.empty_like(given[r], dtype=np.float64)
            for t in range(tokens):
                page = batch.indices[batch.indptr[r] + t // batch.page]
                scale = scales[which][page, :, t % batch.page].astype(np.float64)
                at = elements[page, t % batch.page] if layout == "NHD" else elements[page, :, t % batch.page]
                stored[t] = scale[:, :1] * (at - zero) + scale[:, 1:]
            given[r] = stored @ hadamard(batch.dim) if rotated else stored


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_append_and_attention(dtype, layout):
    batch = Batch(Q_LENS, KV_LENS, layout=layout, seed=3)
    pools, scales = quantized(batch, dtype, layout)
    # What is stored stands for what was appended, to half a step of the row's range.
    steps = 255 if dtype == "int8" else 15
    before = [*batch.keys, *batch.values]
    attend_to_what_is_stored(batch, pools, scales, dtype, layout)
    for given, stored in zip(before, [*batch.keys, *batch.values]):
        step = (given.max(axis=2) - given.min(axis=2)) / steps
        assert np.all(np.abs(stored - given) <= 0.55 * step[..., None] + 2e-3)
    attention = fovea.Attention(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=batch.dim,
                                page_tokens=batch.page, q_dtype="f32", kv_dtype=dtype)
    attention.plan(Q_LENS, KV_LENS, batch.indices, batch.indptr)
    out, lse = attention.run(batch.q, tuple(pools), return_lse=True, kv_layout=layout, k_scale=scales[0], v_scale=scales[1])
    expected = batch.oracle()
    np.testing.assert_allclose(out, expected[0], atol=2e-5, rtol=0)
    np.testing.assert_allclose(lse, expected[1], atol=2e-4, rtol=0)
    signed = tuple(pool.view(np.int8) for pool in pools)
    again = attention.run(batch.q, signed, kv_layout=layout, k_scale=scales[0], v_scale=scales[1])
    np.testing.assert_array_equal(again, out)


def test_what_quantized_pools_need():
    batch = Batch([1], [9])
    pools, scales = quantized(batch, "int4", "NHD")
    with pytest.raises(fovea.InvalidArgument, match=r"k_scale is missing; int4 pools need .*f16 \["):
        fovea.append_paged_kv(batch.keys[0], batch.values[0], tuple(pools), slots=np.zeros(9, np.int32), kv_dtype="int4")
    with pytest.raises(fovea.InvalidArgument, match=r"k is int8 .*32"):
        fovea.append_paged_kv(batch.keys[0], batch.values[0], tuple(pools), slots=np.zeros(9, np.int32), kv_dtype="int8",
                              k_scale=scales[0], v_scale=scales[1])
    with pytest.raises(fovea.InvalidArgument, match="int5"):
        fovea.append_paged_kv(batch.keys[0], batch.values[0], tuple(pools), slots=np.zeros(9, np.int32), kv_dtype="int5")
    attention = fovea.Attention(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=batch.dim,
                                page_tokens=batch.page, q_dtype="f32", kv_dtype="int4")
    attention.plan([1], [9], batch.indices, batch.indptr)
    with pytest.raises(fovea.InvalidArgument, match="k_scale"):
        attention.run(batch.q, tuple(pools))
    with pytest.raises(fovea.InvalidArgument, match=r"k is f32 .*declared was int4"):
        attention.run(batch.q, (batch.k, batch.v))
    plain = fovea.Attention(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=batch.dim,
                            page_tokens=batch.page, q_dtype="f32", kv_dtype="f32")
    plain.plan([1], [9], batch.indices, batch.indptr)
    with pytest.raises(fovea.InvalidArgument, match=r"k is u8 .*declared was f32"):
        plain.run(batch.q, tuple(quantized(batch, "int8", "NHD")[0]))


def selected_case():
    """Three requests; the first two are long, and read two pages of 8 tokens a KV head where chosen."""
    batch = Batch([1, 1, 1], [40, 61, 13], seed=5)
    chosen = {(0, 0): [1, 4], (0, 1): [3, 4], (1, 0): [0, 7], (1, 1): [6, 7]}  # pages of (request, head), the newest last
    lists, begins = list(batch.indices), []
    for r in range(2):
        begins.append(len(lists))
        for head in range(2):
            lists += [batch.indices[batch.indptr[r] + page] for page in chosen[r, head]]
    return batch, np.array(lists, np.int32), begins, chosen


def expected_of(batch, chosen, dense=()):
    out, lse = np.zeros(batch.q.shape), np.zeros(batch.q.shape[:2])
    for r, tokens in enumerate(batch.kv_lens):
        for h in range(batch.heads):
            kv = h * batch.kv_heads // batch.heads
            seen = np.arange(tokens)
            if r < 2 and r not in dense:
                seen = np.concatenate([seen[8 * page:8 * page + 8] for page in chosen[r, kv]])
            out[r:r + 1, h], lse[r:r + 1, h] = attend(batch.q[r:r + 1, h], batch.keys[r][seen, kv],
                                                      batch.values[r][seen, kv], np.ones((1, len(seen)), bool),
                                                      batch.dim ** -0.5)
    return out, lse


def test_steps_over_chosen_pages():
    batch, lists, begins, chosen = selected_case()
    attention = fovea.Attention(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=batch.dim,
                                page_tokens=batch.page, q_dtype="f32", max_requests=4, max_selected=2)
    for dense in ((), (1,), (0, 1)):
        own = [-1 if r in dense else begin for r, begin in enumerate(begins)] + [-1]
        tokens = np.array([batch.kv_lens[r] if r in dense or r == 2 else 8 + (batch.kv_lens[r] - 1) % 8 + 1 for r in range(3)],
                          np.int32)
        for list_tokens in (None, tokens):
            attention.plan_selected(batch.kv_lens, lists, batch.indptr[:-1], own, 2, budget_tokens=16,
                                    list_tokens=list_tokens)
            assert attention.num_rows == 3
            out, lse = attention.run(batch.q, (batch.k, batch.v), return_lse=True)
            expected = expected_of(batch, chosen, dense)
            np.testing.assert_allclose(out, expected[0], atol=2e-5, rtol=0)
            np.testing.assert_allclose(lse, expected[1], atol=2e-4, rtol=0)


def test_what_chosen_pages_need():
    batch, lists, begins, _ = selected_case()

    def attention(**options):
        return fovea.Attention(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=batch.dim,
                               page_tokens=batch.page, q_dtype="f32", **options)

    def plan(made, lists=lists, begins=(*begins, -1), stride=2, **options):
        made.plan_selected(batch.kv_lens, lists, batch.indptr[:-1], begins, stride, **{"budget_tokens": 16, **options})

    few = attention(max_selected=1)
    for error, match, call in (
            (fovea.OutOfRange, "raise max_selected", lambda: plan(few)),
            (fovea.InvalidArgument, "budget_tokens is 12, expected a multiple", lambda: plan(few, budget_tokens=12)),
            (fovea.OutOfRange, "of page_indices, which has", lambda: plan(few, begins=(len(lists) - 1, -1, -1))),
            (fovea.InvalidArgument, "selected_begins; expected one a request", lambda: plan(few, begins=begins)),
            (fovea.InvalidArgument, "page_indices must be a contiguous int32", lambda: plan(few, lists.astype(np.int64))),
            (fovea.InvalidArgument, "page_indices is a list", lambda: plan(few, lists.tolist())),
            (fovea.InvalidArgument, "list_tokens has 1 entries", lambda: plan(few, list_tokens=np.ones(1, np.int32))),
            (fovea.InvalidArgument, "selected_stride has", lambda: plan(few, stride=1 << 40)),
            (fovea.InvalidArgument, "decode_kernel is 'fast'", lambda: attention(decode_kernel="fast")),
            (fovea.InvalidArgument, "max_selected is -1", lambda: attention(max_selected=-1)),
            (fovea.InvalidArgument, "max_page_entries is -1", lambda: attention(max_page_entries=-1)),
            (fovea.InvalidArgument, "max_mask_bytes is None", lambda: attention(max_mask_bytes=None))):
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rotated_pools(dtype, layout):
    """Channels that stand out cost the others nothing: rows are rotated before they are rounded, and attention undoes it."""
    batch = Batch(Q_LENS, KV_LENS, layout=layout, seed=4)
    for r in range(len(KV_LENS)):
        batch.keys[r][..., 3] *= 20
        batch.values[r][..., 5] *= 20
    attention = dict(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=batch.dim, page_tokens=batch.page,
                     q_dtype="f32", kv_dtype=dtype)
    expected, errors, given = batch.oracle()[0], [], (batch.keys[:], batch.values[:])
    for rotated in (False, True):
        batch.keys, batch.values = given[0][:], given[1][:]
        pools, scales = quantized(batch, dtype, layout, rotated=rotated)
        made = fovea.Attention(**attention, kv_rotated=rotated)
        made.plan(Q_LENS, KV_LENS, batch.indices, batch.indptr)
        out = made.run(batch.q, tuple(pools), kv_layout=layout, k_scale=scales[0], v_scale=scales[1])
        errors.append(np.abs(out - expected).mean())
        attend_to_what_is_stored(batch, pools, scales, dtype, layout, rotated)
        # Values reach 60 here: of fp32's relative error.
        np.testing.assert_allclose(out, batch.oracle()[0], atol=2e-5 * 20, rtol=0)
    assert errors[1] < errors[0]


def test_fp8_with_a_scale_for_each_token():
    batch = Batch(Q_LENS, KV_LENS, seed=5)
    for r in range(len(KV_LENS)):
        batch.keys[r] *= np.float32(100)  # beyond what e4m3 holds without scales
    batch.q[...] /= 100
    pools, scales = quantized(batch, "fp8_e4m3", "NHD")
    attention = fovea.Attention(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=batch.dim,
                                page_tokens=batch.page, q_dtype="f32", kv_dtype="fp8_e4m3", kv_token_scales=True)
    attention.plan(Q_LENS, KV_LENS, batch.indices, batch.indptr)
    out = attention.run(batch.q, tuple(pools), k_scale=scales[0], v_scale=scales[1])
    with pytest.raises(fovea.InvalidArgument, match="k_scale"):
        attention.run(batch.q, tuple(pools))
    with pytest.raises(fovea.Unsupported, match="kv_rotated with fp8_e4m3"):
        fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=32, kv_dtype="fp8_e4m3", kv_rotated=True)
    with pytest.raises(fovea.Unsupported, match="a rotated pool of fp8_e4m3"):
        quantized(batch, "fp8_e4m3", "NHD", rotated=True)
    attend_to_what_is_stored(batch, pools, scales, "fp8_e4m3", "NHD")
    np.testing.assert_allclose(out, batch.oracle()[0], atol=2e-5, rtol=0)
