#!/usr/bin/env python3
"""`make gpu-test`: runs the bundle's tests on GPU 0 and ends with "N passed, N failed". Needs no compiler.

GPU test binaries, then the Python package's tests and FlashInfer's cases through it (these need torch; without it that
is said, and counts as a failure). --seconds bounds each step, --minutes all; outcomes stand in --results after every step,
and --resume skips what passed. --cases: of each configuration of the agreement test; --only: the steps whose name holds it.
--under "compute-sanitizer --error-exitcode 9" runs the binaries under another program. Each step says how many kernels it
compiled: 0 from a bundle made for tests. --driver LIBRARY takes a driver without a GPU (fovea_hollow_driver): every result
is wrong then, but no kernel is launched that the bundle lacks; that is what counts, and test binaries alone run.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from functools import partial
from pathlib import Path

from gpu_common import ROOT, bundle_for, environment, stop_if_missing
from steps import OVERRAN, Outcome, Results, end_children_with_us, run_command


def counts_of(path) -> tuple[int, int]:
    """(passed, failed) of a file of gtest results; a skipped test counts as failed, because there is a GPU."""
    passed = failed = 0
    for suite in json.loads(path.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            good = case.get("result") == "COMPLETED" and not case.get("failures")
            passed, failed = passed + good, failed + (not good)
    return passed, failed


def run_binary(path, env, under, bundle, seconds) -> tuple[int, int, int, str]:
    """(exit code, passed, failed, output)"""
    results = bundle / f"{path.name}.json"
    results.unlink(missing_ok=True)
    code, text = run_command([*under, str(path), f"--gtest_output=json:{results}", "--gtest_brief=1"], seconds, env)
    lines = [line for line in text.splitlines() if line.strip()]
    print("\n".join(lines[:60] if code else [line for line in lines if "cases" in line]), flush=True)
    try:
        passed, failed = counts_of(results)
    except (OSError, ValueError, KeyError):
        print(f"{path.name} ended with {code} before its results were written")
        passed, failed = 0, 1
    return code, passed, failed + (code != 0 and failed == 0), text


def run_python(env, bundle, seconds) -> tuple[int, int, int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(bundle / "tests" / "gpu" / "python")]
    code, text = run_command(command, seconds, env)
    print("\n".join(text.splitlines()[-40:]), flush=True)
    last = text.strip().splitlines()[-1] if text.strip() else ""
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", last)}
    passed = counts.pop("passed", 0)
    return code, passed, sum(counts.values()) or int(passed == 0 or code != 0), text


def run_conformance(env, args, seconds) -> tuple[int, int, int, str]:
    command = [sys.executable, "-m", "conformance.runner", "--device", "cuda:0", "--seconds", str(args.seconds),
               "--most-cases", str(args.conformance_cases), "--processes", str(args.processes)]
    code, text = run_command(command, seconds, env)
    print(text, flush=True)
    last = text.strip().splitlines()[-1].split() if text.strip() else []
    if len(last) > 3 and last[1] == "passed,":
        return code, int(last[0]), int(last[2]) + (code == OVERRAN), text
    return code, 0, 1, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240.0, help="at most, for each step")
    parser.add_argument("--minutes", type=float, default=1e6, help="at most, for all steps together")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "gpu-test.json", help="outcomes, after each step")
    parser.add_argument("--resume", action="store_true", help="skip the steps that --results says have passed")
    parser.add_argument("--cases", type=int, default=24, help="of each configuration of the agreement test")
    parser.add_argument("--conformance-cases", type=int, default=10**9, help="of each family, spread over it; all")
    parser.add_argument("--processes", type=int, default=8, help="that divide the conformance cases")
    parser.add_argument("--only", default="", help="run the steps alone whose name holds this")
    parser.add_argument("--under", default="", help="a command that runs the test binaries")
    parser.add_argument("--driver", default="", help="a driver without a GPU: only tells what would be compiled")
    args = parser.parse_args()
    bundle = bundle_for("test")
    stop_if_missing(bundle, needs_driver=not args.driver)
    end_children_with_us()
    env = {**environment(bundle), "FOVEA_GPU_CASES": str(args.cases)}
    steps = [(path.name, partial(run_binary, path, env, args.under.split(), bundle)) for path in sorted((bundle / "bin").glob("*_test"))]
    if args.driver:
        env["FOVEA_LIBCUDA"] = env["FOVEA_CUBLASLT"] = args.driver
    else:
        steps += [("python", partial(run_python, env, bundle)), ("conformance", partial(run_conformance, env, args))]
    results, until = Results(args.results, args.resume), time.monotonic() + args.minutes * 60
    total_passed = total_failed = all_compiled = 0
    for name, run_step in steps:
        if args.only not in name:
            continue
        kernels, begin = set((bundle / "cache").glob("*")), time.monotonic()
        if not results.has_passed(name):
            print(f"--- {name}", flush=True)
            left = until - begin
            code, passed, failed, text = run_step(min(args.seconds, left)) if left > 0 else (OVERRAN, 0, 1, "time was up")
            compiled = len(set((bundle / "cache").glob("*")) - kernels)
            all_compiled += compiled
            results.add(name, Outcome(code, passed, failed, time.monotonic() - begin, f"{text}\n{compiled} kernels compiled"))
            print(f"{name}: {passed} passed, {failed} failed in {time.monotonic() - begin:.1f} s, {compiled} kernels compiled",
                  flush=True)
        total_passed, total_failed = total_passed + results.steps[name].passed, total_failed + results.steps[name].failed
    if args.driver:
        print(f"{all_compiled} kernels were not in the bundle")
        return int(all_compiled > 0)
    print(f"{total_passed} passed, {total_failed} failed")
    return 1 if total_failed or not total_passed else 0


if __name__ == "__main__":
    sys.exit(main())
