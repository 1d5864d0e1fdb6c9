#!/usr/bin/env python3
"""Runs the steps of a TOML file one after another within a time limit: for machines that are lent for minutes.

    gpu_queue.py tools/gpu_steps.toml --minutes 9 --only sweep,decode [--state build/gpu-queue.json]

A step ([[step]]: name, command, minutes: what it may take, least: begin it with no less left, default a third of that) that
overruns is ended with all that it started; the next one follows. Outcomes stand in --state after each step, outputs beside it
in NAME.log; a second run with the same state skips what passed. Exit code 0: every step asked for has passed; 1: one failed;
3: time was up before one.
"""

from __future__ import annotations

import argparse
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from gpu_common import ROOT
from steps import Outcome, Results, end_children_with_us, run_command

TIME_WAS_UP = 3
KEPT_S = 10.0  # of the limit, for ending what overran and for writing


@dataclass
class Step:
    name: str
    command: str
    minutes: float
    least: float


def read_steps(path: Path) -> list[Step]:
    """Ends the program where the file is not what the module's comment says."""
    try:
        entries = tomllib.loads(path.read_text())["step"]
        steps = [Step(e["name"], e["command"], float(e["minutes"]), float(e.get("least", e["minutes"] / 3))) for e in entries]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        sys.exit(f"{path}: expected [[step]] with name, command and minutes: {error!r}")
    names = [step.name for step in steps]
    if twice := {name for name in names if names.count(name) > 1}:
        sys.exit(f"{path}: steps named twice: {', '.join(sorted(twice))}")
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--minutes", type=float, required=True, help="at most, for all")
    parser.add_argument("--only", default="", help="names of steps, with commas; all")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "gpu-queue.json")
    parser.add_argument("--list", action="store_true", help="name the steps and what they may take")
    args = parser.parse_args()
    steps = read_steps(args.steps)
    names = [step.name for step in steps]
    wanted = args.only.split(",") if args.only else names
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"--only names {', '.join(unknown)}, expected of {', '.join(names)}")
    if args.list:
        print("\n".join(f"{step.name:16s} {step.minutes:5.1f} min  {step.command}" for step in steps))
        return 0
    end_children_with_us()
    until = time.monotonic() + args.minutes * 60 - KEPT_S
    results = Results(args.state, resume=True)
    verdicts = {}
    for step in steps:
        if step.name not in wanted:
            continue
        left = until - time.monotonic()
        if results.has_passed(step.name):
            verdicts[step.name] = "passed before"
        elif left < step.least * 60:
            verdicts[step.name] = "time was up"
        else:
            print(f"--- {step.name}", flush=True)
            begin = time.monotonic()
            code, text = run_command(step.command, min(step.minutes * 60, left), cwd=ROOT)
            seconds = time.monotonic() - begin
            (args.state.parent / f"{step.name}.log").write_text(text)
            results.add(step.name, Outcome(code, int(code == 0), int(code != 0), seconds, text))
            print(text[-1500:].rstrip(), flush=True)
            verdicts[step.name] = f"{'passed' if code == 0 else f'ended with {code}'} after {seconds:.0f} s"
    for name, verdict in verdicts.items():
        print(f"{name}: {verdict}", flush=True)
    if all(results.has_passed(name) for name in verdicts):
        return 0
    return TIME_WAS_UP if all(v == "time was up" or results.has_passed(n) for n, v in verdicts.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
