"""fovea.Attention on numpy arrays against the definition, and what callers get wrong."""

import numpy as np
import pytest

import fovea
from oracle import Batch, attend, causal

Q_LENS, KV_LENS = [1, 20, 0, 3, 1], [40, 20, 5, 64, 1]


def attention_for(batch, **options):
    return fovea.Attention(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=batch.dim, page_tokens=batch.page,
                           q_dtype=batch.q.dtype, **options)


def check(actual, expected, tolerance=2e-5):
    np.testing.assert_allclose(actual[0], expected[0], atol=tolerance, rtol=0)
    np.testing.assert_allclose(actual[1], expected[1], atol=tolerance * 10, rtol=0)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page", [1, 8, 16])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_lists_and_tables(layout, page, dtype):
    batch = Batch(Q_LENS, KV_LENS, page=page, layout=layout, dtype=dtype, seed=page)
    expected = batch.oracle()
    attention = attention_for(batch)
    tolerance = 2e-5 if dtype == np.float32 else 2e-3
    attention.plan(Q_LENS, KV_LENS, batch.indices, batch.indptr)
    check(attention.run(batch.q, (batch.k, batch.v), return_lse=True, kv_layout=layout), expected, tolerance)
    table = np.zeros((len(KV_LENS), 64), dtype=np.int32)
    for r in range(len(KV_LENS)):
        own = batch.indices[batch.indptr[r]:batch.indptr[r + 1]]
        table[r, :len(own)] = own
    attention.plan(np.array(Q_LENS), np.array(KV_LENS), table)
    both = np.stack([batch.k, batch.v], axis=1)
    check(attention.run(batch.q, both, return_lse=True, kv_layout=layout), expected, tolerance)
    attention.plan(Q_LENS, KV_LENS, table.tolist())
    out = np.empty_like(batch.q)
    assert attention.run(batch.q, both, out, kv_layout=layout) is out
    np.testing.assert_allclose(out, expected[0], atol=tolerance)
    assert attention.workspace_bytes() > 0
    assert attention.stats()["kv_bytes"] > 0
    assert "items" in attention.explain()


@pytest.mark.parametrize("mask", ["none", "window", "bits"])
def test_masks(mask):
    batch = Batch(Q_LENS, KV_LENS)
    rng = np.random.default_rng(1)
    bits = [rng.random((q, kv)) < 0.5 for q, kv in zip(Q_LENS, KV_LENS)]
    packed = [np.packbits(b.reshape(-1), bitorder="little") for b in bits]
    sees = {"none": lambda r: np.ones((Q_LENS[r], KV_LENS[r]), dtype=bool),
            "window": lambda r: causal(Q_LENS[r], KV_LENS[r], 9), "bits": lambda r: bits[r]}[mask]
    options = {"none": {}, "window": {"window_left": 9}, "bits": {
        "mask_bits": np.concatenate(packed), "mask_offsets": np.cumsum([0] + [8 * len(p) for p in packed])}}[mask]
    attention = attention_for(batch)
    attention.plan(Q_LENS, KV_LENS, batch.indices, batch.indptr, mask=mask, **options)
    check(attention.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle(sees))


def test_variants():
    batch = Batch([1, 4], [30, 17])
    sinks = np.linspace(-1, 2, batch.heads).astype(np.float32)
    for options, variant in (({"softcap": 3.0}, {"softcap": 3.0}), ({"sinks": sinks}, {"sinks": sinks}),
                             ({"sm_scale": 0.4}, {"sm_scale": 0.4})):
        attention = attention_for(batch, **options)
        attention.plan([1, 4], [30, 17], batch.indices, batch.indptr)
        check(attention.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle(**variant), 1e-4)


SHIFTED = """
struct Shifted : Plain {
  static constexpr bool kHasLogit = true;
  template <class M>
  static typename M::F logit(const Params& p, typename M::F s, const LogitPlace<typename M::F>& at) {
    return s * M::set(p.factor + p.table[at.q_head] * p.twice / 2);
  }
};
"""


def test_a_variant_of_ones_own():
    batch = Batch([1, 4], [30, 17])
    table = np.full(batch.heads, 0.25, np.float32)
    attention = attention_for(batch, variant=("Shifted", SHIFTED), variant_values={"factor": 0.5, "twice": 2, "table": table})
    attention.plan([1, 4], [30, 17], batch.indices, batch.indptr)
    expected = batch.oracle(sm_scale=0.75 * batch.dim ** -0.5)
    check(attention.run(batch.q, (batch.k, batch.v), return_lse=True), expected, 1e-4)
    with pytest.raises(fovea.InvalidArgument, match="factor"):
        attention_for(batch, variant=("Shifted", SHIFTED), variant_values={})


def test_grow():
    batch = Batch([1, 1], [30, 17])
    attention = attention_for(batch)
    attention.plan([1, 1], [25, 17], batch.indices, batch.indptr)
    attention.grow([30, 17])
    check(attention.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle())
    attention = attention_for(batch)
    attention.plan([1, 1], [25, 17], batch.indices, batch.indptr)
    attention.grow_on_device(np.array([30, 17], np.int32))
    check(attention.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle())
    attention.growth_status()  # nothing was refused
    for grow in (attention.grow, lambda lens: attention.grow_on_device(np.array(lens, np.int32))):
        with pytest.raises(fovea.OutOfRange, match="request 0 has 33 tokens on 5 pages, its page list has 4"):
            grow([33, 17])
    check(attention.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle())
    attention = attention_for(batch, device_growth=False)
    attention.plan([1, 1], [25, 17], batch.indices, batch.indptr)
    with pytest.raises(fovea.InvalidArgument, match="device_growth"):
        attention.grow_on_device(np.array([30, 17], np.int32))


def test_values_of_a_run():
    """Scales and sinks differ from run to run of one plan."""
    batch = Batch([1, 3], [30, 17])
    kv, first, second = (batch.k, batch.v), np.linspace(-1, 2, batch.heads, dtype=np.float32), np.ones(batch.heads, np.float32)
    plain, attention = attention_for(batch), attention_for(batch, sinks=first)
    for each in (plain, attention):
        each.plan(batch.q_lens, batch.kv_lens, batch.indices, batch.indptr)
        assert not each.captured
    for scale in (0.5, 1.0):
        scaled = batch.dim ** -0.5 * scale
        check(plain.run(batch.q, kv, return_lse=True, logit_scale=scale), batch.oracle(sm_scale=scaled))
        for sinks in (second, None):
            expected = batch.oracle(sm_scale=scaled, sinks=first if sinks is None else sinks)
            check(attention.run(batch.q, kv, return_lse=True, logit_scale=scale, sinks=sinks), expected)
    with pytest.raises(fovea.InvalidArgument, match="made without"):
        plain.run(batch.q, kv, sinks=first)
    with pytest.raises(fovea.InvalidArgument, match="sinks"):
        attention.run(batch.q, kv, sinks=first[1:])
    with pytest.raises(fovea.InvalidArgument, match="logit_scale"):
        attention.run(batch.q, kv, logit_scale=float("inf"))


def test_append_and_merge():
    batch = Batch([1, 1], [30, 17], layout="HND")
    k, v = np.full_like(batch.k, np.nan), np.full_like(batch.v, np.nan)
    for r, tokens in enumerate([30, 17]):
        fovea.append_paged_kv(batch.keys[r], batch.values[r], (k, v), batch_indices=np.full(tokens, r, dtype=np.int32),
                              positions=np.arange(tokens, dtype=np.int32), page_indices=batch.indices,
                              page_indptr=batch.indptr, kv_layout="HND")
    np.testing.assert_array_equal(k, batch.k)
    np.testing.assert_array_equal(v, batch.v)
    # Halves of the tokens, merged, are the whole.
    q, keys, values = batch.q[:1], batch.keys[0], batch.values[0]
    whole = batch.oracle()
    halves = []
    for part in (slice(0, 11), slice(11, 30)):
        out, lse = np.empty(q.shape, np.float32), np.empty(q.shape[:2], np.float32)
        for h in range(batch.heads):
            kv = h * batch.kv_heads // batch.heads
            tokens = keys[part][:, kv]
            o, s = attend(q[:, h], tokens, values[part][:, kv], np.ones((1, len(tokens)), bool), batch.dim ** -0.5)
            out[:, h], lse[:, h] = o, s
        halves.append((out, lse))
    (a, lse_a), (b, lse_b) = halves
    merged = fovea.merge_state(a, lse_a, b, lse_b)
    check(merged, (whole[0][:1], whole[1][:1]))
    check(fovea.merge_states(np.stack([a, b], axis=1), np.stack([lse_a, lse_b], axis=1)), merged)
    kept = a.copy(), lse_a.copy()
    fovea.merge_state_in_place(*kept, b, lse_b, mask=np.zeros(1, np.uint8))
    np.testing.assert_array_equal(kept[0], a)
    fovea.merge_state_in_place(*kept, b, lse_b)
    check(kept, merged)


def test_errors():
    batch = Batch([1, 4], [30, 17])
    with pytest.raises(fovea.Unsupported, match="head_dim is 72"):
        fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=72)
    with pytest.raises(fovea.InvalidArgument, match="device"):
        fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=64, device="tpu")
    with pytest.raises(fovea.InvalidArgument, match="type int17"):
        fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=64, q_dtype="int17")
    with pytest.raises(fovea.InvalidArgument, match="num_kv_heads has 1099511627776"):
        fovea.Attention(num_qo_heads=4, num_kv_heads=1 << 40, head_dim=64)
    attention = attention_for(batch, max_rows=8)
    with pytest.raises(fovea.InvalidArgument, match="no integer of 32 bits"):
        attention.plan([1, (1 << 32) + 4], [30, 17], batch.indices, batch.indptr)
    with pytest.raises(fovea.InvalidArgument, match="call plan"):
        attention.run(batch.q, (batch.k, batch.v))
    with pytest.raises(fovea.OutOfRange, match="max_rows"):
        attention.plan([1, 17], [30, 17], batch.indices, batch.indptr)
    with pytest.raises(fovea.InvalidArgument, match="int32"):
        attention.plan([1, 4], [30, 17], batch.indices.astype(np.int64), batch.indptr)
    with pytest.raises(fovea.InvalidArgument, match="page_indptr"):
        attention.plan([1, 4], [30, 17], batch.indices)
    with pytest.raises(fovea.OutOfRange, match="page_indices"):
        attention.plan([1, 4], [30, 170], batch.indices, batch.indptr)
    attention.plan([1, 4], [30, 17], batch.indices, batch.indptr)
    with pytest.raises(fovea.InvalidArgument, match="q is f16"):
        attention.run(batch.q.astype(np.float16), (batch.k, batch.v))
    with pytest.raises(fovea.InvalidArgument, match=r"k is f32 \[.*expected \[pages, 8, 2, 32\]"):
        attention.run(batch.q, (batch.k[:, :4], batch.v[:, :4]))
    with pytest.raises(fovea.OutOfRange, match="the pool has pages"):
        attention.run(batch.q, (batch.k[:1], batch.v[:1]))
    attention.run(batch.q, (batch.k, batch.v))


def test_arrays_that_are_read_only_are_refused_by_shape():
    batch = Batch([1], [9])
    attention = attention_for(batch)
    attention.plan([1], [9], batch.indices, batch.indptr)
    batch.q.flags.writeable = False
    with pytest.raises(fovea.InvalidArgument, match=r"shape \(1, .*read-only, hand over a copy"):
        attention.run(batch.q, (batch.k, batch.v))


def test_what_is_no_tensor_is_named():
    batch = Batch([1, 4], [30, 17])
    attention = attention_for(batch)
    lists, kv = (batch.indices, batch.indptr), (batch.k, batch.v)
    attention.plan([1, 4], [30, 17], *lists)
    state = batch.q, np.zeros(batch.q.shape[:2], np.float32)
    for match, call in (
            (r"q is None, expected a tensor \[rows", lambda: attention.run(None, kv)),
            ("q is a list", lambda: attention.run([[1.0]], kv, out=batch.q)),
            (r"q has shape \(4, 32\)", lambda: attention.run(batch.q[0], kv)),
            ("list is no tensor", lambda: attention.run(batch.q, kv, out=[1.0])),
            ("the KV cache is a NoneType", lambda: attention.run(batch.q, None)),
            ("the KV cache is a tuple", lambda: attention.run(batch.q, (*kv, batch.k))),
            ("v is NULL", lambda: attention.run(batch.q, (batch.k, None))),
            ("q_lens is None", lambda: attention.plan(None, [30, 17], *lists)),
            ("kv_lens is None", lambda: attention.plan([1, 4], None, *lists)),
            ("q_lens holds 1.5", lambda: attention.plan([1.5, 4], [30, 17], *lists)),
            ("page_indices is None", lambda: attention.plan([1, 4], [30, 17], None)),
            ("mask_offsets is None", lambda: attention.plan([1, 4], [30, 17], *lists, mask="bits", mask_bits=np.zeros(64, np.uint8))),
            ("kv_lens is None", lambda: attention.grow(None)),
            ("max_rows is None", lambda: attention_for(batch, max_rows=None)),
            ("v is None", lambda: fovea.merge_states(None, state[1])),
            ("v_a is None", lambda: fovea.merge_state(None, state[1], *state))):
        with pytest.raises(fovea.InvalidArgument, match=match):
            call()
