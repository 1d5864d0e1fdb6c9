"""The Python package on a CUDA device with PyTorch: against the definition, in graphs, on streams, and what callers get wrong.

Run by `make gpu-test` on a machine with a GPU and PyTorch; skips itself elsewhere.
"""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no CUDA device", allow_module_level=True)

import fovea
import fovea.flashinfer as flashinfer
from oracle import Batch, attend, causal

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
# Twice the rounding of outputs of about 1 to the type.
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


class TorchBatch(Batch):
    """A batch whose values are those of a 16-bit type, with its tensors on the device."""

    def __init__(self, q_lens, kv_lens, *, dtype="bf16", **shape):
        super().__init__(q_lens, kv_lens, **shape)
        self.type = DTYPES[dtype]
        self.q, self.k, self.v = (self._rounded(x) for x in (self.q, self.k, self.v))
        self.keys, self.values = ([self._rounded(x) for x in xs] for xs in (self.keys, self.values))
        self.cq, self.ck, self.cv = (torch.tensor(x, dtype=self.type, device="cuda") for x in (self.q, self.k, self.v))
        self.cindices = torch.tensor(self.indices, device="cuda")

    def _rounded(self, x):
        return torch.tensor(x).to(self.type).to(torch.float32).numpy()

    def attention(self, **options):
        options = {"max_requests": max(len(self.q_lens), 1), "max_rows": max(sum(self.q_lens), 1), **options}
        return fovea.Attention(num_qo_heads=self.heads, num_kv_heads=self.kv_heads, head_dim=self.dim, page_tokens=self.page,
                               q_dtype=self.type, device="cuda", **options)

    def check(self, out, lse=None, **variant):
        expected, expected_lse = self.oracle(**variant)
        np.testing.assert_allclose(out.float().cpu().numpy(), expected, atol=TOLERANCE[self.type], rtol=TOLERANCE[self.type])
        if lse is not None:
            np.testing.assert_allclose(lse.cpu().numpy(), expected_lse, atol=5e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("page", [1, 5, 16, 64])
@pytest.mark.parametrize("dim", [64, 128])
def test_decode(dtype, layout, page, dim):
    batch = TorchBatch([1] * 6, [1, 15, 16, 17, 300, 1030], dtype=dtype, layout=layout, page=page, dim=dim, heads=8)
    attention = batch.attention()
    for lists in (batch.indices, batch.cindices):
        attention.plan(batch.q_lens, batch.kv_lens, lists, batch.indptr)
        batch.check(*attention.run(batch.cq, (batch.ck, batch.cv), kv_layout=layout, return_lse=True))


@pytest.mark.parametrize("q_len", [1, 2, 7, 16, 63, 128, 129, 300])
def test_any_query_length(q_len):
    batch = TorchBatch([q_len, 1, q_len], [q_len, 70, q_len + 200], page=16, dim=64, heads=6)
    attention = batch.attention()
    attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    batch.check(*attention.run(batch.cq, (batch.ck, batch.cv), return_lse=True))


@pytest.mark.parametrize("mask", ["none", "window", "bits"])
def test_masks(mask):
    q_lens, kv_lens = [1, 20, 3], [40, 300, 64]
    batch = TorchBatch(q_lens, kv_lens, dim=64)
    rng = np.random.default_rng(1)
    bits = [rng.random((q, kv)) < 0.5 for q, kv in zip(q_lens, kv_lens)]
    packed = [np.packbits(b.reshape(-1), bitorder="little") for b in bits]
    sees = {"none": lambda r: np.ones((q_lens[r], kv_lens[r]), bool), "window": lambda r: causal(q_lens[r], kv_lens[r], 33),
            "bits": lambda r: bits[r]}[mask]
    options = {"none": {}, "window": {"window_left": 33}, "bits": {
        "mask_bits": np.concatenate(packed), "mask_offsets": np.cumsum([0] + [8 * len(p) for p in packed])}}[mask]
    attention = batch.attention()
    attention.plan(q_lens, kv_lens, batch.cindices, batch.indptr, mask=mask, **options)
    batch.check(*attention.run(batch.cq, (batch.ck, batch.cv), return_lse=True), sees=sees)


def test_variants():
    batch = TorchBatch([1, 4], [300, 17], dim=64)
    sinks = np.linspace(-1, 2, batch.heads).astype(np.float32)
    for options, variant in (({"softcap": 3.0}, {"softcap": 3.0}),
                             ({"sinks": torch.tensor(sinks, device="cuda")}, {"sinks": sinks})):
        attention = batch.attention(**options)
        attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
        batch.check(*attention.run(batch.cq, (batch.ck, batch.cv), return_lse=True), **variant)


def random_batches(count, requests, most_tokens, **shape):
    """Batches of the same number of requests, with other lengths and pages each."""
    rng = np.random.default_rng(7)
    for seed in range(count):
        yield TorchBatch([1] * requests, rng.integers(1, most_tokens, requests).tolist(), seed=seed, **shape)


def test_graph_replay_across_plans_equals_eager():
    batches = list(random_batches(50, 8, 700, dim=64, page=16))
    pages = max(len(b.k) for b in batches)
    q, out = torch.zeros_like(batches[0].cq), torch.zeros_like(batches[0].cq)
    lse = torch.zeros(q.shape[:2], device="cuda")
    k, v = (torch.zeros((pages, *batches[0].ck.shape[1:]), dtype=q.dtype, device="cuda") for _ in range(2))
    indices = torch.zeros(8 * 64, dtype=torch.int32, device="cuda")
    replayed, eager = batches[0].attention(), batches[0].attention()

    def load(batch):
        q.copy_(batch.cq)
        k[:len(batch.ck)].copy_(batch.ck)
        v[:len(batch.cv)].copy_(batch.cv)
        indices[:len(batch.cindices)].copy_(batch.cindices)

    load(batches[0])
    replayed.plan(batches[0].q_lens, batches[0].kv_lens, indices, batches[0].indptr)
    replayed.run(q, (k, v), out, lse=lse)  # warm
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed.run(q, (k, v), out, lse=lse)
    for batch in batches:
        load(batch)
        replayed.plan(batch.q_lens, batch.kv_lens, indices, batch.indptr)
        out.fill_(float("nan"))
        graph.replay()
        eager.plan(batch.q_lens, batch.kv_lens, indices, batch.indptr)
        expected, expected_lse = eager.run(q, (k, v), return_lse=True)
        assert torch.equal(out, expected) and torch.equal(lse, expected_lse)
        batch.check(out, lse)


def test_plans_while_replays_are_in_flight():
    """Many plans and replays enqueued without waiting: each replay sees the plan before it in the stream."""
    batch = TorchBatch([1] * 16, [3000] * 16, dim=128, page=16, heads=8)
    replayed, alone = batch.attention(), batch.attention()
    kv, out = (batch.ck, batch.cv), torch.zeros_like(batch.cq)
    replayed.plan(batch.q_lens, batch.kv_lens, batch.indices, batch.indptr)
    replayed.run(batch.cq, kv, out)  # warm
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed.run(batch.cq, kv, out)
    torch.cuda.synchronize()
    blocker = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
    for _ in range(20):
        blocker.add_(1)  # keeps the device busy while the plans are enqueued
    rng, lengths, outs = np.random.default_rng(3), [], []
    for _ in range(40):
        lengths.append(rng.integers(1, 3000, 16).tolist())
        replayed.plan(batch.q_lens, lengths[-1], batch.indices, batch.indptr)
        graph.replay()
        outs.append(out.clone())
    torch.cuda.synchronize()
    for lens, seen in zip(lengths, outs):
        alone.plan(batch.q_lens, lens, batch.indices, batch.indptr)
        assert torch.equal(seen, alone.run(batch.cq, kv))


def test_page_lists_stay_where_a_graph_reads_them():
    batch = TorchBatch([1] * 4, [900, 30, 500, 64], dim=64)
    attention, out = batch.attention(), torch.zeros_like(batch.cq)
    attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    attention.run(batch.cq, (batch.ck, batch.cv), out)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        attention.run(batch.cq, (batch.ck, batch.cv), out)
    for elsewhere in (batch.indices, batch.cindices.clone()):
        with pytest.raises(fovea.InvalidArgument, match="a graph captured run"):
            attention.plan(batch.q_lens, batch.kv_lens, elsewhere, batch.indptr)
    attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    batch.check(attention.run(batch.cq, (batch.ck, batch.cv)))


def test_same_input_same_bits():
    batch = TorchBatch([1] * 8, [3000, 1, 64, 500, 70, 2000, 33, 1500], dim=128, heads=8, page=16)
    attention = batch.attention()
    attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    expected = attention.run(batch.cq, (batch.ck, batch.cv))
    for _ in range(100):
        attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
        assert torch.equal(attention.run(batch.cq, (batch.ck, batch.cv)), expected)


def test_runs_on_the_callers_stream():
    batch = TorchBatch([1] * 4, [900, 30, 500, 64], dim=64)
    attention = batch.attention()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        q = torch.zeros_like(batch.cq)
        for _ in range(10):
            q.add_(0)
        q.copy_(batch.cq)  # must be seen: ordered by this stream alone
        attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
        out = attention.run(q, (batch.ck, batch.cv))
    stream.synchronize()
    batch.check(out)
    attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr, stream=stream.cuda_stream)
    other = attention.run(batch.cq, (batch.ck, batch.cv), stream=stream.cuda_stream)
    stream.synchronize()
    assert torch.equal(out, other)


def test_grow_equals_a_new_plan():
    batch = TorchBatch([1] * 5, [900, 30, 500, 64, 65], dim=64)
    grown, planned = batch.attention(), batch.attention()
    grown.plan(batch.q_lens, [n - n // 3 for n in batch.kv_lens], batch.cindices, batch.indptr)
    grown.grow(batch.kv_lens)
    planned.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    out = grown.run(batch.cq, (batch.ck, batch.cv))
    assert torch.equal(out, planned.run(batch.cq, (batch.ck, batch.cv)))
    batch.check(out)


def test_growing_on_the_device_equals_growing_on_the_host():
    batch = TorchBatch([1] * 5, [900, 30, 500, 64, 65], dim=64)
    lens = torch.tensor([n - n // 3 for n in batch.kv_lens], dtype=torch.int32, device="cuda")
    grown, planned = batch.attention(share_prefixes=False), batch.attention(share_prefixes=False)
    grown.plan(batch.q_lens, lens, batch.cindices, batch.indptr)
    out = torch.empty_like(batch.cq)
    grown.run(batch.cq, (batch.ck, batch.cv), out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grown.grow_on_device(lens)
        grown.run(batch.cq, (batch.ck, batch.cv), out)
    for step in range(45):
        lens.copy_(torch.minimum(lens + 7, torch.tensor(batch.kv_lens, device="cuda")))
        graph.replay()
        planned.plan(batch.q_lens, lens, batch.cindices, batch.indptr)
        assert torch.equal(out, planned.run(batch.cq, (batch.ck, batch.cv))), step
    batch.check(out)


def test_the_last_device_too():
    index = torch.cuda.device_count() - 1
    batch = TorchBatch([1, 1], [300, 17], dim=64)
    attention = fovea.Attention(num_qo_heads=batch.heads, num_kv_heads=batch.kv_heads, head_dim=64, page_tokens=batch.page,
                                q_dtype="bf16", device=f"cuda:{index}")
    q, k, v, indices = (x.to(f"cuda:{index}") for x in (batch.cq, batch.ck, batch.cv, batch.cindices))
    attention.plan(batch.q_lens, batch.kv_lens, indices, batch.indptr)
    batch.check(attention.run(q, (k, v)))


def test_append_and_merge():
    batch = TorchBatch([1, 1], [300, 17], layout="HND", dim=64, page=16)
    k, v = torch.full_like(batch.ck, float("nan")), torch.full_like(batch.cv, float("nan"))
    i32 = dict(dtype=torch.int32, device="cuda")
    indptr = torch.tensor(batch.indptr, device="cuda")
    for r, tokens in enumerate(batch.kv_lens):
        keys, values = (torch.tensor(x[r], dtype=batch.type, device="cuda") for x in (batch.keys, batch.values))
        fovea.append_paged_kv(keys, values, (k, v), batch_indices=torch.full((tokens,), r, **i32),
                              positions=torch.arange(tokens, **i32), page_indices=batch.cindices, page_indptr=indptr,
                              kv_layout="HND")
    assert torch.equal(k.nan_to_num(9), batch.ck.nan_to_num(9)) and torch.equal(v.nan_to_num(9), batch.cv.nan_to_num(9))
    states = torch.randn(7, 3, 4, 64, device="cuda", dtype=batch.type)
    lse = torch.randn(7, 3, 4, device="cuda")
    out, out_lse = fovea.merge_states(states, lse)
    weights = torch.exp2(lse.double() - torch.logsumexp(lse.double() * np.log(2), 1, keepdim=True) / np.log(2))
    torch.testing.assert_close(out.double(), (states.double() * weights[..., None]).sum(1), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(out_lse.double(), torch.logsumexp(lse.double() * np.log(2), 1) / np.log(2), atol=1e-4, rtol=0)
    pair = fovea.merge_state(states[:, 0].contiguous(), lse[:, 0].contiguous(), states[:, 1].contiguous(),
                             lse[:, 1].contiguous())
    both = fovea.merge_states(states[:, :2].contiguous(), lse[:, :2].contiguous())
    assert torch.equal(pair[0], both[0])
    kept = states[:, 0].contiguous(), lse[:, 0].contiguous()
    fovea.merge_state_in_place(*kept, states[:, 1].contiguous(), lse[:, 1].contiguous(),
                               mask=torch.tensor([True, False] * 3 + [True], device="cuda"))
    assert torch.equal(kept[0][1], states[1, 0]) and torch.equal(kept[0][0], pair[0][0])


def test_flashinfer_wrappers():
    batch = TorchBatch([1] * 4, [900, 30, 500, 64], dim=64, heads=8, page=16, dtype="f16")
    workspace = torch.empty(1, dtype=torch.uint8, device="cuda")
    i = [torch.tensor(x, device="cuda") for x in (batch.indptr, batch.indices, batch.last_page_len)]
    kv = torch.stack([batch.ck, batch.cv], dim=1)
    shape = (batch.heads, batch.kv_heads, batch.dim, batch.page)
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    decode.plan(*i, *shape, q_data_type=torch.float16)
    batch.check(*decode.run(batch.cq, kv, return_lse=True))
    graphed = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
        workspace, torch.zeros(5, dtype=torch.int32, device="cuda"), torch.zeros(256, dtype=torch.int32, device="cuda"),
        torch.zeros(4, dtype=torch.int32, device="cuda"))
    graphed.plan(*i, *shape, q_data_type=torch.float16)
    out = torch.empty_like(batch.cq)
    graphed.run(batch.cq, kv, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed.run(batch.cq, kv, out=out)
    out.zero_()
    graph.replay()
    batch.check(out)
    prefill_batch = TorchBatch([5, 40, 1], [300, 40, 64], dim=64, heads=8, page=16, dtype="f16")
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    prefill.plan(*(torch.tensor(x, device="cuda") for x in (
        prefill_batch.qo_indptr, prefill_batch.indptr, prefill_batch.indices, prefill_batch.last_page_len)), *shape,
        causal=True, q_data_type=torch.float16)
    prefill_batch.check(*prefill.run(prefill_batch.cq, torch.stack([prefill_batch.ck, prefill_batch.cv], 1), return_lse=True))
    own, shared = TorchBatch([3, 1, 4], [9, 5, 4], dim=64, seed=1), TorchBatch([8], [24], dim=64, seed=2)
    cascade = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace, "NHD")
    levels = [(torch.tensor([0, 8]), shared), (torch.tensor(own.qo_indptr), own)]
    cascade.plan([qo for qo, _ in levels], [torch.tensor(b.indptr) for _, b in levels],
                 [shared.cindices + len(own.ck), own.cindices], [torch.tensor(b.last_page_len) for _, b in levels], own.heads,
                 own.kv_heads, 64, own.page, causal=True, q_data_type=torch.bfloat16)
    out = cascade.run(own.cq, (torch.cat([own.ck, shared.ck]), torch.cat([own.cv, shared.cv]))).float().cpu().numpy()
    for r, (q_len, kv_len) in enumerate(zip(own.q_lens, own.kv_lens)):
        rows = slice(own.qo_indptr[r], own.qo_indptr[r + 1])
        sees = np.concatenate([np.ones((q_len, 24), bool), causal(q_len, kv_len)], axis=1)
        for h in range(own.heads):
            kv_head = h * own.kv_heads // own.heads
            keys, values = (np.concatenate([a, b])[:, kv_head]
                            for a, b in ((shared.keys[0], own.keys[r]), (shared.values[0], own.values[r])))
            np.testing.assert_allclose(out[rows, h], attend(own.q[rows, h], keys, values, sees, 64 ** -0.5)[0], atol=2e-2)


def test_fp8_pools():
    batch = TorchBatch([1] * 3, [300, 30, 65], dim=128, heads=8, page=16)
    k8, v8 = batch.ck.nan_to_num(0).to(torch.float8_e4m3fn), batch.cv.nan_to_num(0).to(torch.float8_e4m3fn)
    for r, tokens in enumerate(batch.kv_lens):  # the oracle reads what is stored, scaled
        for t in range(tokens):
            batch.keys[r][t] = batch.at(k8.float().cpu().numpy(), r, t) * 0.5
            batch.values[r][t] = batch.at(v8.float().cpu().numpy(), r, t) * 2.0
    attention = batch.attention(kv_dtype="fp8_e4m3")
    attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    scales = [torch.full((batch.kv_heads,), s, device="cuda") for s in (0.5, 2.0)]
    out, lse = attention.run(batch.cq, (k8, v8), return_lse=True, k_scale=scales[0], v_scale=scales[1])
    expected, expected_lse = batch.oracle()
    np.testing.assert_allclose(out.float().cpu().numpy(), expected, atol=4e-2, rtol=2e-2)
    np.testing.assert_allclose(lse.cpu().numpy(), expected_lse, atol=2e-2, rtol=1e-3)


def test_host_lists_of_a_side_stream():
    """The plan goes to the stream that runs it, however busy the default stream is."""
    batch = TorchBatch([1] * 4, [900, 30, 500, 64], dim=64)
    attention, stream = batch.attention(), torch.cuda.Stream()
    blocker = torch.zeros(1 << 28, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    for _ in range(50):
        blocker.add_(1)
    with torch.cuda.stream(stream):
        attention.plan(batch.q_lens, batch.kv_lens, batch.indices, batch.indptr)
        out = attention.run(batch.cq, (batch.ck, batch.cv))
    stream.synchronize()
    batch.check(out)


def test_plans_are_for_the_kernel_that_a_graph_captured():
    few = TorchBatch([1] * 4, [900, 30, 500, 64], dim=64)
    attention, out = few.attention(max_rows=16), torch.zeros_like(few.cq)
    attention.plan(few.q_lens, few.kv_lens, few.cindices, few.indptr)
    attention.run(few.cq, (few.ck, few.cv), out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attention.run(few.cq, (few.ck, few.cv), out)
    with pytest.raises(fovea.OutOfRange, match="a plan of 8 rows"):
        attention.plan([2] * 4, few.kv_lens, few.cindices, few.indptr)
    attention.plan(few.q_lens[:3], few.kv_lens[:3], few.cindices, few.indptr[:4])
    out.zero_()
    graph.replay()
    expected = few.oracle()[0][:3]
    np.testing.assert_allclose(out[:3].float().cpu().numpy(), expected, atol=2e-2, rtol=2e-2)


def test_scales_and_sinks_of_a_graphs_wrapper():
    batch = TorchBatch([1] * 4, [900, 30, 500, 64], dim=64, heads=8, page=16)
    kv, scale = (batch.ck, batch.cv), 64 ** -0.5
    sinks = np.linspace(-1, 2, batch.heads).astype(np.float32)
    csinks = torch.tensor(sinks, device="cuda")
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
        torch.empty(1, dtype=torch.uint8, device="cuda"), torch.zeros(5, dtype=torch.int32, device="cuda"),
        torch.zeros(256, dtype=torch.int32, device="cuda"), torch.zeros(4, dtype=torch.int32, device="cuda"))
    host = [torch.tensor(x) for x in (batch.indptr, batch.indices, batch.last_page_len)]
    wrapper.plan(*host, batch.heads, batch.kv_heads, batch.dim, batch.page, q_data_type=torch.bfloat16)
    outs = [torch.empty_like(batch.cq) for _ in range(3)]
    runs = lambda: (wrapper.run(batch.cq, kv, out=outs[0], k_scale=0.5), wrapper.run(batch.cq, kv, out=outs[1]),
                    wrapper.run(batch.cq, kv, out=outs[2], sinks=csinks))
    runs()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        runs()
    for out in outs:
        out.zero_()
    graph.replay()
    batch.check(outs[0], sm_scale=scale * 0.5)
    batch.check(outs[1])
    batch.check(outs[2], sinks=sinks)


def test_errors():
    batch = TorchBatch([1, 4], [30, 17], dim=64)
    attention = batch.attention(max_page_entries=1000)
    with pytest.raises(fovea.InvalidArgument, match="call plan"):
        attention.run(batch.cq, (batch.ck, batch.cv))
    attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    with pytest.raises(fovea.InvalidArgument, match="on cpu, expected it on cuda:0"):
        attention.run(batch.cq.cpu(), (batch.ck, batch.cv), out=batch.cq)
    with pytest.raises(fovea.InvalidArgument, match="q is f16"):
        attention.run(batch.cq.half(), (batch.ck, batch.cv))
    misaligned = torch.empty(batch.cq.numel() + 8, dtype=batch.cq.dtype, device="cuda")[1:batch.cq.numel() + 1]
    with pytest.raises(fovea.InvalidArgument, match="16 bytes"):
        attention.run(misaligned.view(batch.cq.shape), (batch.ck, batch.cv))
    padded = torch.empty((*batch.ck.shape[:3], 68), dtype=batch.ck.dtype, device="cuda")[..., :64]
    with pytest.raises(fovea.InvalidArgument, match="16"):
        attention.run(batch.cq, (padded, padded))
    with pytest.raises(fovea.InvalidArgument, match="on the host"):
        attention.plan([1], [30], batch.cindices, batch.indptr, mask="bits", mask_offsets=[0],
                       mask_bits=torch.zeros(8, dtype=torch.uint8, device="cuda"))
    with pytest.raises(fovea.Unsupported, match="f32"):
        fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=64, q_dtype="f32", device="cuda")
    with pytest.raises(fovea.Unavailable, match="there is no cuda:99"):
        fovea.Attention(num_qo_heads=4, num_kv_heads=2, head_dim=64, device="cuda:99")
    with pytest.raises(fovea.OutOfRange):
        fovea.Attention(num_qo_heads=64, num_kv_heads=8, head_dim=128, device="cuda", max_rows=1 << 20, max_cascade_levels=12)
    with pytest.raises(fovea.ResourceExhausted, match="1099511627776 bytes on cuda:0"):
        fovea.Attention(num_qo_heads=64, num_kv_heads=8, head_dim=128, device="cuda", max_mask_bytes=1 << 40)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        with pytest.raises(fovea.InvalidArgument, match="capturing a graph"):
            attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    attention.plan(batch.q_lens, batch.kv_lens, batch.cindices, batch.indptr)
    batch.check(attention.run(batch.cq, (batch.ck, batch.cv)))
    checked = batch.attention(checked=True)
    checked.plan(batch.q_lens, batch.kv_lens, batch.indices, batch.indptr)
    with pytest.raises(fovea.OutOfRange, match="the pool has pages"):
        checked.run(batch.cq, (batch.ck[:1], batch.cv[:1]))
