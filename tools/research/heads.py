"""Which KV heads of needle may stream (sink 64 + local 256, also in prefill), by ablation; and right answers with quantized KV
in the others. One GPU call; see README.md. Prints as it goes and writes JSON.

    python heads.py --folder models/needle --cells CELLS --out heads.json
"""
import argparse
import itertools
import json
import os
import time

import torch
from cells import load_cell
from keysketch import hadamard
from policies import Policy
from simulate import KvFormat, Questions, answers, load, prefill

ALL = [(layer, head) for layer in range(4) for head in range(2)]


class Study:
    def __init__(self, options):
        self.options, self.begin, self.results = options, time.time(), []
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.model = load(options.folder, self.device)
        turn = hadamard(128, self.device).float()
        signs = torch.where(torch.rand(128, generator=torch.Generator().manual_seed(1)) < 0.5, -1.0, 1.0).to(self.device)
        self.formats = {"bf16": KvFormat(), "KV8": KvFormat(8), "KV4": KvFormat(4), "KV4 Hadamard": KvFormat(4, turn),
                        "KV4 signs, Hadamard": KvFormat(4, signs[:, None] * turn),
                        "K4 V8": KvFormat((4, 8)), "K8 V4": KvFormat((8, 4)), "K4 Hadamard V8": KvFormat((4, 8), turn),
                        "K8 V4 Hadamard": KvFormat((8, 4), turn)}

    def cell(self, context, kind, documents, streaming, kv="bf16"):
        """Share of right answers; kept with its bits."""
        streaming = tuple(sorted(streaming))
        bits = ""
        for ids, asked in load_cell(os.path.join(self.options.cells, f"{context}-{kind}.npz"))[:documents]:
            cache = prefill(self.model, torch.from_numpy(ids).to(self.device), self.dtype, frozenset(streaming), self.formats[kv])
            size = max(1, min(50, 6_000_000 // len(ids)))
            for first in range(0, len(asked), size):
                some = Questions(asked[first : first + size], self.device)
                good, _ = answers(self.model, cache, some, Policy("x", streaming=streaming), None, self.dtype, self.formats[kv])
                bits += "".join(str(int(b)) for b in good.tolist())
        self.results.append(dict(context=context, kind=kind, streaming=streaming, kv=kv, bits=bits))
        with open(self.options.out, "w") as file:
            json.dump(self.results, file)
        share = bits.count("1") / len(bits)
        print(f"{context} {kind} {kv} streaming {[f'{layer}.{head}' for layer, head in streaming]}: {share:.3f} of {len(bits)}, "
              f"{time.time() - self.begin:.1f} s", flush=True)
        return share

    def scan(self, documents):
        """Single heads, pairs kept at 8k and 16k, fours at 32k (both heads of the most needed layer are always kept there)."""
        alone = {s: 0.0 for s in ALL}
        for context in (8192, 16384, 32768):
            self.cell(context, "scan", documents, ())
            for s in ALL:
                alone[s] += self.cell(context, "scan", documents, (s,))
        needed = sorted(ALL, key=lambda s: alone[s])
        pairs = sorted(itertools.combinations(ALL, 2), key=lambda p: sum(alone[s] for s in p))[:10]
        for kept in pairs:
            for context in (8192, 16384):
                self.cell(context, "scan", documents, set(ALL) - set(kept))
        for streaming in itertools.combinations(sorted(needed[2:]), 4):
            self.cell(32768, "scan", documents, streaming)

    def final(self, documents):
        """The published cells of the sets given on the command line."""
        for text in self.options.sets:
            streaming = [tuple(int(x) for x in s.split(".")) for s in text.split(",")] if text != "none" else []
            for context in self.options.contexts:
                for kv in self.options.formats:
                    self.cell(context, self.options.kind, documents, streaming, kv)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--cells", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--documents", type=int, default=2)
    parser.add_argument("--sets", nargs="*", help="streaming heads as 0.0,0.1,2.1; none; without it the scan runs")
    parser.add_argument("--contexts", type=int, nargs="*", default=[8192, 16384, 32768])
    parser.add_argument("--kind", default="final")
    parser.add_argument("--formats", nargs="*", default=["bf16", "KV8", "KV4", "KV4 Hadamard"])
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_grad_enabled(False)
    study = Study(options)
    study.final(options.documents) if options.sets else study.scan(options.documents)


if __name__ == "__main__":
    main()
