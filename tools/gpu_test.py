#!/usr/bin/env python3
"""`make gpu-test`: runs the bundle's tests on GPU 0 and ends with "N passed, N failed". Needs no compiler.

GPU test binaries, then the Python package's tests and FlashInfer's cases through it (these need torch; without it that
is said, and counts as a failure). --seconds bounds each; --cases: of each configuration of the agreement test; --only:
the steps whose name holds it. --under "compute-sanitizer --error-exitcode 9" runs the binaries under another program.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from functools import partial

from gpu_common import BUNDLE, environment, stop_if_missing


def run_binary(path, env, seconds, under) -> tuple[int, int]:
    """(passed, failed); a skipped test counts as failed, because there is a GPU."""
    results = BUNDLE / f"{path.name}.json"
    results.unlink(missing_ok=True)
    try:
        done = subprocess.run([*under, str(path), f"--gtest_output=json:{results}", "--gtest_brief=1"], env=env, timeout=seconds,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        code, text = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        code, text = 124, (error.output or b"").decode(errors="replace") + f"\ntook more than {seconds} s"
    lines = [line for line in text.splitlines() if line.strip()]
    print("\n".join(lines[:60] if code else [line for line in lines if "cases" in line]), flush=True)
    passed = failed = 0
    try:
        for suite in json.loads(results.read_text())["testsuites"]:
            for case in suite["testsuite"]:
                good = case.get("result") == "COMPLETED" and not case.get("failures")
                passed, failed = passed + good, failed + (not good)
    except (OSError, ValueError, KeyError):
        print(f"{path.name} ended with {code} before its results were written")
        failed += 1
    return passed, failed + (code != 0 and failed == 0)


def run_python(env, seconds) -> tuple[int, int]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(BUNDLE / "tests" / "gpu" / "python")]
    try:
        done = subprocess.run(command, env=env, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace")
        text = done.stdout
    except subprocess.TimeoutExpired as error:
        text = (error.output or b"").decode(errors="replace") + f"\ntook more than {seconds} s"
    print("\n".join(text.splitlines()[-40:]), flush=True)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", text.splitlines()[-1] if text else "")}
    passed = counts.pop("passed", 0)
    return passed, sum(counts.values()) or int(passed == 0)


def run_conformance(env, args) -> tuple[int, int]:
    command = [sys.executable, "-m", "conformance.runner", "--device", "cuda:0", "--seconds", str(args.seconds),
               "--most-cases", str(args.conformance_cases), "--processes", str(args.processes)]
    try:
        done = subprocess.run(command, env=env, timeout=args.seconds + 60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace")
        text = done.stdout
    except subprocess.TimeoutExpired as error:
        text = (error.output or b"").decode(errors="replace") + "\nhung"
    print(text, flush=True)
    last = text.strip().splitlines()[-1].split() if text.strip() else []
    if len(last) > 3 and last[1] == "passed,":
        return int(last[0]), int(last[2])
    return 0, 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=240.0, help="at most, for each step")
    parser.add_argument("--cases", type=int, default=24, help="of each configuration of the agreement test")
    parser.add_argument("--conformance-cases", type=int, default=10**9, help="of each family, spread over it; all")
    parser.add_argument("--processes", type=int, default=8, help="that divide the conformance cases")
    parser.add_argument("--only", default="", help="run the steps alone whose name holds this")
    parser.add_argument("--under", default="", help="a command that runs the test binaries")
    args = parser.parse_args()
    stop_if_missing()
    env = {**environment(), "FOVEA_GPU_CASES": str(args.cases)}
    for use, step in (("agreement", "agreement_gpu_test"), ("variants", "variants_gpu_test"), ("conformance", "conformance")):
        if args.only in step:  # what the bundle's cache lacks, on all cores; where that fails, the tests say why
            warmed = subprocess.run([str(BUNDLE / "bin" / "fovea_gpu_warm"), "sm_90a", use], env=env, capture_output=True, text=True)
            print((warmed.stdout + warmed.stderr).strip()[-600:], flush=True)
    under = args.under.split()
    steps = [(path.name, partial(run_binary, path, env, args.seconds, under)) for path in sorted((BUNDLE / "bin").glob("*_test"))]
    steps += [("python", partial(run_python, env, args.seconds)), ("conformance", partial(run_conformance, env, args))]
    total_passed = total_failed = 0
    for name, run_step in steps:
        if args.only not in name:
            continue
        print(f"--- {name}", flush=True)
        begin = time.monotonic()
        passed, failed = run_step()
        print(f"{name}: {passed} passed, {failed} failed in {time.monotonic() - begin:.1f} s", flush=True)
        total_passed, total_failed = total_passed + passed, total_failed + failed
    print(f"{total_passed} passed, {total_failed} failed")
    return 1 if total_failed or not total_passed else 0


if __name__ == "__main__":
    sys.exit(main())
