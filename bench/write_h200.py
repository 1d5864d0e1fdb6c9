#!/usr/bin/env python3
"""Makes docs/measurements/h200-decode.md of the JSON that bench/peers_gpu.py (or `fovea bench attention`) wrote.

    write_h200.py build/bench/h200.json [more.json ...] --out docs/measurements/h200-decode.md \\
                  [--causes causes.toml] [--profile build/bench/profile.json]

First the figures that were aimed at: goal, Fovea, the best peer, verdict (h200_figures.py). Then those that fall short:
what ncu saw of their cases (tools/gpu_profile.py) and why, from h200_causes.toml: tables [[cause]] with `figures`, a list
of names or patterns, and `why`. Every row goes to a CSV file beside the page. Rows of later files replace those of earlier ones.
"""
import argparse
import csv
import datetime
import json
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import h200_figures as figures


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def write_rows(data, path):
    """Every measured case, a line each: Fovea and all peers in us."""
    cases = list(dict.fromkeys(case for case, metric, _ in data.rows
                               if metric == "time" and (case, "time") in data.ours | data.peers))
    peers = list(dict.fromkeys(peer for case in cases for peer in data.peers.get((case, "time"), {})))
    show = lambda x, digits: "" if x is None else f"{x:.{digits}f}"
    with open(path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["suite", "case", "limit_us", "fovea_us", *peers])
        for case in cases:
            key = case, "time"
            out.writerow([*case.split("/", 1), show(data.limit.get(key), 1), show(data.ours.get(key), 2),
                          *(show(data.peers.get(key, {}).get(peer), 2) for peer in peers)])


def profile_line(p):
    """What ncu saw, in one line. Shares are of what the hardware does at most."""
    words = [f"{p['us']:.1f} us"]
    if p.get("dram_gb_per_s") is not None:
        words.append(f"DRAM {p['dram_gb_per_s'] / 1e3:.2f} TB/s ({p['dram_percent']:.0f} %)")
    for key, text in (("l2_percent", "L2 {:.0f} %"), ("l2_hit_percent", "L2 hits {:.0f} %"), ("issue_percent", "issue slots {:.0f} %"),
                      ("tensor_percent", "tensor pipe {:.0f} %")):
        if p.get(key) is not None:
            words.append(text.format(p[key]))
    if p.get("stalls"):
        words.append("stalls " + ", ".join(f"{name} {share:.0f} %" for name, share in p["stalls"]))
    words.append(f"{p['registers']:.0f} registers, {p['smem_kb']:.0f} KB shared memory, {p['occupancy_percent']:.0f} % occupancy")
    return "ncu: " + "; ".join(words)


def shortfalls(data, short, causes, profiles):
    """A bullet for each cause with the figures it holds for, below it what ncu saw of their cases."""
    by_cause = {}
    for name in short:
        by_cause.setdefault(figures.cause_of(name, causes) or "no cause is written down yet", []).append(name)
    lines = []
    for cause, names in by_cause.items():
        lines.append(f"- {'; '.join(f'**{name}**' for name in names)}: {cause}")
        cases = dict.fromkeys(case for name in names for case in figures.cases_of_figure(name, data))
        lines += [f"  - {case}: {profile_line(profiles[case])}" for case in cases if case in profiles]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--out", required=True)
    parser.add_argument("--causes", default=str(Path(__file__).resolve().parent / "h200_causes.toml"))
    parser.add_argument("--profile", action="append", default=[], help="of tools/gpu_profile.py")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    args = parser.parse_args()
    documents = figures.read_documents(args.files)
    profiles = {}
    with open(args.causes, "rb") as file:
        causes = tomllib.load(file).get("cause", [])
    for path in args.profile:
        with open(path) as file:
            profiles.update(json.load(file)["cases"])
    data, machine = figures.Measured(documents), {}
    for document in documents:
        machine.update(document["machine"])
    described = ", ".join(f"{key} {figures.number(value) if isinstance(value, float) else value}" for key, value in machine.items())
    lines = ["# Decode on one H200", "", f"Measured {args.date}: {described}.", "",
             "Every engine ran over the same tensors in one process: graph replays, KV rotated over at least 400 MB, median of 25, each result",
             "compared with fp32 before timing and on what the timed graph wrote. GB/s counts unique KV, queries and outputs. cudnn reads",
             "contiguous KV, all others pages of 16 in random order (page suite: of its size; prefixes: of 32, in order inside a node). The",
             "limit is the time of those bytes at the read limit of the same run; for prefixes the floor of the cell. To pass: ahead of every",
             "paged peer, and at most 0.5 % behind contiguous cuDNN.", "", "## Against the aims", ""]
    lines += table(["figure", "goal", "Fovea", "best paged peer", "contiguous", "verdict"],
                   [cells for _, cells in figures.figure_lines(data)])
    if short := figures.figures_short(data):
        lines += ["## What falls short, and why", "",
                  "Profiles are single launches under ncu with cold caches: its times are not those of the table.", ""]
        lines += shortfalls(data, short, causes, profiles) + [""]
    rows = Path(args.out).with_suffix(".csv")
    write_rows(data, rows)
    lines += [f"Every row, in us: [{rows.name}]({rows.name}).", ""]
    notes = [note for document in documents for note in document.get("notes", [])]
    if notes:
        lines += ["## Notes of the run", ""] + [f"- {note}" for note in notes] + [""]
    with open(args.out, "w") as out:
        out.write("\n".join(lines))


if __name__ == "__main__":
    main()
