#!/usr/bin/env python3
"""Writes docs/measurements/h200-prefill.md from the JSON of bench/peers_gpu.py --suite prefill.

    write_prefill.py prefill.json [more.json] --out docs/measurements/h200-prefill.md [--notes text.md]

Of several files the last one that has a row counts. The page shows the cases with a goal, a CSV file beside it all of them with
every peer. --notes: text below the table, causes of what falls short.
"""
import argparse
import csv
import datetime
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import h200_figures as figures

# Goals by case, TFLOP/s (burst, soaked) or us where the unit says so.
GOALS = {
    "32x32/D128/S1024": (545, 480), "32x32/D128/S2048": (665, 530), "32x32/D128/S4096": (720, 620), "32x32/D128/S8192": (760, 660),
    "32x32/D128/S16384": (700, 700), "32x8/D128/S2048": (None, 530), "32x8/D128/S4096": (None, 605), "32x8/D128/S8192": (None, 665),
    "32x8/D128/S16384": (None, 685), "32x32/D64/S8192": (None, 510), "32x32/D256/S8192": (None, 695), "append512_on_32k_B4": (None, 640),
    "q64/B16/S4096": (None, 450), "q128/B16/S4096": (None, 550), "32x8/D128/S8192/softcap30": (None, 580),
    "32x8/D128/S8192/window1024": (None, 500), "32x8/D128/ragged17-4095": (None, 520)}
GOAL_US = {"mixed/prompt2048+63x4096": 290, "append512_on_32k_B4": 1770}
PEERS = {"cuDNN": ["cudnn"], "FA3": ["fa3_dense", "fa3_varlen", "fa3"], "FlashInfer": ["fi_fa3", "fi_fa2", "fi_blocks"]}


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


class Rates:
    """TFLOP/s and us of every engine by case, burst and soaked."""

    def __init__(self, documents):
        self.values, self.limits, self.cases = {}, {}, []
        for document in documents:
            for row in document["rows"]:
                if row["suite"] != "prefill":
                    continue
                if row["case"] not in self.cases:
                    self.cases.append(row["case"])
                key = row["case"], row["metric"]
                self.values.setdefault(key, {})["fovea"] = row["value"]
                if row["peer"]:
                    self.values[key][row["peer"]] = row["peer_value"]
                if row["limit"]:
                    self.limits[key] = row["limit"]

    def of(self, case, metric, engine):
        return self.values.get((case, metric), {}).get(engine)

    def best(self, case, metric, names):
        some = [value for name, value in self.values.get((case, metric), {}).items() if name in names and value]
        if not some:
            return None
        return min(some) if metric.endswith("time") else max(some)


def show(value):
    return f"{value:.0f}" if value else ""


EVERY_PEER = [name for names in PEERS.values() for name in names]


def goals_of(case):
    if case in GOAL_US:
        return [f"{GOAL_US[case]} us", ""]
    return [show(goal) for goal in GOALS.get(case, (None, None))]


def case_row(rates, case):
    soaked, burst = (rates.of(case, metric, "fovea") for metric in ("soaked", "burst"))
    best = [rates.best(case, metric, EVERY_PEER) for metric in ("burst", "soaked")]
    limit = rates.limits.get((case, "soaked"))
    return [case, *goals_of(case), show(burst), show(soaked), f"{soaked / limit:.0%}" if soaked and limit else "",
            *map(show, best), f"{soaked / best[1]:.2f}" if soaked and best[1] else ""]


def write_rows(rates, path):
    """Every case: TFLOP/s of Fovea and all peers, Fovea's time, its share of a matrix product."""
    with open(path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["case", "fovea_burst", "fovea_soaked", "fovea_soaked_us", "product_share",
                      *(f"{peer.lower()}_{metric}" for peer in PEERS for metric in ("burst", "soaked"))])
        for case in rates.cases:
            soaked, limit = rates.of(case, "soaked", "fovea"), rates.limits.get((case, "soaked"))
            out.writerow([case, show(rates.of(case, "burst", "fovea")), show(soaked), show(rates.of(case, "soaked time", "fovea")),
                          f"{soaked / limit:.2f}" if soaked and limit else "",
                          *(show(rates.best(case, metric, names)) for names in PEERS.values() for metric in ("burst", "soaked"))])


def ratios(rates):
    """Lines that compare cases with one another."""
    us = lambda case, engine="fovea": rates.of(case, "soaked time", engine)
    lines = []

    def compare(text, a, b, engines=("fovea", "fa3", "fa3_dense", "fi_fa3")):
        shown = [f"{engine} {us(a, engine) / us(b, engine):.3f}" for engine in engines if us(a, engine) and us(b, engine)]
        if shown:
            lines.append(f"- {text}: " + ", ".join(shown))
    compare("pages of 1 over pages of 64, time", "32x8/D128/S8192/page1", "32x8/D128/S8192/page64")
    compare("pages of 16 over pages of 64", "32x8/D128/S8192/page16", "32x8/D128/S8192/page64")
    contiguous, paged = us("32x8/D128/S8192"), us("32x8/D128/S8192/page64")
    if contiguous and paged:
        lines.append(f"- pages of 64 over contiguous KV: fovea {paged / contiguous:.3f}")
    together = []
    for engine in ("fovea", "fa3"):
        parts = [us(f"mixed/{name}", engine) for name in ("chunks+decodes", "chunks8x512_on_2k", "decodes56x3072")]
        if all(parts):
            together.append(f"{engine} {parts[0] / (parts[1] + parts[2]):.3f}")
    if together:
        lines.append("- chunks and decodes in one launch over both alone (goal 1.05): " + ", ".join(together))
    return lines


def block_rows(rates):
    """Rates of block-sparse cases as shares of the dense one's."""
    rows = []
    for heads in ("32x8", "32x32"):
        dense = rates.of(f"dense/{heads}", "soaked", "fovea")
        for block in (64, 128):
            live = [rates.of(f"blocks{block}/{heads}/{percent}%", "soaked", "fovea") for percent in (50, 25, 10)]
            if dense and all(live):
                rows.append([f"{block}, {heads}", *(f"{rate / dense:.0%}" for rate in live)])
    return rows


def geomean_line(rates):
    texts = []
    for metric in ("burst", "soaked"):
        found = [(rates.of(case, metric, "fovea"), rates.best(case, metric, EVERY_PEER)) for case in rates.cases]
        some = [ours / best for ours, best in found if ours and best]
        if some:
            texts.append(f"{metric} {math.exp(sum(map(math.log, some)) / len(some)):.3f}, ahead in {sum(x >= 1 for x in some)} of {len(some)}")
    return "Over the best peer, geometric mean: " + "; ".join(texts) + "." if texts else "No case has a peer."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", required=True)
    parser.add_argument("--notes", help="a file with text for the end of the page")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    args = parser.parse_args()
    documents = figures.read_documents(args.files)
    rates, machine, products = Rates(documents), {}, {}
    for document in documents:
        machine.update(document["machine"])
        products.update(document.get("products", {}))
    named = ", ".join(f"{key} {machine[key]}" for key in ("gpu", "torch", "cudnn", "flashinfer") if key in machine)
    lines = ["# Prefill on one H200", "",
             f"Measured {args.date} ({named}) by `bench/peers_gpu.py --suite prefill`: bf16, inputs normal(0, 1), every engine over the",
             "same tensors in one process, checked against fp32 before and after timing. TFLOP/s of visible pairs, burst (the first 20 ms",
             "after a rest) and soaked (after 0.3 s of the same), medians of graph replays. Prompts of 16k tokens in all; their KV is",
             "contiguous where no page size is named, else in pages of 16 in random order. The share is of a square matrix product of",
             "about as many FLOPs, soaked in the same run; by size: "
             + ", ".join(f"{side} {soaked:.0f}" for side, (_, soaked) in sorted(products.items(), key=lambda x: int(x[0]))) + ".",
             "", geomean_line(rates), ""]
    lines += table(["case", "goal", "soaked", "Fovea", "soaked", "of a product", "best peer", "soaked", "Fovea over it"],
                   [case_row(rates, case) for case in rates.cases if any(goals_of(case))])
    rows = Path(args.out).with_suffix(".csv")
    write_rows(rates, rows)
    lines += [f"Every case and peer: [{rows.name}]({rows.name}); FA3 is the better of its dense, ragged and paged calls.", ""]
    lines += ratios(rates) + [""]
    if blocks := block_rows(rates):
        lines += table(["blocks, of the dense rate (goal 90, 85, 75 %)", "50 % live", "25 %", "10 %"], blocks)
    if args.notes:
        lines += [Path(args.notes).read_text().strip(), ""]
    notes = [note for document in documents for note in document.get("notes", [])]
    if notes:
        lines += ["Notes of the run:", ""] + [f"- {note}" for note in notes] + [""]
    Path(args.out).write_text("\n".join(lines))


if __name__ == "__main__":
    main()
