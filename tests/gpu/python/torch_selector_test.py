"""fovea.PageSelector on a CUDA device with PyTorch: lists are those of the CPU, steps replay in graphs, and rotated and
per-token scaled pools give what the CPU gives. Run by `make gpu-test`; skips itself elsewhere."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("PyTorch sees no CUDA device", allow_module_level=True)

import fovea

HEADS, KV_HEADS, DIM, PAGES_EACH, BUDGET = 8, 2, 64, 200, 512
BF16, I32 = torch.bfloat16, torch.int32


class Side:
    """A selector, an attention and a cache on one device; all sides get the same numbers."""

    def __init__(self, device, codes, requests, **options):
        self.device, self.requests = device, requests
        shape = dict(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, device=device, max_requests=requests,
                     max_pages_per_request=PAGES_EACH)
        pages = requests * PAGES_EACH
        self.selector = fovea.PageSelector(**shape, num_pages=pages, key_codes=codes, num_layers=len(codes),
                                           budget_tokens=BUDGET, **options)
        self.attention = fovea.Attention(**shape, max_selected=requests, max_rows=requests, decode_kernel="general")
        self.q = torch.zeros(requests, HEADS, DIM, dtype=BF16, device=device)
        self.out = torch.zeros_like(self.q)
        self.k, self.v = (torch.zeros(pages, 16, KV_HEADS, DIM, dtype=BF16, device=device) for _ in range(2))
        self.arrays = self.table, self.lists, self.list_tokens = self.selector.allocate(self.q)
        self.lens, self.phases = (torch.zeros(requests, dtype=I32, device=device) for _ in range(2))
        self.new_k, self.new_v = (torch.zeros(requests, KV_HEADS, DIM, dtype=BF16, device=device) for _ in range(2))
        self.slots = torch.zeros(requests, dtype=I32, device=device)

    def append(self, k, v, slots, layer=0):
        fovea.append_paged_kv(k, v, (self.k, self.v), slots=slots)
        self.selector.append(k, layer=layer, slots=slots)

    def select(self, layer=0):
        self.selector.select(self.q, self.lens, *self.arrays, phases=self.phases, layer=layer)

    def step(self):
        """What a graph records: a new token of each request, lists, attention."""
        self.append(self.new_k, self.new_v, self.slots)
        self.select()
        self.attention.run(self.q, (self.k, self.v), self.out)


def codes_of(seed, layers=1):
    rng = np.random.default_rng(seed)
    return [[{"channels": [(7 * c + 3) % DIM for c in range(32)], "mean": list(0.1 * rng.standard_normal(32)),
              "step": list(0.1 + 0.1 * np.abs(rng.standard_normal(32)))} for _ in range(KV_HEADS)] for _ in range(layers)]


def pair(requests, layers=1, seed=0, **options):
    torch.manual_seed(seed)
    sides = [Side(device, codes_of(seed, layers), requests, **options) for device in ("cpu", "cuda")]
    table = torch.randperm(requests * PAGES_EACH, dtype=I32).view(requests, PAGES_EACH)
    phases = torch.randint(0, 1000, (requests,), dtype=I32)
    for side in sides:
        side.table.copy_(table)
        side.phases.copy_(phases)
    return sides


def slot(side, request, token):
    return side.table[request, token // 16] * 16 + token % 16


def fill(sides, lens, layer=0):
    for r, tokens in enumerate(lens):
        k, v = (torch.randn(tokens, KV_HEADS, DIM).to(BF16) for _ in range(2))
        at = torch.arange(tokens)
        for side in sides:
            side.append(k.to(side.device), v.to(side.device), slot(side, r, at.to(side.device)).to(I32), layer)
            side.lens[r] = tokens


def same_lists(cpu, cuda):
    assert torch.equal(cpu.list_tokens, cuda.list_tokens.cpu())
    for r in range(cpu.requests):
        count = -(-int(cpu.list_tokens[r]) // 16)
        assert torch.equal(cpu.lists[r, :, :count], cuda.lists[r, :, :count].cpu()), r


@pytest.mark.parametrize("interval", [1, 3, 4])
@pytest.mark.parametrize("divisor", [0, 3])
@pytest.mark.parametrize("requests", [1, 5, 40])
def test_lists_are_those_of_the_cpu(interval, divisor, requests):
    cpu, cuda = pair(requests, layers=2, seed=interval, interval=interval, budget_divisor=divisor)
    lens = ([3100, 1, 512, 513, 700] * 8)[:requests]
    fill((cpu, cuda), lens, layer=1)
    for step in range(6):
        q = 2 * torch.randn(requests, HEADS, DIM).to(BF16)
        for side in (cpu, cuda):
            side.q.copy_(q)
            side.select(layer=1)
        same_lists(cpu, cuda)
        if step == 4:
            for side in (cpu, cuda):
                side.selector.forget(0, (requests + 1) // 2)
            continue  # the same lengths again
        new = torch.randn(requests, KV_HEADS, DIM).to(BF16)
        for side in (cpu, cuda):
            places = torch.stack([slot(side, r, int(side.lens[r])) for r in range(requests)]).to(I32)
            side.append(new.to(side.device), new.to(side.device), places, layer=1)
            side.lens += 1
    cpu.selector.copy_page(3, 4)
    cuda.selector.copy_page(3, 4)
    for side in (cpu, cuda):
        side.select(layer=1)
    same_lists(cpu, cuda)


def test_one_graph_serves_the_steps_of_a_plan():
    cpu, cuda = pair(4, seed=9, interval=4)
    lens = [3000, 100, 520, 1600]
    fill((cpu, cuda), lens)
    table = cpu.table
    graph = None
    for step in range(20):
        lens = [n + 1 for n in lens]
        places = torch.tensor([int(table[r, (n - 1) // 16]) * 16 + (n - 1) % 16 for r, n in enumerate(lens)], dtype=I32)
        q, k, v = (torch.randn(4, heads, DIM).to(BF16) for heads in (HEADS, KV_HEADS, KV_HEADS))
        for side in (cpu, cuda):
            for to, values in ((side.q, q), (side.new_k, k), (side.new_v, v), (side.slots, places)):
                to.copy_(values)
            side.lens.copy_(torch.tensor(lens, dtype=I32))
        cuda.selector.plan(cuda.attention, lens, *cuda.arrays)
        if graph is None:
            cuda.step()  # what is loaded at first use
            cuda.selector.forget()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                cuda.step()
        graph.replay()
        cpu.append(cpu.new_k, cpu.new_v, cpu.slots)
        cpu.select()
        same_lists(cpu, cuda)
        cpu.selector.plan(cpu.attention, lens, *cpu.arrays)
        out = cpu.attention.run(cpu.q, (cpu.k, cpu.v))
        torch.testing.assert_close(cuda.out.cpu().float(), out.float(), atol=3e-2, rtol=3e-2)


def test_up_to_the_budget_it_is_dense_attention():
    _, cuda = pair(3)
    fill((cuda,), [512, 300, 1])
    cuda.q.normal_()
    cuda.select()
    cuda.selector.plan(cuda.attention, [512, 300, 1], *cuda.arrays)
    out = cuda.attention.run(cuda.q, (cuda.k, cuda.v))
    cuda.attention.plan([1] * 3, [512, 300, 1], cuda.table.contiguous())
    assert torch.equal(out, cuda.attention.run(cuda.q, (cuda.k, cuda.v)))


def test_what_cuda_refuses():
    shape = dict(num_kv_heads=2, head_dim=64, num_pages=4, device="cuda")
    for error, match, options in ((fovea.Unsupported, "policy quest on CUDA", dict(num_qo_heads=8, policy="quest")),
                                  (fovea.Unsupported, "9 query heads", dict(num_qo_heads=18, key_codes=codes_of(0)))):
        with pytest.raises(error, match=match):
            fovea.PageSelector(**shape, **options)
    _, cuda = pair(2)
    with pytest.raises(fovea.InvalidArgument, match="on cpu, expected it on cuda:0"):
        cuda.selector.select(cuda.q, cuda.lens.cpu(), *cuda.arrays)


@pytest.mark.parametrize("dtype, rotated", [("int8", True), ("int4", True), ("int4", False), ("fp8_e4m3", False)])
def test_quantized_pools_as_on_the_cpu(dtype, rotated):
    tokens, outs, stored = [160, 65, 1], [], []
    k, v = (torch.randn(sum(tokens), KV_HEADS, DIM).to(BF16) for _ in range(2))
    q = torch.randn(3, HEADS, DIM).to(BF16)
    pages = torch.randperm(40, dtype=I32)
    places = torch.cat([pages[10 * r:][torch.arange(n) // 16] * 16 + torch.arange(n) % 16
                        for r, n in enumerate(tokens)]).to(I32)
    for device in ("cpu", "cuda"):
        row = DIM // 2 if dtype == "int4" else DIM
        pools = [torch.zeros(40, 16, KV_HEADS, row, dtype=torch.uint8, device=device) for _ in range(2)]
        scales = [torch.zeros(40, KV_HEADS, 16, 2, dtype=torch.float16, device=device) for _ in range(2)]
        named = dict(k_scale=scales[0], v_scale=scales[1])
        fovea.append_paged_kv(k.to(device), v.to(device), tuple(pools), slots=places.to(device), kv_dtype=dtype,
                              rotated=rotated, **named)
        attention = fovea.Attention(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, kv_dtype=dtype, device=device,
                                    kv_rotated=rotated, kv_token_scales=dtype == "fp8_e4m3", max_requests=3, max_rows=3)
        attention.plan([1] * 3, tokens, pages.view(4, 10)[:3].contiguous().to(device))
        outs.append(attention.run(q.to(device), tuple(pools), **named).float().cpu())
        stored.append(pools[0].cpu())
    assert (stored[0] != stored[1]).float().mean() < 0.01  # roundings of rotated rows may differ
    torch.testing.assert_close(outs[1], outs[0], atol=3e-2, rtol=3e-2)
