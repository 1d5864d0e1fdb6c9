"""The tensors of a measured case, the same for every engine, and the check of what an engine computed."""
import itertools
import math

import torch

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
ROTATED_BYTES = 400e6  # KV copies hold this much together, so that no replay finds its KV in the L2


def cumulative(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


class CaseData:
    """Random queries and KV of a case (a dict of `fovea bench attention --list`), in `sets` copies under one page table.

    k, v: [sets, pages, page, kv_heads, head_dim], or of cases with contiguous KV [sets, tokens, kv_heads, head_dim], one
    request behind the other; q: [sets, rows, qo_heads, head_dim]; table: int32 [requests, most pages]; the _host tensors
    stay on the CPU, where libraries plan.
    """

    def __init__(self, case, sets=None, device="cuda"):
        self.case, self.device = case, device
        self.q_lens, self.kv_lens, self.page = case["q_lens"], case["kv_lens"], case["page"]
        self.requests, self.rows = len(self.q_lens), sum(self.q_lens)
        self.max_q, self.max_kv = max(self.q_lens), max(self.kv_lens)
        self.scale = case["head_dim"] ** -0.5
        self.sets = sets or min(400, max(1, math.ceil(ROTATED_BYTES / max(case["kv_bytes"], 1))))
        self.contiguous = case["contiguous"]
        if not self.contiguous:
            self.list_pages()
        self.lens_host = torch.tensor(self.kv_lens, dtype=torch.int32)
        self.cu_q_host, self.cu_kv_host = cumulative(self.q_lens), cumulative(self.kv_lens)
        self.lens, self.cu_q, self.cu_kv = (lens.to(device) for lens in (self.lens_host, self.cu_q_host, self.cu_kv_host))
        random = torch.Generator(device=device).manual_seed(1 + self.requests + self.max_kv)
        places = (sum(self.kv_lens),) if self.contiguous else (self.num_pages, self.page)
        shape = (self.sets, *places, case["kv_heads"], case["head_dim"])
        self.k, self.v = self.normal(shape, random, case["kv_dtype"]), self.normal(shape, random, case["kv_dtype"])
        self.q = self.normal((self.sets, self.rows, case["qo_heads"], case["head_dim"]), random, case["q_dtype"])
        self.sinks = None
        if case["sinks"]:
            self.sinks = torch.empty(case["qo_heads"], device=device).normal_(generator=random)

    def normal(self, shape, random, dtype):
        values = torch.empty(shape, dtype=TYPES.get(dtype, torch.bfloat16), device=self.device).normal_(generator=random)
        return values.to(torch.float8_e4m3fn) if dtype == "fp8_e4m3" else values

    def list_pages(self):
        self.place_pages()
        counts = [len(pages) for pages in self.pages]
        self.indptr_host = cumulative(counts)
        self.indices = torch.cat(self.pages).to(self.device)
        self.last_host = torch.tensor([(n - 1) % self.page + 1 for n in self.kv_lens], dtype=torch.int32)
        self.table_host = torch.zeros(self.requests, max(counts), dtype=torch.int32)
        for row, pages in zip(self.table_host, self.pages):
            row[:len(pages)] = pages
        self.table = self.table_host.to(self.device)

    def place_pages(self):
        """Sets pages (int32 page ids of each request) and num_pages: any order; in a prefix tree sequential in a node."""
        random = torch.Generator().manual_seed(11)
        if self.case["runs"]:
            return self.place_runs(random)
        if not self.case["tree"]:
            counts = [-(-n // self.page) for n in self.kv_lens]
            self.num_pages = sum(counts)
            self.pages = [p.int() for p in torch.randperm(self.num_pages, generator=random).split(counts)]
            return
        nodes, tokens = ([int(n) for n in part.split(",")] for part in self.case["tree"].split("_"))
        self.tree_nodes, self.tree_pages = nodes, [n // self.page for n in tokens]
        sizes = [count * pages for count, pages in zip(nodes, self.tree_pages)]
        self.tree_first = [0, *itertools.accumulate(sizes)][:-1]
        self.num_pages = sum(sizes)
        self.leaf_of_row = torch.randperm(self.requests, generator=random)  # row r is this leaf of the tree
        self.pages = [self.path(leaf) for leaf in self.leaf_of_row.tolist()]

    def place_runs(self, random):
        """Requests whose leading pages are those of a run and its parents; pages in any order."""
        self.num_pages, leading = 0, []

        def take(count):
            self.num_pages += count
            return list(range(self.num_pages - count, self.num_pages))

        for parent, tokens in self.case["runs"]:
            leading.append((leading[parent] if parent >= 0 else []) + take(tokens // self.page))
        lists = []
        for run, tokens in zip(self.case["run_of"], self.kv_lens):
            count = -(-tokens // self.page)
            shared = leading[run][:count] if run >= 0 else []
            lists.append(shared + take(count - len(shared)))
        place = torch.randperm(self.num_pages, generator=random).int()
        self.pages = [place[torch.tensor(pages, dtype=torch.long)] for pages in lists]

    def path(self, leaf):
        runs = [first + leaf * count // self.requests * pages + torch.arange(pages)
                for first, count, pages in zip(self.tree_first, self.tree_nodes, self.tree_pages)]
        return torch.cat(runs).int()

    def tree_levels(self):
        """Per level (row_indptr, kv_indptr, kv_indices, last_page_len), with rows in the order of the leaves."""
        levels = []
        for first, count, pages in zip(self.tree_first, self.tree_nodes, self.tree_pages):
            steps = torch.arange(count + 1, dtype=torch.int32)
            levels.append((steps * (self.requests // count), steps * pages,
                           (first + torch.arange(count * pages, dtype=torch.int32)).to(self.device),
                           torch.full((count,), self.page, dtype=torch.int32)))
        return [list(parts) for parts in zip(*levels)]

    def gathered(self, tensor, request, tokens):
        """[tokens, kv_heads, head_dim] of one request, from one copy of K or V; bytes are moved, so any type goes."""
        if self.contiguous:
            return tensor[self.cu_kv_host[request]:][:tokens]
        pages = self.pages[request].long().to(self.device)
        raw = tensor.view(torch.uint8)[pages] if tensor.element_size() == 1 else tensor[pages]
        return raw.view(tensor.dtype).flatten(0, 1)[:tokens]

    def seen_by_blocks(self, rows, tokens):
        """bool [rows, tokens] by the case's block pattern."""
        pattern = self.case["blocks"]
        seen = torch.zeros(len(rows), tokens, dtype=torch.bool)
        for line, row in zip(seen, rows.tolist()):
            begin, end = pattern["indptr"][row // pattern["rows"]:][:2]
            for column in pattern["indices"][begin:end]:
                line[column * pattern["tokens"]:(column + 1) * pattern["tokens"]] = True
        return seen.to(self.device)

    def error_of(self, out, copy=0, rows_by_leaf=False):
        """(largest, relative) error of out [rows, qo_heads, head_dim] against fp32, on some rows of some requests."""
        case, worst, squares, scale = self.case, 0.0, 0.0, 0.0
        out = out.reshape(self.rows, case["qo_heads"], case["head_dim"])
        longest = max(range(self.requests), key=lambda r: self.kv_lens[r])
        for request in sorted({0, self.requests // 3, self.requests - 1, longest}):
            queries, tokens = self.q_lens[request], self.kv_lens[request]
            if tokens == 0:
                continue
            picked = torch.tensor(sorted({0, queries // 2, queries - 1}), device=self.device)
            rows = self.cu_q_host[request].item() + picked
            if rows_by_leaf:
                rows = self.leaf_of_row[request:request + 1].to(self.device)
            k, v = (self.gathered(t[copy], request, tokens).float() for t in (self.k, self.v))
            q = self.q[copy][rows].float().unflatten(1, (case["kv_heads"], -1))
            logits = torch.einsum("rhgd,thd->rhgt", q, k) * self.scale
            if case["softcap"]:
                logits = case["softcap"] * torch.tanh(logits / case["softcap"])
            at = (tokens - queries + picked)[:, None]
            token = torch.arange(tokens, device=self.device)[None]
            seen = token <= at if case["causal"] or case["window"] else torch.ones_like(token <= at)
            if case["window"]:
                seen &= token > at - case["window"]
            if case["blocks"]:
                seen = self.seen_by_blocks(picked, tokens)
            logits = logits.masked_fill(~seen[:, None, None], -math.inf)
            if self.sinks is not None:
                extra = self.sinks.unflatten(0, (case["kv_heads"], -1))[None, :, :, None].expand(*logits.shape[:-1], 1)
                logits = torch.cat([logits, extra], -1)
            weights = logits.softmax(-1)[..., :tokens]
            truth = torch.einsum("rhgt,thd->rhgd", weights, v).flatten(1, 2)
            error = out[rows].float() - truth
            worst = max(worst, error.abs().max().item())
            squares, scale = squares + error.square().sum().item(), scale + truth.square().sum().item()
        return worst, math.sqrt(squares / scale)
