"""What the arguments of FlashInfer's names do: each is followed or refused by its name, and no call keeps another's."""

import threading

import numpy as np
import pytest

import fovea
import fovea.flashinfer as flashinfer
from attention_test import check
from oracle import Batch


def decode(batch, **options):
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(None, batch.layout)
    plan_decode(wrapper, batch, **options)
    return wrapper


def plan_decode(wrapper, batch, **options):
    wrapper.plan(batch.indptr, batch.indices, batch.last_page_len, batch.heads, batch.kv_heads, batch.dim, batch.page,
                 **{"q_data_type": batch.q.dtype, **options})


def graph_decode(requests, entries):
    return flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
        None, np.zeros(requests + 1, np.int32), np.zeros(entries, np.int32), np.zeros(requests, np.int32))


def test_what_means_nothing_here_is_refused_by_name():
    batch = Batch([1, 1], [54, 33])
    kv = (batch.k, batch.v)
    for wrapper in (flashinfer.BatchDecodeWithPagedKVCacheWrapper, flashinfer.BatchPrefillWithPagedKVCacheWrapper):
        with pytest.raises(fovea.Unsupported, match="jit_args"):
            wrapper(None, jit_args=["name"])
    with pytest.raises(fovea.Unsupported, match="jit_kwargs"):
        flashinfer.BatchPrefillWithPagedKVCacheWrapper(None, jit_kwargs={})
    with pytest.raises(fovea.Unsupported, match="o_data_type is float16"):
        decode(batch, o_data_type="float16")
    planned = decode(batch, o_data_type="float32", window_left=5)
    for match, options in (("window_left is 3 in run", dict(window_left=3)), ("q_len_per_req is 2 in run", dict(q_len_per_req=2)),
                           ("q_scale is a tensor", dict(q_scale=np.ones(1, np.float32)))):
        with pytest.raises(fovea.Unsupported, match=match):
            planned.run(batch.q, kv, **options)
    with pytest.raises(fovea.Unsupported, match="args is not supported"):
        planned.run(batch.q, kv, np.ones(4, np.float32))
    with pytest.raises(fovea.InvalidArgument, match="one of k_scale and v_scale is a tensor"):
        planned.run(batch.q, kv, k_scale=np.ones(2, np.float32), v_scale=2.0)
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(None)
    for name in ("prefix_len_ptr", "token_pos_in_items_ptr", "max_item_len_ptr"):
        with pytest.raises(fovea.Unsupported, match=name):
            prefill.plan(batch.qo_indptr, batch.indptr, batch.indices, batch.last_page_len, batch.heads, batch.kv_heads,
                         batch.dim, batch.page, q_data_type="float32", **{name: np.zeros(2, np.int32)})


def test_what_no_kernel_computes_is_refused_by_name():
    batch, q = Batch([1, 1], [54, 33]), np.ones((1, 4, 32), np.float32)
    k = np.ones((8, 2, 32), np.float32)
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(None)
    ragged = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(None)
    plans = {
        "decode": lambda **options: plan_decode(flashinfer.BatchDecodeWithPagedKVCacheWrapper(None), batch, **options),
        "prefill": lambda head_dim=32, **options: prefill.plan(
            batch.qo_indptr, batch.indptr, batch.indices, batch.last_page_len, 4, 2, head_dim, batch.page,
            **{"q_data_type": "float32", **options}),
        "ragged": lambda head_dim=32, **options: ragged.plan(
            np.array([0, 3], np.int32), np.array([0, 5], np.int32), 4, 2, head_dim, **{"q_data_type": "float32", **options}),
    }
    singles = (lambda **options: flashinfer.single_decode_with_kv_cache(q[0], k, k, **options),
               lambda **options: flashinfer.single_prefill_with_kv_cache(q, k, k, **options))
    for call in (*plans.values(), *singles):
        for encoding in ("ROPE_LLAMA", "ALIBI"):
            with pytest.raises(fovea.Unsupported, match=f"pos_encoding_mode is '{encoding}'"):
                call(pos_encoding_mode=encoding)
    for name in ("prefill", "ragged"):
        with pytest.raises(fovea.Unsupported, match="head_dim_vo is 64, expected 32"):
            plans[name](head_dim_vo=64)
        with pytest.raises(fovea.Unsupported, match="head_dim is 512"):
            plans[name](head_dim=512)
    for plan in plans.values():
        with pytest.raises(fovea.InvalidArgument, match="float8_e5m2"):
            plan(kv_data_type="float8_e5m2")
        with pytest.raises(fovea.Unsupported, match="fp8"):
            plan(q_data_type="float8_e4m3fn")
    with pytest.raises(fovea.Unsupported, match="o_dtype is float16"):
        singles[1](o_dtype="float16")


@pytest.mark.parametrize("options", [dict(disable_split_kv=True), dict(fixed_split_size=2048)])
def test_splits_that_are_fixed_give_a_request_the_same_bits_in_any_batch(options):
    long, others = [3000], [700, 1, 64, 1500, 9]
    batch = Batch([1] * 6, long + others, heads=4, page=16)
    alone = decode(batch, **options)
    plan = lambda wrapper, n: wrapper.plan(batch.indptr[:n + 1], batch.indices, batch.last_page_len[:n], batch.heads,
                                           batch.kv_heads, batch.dim, batch.page, q_data_type="float32", **options)
    kv = (batch.k, batch.v)
    together = alone.run(batch.q, kv)
    plan(alone, 1)
    np.testing.assert_array_equal(alone.run(batch.q[:1], kv)[0], together[0])


def test_no_run_keeps_the_scales_of_another():
    batch = Batch([1, 1, 1], [54, 33, 8])
    kv, scale, sinks = (batch.k, batch.v), batch.dim ** -0.5, np.linspace(-1, 2, batch.heads, dtype=np.float32)
    graphed = graph_decode(3, 64)
    plan_decode(graphed, batch)
    for wrapper in (decode(batch), graphed):
        for _ in range(2):
            out, lse = wrapper.run(batch.q, kv, k_scale=0.5, v_scale=2.0, return_lse=True)
            expected = batch.oracle(sm_scale=scale * 0.5)
            check((out, lse), (expected[0] * 2, expected[1]))
            check(wrapper.run(batch.q, kv, return_lse=True), batch.oracle())
            for each in (sinks, sinks + 1):
                check(wrapper.run(batch.q, kv, sinks=each, return_lse=True), batch.oracle(sinks=each))
            check(wrapper.run(batch.q, kv, q_scale=0.0, return_lse=True), batch.oracle(sm_scale=0.0))
        other = Batch([1, 1, 1], [20, 33, 40], seed=4)  # both kinds follow the next plan
        plan_decode(wrapper, other)
        check(wrapper.run(other.q, (other.k, other.v), sinks=sinks, return_lse=True), other.oracle(sinks=sinks))
        check(wrapper.run(other.q, (other.k, other.v), return_lse=True), other.oracle())


def test_a_refused_plan_of_a_graph_leaves_nothing_to_run():
    batch = Batch([1, 1, 1], [54, 33, 8])
    wrapper = graph_decode(3, 64)
    plan_decode(wrapper, batch)
    with pytest.raises(fovea.OutOfRange, match="keeps its settings"):
        plan_decode(wrapper, batch, logits_soft_cap=3.0)
    for _ in range(2):
        with pytest.raises(fovea.OutOfRange, match="keeps its settings"):
            wrapper.run(batch.q, (batch.k, batch.v))
    plan_decode(wrapper, batch)
    check(wrapper.run(batch.q, (batch.k, batch.v), return_lse=True), batch.oracle())


def test_objects_of_single_calls_are_few_and_of_one_thread(monkeypatch):
    monkeypatch.setattr(flashinfer, "_singles", {})
    q = np.ones((4, 32), np.float32)
    k = np.ones((64, 2, 32), np.float32)
    flashinfer.single_decode_with_kv_cache(q, k, k)
    one = flashinfer._singles.copy()
    thread = threading.Thread(target=lambda: flashinfer.single_decode_with_kv_cache(q, k, k))
    thread.start()
    thread.join()
    assert len(one) == 1 and len(flashinfer._singles) == 2
    flashinfer.single_decode_with_kv_cache(q, k, k)
    assert len(flashinfer._singles) == 2 and list(flashinfer._singles)[-1] == list(one)[0]
    flashinfer.single_decode_with_kv_cache(q, k, k, q_scale=2.0, sm_scale=None)
    assert len(flashinfer._singles) == 2  # scales make no object
    size = list(one.values())[0].workspace_bytes()
    monkeypatch.setattr(flashinfer, "_SINGLES_BYTES", 3 * size)
    for tokens in (1, 64, 300, 1000, 2000, 5000):
        keys = np.ones((tokens, 2, 32), np.float32)
        flashinfer.single_decode_with_kv_cache(q, keys, keys)
        assert sum(a.workspace_bytes() for a in list(flashinfer._singles.values())[:-1]) <= 3 * size
    assert len(flashinfer._singles) <= 4
