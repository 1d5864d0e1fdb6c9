#!/usr/bin/env python3
"""Whether a change slowed a row of the bench down: two bundles by turns on GPU 0, row by row; or two files of before.

    gpu_compare.py BEFORE AFTER [--suite decode,skew,...,plan] [--rounds 3] [--json build/bench/compare.json]
    gpu_compare.py before.json after.json

BEFORE and AFTER are bundles of tools/gpu_bundle.sh, folders or archives. A round runs both, the order changing from round to
round; a row's value is the median of its rounds. Exit code 1 where a row became worse by more than --percent (1) or is gone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_common import ROOT, environment, stop_if_missing
from steps import end_children_with_us, run_command

HIGHER_IS_BETTER = {"GB/s", "TB/s", "TFLOP/s", "tokens/s"}
SUITES = "decode,skew,single,fp8,integers,page,variant,append,prefix"
Rows = dict[str, tuple[float, str]]  # "suite/case metric" -> value and unit


def rows_of(document: dict) -> Rows:
    """Of several rows of a case, for a peer each, one."""
    return {f"{r['suite']}/{r['case']} {r['metric']}": (r["value"], r["unit"]) for r in document["rows"] if r["value"] is not None}


def medians(rounds: list[Rows]) -> Rows:
    """Rows that every round has."""
    common = [name for name in rounds[0] if all(name in rows for rows in rounds)]
    return {name: (statistics.median(rows[name][0] for rows in rounds), rounds[0][name][1]) for name in common}


def spread(rounds: list[Rows], name: str) -> float:
    """Between the rounds of one side, percent of the smallest."""
    values = [rows[name][0] for rows in rounds if name in rows]
    return 100 * (max(values) / min(values) - 1) if values and min(values) > 0 else 0.0


def compared(before: list[Rows], after: list[Rows], percent: float) -> tuple[list[str], int]:
    """(table, how many rows became worse or are gone); the worst first, rows within the limit counted alone."""
    old, new = medians(before), medians(after)
    changes, gone = [], [name for name in old if name not in new]
    for name, (value, unit) in old.items():
        if name in new and value > 0 and new[name][0] > 0:
            ratio = new[name][0] / value
            changes.append((100 * ((1 / ratio if unit in HIGHER_IS_BETTER else ratio) - 1), name))
    worse = [change for change in changes if change[0] > percent]
    lines = ["| row | before | after | worse by | spread before, after |", "|---|---|---|---|---|"]
    for change, name in sorted(changes, reverse=True):
        if abs(change) > percent:
            lines.append(f"| {name} | {old[name][0]:.4g} {old[name][1]} | {new[name][0]:.4g} | {change:+.1f} % | "
                         f"{spread(before, name):.1f} %, {spread(after, name):.1f} % |")
    lines += [f"| {name} | {old[name][0]:.4g} {old[name][1]} | gone | | |" for name in gone]
    lines.append(f"{len(changes)} rows: {len(worse)} worse by more than {percent:g} %, {len(gone)} gone, "
                 f"{sum(change < -percent for change, _ in changes)} better by more")
    return lines, len(worse) + len(gone) + (not changes)


def unpacked(path: Path, folder: Path) -> Path:
    """The folder of a bundle."""
    if path.is_dir():
        return path.resolve()
    if not path.exists():
        sys.exit(f"{path} does not exist; expected a bundle of tools/gpu_bundle.sh, as a folder or an archive")
    folder.mkdir(parents=True)
    subprocess.run(["tar", "-C", str(folder), "-xJf", str(path)], check=True)
    return next(folder.iterdir())


def run_round(bundle: Path, suite: str, seconds: float) -> Rows:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [str(bundle / "bin" / "fovea"), "bench", "attention", "--device", "cuda:0", "--suite", suite, "--json", file.name]
        code, text = run_command(command, seconds, environment(bundle))
        if code != 0:
            sys.exit(f"{bundle}: the bench ended with {code}\n{text[-2000:]}")
        return rows_of(json.loads(Path(file.name).read_text()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--suite", default=SUITES, help="of fovea bench attention; plan runs besides them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percent", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=180.0, help="at most, for each run")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "bench" / "compare.json")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}, expected 1 or more")
    sides = args.before, args.after
    rounds: tuple[list[Rows], list[Rows]] = [], []
    if all(path.suffix == ".json" for path in sides):
        for path, side in zip(sides, rounds):
            side.append(rows_of(json.loads(path.read_text())))
    else:
        end_children_with_us()
        with tempfile.TemporaryDirectory() as scratch:
            bundles = [unpacked(path, Path(scratch) / name) for path, name in zip(sides, ("before", "after"))]
            for bundle in bundles:
                stop_if_missing(bundle)
            for nth in range(args.rounds):
                for which in (0, 1) if nth % 2 == 0 else (1, 0):
                    rows: Rows = {}
                    for suite in (args.suite, "plan"):
                        rows.update(run_round(bundles[which], suite, args.seconds))
                    rounds[which].append(rows)
                    args.json.parent.mkdir(parents=True, exist_ok=True)
                    args.json.write_text(json.dumps({"before": rounds[0], "after": rounds[1]}, indent=1) + "\n")
    lines, bad = compared(*rounds, args.percent)
    print("\n".join(lines))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
