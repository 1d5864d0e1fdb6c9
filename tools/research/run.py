"""Right answers of needle under a grid of policies, on one GPU (or, for trials, a CPU). See README.md.

    python run.py --folder models/needle --cells CELLS --grid scan --contexts 8192 16384 --kind scan --documents 4 --out scan.json

The file written holds one string of 0 and 1 a policy and cell, in the order of the questions, so that report.py can pair them.
"""
import argparse
import json
import os
import time

import grids
import torch
from cells import load_cell
from learned import Learned, collect
from simulate import Questions, answers, load, prefill


def mean(rows):
    """Columns' means: document tokens read, scored by the first, by the second statistic."""
    return [sum(column) / len(rows) for column in zip(*rows)] if rows else [0, 0, 0]


def calibration(options, model, dtype, device, products):
    cells = []
    for name in options.calibrate:
        context, _, documents = name.partition(":")
        cell = load_cell(os.path.join(options.cells, f"{context}-calibrate.npz"))
        cells.append(cell[: int(documents)] if documents else cell)
    return Learned(*collect(model, cells, dtype, device), products)


def evaluate(options, model, learned, dtype, device, save):
    grid = getattr(grids, options.grid)
    for context in options.contexts:
        policies = grid(context)
        names = {n for p in policies for n in p.statistic.split(">") if n in grids.STATISTICS}
        right = {p.name: "" for p in policies}
        read = {p.name: [] for p in policies}
        spent = {}
        for ids, asked in load_cell(os.path.join(options.cells, f"{context}-{options.kind}.npz"))[: options.documents]:
            ids = torch.from_numpy(ids).to(device)
            caches = {}
            for policy in policies:
                if policy.streaming not in caches:
                    cache = prefill(model, ids, dtype, frozenset(policy.streaming))
                    begin = time.time()
                    keys = [k.float() for k, _ in cache]
                    needed = names if policy.streaming == () else {
                        n for p in policies if p.streaming == policy.streaming for n in p.statistic.split(">")} & names
                    statistics = [{n: grids.STATISTICS[n][1](k, learned, i) for n in needed} for i, k in enumerate(keys)]
                    caches = {policy.streaming: (cache, statistics)}  # policies are sorted by streaming, one cache at a time
                cache, statistics = caches[policy.streaming]
                size = max(1, min(50, 6_000_000 // len(ids)))  # bounds the logits of one forward
                bits, tokens = [], []
                begin = time.time()
                for first in range(0, len(asked), size):
                    some = Questions(asked[first : first + size], device)
                    good, count = answers(model, cache, some, policy, statistics, dtype)
                    bits.append(good)
                    tokens.append(count)
                right[policy.name] += "".join(str(int(b)) for b in torch.cat(bits).tolist())
                read[policy.name].append([sum(t) / len(tokens) for t in zip(*tokens)])
                spent[policy.name] = spent.get(policy.name, 0.0) + time.time() - begin
            save(context, policies, right, read)
            if time.time() - options.begin > options.seconds:
                print("stopped for time", flush=True)
                break
        for p in policies:
            good = right[p.name].count("1") / max(1, len(right[p.name]))
            print(f"{context} {p.name}: {good:.3f} of {len(right[p.name])}, read {' '.join(f'{x:.0f}' for x in mean(read[p.name]))}, "
                  f"{spent.get(p.name, 0):.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--cells", required=True)
    parser.add_argument("--grid", required=True, help="a function of grids.py")
    parser.add_argument("--contexts", type=int, nargs="+", required=True)
    parser.add_argument("--kind", default="scan")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--calibrate", nargs="*", default=["8192", "16384", "32768", "65536", "131072"],
                        help="CONTEXT or CONTEXT:DOCUMENTS of calibration cells")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--save-learned", help="write the bases to this file")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    options.begin = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_grad_enabled(False)
    model = load(options.folder, device)
    names = {n for c in options.contexts for p in getattr(grids, options.grid)(c) for n in p.statistic.split(">")}
    learned = None
    if options.calibrate:
        learned = calibration(options, model, dtype, device, names & set(Learned.PRODUCTS))
        print(f"calibrated after {time.time() - options.begin:.1f} s", flush=True)
        if options.save_learned:
            torch.save([{n: vars(b[n]) for n in ("joint", "channel")} for b in learned.bases], options.save_learned)
    results = []

    def save(context, policies, right, read):
        kept = [r for r in results if r["context"] != context]
        kept += [dict(context=context, kind=options.kind, policy=p.name, statistic=p.statistic, bits=right[p.name],
                      read=mean(read[p.name])) for p in policies]
        results[:] = kept
        with open(options.out, "w") as file:
            json.dump(results, file)

    evaluate(options, model, learned, dtype, device, save)
    print(f"done after {time.time() - options.begin:.1f} s")


if __name__ == "__main__":
    main()
