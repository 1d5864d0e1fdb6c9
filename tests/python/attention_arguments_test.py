"""Arguments of fovea.Attention and the calls beside it that would be misread, wrap around or be ignored, and those at the edges
that are fine: arrays without elements, rows beyond the planned ones, NumPy's scalars."""

import numpy as np
import pytest

import fovea
import fovea.flashinfer as flashinfer
from attention_test import SHIFTED, attention_for, check
from exchange_test import Lent
from oracle import Batch

Q_LENS, KV_LENS = [2, 3], [20, 17]


@pytest.fixture
def batch():
    return Batch(Q_LENS, KV_LENS)


def masks(seed=5):
    rng = np.random.default_rng(seed)
    seen = [rng.random((q, kv)) < 0.5 for q, kv in zip(Q_LENS, KV_LENS)]
    flat = np.concatenate([rows.reshape(-1) for rows in seen])
    return seen, flat, np.packbits(flat, bitorder="little"), [0, seen[0].size]


def test_mask_bits_are_packed_bytes_in_one_piece(batch):
    seen, flat, packed, offsets = masks()
    attention = attention_for(batch)

    def plan(bits):
        attention.plan(Q_LENS, KV_LENS, batch.indices, batch.indptr, mask="bits", mask_bits=bits, mask_offsets=offsets)

    apart = np.zeros(2 * len(packed), np.uint8)
    apart[::2] = packed
    for match, bits in ((r"not contiguous, expected one dim", apart[::2]), ("not contiguous", packed[::-1]),
                        (rf"shape \(1, {len(packed)}\)", packed[None]),
                        (r'type bool, expected uint8.*numpy.packbits\(mask, bitorder="little"\)', flat),
                        ("type int8, expected uint8", packed.view(np.int8)), ("type float32", packed.astype(np.float32)),
                        ("no tensor", packed.tolist())):
        with pytest.raises(fovea.InvalidArgument, match=match):
            plan(bits)
    plan(apart[::2].copy())
    check(attention.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle(lambda r: seen[r]))


def test_no_number_wraps_around(batch):
    attention, lists, wide = attention_for(batch), (batch.indices, batch.indptr), (1 << 32) + 3
    for name, call in (
            ("window_left", lambda: attention.plan(Q_LENS, KV_LENS, *lists, mask="window", window_left=wide)),
            ("window_left", lambda: attention.plan_ragged(Q_LENS, KV_LENS, [0, 20], mask="window", window_left=wide)),
            ("num_rows", lambda: attention.plan_cascade(wide, [([0, 3], [20], batch.indices, [0])])),
            (r"variant_values\['factor'\]",
             lambda: attention_for(batch, variant=("Shifted", SHIFTED), variant_values={"factor": wide}))):
        with pytest.raises(fovea.InvalidArgument, match=f"{name} has {wide}, which is no integer of 32 bits"):
            call()
    with pytest.raises(fovea.InvalidArgument, match="window_left is None, expected an integer"):
        attention.plan(Q_LENS, KV_LENS, *lists, mask="window", window_left=None)


class WithoutMemory(Lent):
    """As torch lends tensors without elements."""

    def __init__(self, array):
        super().__init__(array)
        self.array = type("Array", (), dict(ctypes=type("Data", (), dict(data=None)), ndim=array.ndim, dtype=array.dtype,
                                            itemsize=array.itemsize))


@pytest.mark.parametrize("made", [np.asarray, WithoutMemory])
def test_arrays_without_elements(made):
    batch = Batch([1, 1], [0, 0])
    nothing = np.zeros(0, np.int32)
    attention = attention_for(batch, max_selected=2)
    for pages, indptr in ((nothing, [0, 0, 0]), (nothing, [0, 0]), (np.zeros((2, 0), np.int32), None)):
        attention.plan([1, 1], [0, 0], made(pages), indptr)
        out, lse = attention.run(batch.q, (batch.k, batch.v), return_lse=True)
        assert np.all(out == 0) and np.all(np.isneginf(lse))
        with pytest.raises(fovea.OutOfRange, match="request 1 has 100 tokens"):
            attention.plan([1, 1], [0, 100], made(pages), indptr)
    attention.plan([], [], made(np.zeros((0, 4), np.int32)))
    attention.plan_selected([], made(nothing), [], [], 0, list_tokens=made(nothing))


def test_operands_without_elements():
    batch = Batch([1], [0])
    attention = attention_for(batch)
    rows, sums = np.zeros((0, batch.kv_heads, batch.dim), np.float32), np.zeros((0, batch.kv_heads), np.float32)
    attention.plan_ragged([1], [0], [0])
    assert np.all(attention.run(batch.q, (rows, rows)) == 0)
    fovea.append_paged_kv(rows, rows, (batch.k, batch.v), slots=np.zeros(0, np.int32))
    for merged in (fovea.merge_state(rows, sums, rows, sums), fovea.merge_states(rows[:, None], sums[:, None])):
        assert merged[0].shape == rows.shape and merged[1].shape == sums.shape


def test_rows_beyond_the_planned_ones(batch, monkeypatch):
    attention, expected, kv = attention_for(batch), batch.oracle(), (batch.k, batch.v)
    attention.plan(Q_LENS, KV_LENS, batch.indices, batch.indptr)
    q = np.concatenate([batch.q, batch.q[:4]])
    empty = fovea._library.empty_like

    def full_of_sevens(*arguments):  # as memory that others used
        made = empty(*arguments)
        made[...] = 7
        return made

    monkeypatch.setattr(fovea._library, "empty_like", full_of_sevens)
    out, lse = attention.run(q, kv, return_lse=True)
    check((out[:5], lse[:5]), expected)
    assert np.all(out[5:] == 0) and np.all(np.isneginf(lse[5:]))
    out, lse = np.full_like(q, 7), np.full(q.shape[:2], 7, np.float32)
    attention.run(q, kv, out, lse=lse)
    check((out[:5], lse[:5]), expected)
    assert np.all(out[5:] == 7) and np.all(lse[5:] == 7)
    with pytest.raises(fovea.InvalidArgument, match=r"q is f32 \[4, .*expected f32 \[5,"):
        attention.run(q[:4], kv)


def test_merged_states_have_the_same_rows():
    v, lse = np.ones((3, 4, 32), np.float32), np.zeros((3, 4), np.float32)
    mask = np.ones(3, np.uint8)
    for name, call in (("v_b", lambda: fovea.merge_state(v[:2], lse[:2], v, lse[:2])),
                       ("v_b", lambda: fovea.merge_state(v, lse, v[:2], lse)),
                       ("lse_a", lambda: fovea.merge_state(v[:2], lse, v[:2], lse[:2])),
                       ("lse_b", lambda: fovea.merge_state(v[:2], lse[:2], v[:2], lse)),
                       ("mask", lambda: fovea.merge_state_in_place(v[:2], lse[:2], v[:2], lse[:2], mask)),
                       ("lse", lambda: fovea.merge_states(v[:2, None], lse[:, None]))):
        with pytest.raises(fovea.InvalidArgument, match=rf"{name} is .*\[[23]\b.*expected"):
            call()
    np.testing.assert_array_equal(v, 1)


@pytest.mark.parametrize("scale", [0, 0.0, np.float32(0), 1e-60])
def test_a_scale_of_0_is_not_the_default(batch, scale):
    selector = dict(num_qo_heads=4, num_kv_heads=2, head_dim=32, num_pages=4, policy="quest")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper()
    for call in (lambda: attention_for(batch, sm_scale=scale), lambda: fovea.PageSelector(sm_scale=scale, **selector),
                 lambda: wrapper.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last_page_len, 4, 2, 32, 8,
                                      q_data_type="float32", sm_scale=scale),
                 lambda: flashinfer.single_decode_with_kv_cache(batch.q[0], batch.keys[0], batch.values[0], sm_scale=scale)):
        with pytest.raises(fovea.InvalidArgument, match=r"sm_scale is .*expected another number, or None for 1/sqrt"):
            call()
    with pytest.raises(fovea.InvalidArgument, match="sm_scale is 'small', expected a number"):
        attention_for(batch, sm_scale="small")


def test_what_would_be_ignored_is_refused_by_name(batch):
    attention, lists = attention_for(batch, max_block_rows=8), (batch.indices, batch.indptr)
    _, _, packed, offsets = masks()
    pools, slots = (batch.k.copy(), batch.v.copy()), np.array([0, 1], np.int32)
    k = batch.keys[0][:2]
    selector = fovea.PageSelector(num_qo_heads=4, num_kv_heads=2, head_dim=32, num_pages=8, policy="quest", q_dtype="f32")
    paged = tuple(np.zeros((8, 16, 2, 32), np.float32) for _ in "kv")
    for match, call in (
            ('window_left is given, and mask is "causal"', lambda: attention.plan(Q_LENS, KV_LENS, *lists, window_left=3)),
            ('window_left is given, and mask is "bits"',
             lambda: attention.plan_ragged(Q_LENS, KV_LENS, [0, 20], mask="bits", window_left=0, mask_bits=packed, mask_offsets=offsets)),
            ('mask_bits is given, and mask is "causal"', lambda: attention.plan(Q_LENS, KV_LENS, *lists, mask_bits=packed)),
            ('mask_offsets is given, and mask is "none"',
             lambda: attention.plan(Q_LENS, KV_LENS, *lists, mask="none", mask_offsets=offsets)),
            ("slots and batch_indices are given",
             lambda: fovea.append_paged_kv(k, k, pools, slots=slots, batch_indices=slots, positions=slots)),
            ("slots and page_indptr are given", lambda: fovea.append_paged_kv(k, k, pools, slots=slots, page_indptr=batch.indptr)),
            ("slots and positions are given", lambda: selector.append(k, paged, slots=slots, positions=slots)),
            (r"variant_values are given \(factor\), and no variant", lambda: attention_for(batch, variant_values={"factor": 1}))):
        with pytest.raises(fovea.InvalidArgument, match=match):
            call()
    np.testing.assert_array_equal(pools[0], batch.k)


@pytest.mark.parametrize("factor, twice", [(np.float32(0.5), np.int64(2)), (np.float64(0.5), np.uint8(2))])
def test_values_of_a_variant(batch, factor, twice):
    values = {"factor": factor, "twice": twice, "table": np.full(batch.heads, 0.25, np.float32)}
    attention = attention_for(batch, variant=("Shifted", SHIFTED), variant_values=values)
    attention.plan(Q_LENS, KV_LENS, batch.indices, batch.indptr)
    check(attention.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle(sm_scale=0.75 * batch.dim ** -0.5), 1e-4)
    for wrong in (None, "half", [0.5]):
        with pytest.raises(fovea.InvalidArgument, match=r"variant_values\['twice'\] is .*expected an int, a float, or a tensor"):
            attention_for(batch, variant=("Shifted", SHIFTED), variant_values={**values, "twice": wrong})
