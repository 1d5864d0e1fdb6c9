"""fovea.PageSelector on numpy arrays: lists of pages, attention over them, what is remembered, and what callers get wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

import fovea
from oracle import Batch, attend

NEEDLE = Path(__file__).resolve().parents[2] / "models" / "needle" / "key_sketch.json"


class Case:
    """Requests of these lengths with a selector; keys of request r are case.batch.keys[r]."""

    def __init__(self, kv_lens, *, policy="fovea", seed=0, **options):
        self.batch = Batch([1] * len(kv_lens), kv_lens, dim=32, page=16, seed=seed)
        b = self.batch
        codes = fovea.learn_key_codes(np.concatenate(b.keys), b.q)
        shape = dict(num_qo_heads=b.heads, num_kv_heads=b.kv_heads, head_dim=b.dim)
        self.selector = fovea.PageSelector(
            **shape, q_dtype="f32", num_pages=len(b.k), key_codes=[codes] if policy == "fovea" else None, policy=policy,
            max_requests=len(kv_lens), max_pages_per_request=64, **{"budget_tokens": 256, **options})
        self.attention = fovea.Attention(**shape, q_dtype="f32", max_requests=len(kv_lens), max_selected=len(kv_lens),
                                         max_pages_per_request=64)
        self.lens = np.array(kv_lens, np.int32)
        self.arrays = self.selector.allocate(b.q)
        self.table, self.lists, self.list_tokens = self.arrays
        for r in range(len(kv_lens)):
            own = b.indices[b.indptr[r]:b.indptr[r + 1]]
            self.table[r, :len(own)] = own
            self.append(r, range(kv_lens[r]))

    def append(self, request, tokens):
        b, rows = self.batch, len(tokens)
        keys = np.ascontiguousarray(b.keys[request][list(tokens)])
        self.selector.append(keys, (b.k, b.v), batch_indices=np.full(rows, request, np.int32),
                             positions=np.array(tokens, np.int32), page_indices=b.indices, page_indptr=b.indptr)

    def select(self, **options):
        self.lists[...] = -1
        self.selector.select(self.batch.q, self.lens, *self.arrays, **options)

    def units(self, request, head):
        """Places in the request's page table of what its list names."""
        count = -(-self.list_tokens[request] // 16)
        table = list(self.table[request, :-(-self.lens[request] // 16)])
        return [table.index(page) for page in self.lists[request, head, :count]]


@pytest.mark.parametrize("policy", ["fovea", "fovea-local", "quest", "quest-f8", "mean-dev"])
def test_attention_over_lists(policy):
    case = Case([700, 256, 33, 555], policy=policy)
    b = case.batch
    case.select()
    case.selector.plan(case.attention, case.lens, *case.arrays)
    out = case.attention.run(b.q, (b.k, b.v))
    for r, tokens in enumerate(b.kv_lens):
        for h in range(b.heads):
            units = case.units(r, h // 2)
            assert units == sorted(set(units)) and len(units) == min(-(-tokens // 16), 16)
            assert units[0] == 0 and units[-1] == (tokens - 1) // 16
            seen = np.concatenate([np.arange(16 * u, min(16 * u + 16, tokens)) for u in units])
            assert case.list_tokens[r] == len(seen)
            expected, _ = attend(b.q[r:r + 1, h], b.keys[r][seen, h // 2], b.values[r][seen, h // 2],
                                 np.ones((1, len(seen)), bool), b.dim ** -0.5)
            np.testing.assert_allclose(out[r, h], expected[0], atol=2e-5)


def test_up_to_the_budget_it_is_dense_attention():
    case = Case([256, 100, 1])
    b = case.batch
    case.select()
    case.selector.plan(case.attention, case.lens, *case.arrays)
    out = case.attention.run(b.q, (b.k, b.v))
    case.attention.plan([1] * 3, case.lens, case.table)
    np.testing.assert_array_equal(out, case.attention.run(b.q, (b.k, b.v)))


def test_a_step_without_requests():
    case = Case([300])
    b = case.batch
    case.selector.select(b.q[:0], case.lens[:0], *case.arrays)
    case.selector.plan(case.attention, [], *case.arrays)
    assert case.attention.run(b.q[:0], (b.k, b.v)).shape == (0, 4, 32)


def test_a_share_of_what_is_seen():
    case = Case([1000, 600, 300], budget_tokens=512, budget_divisor=2)
    case.select()
    assert [len(case.units(r, 0)) for r in range(3)] == [31, 18, 16]
    case.selector.plan(case.attention, case.lens, *case.arrays)
    case.attention.run(case.batch.q, (case.batch.k, case.batch.v))
    assert case.attention.stats()["kv_bytes"] == 2 * 2 * 32 * 4 * int(sum(case.list_tokens))


def test_what_is_remembered():
    case = Case([930, 941], interval=100, candidate_factor=2)
    fresh = Case([930, 941])
    for c in (case, fresh):
        c.lens -= 1
        c.select()
    np.testing.assert_array_equal(case.lists, fresh.lists)
    case.batch.q[...] *= -1  # pages that no candidate is
    fresh.batch.q[...] *= -1
    for c in (case, fresh):
        c.lens += 1
        c.select()
    assert all((case.lists[r] != fresh.lists[r]).any() for r in range(2))
    case.selector.forget(1, 2)
    before = case.lists.copy()
    case.select()
    np.testing.assert_array_equal(case.lists[0], before[0])
    np.testing.assert_array_equal(case.lists[1], fresh.lists[1])
    case.selector.forget()
    case.select()
    np.testing.assert_array_equal(case.lists, fresh.lists)
    again = Case([930, 941], interval=100)
    again.batch.q[...] *= -1
    again.select(phases=np.array([0, 7], np.int32))
    np.testing.assert_array_equal(again.lists, fresh.lists)


def test_copied_pages_keep_their_statistics():
    case = Case([900])
    case.select()
    chosen = case.units(0, 0)
    best = int((case.batch.keys[0][:, 0] @ case.batch.q[0, :2].T).max(axis=1).argmax()) // 16
    assert best in chosen
    worst = next(u for u in range(1, 56) if u not in chosen + case.units(0, 1))
    case.selector.copy_page(int(case.table[0, best]), int(case.table[0, worst]))
    case.select()
    assert worst in case.units(0, 0)
    assert case.selector.bytes_per_page() == 2 * 256
    assert case.selector.workspace_bytes() >= 256 * 2 * len(case.batch.k)


def test_key_codes_of_a_model():
    layers = json.loads(NEEDLE.read_text())["layers"]
    heads = len(layers[0])
    selector = fovea.PageSelector(num_qo_heads=2 * heads, num_kv_heads=heads, head_dim=128, num_pages=4, key_codes=layers,
                                  num_layers=len(layers))
    assert selector.bytes_per_page() == 256 * heads
    keys = np.random.default_rng(0).standard_normal((300, 1, 64)) * np.where(np.arange(64) % 2, 3, 1)
    code, = fovea.learn_key_codes(keys.astype(np.float32))
    assert sorted(code["channels"]) == list(range(1, 64, 2))
    np.testing.assert_allclose(code["step"], 0.335 * keys.std(0)[0, code["channels"]], rtol=1e-4)


def test_a_refused_plan_leaves_the_one_before():
    case = Case([300])
    b = case.batch
    case.attention.plan([1], case.lens, [[int(page) for page in case.table[0, :19]]])  # a list that only the plan keeps
    out = case.attention.run(b.q, (b.k, b.v))
    with pytest.raises(fovea.InvalidArgument, match="lists is"):
        case.selector.plan(case.attention, case.lens, case.table, case.lists[:, :, :3], case.list_tokens)
    kept = case.attention._lent[0][-1]
    assert list(kept) == list(case.table[0, :19])
    np.testing.assert_array_equal(case.attention.run(b.q, (b.k, b.v)), out)
    lent = case.attention._lent  # replays of graphs may read it whatever the library refuses
    for plan in (lambda: case.attention.plan([1], [10**6], case.table), lambda: case.attention.plan_cascade(
            1, [([0, 1], [10**6], [0], [0])]), lambda: case.attention.plan_selected([10**6], case.table[0], [0], [-1], 0)):
        with pytest.raises(fovea.OutOfRange):
            plan()
    assert case.attention._lent is lent


def test_errors():
    case = Case([300])
    b, arrays = case.batch, case.arrays

    def made(**options):
        shape = dict(num_qo_heads=4, num_kv_heads=2, head_dim=32, num_pages=4, policy="quest")
        return fovea.PageSelector(**{**shape, **options})

    code = {"channels": list(range(32)), "mean": [0.0] * 32, "step": [1.0] * 32}
    odd = made(num_pages=9)
    for error, match, call in (
            (fovea.InvalidArgument, "0 key_codes, expected 2", lambda: made(policy="fovea")),
            (fovea.InvalidArgument, "expected a text without NUL", lambda: made(policy="quest\0x")),
            (fovea.InvalidArgument, "device is 'cpu.+NUL", lambda: fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=32, device="cpu\0x")),
            (fovea.InvalidArgument, r"key_codes=\[codes\]", lambda: made(policy="fovea", key_codes=[code, code])),
            (fovea.InvalidArgument, "attention is a NoneType", lambda: case.selector.plan(None, [300], *arrays)),
            (fovea.InvalidArgument, "no list of lists", lambda: made(policy="fovea", key_codes=5)),
            (fovea.InvalidArgument, "31 step, expected 32",
             lambda: made(policy="fovea", key_codes=[[code, {**code, "step": [1.0] * 31}]])),
            (fovea.InvalidArgument, "channels of head 0",
             lambda: made(policy="fovea", key_codes=[[{**code, "channels": [300] * 32}]])),
            (fovea.InvalidArgument, "channel 32",
             lambda: made(policy="fovea", key_codes=[[{**code, "channels": [32] * 32}] * 2])),
            (fovea.Unsupported, "lserve", lambda: made(policy="lserve")),
            (fovea.InvalidArgument, "budget_tokens is 100", lambda: made(budget_tokens=100)),
            (fovea.InvalidArgument, "budget_divisor is 1", lambda: made(budget_divisor=1)),
            (fovea.InvalidArgument, "num_pages is None", lambda: made(num_pages=None)),
            (fovea.OutOfRange, "num_pages is 0", lambda: made(num_pages=0)),
            (fovea.InvalidArgument, "keys is None", lambda: fovea.learn_key_codes(None)),
            (fovea.InvalidArgument, "head_dim 32 to 256", lambda: fovea.learn_key_codes(np.zeros((4, 2, 16), np.float32))),
            (fovea.InvalidArgument, "k is NULL", lambda: case.selector.append(None, slots=np.zeros(1, np.int32))),
            (fovea.InvalidArgument, r"slots is i32 \[1\]",
             lambda: case.selector.append(b.keys[0], slots=np.zeros(1, np.int32))),
            (fovea.OutOfRange, "lies outside",
             lambda: case.selector.append(b.keys[0][:1], slots=np.full(1, 9999, np.int32))),
            (fovea.OutOfRange, "layer 1", lambda: case.select(layer=1)),
            (fovea.InvalidArgument, "num_pages = 9", lambda: odd.append(b.keys[0], (b.k, b.v), slots=np.zeros(300, np.int32))),
            (fovea.InvalidArgument, "kv is missing", lambda: odd.append(b.keys[0], slots=np.zeros(300, np.int32))),
            (fovea.InvalidArgument, "q is NULL", lambda: case.selector.select(None, case.lens, *arrays)),
            (fovea.InvalidArgument, "kv_lens is", lambda: case.selector.select(b.q, None, *arrays)),
            (fovea.InvalidArgument, "lists is NULL", lambda: case.selector.select(b.q, case.lens, arrays[0], None, arrays[2])),
            (fovea.InvalidArgument, "kv_lens is i64", lambda: case.selector.select(b.q, case.lens.astype(np.int64), *arrays)),
            (fovea.OutOfRange, "page 0 of request 0 is -7",
             lambda: case.selector.select(b.q, case.lens, np.full((1, 64), -7, np.int32), *arrays[1:])),
            (fovea.InvalidArgument, "kv_lens is None", lambda: case.selector.plan(case.attention, None, *arrays)),
            (fovea.OutOfRange, "raise max_requests", lambda: case.selector.plan(case.attention, [300, 300], *arrays)),
            (fovea.OutOfRange, r"rows \[0, 2\)", lambda: case.selector.forget(0, 2)),
            (fovea.OutOfRange, "expected pages below", lambda: case.selector.copy_page(0, 10**6))):
        with pytest.raises(error, match=match):
            call()
