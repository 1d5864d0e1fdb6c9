#!/usr/bin/env python3
"""Writes the tables of docs/measurements/sweep.md: shares of the floor, and Fovea beside FlashInfer and FlashAttention-3.

    write_sweep.py build/bench/sweep_peers.json [--alone build/bench/sweep.json] --out build/bench/sweep.md

The first file is of `bench/peers_gpu.py --suite sweep`, --alone of `fovea bench attention --suite sweep --json`. Judged are
cases whose floor is at least 20 us, with at most 16 query tokens; a case counts where a peer ran it.
"""
import argparse
import datetime
import math
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import h200_figures as figures

FAMILIES = {"FlashAttention-3": ("fa3",), "FlashInfer": ("fi_",)}
SLOWER, MUCH_SLOWER = 1.0, 1.1  # Fovea's time over the best peer's
AIM_SLOWER, AIM_MUCH = 0.03, 0
MOST_NAMED = 12


def times(documents):
    """{case: (Fovea's us, {peer: us})} of the judged cases that both have run."""
    found = {}
    for document in documents:
        for row in document["rows"]:
            if row["suite"] == "sweep" and row["metric"] == "time" and row["value"] and row["peer"] and row["peer_value"]:
                found.setdefault(row["case"], (row["value"], {}))[1][row["peer"]] = row["peer_value"]
    return found


def beside(name, cases, belongs):
    """A line of the table and the slower cases, [(ratio, case, us, peer, its us)], worst first."""
    ratios, slower = [], []
    for case, (us, peers) in cases.items():
        some = [(value, peer) for peer, value in peers.items() if peer.startswith(belongs)]
        if not some:
            continue
        best, peer = min(some)
        ratios.append(us / best)
        if us / best > SLOWER:
            slower.append((us / best, case, us, peer, best))
    slower.sort(reverse=True)
    if not ratios:
        return [name, "0", "", "", "", ""], []
    much = sum(ratio > MUCH_SLOWER for ratio in ratios)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    cells = [name, str(len(ratios)), f"{len(slower)} ({len(slower) / len(ratios):.1%})", str(much), f"{max(ratios):.2f}", f"{mean:.2f}"]
    return cells, slower


def shares(document):
    """Lines of the shares of the floor that the bench itself has summed up."""
    lines = []
    for row in document["rows"]:
        if row["metric"] == "median share":
            name, _, rest = row["case"].partition(": ")
            cases, worst, p10 = (part.split()[-1] if "cases" not in part else part.split()[0] for part in rest.split(", "))
            lines.append([name, cases, worst, p10, f"{row['value']:.2f}"])
    return lines


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def page(documents, alone, date):
    machine = {key: value for document in documents for key, value in document["machine"].items()}
    named = ", ".join(f"{key} {figures.number(value) if isinstance(value, float) else value}" for key, value in machine.items())
    lines = ["# Shapes drawn at random, on one H200", "", f"Measured {date}: {named}.", ""]
    if alone:
        lines += ["Shares of the floor, where it is at least 20 us and queries have at most 16 tokens:", ""]
        lines += table(["", "cases", "worst", "p10", "median"], shares(alone))
    cases = times(documents)
    lines += ["Beside the best time of each library in one process, the same tensors, KV rotated over more than the L2, CUDA graphs,",
              f"medians (aim: slower than the best in at most {AIM_SLOWER:.0%} of cases, by more than 10 % in none):", ""]
    rows, slower = [], []
    for name, belongs in (*FAMILIES.items(), ("the best of both", sum(FAMILIES.values(), ()))):
        cells, slower = beside(name, cases, belongs)
        rows.append(cells)
    lines += table(["Fovea beside", "cases", "slower in", "by more than 10 % in", "worst", "geomean of time over theirs"], rows)
    if slower:
        lines += ["Where Fovea is slower than the best of both, worst first:", ""]
        lines += table(["case", "us", "peer", "over it"], [[case, f"{us:.1f}", f"{peer} {best:.1f}", f"{ratio:.2f}"]
                                                          for ratio, case, us, peer, best in slower[:MOST_NAMED]])
    for document in documents:
        missing = Counter(entry.split()[-1] for entry in document.get("not_compiled", []))
        lines += [f"- {peer}: {count} cases whose kernel was not compiled ahead" for peer, count in sorted(missing.items())]
        lines += [f"- {note}" for note in document.get("notes", [])]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--alone", help="of fovea bench attention --suite sweep --json")
    parser.add_argument("--out", required=True)
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    args = parser.parse_args()
    alone = figures.read_documents([args.alone])[0] if args.alone else None
    Path(args.out).write_text(page(figures.read_documents(args.files), alone, args.date))


if __name__ == "__main__":
    main()
