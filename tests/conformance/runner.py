"""Runs conformance cases through `fovea.flashinfer`, as FlashInfer's users call it, against reference.py.

    FOVEA_LIBRARY=build/release/lib/libfovea_c.so PYTHONPATH=python:tests python3 -m conformance.runner --device cuda:0

Prints the number of cases of each family, and every failure. Needs numpy; with a CUDA device also torch. --processes
divides the cases among so many processes: what a case costs on a GPU is mostly what Python does for it.
"""
import argparse
import json
import math
import subprocess
import sys
import time

import numpy

from . import cases as tables
from . import reference
from .arrays import arrays_for

TOLERANCE = {"f16": 1e-3, "fp8_e4m3": 1e-2}  # absolute and relative, as FlashInfer's tests have it for these types
CHECKED_REQUESTS = 6  # of a batch, the first and the last among them


class Failure(AssertionError):
    """A result that is not the reference's."""


def spread(count, most):
    """At most `most` of range(count), both ends included."""
    most = min(count, most)
    return sorted({round(i * (count - 1) / max(most - 1, 1)) for i in range(most)})


class Cache:
    """A paged KV cache for requests of the given lengths: pages in random order, NaN in the tails of last pages."""

    def __init__(self, a, random, kv_lens, page, kv_heads, head_dim, dtype="f16", layout="NHD", joined=False, shift=0.0):
        self.a, self.page, self.layout, self.kv_lens = a, page, layout, kv_lens
        counts = [-(-n // page) for n in kv_lens]
        order = random.permutation(sum(counts) + 2)
        begins = numpy.cumsum([0, *counts])
        self.lists = [order[b:e] for b, e in zip(begins[:-1], begins[1:])]
        self.indptr = a.host_ints(begins)
        self.indices = a.ints(order[:begins[-1]])
        self.last = a.host_ints([(n - 1) % page + 1 if n else 0 for n in kv_lens])
        shape = (len(order), 2, page, kv_heads, head_dim) if joined else (len(order), page, kv_heads, head_dim)
        if joined:
            self.joined = a.normal(random, shape, dtype)
            self.k, self.v = self.joined[:, 0], self.joined[:, 1]
        else:
            self.k, self.v = (a.normal(random, shape, dtype) + shift if shift else a.normal(random, shape, dtype) for _ in "kv")
        for begin in {n % page for n in kv_lens} - {0}:
            last = a.long_ints([pages[-1] for pages, n in zip(self.lists, kv_lens) if n % page == begin])
            for pool in (self.k, self.v):
                if pool.dtype.itemsize == 1:
                    pool.view(sys.modules["torch"].uint8)[last, begin:] = 0x7f
                else:
                    pool[last, begin:] = math.nan

    def pools(self):
        """What a wrapper takes: a pair, or one tensor."""
        if hasattr(self, "joined"):
            return self.joined
        if self.layout == "NHD":
            return self.k, self.v
        return tuple(self.a.copy(pool.swapaxes(1, 2)) if self.a.device == "cpu" else pool.transpose(1, 2).contiguous()
                     for pool in (self.k, self.v))

    def tokens(self, request):
        """fp64 (k, v) [tokens, kv_heads, head_dim]."""
        pages, n = self.a.ints(self.lists[request]), self.kv_lens[request]
        out = []
        for pool in (self.k, self.v):
            if pool.dtype.itemsize == 1:
                picked = pool.view(sys.modules["torch"].uint8)[pages.long()].view(pool.dtype)
            else:
                picked = pool[pages.long() if hasattr(pages, "long") else pages]
            out.append(self.a.double(picked.reshape((-1,) + tuple(pool.shape[2:]))[:n]))
        return out


class Tokens:
    """Keys and values of requests of the given lengths, one behind the other, without pages."""

    def __init__(self, a, random, kv_lens, kv_heads, head_dim):
        self.a, self.kv_lens = a, kv_lens
        self.begins = [int(n) for n in numpy.cumsum([0, *kv_lens])]
        self.k, self.v = (a.normal(random, (self.begins[-1], kv_heads, head_dim)) for _ in "kv")

    def tokens(self, request):
        """fp64 (k, v) [tokens, kv_heads, head_dim]."""
        return tuple(self.a.double(x[self.begins[request]:self.begins[request + 1]]) for x in (self.k, self.v))


class Runner:
    def __init__(self, device):
        import fovea.flashinfer
        self.a, self.fi = arrays_for(device), fovea.flashinfer

    def run(self, case):
        random = numpy.random.default_rng([case["seed"], len(str(case))])
        getattr(self, case["kind"])(case, random)

    def expect(self, what, actual, truth, tolerance):
        xp = self.a.math
        actual = self.a.double(actual)
        zero = xp.zeros_like(truth)
        same = actual == truth  # infinities too
        error = xp.abs(xp.where(same, zero, actual) - xp.where(same, zero, truth))
        allowed = tolerance + tolerance * xp.abs(truth)
        wrong = ~(error <= allowed)
        if bool(wrong.any()):
            at = int(xp.argmax(wrong.reshape(-1) * 1))
            raise Failure(f"{what}: {int(wrong.sum())} of {wrong.size if self.a.device == 'cpu' else wrong.numel()} differ, the first at "
                          f"{at}: {float(actual.reshape(-1)[at]):.5g} for {float(truth.reshape(-1)[at]):.5g}")

    def seen(self, rows, tokens, causal, window, custom=None):
        """bool [rows, tokens]: bottom-right aligned; the window counts the tokens before the query."""
        if custom is not None:
            return self.a.bools(custom)
        at = numpy.arange(rows)[:, None] + tokens - rows
        token = numpy.arange(tokens)[None]
        mask = token <= at if causal else numpy.ones((rows, tokens), dtype=bool)
        if window is not None:
            mask &= token >= at - window
        return self.a.bools(mask)

    def check_batch(self, case, cache, q, out, lse, q_lens, causal, custom=None, sinks=None):
        scale, begins = case.get("sm_scale") or q.shape[-1] ** -0.5, numpy.cumsum([0, *q_lens])
        tolerance = TOLERANCE[case.get("kv_dtype", "f16")]
        for r in spread(len(q_lens), CHECKED_REQUESTS):
            rows = slice(int(begins[r]), int(begins[r + 1]))
            k, v = cache.tokens(r)
            seen = self.seen(q_lens[r], cache.kv_lens[r], causal, case.get("window"), custom[r] if custom else None)
            truth, truth_lse = reference.attend(self.a.math, self.a.double(q[rows]), k, v, seen, scale, case.get("softcap", 0.0),
                                                sinks)
            self.expect(f"output of request {r}", out[rows], truth, tolerance)
            if sinks is None:
                self.expect(f"log-sum-exp of request {r}", lse[rows], truth_lse, tolerance)

    def lengths(self, case):
        """(KV tokens, query tokens) of each request."""
        if "lengths" in case:
            return [(kv, q) for n, kv, q in tables.MIXED[case["lengths"]] for _ in range(n)]
        return [(case["kv"], case["q_len"])] * case["batch"]

    def queries(self, case, random, rows, heads, head_dim):
        if case.get("strided"):
            return self.a.normal(random, (rows, heads + 3, head_dim))[:, 1:heads + 1]
        if case.get("negative"):  # keys are shifted by as much: all logits are far below zero
            return self.a.normal(random, (rows, heads, head_dim)) * 0 - 4
        return self.a.normal(random, (rows, heads, head_dim))

    def decode(self, case, random):
        heads, dim, q_len = case["kv_heads"] * case["group"], case["head_dim"], case.get("q_len", 1)
        kv_lens = [case["kv"]] * case["batch"]
        if case.get("empty"):
            kv_lens[1] = kv_lens[-1] = 0
        cache = Cache(self.a, random, kv_lens, case["page"], case["kv_heads"], dim, case.get("kv_dtype", "f16"),
                      case.get("layout", "NHD"), case.get("strided", False), 3.0 if case.get("negative") else 0.0)
        q = self.queries(case, random, len(kv_lens) * q_len, heads, dim)
        wrapper = self.fi.BatchDecodeWithPagedKVCacheWrapper(None, case.get("layout", "NHD"))
        window = case.get("window")
        wrapper.plan(cache.indptr, cache.indices, cache.last, heads, case["kv_heads"], dim, case["page"],
                     window_left=-1 if window is None else window, q_data_type=self.a.name_of("f16"),
                     kv_data_type=self.a.name_of(case.get("kv_dtype", "f16")), q_len_per_req=q_len)
        out, lse = wrapper.run(q, cache.pools(), return_lse=True)
        self.check_batch(case, cache, q, out, lse, [q_len] * len(kv_lens), True)

    def prefill(self, case, random):
        heads, dim = case["kv_heads"] * case["group"], case["head_dim"]
        mixed = self.lengths(case)
        kv_lens, q_lens = [kv for kv, _ in mixed], [q for _, q in mixed]
        cache = Cache(self.a, random, kv_lens, case["page"], case["kv_heads"], dim, case.get("kv_dtype", "f16"),
                      case.get("layout", "NHD"))
        q = self.queries(case, random, sum(q_lens), heads, dim)
        custom = self.custom_masks(case, random, mixed)
        window, sinks = case.get("window"), None
        if case.get("sinks"):
            sinks = self.a.floats(random.standard_normal(heads) * 2)
        wrapper = self.fi.BatchPrefillWithPagedKVCacheWrapper(None, case.get("layout", "NHD"))
        wrapper.plan(self.a.host_ints(numpy.cumsum([0, *q_lens])), cache.indptr, cache.indices, cache.last, heads,
                     case["kv_heads"], dim, case["page"], causal=case["causal"], window_left=-1 if window is None else window,
                     logits_soft_cap=case.get("softcap") or None, q_data_type=self.a.name_of("f16"),
                     kv_data_type=self.a.name_of(case.get("kv_dtype", "f16")),
                     custom_mask=self.flat(custom))
        out, lse = wrapper.run(q, cache.pools(), return_lse=True, **({} if sinks is None else {"sinks": sinks}))
        self.check_batch(case, cache, q, out, lse, q_lens, case["causal"], custom,
                         None if sinks is None else self.a.double(sinks))

    def custom_masks(self, case, random, mixed):
        """A bool mask a request, or None."""
        if case.get("custom_mask") == "random":
            custom = [random.random((n, kv)) < 0.5 for kv, n in mixed]
            custom[0][0] = False  # a row that sees nothing
            return custom
        return [numpy.tril(numpy.ones((n, kv), dtype=bool), kv - n) for kv, n in mixed] if case.get("custom_mask") else None

    def flat(self, custom):
        return None if custom is None else self.a.bools(numpy.concatenate([m.reshape(-1) for m in custom]))

    def ragged(self, case, random):
        heads, dim, mixed = case["kv_heads"] * case["group"], case["head_dim"], self.lengths(case)
        kv_lens, q_lens = [kv for kv, _ in mixed], [q for _, q in mixed]
        cache = Tokens(self.a, random, kv_lens, case["kv_heads"], dim)
        q = self.queries(case, random, sum(q_lens), heads, dim)
        custom, window = self.custom_masks(case, random, mixed), case.get("window")
        wrapper = self.fi.BatchPrefillWithRaggedKVCacheWrapper(None, "NHD")
        wrapper.plan(self.a.host_ints(numpy.cumsum([0, *q_lens])), self.a.ints(cache.begins), heads, case["kv_heads"], dim,
                     causal=case["causal"], window_left=-1 if window is None else window,
                     logits_soft_cap=case.get("softcap") or None, q_data_type=self.a.name_of("f16"),
                     custom_mask=self.flat(custom))
        out, lse = wrapper.run(q, cache.k, cache.v, return_lse=True)
        self.check_batch(case, cache, q, out, lse, q_lens, case["causal"], custom)

    def single_prefill(self, case, random):
        heads, dim, tokens, rows = case["kv_heads"] * case["group"], case["head_dim"], case["kv"], case["q_len"]
        q = self.a.normal(random, (rows, heads, dim))
        k, v = (self.a.normal(random, (tokens, case["kv_heads"], dim)) for _ in "kv")
        given = (k, v) if case["layout"] == "NHD" else tuple(self.a.copy(x.swapaxes(0, 1)) for x in (k, v))
        window = case.get("window")
        out, lse = self.fi.single_prefill_with_kv_cache(
            q, *given, causal=case["causal"], kv_layout=case["layout"], logits_soft_cap=case.get("softcap"),
            window_left=-1 if window is None else window, return_lse=True)
        truth, truth_lse = reference.attend(self.a.math, self.a.double(q), self.a.double(k), self.a.double(v),
                                            self.seen(rows, tokens, case["causal"], window), dim ** -0.5, case.get("softcap", 0.0))
        self.expect("output", out, truth, TOLERANCE["f16"])
        self.expect("log-sum-exp", lse, truth_lse, TOLERANCE["f16"])

    def block_sparse(self, case, random):
        rows, columns, dim = case["rows"], case["columns"], case["head_dim"]
        lines, width = -(-case["queries"] // rows), -(-case["kv"] // columns)
        there = random.random((lines, width)) < 0.25
        indices = [numpy.flatnonzero(line) for line in there]
        blocks = sum(map(len, indices))
        inside = random.random((blocks, rows, columns)) < 0.5 if case["inside"] else numpy.ones((blocks, rows, columns), dtype=bool)
        seen = numpy.zeros((lines * rows, width * columns), dtype=bool)
        places = [(line, column) for line, some in enumerate(indices) for column in some]
        for (line, column), block in zip(places, inside):
            seen[line * rows:(line + 1) * rows, column * columns:(column + 1) * columns] = block
        q = self.a.normal(random, (case["queries"], case["heads"], dim))
        k, v = (self.a.normal(random, (case["kv"], case["kv_heads"], dim)) for _ in "kv")
        wrapper = self.fi.BlockSparseAttentionWrapper(None)
        wrapper.plan(self.a.ints(numpy.cumsum([0, *map(len, indices)])), self.a.ints(numpy.concatenate(indices)), case["queries"],
                     case["kv"], rows, columns, case["heads"], case["kv_heads"], dim,
                     mask=self.a.bools(inside) if case["inside"] else None, q_data_type=self.a.name_of("f16"))
        out, lse = wrapper.run(q, k, v, return_lse=True)
        truth, truth_lse = reference.attend(self.a.math, self.a.double(q), self.a.double(k), self.a.double(v),
                                            self.a.bools(seen[:case["queries"], :case["kv"]]), dim ** -0.5)
        self.expect("output", out, truth, TOLERANCE["f16"])
        self.expect("log-sum-exp", lse, truth_lse, TOLERANCE["f16"])

    def single_decode(self, case, random):
        heads, dim, tokens = case["kv_heads"] * case["group"], case["head_dim"], case["kv"]
        q = self.a.normal(random, (heads, dim))
        k, v = (self.a.normal(random, (tokens, case["kv_heads"], dim)) for _ in "kv")
        given = (k, v) if case["layout"] == "NHD" else tuple(self.a.copy(x.swapaxes(0, 1)) for x in (k, v))
        out = self.fi.single_decode_with_kv_cache(q, *given, kv_layout=case["layout"], logits_soft_cap=case.get("softcap"))
        truth, _ = reference.attend(self.a.math, self.a.double(q[None]), self.a.double(k), self.a.double(v),
                                    self.seen(1, tokens, True, None), dim ** -0.5, case.get("softcap", 0.0))
        self.expect("output", out, truth[0], TOLERANCE["f16"])

    def append_cache(self, case, random):
        lens = [int(n) for n in random.integers(1, 80, case["batch"])]
        added = [int(random.integers(1, n + 1)) for n in lens]
        cache = Cache(self.a, random, lens, case["page"], case["kv_heads"], case["head_dim"], layout=case["layout"])
        rows = sum(added)
        k, v = (self.a.normal(random, (rows, case["kv_heads"], case["head_dim"])) for _ in "kv")
        requests = numpy.repeat(numpy.arange(len(lens)), added)
        positions = numpy.concatenate([numpy.arange(n - m, n) for n, m in zip(lens, added)])
        pools = cache.pools()
        expected = [self.a.copy(pool) for pool in pools]
        for row, (r, position) in enumerate(zip(requests, positions)):
            page, token = int(cache.lists[r][position // case["page"]]), int(position % case["page"])
            for pool, new in zip(expected, (k, v)):
                if case["layout"] == "NHD":
                    pool[page, token] = new[row]
                else:
                    pool[page, :, token] = new[row]
        self.fi.append_paged_kv_cache(k, v, self.a.ints(requests), self.a.ints(positions), pools, cache.indices,
                                      self.a.ints(self.a.numpy(cache.indptr)), self.a.ints(self.a.numpy(cache.last)),
                                      kv_layout=case["layout"])
        for name, pool, truth in zip("kv", pools, expected):
            same = (pool == truth) | ((pool != pool) & (truth != truth))
            if not bool(same.all()):
                raise Failure(f"{name} cache differs at {int((~same).sum())} elements")

    def cascade(self, case, random):
        heads, dim, page, batch = case["heads"], case["head_dim"], case["page"], case["batch"]
        q_len = 1 if case["stage"] == "decode" else case["unique"]
        # One pool: the shared run is the first list, requests' own runs follow.
        cache = Cache(self.a, random, [case["shared"]] + [case["unique"]] * batch, page, heads, dim)
        q = self.a.normal(random, (batch * q_len, heads, dim))
        shared_pages = len(cache.lists[0])
        begins = self.a.numpy(cache.indptr)
        wrapper = self.fi.MultiLevelCascadeAttentionWrapper(2, None, "NHD")
        wrapper.plan([self.a.host_ints([0, batch * q_len]), self.a.host_ints(numpy.arange(batch + 1) * q_len)],
                     [self.a.host_ints([0, shared_pages]), self.a.host_ints(begins[1:] - shared_pages)],
                     [cache.indices[:shared_pages], self.a.copy(cache.indices[shared_pages:])],
                     [cache.last[:1], cache.last[1:]], heads, heads, dim, page, causal=case["stage"] == "append",
                     q_data_type=self.a.name_of("f16"))
        out = wrapper.run(q, (cache.k, cache.v))
        shared_k, shared_v = cache.tokens(0)
        for r in spread(batch, CHECKED_REQUESTS):
            own_k, own_v = cache.tokens(r + 1)
            join = (lambda x, y: numpy.concatenate([x, y])) if self.a.device == "cpu" else (lambda x, y: self.a.math.cat([x, y]))
            rows = slice(r * q_len, (r + 1) * q_len)
            seen = self.seen(q_len, case["shared"] + case["unique"], case["stage"] == "append", None)
            truth, _ = reference.attend(self.a.math, self.a.double(q[rows]), join(shared_k, own_k), join(shared_v, own_v), seen,
                                        dim ** -0.5)
            self.expect(f"output of request {r}", out[rows], truth, TOLERANCE["f16"])

    def merge_state(self, case, random):
        rows, heads, dim = case["rows"], case["heads"], case["head_dim"]
        v = [self.a.normal(random, (rows, heads, dim)) for _ in range(2)]
        lse = [self.a.floats(random.standard_normal((rows, heads)) * 10) for _ in range(2)]
        lse[1][0] = -math.inf
        xp = self.a.math
        truth = reference.merge(xp, xp.stack([self.a.double(x) for x in v]), xp.stack([self.a.double(x) for x in lse]))
        if case["masked"]:
            keep = random.random(rows) < 0.5
            mask = self.a.ints(keep).astype(numpy.uint8) if self.a.device == "cpu" else self.a.ints(keep).to(xp.uint8)
            before = self.a.double(self.a.copy(v[0])), self.a.double(self.a.copy(lse[0]))
            self.fi.merge_state_in_place(v[0], lse[0], v[1], lse[1], mask)
            chosen = self.a.bools(keep)
            truth = (xp.where(chosen[:, None, None], truth[0], before[0]), xp.where(chosen[:, None], truth[1], before[1]))
            out = v[0], lse[0]
        else:
            out = self.fi.merge_state(v[0], lse[0], v[1], lse[1])
        self.expect("merged output", out[0], truth[0], TOLERANCE["f16"])
        self.expect("merged log-sum-exp", out[1], truth[1], TOLERANCE["f16"])

    def merge_states(self, case, random):
        shape = (case["rows"], case["states"], case["heads"], case["head_dim"])
        v = self.a.normal(random, shape)
        lse = self.a.floats(random.standard_normal(shape[:3]) * 10)
        out = self.fi.merge_states(v, lse)
        truth = reference.merge(self.a.math, self.a.double(v).swapaxes(0, 1), self.a.double(lse).swapaxes(0, 1))
        self.expect("merged output", out[0], truth[0], TOLERANCE["f16"])
        self.expect("merged log-sum-exp", out[1], truth[1], TOLERANCE["f16"])


def run_cases(device, most_work=math.inf, most_cases=10**9, seconds=math.inf, families=None, part=(0, 1)):
    """{family: {"passed", "failed", "left_out", "seconds"}} and the failures' texts.

    Left out: cases over most_work, and of the others all but most_cases, spread over the family; then, without being
    counted, all but every n-th from the i-th on, for part (i, n).
    """
    runner, counts, failures, start = Runner(device), {}, [], time.monotonic()
    lost = False
    for family, cases in tables.all_cases().items():
        if families and family not in families:
            continue
        count = counts.setdefault(family, {"passed": 0, "failed": 0, "left_out": 0, "seconds": 0.0})
        begin = time.monotonic()
        picked = [case for case in cases if case.get("kv_dtype", "f16") in runner.a.dtypes and tables.tokens_read(case) <= most_work]
        picked = [picked[i] for i in spread(len(picked), most_cases)]
        count["left_out"] = (len(cases) - len(picked)) * (part[0] == 0)
        picked = picked[part[0]::part[1]]
        for done, case in enumerate(picked):
            if lost or time.monotonic() - start > seconds:
                count["left_out"] += len(picked) - done
                break
            try:
                runner.run(case)
                count["passed"] += 1
            except Exception as error:
                count["failed"] += 1
                failures.append(f"{case}: {type(error).__name__}: {str(error)[:300]}")
                if lost := not runner.a.is_alive():
                    failures[-1] += "; after it the device refuses everything"
        count["seconds"] = time.monotonic() - begin
    return counts, failures


def run_processes(arguments, processes):
    """run_cases() divided among processes, each over a part of the cases."""
    children = [subprocess.Popen([sys.executable, "-m", "conformance.runner", *arguments, "--part", f"{i}/{processes}"],
                                 stdout=subprocess.PIPE, text=True) for i in range(processes)]
    counts, failures = {}, []
    for i, child in enumerate(children):
        text = child.communicate()[0]
        try:
            part = json.loads(text.splitlines()[-1])
        except (IndexError, ValueError):
            failures.append(f"part {i} of {processes} ended with {child.returncode} and said: {text[-300:]}")
            counts.setdefault("crashed", {"passed": 0, "failed": 0, "left_out": 0, "seconds": 0.0})["failed"] += 1
            continue
        failures += part["failures"]
        for family, count in part["counts"].items():
            total = counts.setdefault(family, dict.fromkeys(count, 0))
            for name, n in count.items():
                total[name] += n
    return counts, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda:N")
    parser.add_argument("--most-cases", type=int, default=10**9, help="of a family, spread over it")
    parser.add_argument("--most-work", type=float, default=math.inf, help="leave larger cases out")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after this long")
    parser.add_argument("--family", default="", help="some of " + ", ".join(tables.FAMILIES) + ", with commas")
    parser.add_argument("--processes", type=int, default=1, help="at the same time")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)  # of such a process: "i/n"
    args = parser.parse_args()
    start = time.monotonic()
    if args.processes > 1 and not args.part:
        counts, failures = run_processes(sys.argv[1:], args.processes)
    else:
        part = tuple(int(n) for n in (args.part or "0/1").split("/"))
        counts, failures = run_cases(args.device, args.most_work, args.most_cases, args.seconds,
                                     [f for f in args.family.split(",") if f], part)
        if args.part:
            print(json.dumps({"counts": counts, "failures": failures}))
            return 0
    for failure in failures[:20]:
        print(failure)
    for family, count in counts.items():
        print(f"{family:12s} {count['passed']:5d} passed {count['failed']:5d} failed {count['left_out']:5d} left out {count['seconds']:7.1f} s")
    total = {name: sum(count[name] for count in counts.values()) for name in ("passed", "failed", "left_out")}
    print(f"{total['passed']} passed, {total['failed']} failed, {total['left_out']} left out on {args.device} "
          f"in {time.monotonic() - start:.1f} s")
    return 1 if failures or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
