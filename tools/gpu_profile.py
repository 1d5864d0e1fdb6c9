#!/usr/bin/env python3
"""What ncu sees of one launch of measured cases: what limits them, in numbers. Used by `PROFILE=1 make gpu-bench`.

    gpu_profile.py build/bench/h200.json --json build/bench/profile.json     # cases of the figures that fall short there
    gpu_profile.py --cases decode/32x8/B64/S4096,single/S256 --json profile.json

Needs the bundle (gpu_common.py) and ncu. `fovea bench attention --once` launches each case once, under ncu, a process a
suite; --seconds bounds all of them, and what was profiled by then is kept. Clocks are left as they are. The file says
{"cases": {id: {...}}}, read by bench/write_h200.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import time

from gpu_common import ROOT, bundle_for, environment, stop_if_missing

sys.path.insert(0, str(ROOT / "bench"))
import h200_figures as figures

SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "WarpStateStats", "SchedulerStats", "LaunchStats",
            "Occupancy")
METRICS = "gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed"
STALL = re.compile(r"smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)(?:_per_issue_active)?\.ratio")


def number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def launches(text: str) -> list[dict[str, float]]:
    """The rows of ncu's raw page: metrics of each launch that are numbers. Lines of other programs come before the head."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        return []
    rows = list(csv.reader(io.StringIO("\n".join(lines[head:]))))
    found = []
    for row in rows[1:]:
        if len(row) == len(rows[0]) and row[0].isdigit():  # the row of units has no ID
            found.append({name: value for name, cell in zip(rows[0], row) if (value := number(cell)) is not None})
    return found


def summary(m: dict[str, float]) -> dict:
    """What a page says of a launch, from ncu's metrics in base units (ns, bytes)."""
    def first(*patterns):
        return next((value for pattern in patterns for name, value in m.items() if re.fullmatch(pattern, name)), None)
    ns = m["gpu__time_duration.sum"]
    moved = m["dram__bytes_read.sum"] + m["dram__bytes_write.sum"]
    stalls = {}
    for name, value in m.items():
        if (match := STALL.fullmatch(name)) and not match[1].endswith("not_issued"):
            stalls[match[1]] = value
    total = sum(stalls.values())
    stalls.pop("selected", None)  # these issue
    top = sorted(stalls.items(), key=lambda pair: -pair[1])[:3]
    return {
        "us": ns / 1e3,
        "dram_gb": moved / 1e9,
        "dram_gb_per_s": moved / ns,
        "dram_percent": first(r"dram__throughput\.avg\.pct_of_peak_sustained_elapsed"),
        "l2_percent": first(r"lts__throughput\.avg\.pct_of_peak_sustained_elapsed", r"lts__t_sectors\.avg\.pct_of_peak_sustained_elapsed"),
        "l2_hit_percent": first(r"lts__t_sector_hit_rate\.pct"),
        "issue_percent": first(r"sm__inst_issued\.avg\.pct_of_peak_sustained_active", r"smsp__issue_active\.avg\.pct_of_peak_sustained_active"),
        "tensor_percent": max((v for n, v in m.items() if re.fullmatch(r"sm__(inst_executed_)?pipe_tensor.*\.pct_of_peak_sustained_(active|elapsed)", n)),
                              default=None),
        "stalls": [(name, 100 * value / total) for name, value in top] if total else [],
        "registers": m["launch__registers_per_thread"],
        "smem_kb": sum(v for n, v in m.items() if re.fullmatch(r"launch__shared_mem_per_block_(dynamic|static)", n)) / 1024,
        "occupancy_percent": m["sm__warps_active.avg.pct_of_peak_sustained_active"],
    }


def profile(cases: list[str], env: dict[str, str], seconds: float) -> tuple[dict[str, dict], str]:
    """The summaries of cases of one suite, and what went wrong, if something did."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--metrics", METRICS]
    for section in SECTIONS:
        command += ["--section", section]
    command += [str(bundle_for("bench") / "bin" / "fovea"), "bench", "attention", "--device", "cuda:0", "--once", "--suite", cases[0].split("/")[0],
                "--only", ",".join(cases)]
    try:
        done = subprocess.run(command, env=env, timeout=max(seconds, 1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace")
    except subprocess.TimeoutExpired:
        return {}, f"more than {seconds:.0f} s"
    ran = re.findall(r"^once (\S+)$", done.stdout, re.MULTILINE)
    rows = launches(done.stdout)
    if done.returncode != 0 or len(ran) != len(rows):
        return {}, f"ncu ended with {done.returncode}, {len(rows)} launches of {len(ran)} cases:\n{done.stdout[-2000:]}"
    try:
        return {case: summary(row) for case, row in zip(ran, rows) if case in cases}, ""
    except KeyError as error:
        return {}, f"ncu reported no {error}; it did: {' '.join(rows[0])}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="*", help="JSON of the bench: cases of the figures that fall short in it")
    parser.add_argument("--cases", default="", help="ids of cases (fovea bench attention --list), with commas")
    parser.add_argument("--json", required=True)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all together")
    args = parser.parse_args()
    stop_if_missing(bundle_for("bench"))
    if shutil.which("ncu") is None:
        sys.exit("ncu is not there: it comes with the CUDA toolkit (Nsight Compute)")
    cases = [case for case in args.cases.split(",") if case]
    if args.results:
        data = figures.Measured(figures.read_documents(args.results))
        cases += [case for name in figures.figures_short(data) for case in figures.cases_of_figure(name, data)]
    by_suite: dict[str, list[str]] = {}
    for case in dict.fromkeys(cases):
        by_suite.setdefault(case.split("/")[0], []).append(case)
    if not by_suite:
        print("no figure falls short, so there is nothing to profile")
    end, found, wrong = time.monotonic() + args.seconds, {}, 0
    for suite, some in by_suite.items():
        begin = time.monotonic()
        profiled, why = profile(some, environment(bundle_for("bench")), end - begin)
        found |= profiled
        wrong += bool(why)
        print(f"{suite}: {len(profiled)} of {len(some)} cases profiled in {time.monotonic() - begin:.1f} s" + (f": {why}" if why else ""), flush=True)
        with open(args.json, "w") as file:
            json.dump({"cases": found}, file, indent=1)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
