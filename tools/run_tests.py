#!/usr/bin/env python3
"""`make test`: runs every step below, shows what each found and how long it took, and ends with "N passed, N failed".

tools/tests.toml lists the test binaries, fuzz targets and Python tests by name. A step that runs no test fails, and so does
one whose tests differ from the list. `run_tests.py STEP...` runs some steps only; `--list` names them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from repo import ROOT

OUT = ROOT / "build" / "test-results"
IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
FUZZ_SECONDS = 60 if IN_CI else 5
# A binary that takes longer hangs.
BINARY_TIMEOUT_S = 1800


@dataclass
class Outcome:
    """What a step counted. `problems` are shown; each failed test has one line there at least."""

    passed: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)

    def fail(self, message: str) -> None:
        self.failed += 1
        self.problems.append(message)

    def add(self, other: Outcome) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.problems += other.problems


def say(line: str) -> None:
    """One write, so that lines of steps that run beside each other stay whole."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(command: list[str], *, timeout: float | None = None, env: dict[str, str] | None = None,
        cwd: Path = ROOT) -> tuple[int, str]:
    """Exit code and both outputs together."""
    try:
        done = subprocess.run(command, cwd=cwd, timeout=timeout, env={**os.environ, **(env or {})}, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        output = error.output or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        return 124, f"{text}\ntimed out after {timeout} s"


def tail(text: str, lines: int = 60) -> str:
    return "\n".join(text.splitlines()[-lines:])


def one_check(name: str, command: list[str]) -> Outcome:
    code, text = run(command)
    outcome = Outcome()
    if code == 0:
        outcome.passed = 1
    else:
        outcome.fail(f"{name}:\n{tail(text)}")
    return outcome


def checks(_: dict) -> Outcome:
    outcome = Outcome()
    for name in ("layers", "sizes", "links", "abi", "format", "types"):
        outcome.add(one_check(name, [sys.executable, f"tools/check_{name}.py"]))
    return outcome


def build(preset: str, targets: list[str]) -> Outcome:
    return one_check(f"build {preset}", ["tools/build.sh", preset, *targets])


def warnings_in(text: str) -> list[str]:
    """Lines of warnings by compiler, linker and CMake; the compiler cache repeats those of what it had compiled before."""
    return sorted({line for line in text.splitlines()
                   if re.search(r"\bwarning:|^CMake (\w+ )?Warning", line) and not line.startswith("ninja: ")})


def build_release(_: dict) -> Outcome:
    """Warnings are shown. In CI they fail the build, as -Werror would, which a release must not have: the next compiler
    warns of more."""
    code, text = run(["tools/build.sh", "release"])
    outcome = Outcome()
    if code != 0:
        outcome.fail(f"build release:\n{tail(text)}")
        return outcome
    if found := warnings_in(text):
        outcome.problems.append("build release: compiled with warnings\n" + "\n".join(found))
    if found and IN_CI:
        outcome.failed = 1
    else:
        outcome.passed = 1
    return outcome


def lint(tests: dict) -> Outcome:
    return one_check("lint", [sys.executable, "tools/lint.py", *tests["lint"]])


def gtest_outcome(name: str, code: int, text: str, results: Path) -> Outcome:
    """Counts of a gtest run, from its JSON file. A skipped test showed nothing, so it counts as failed."""
    outcome = Outcome()
    try:
        suites = json.loads(results.read_text())["testsuites"]
    except (OSError, ValueError, KeyError):
        outcome.fail(f"{name}: ended with {code} before its results were written\n{tail(text)}")
        return outcome
    for suite in suites:
        for case in suite["testsuite"]:
            full = f"{name}: {suite['name']}.{case['name']}"
            if case.get("failures"):
                outcome.fail(full + "\n" + "\n".join(failure["failure"] for failure in case["failures"]))
            elif case.get("result") != "COMPLETED":
                outcome.fail(f"{full}: {case.get('result', 'no result').lower()}")
            else:
                outcome.passed += 1
    if outcome.passed + outcome.failed == 0:
        outcome.fail(f"{name}: ran no test")
    if code != 0 and outcome.failed == 0:
        outcome.fail(f"{name}: ended with {code}\n{tail(text)}")
    return outcome


def run_binary(preset: str, name: str, env: dict[str, str]) -> Outcome:
    binary = ROOT / "build" / preset / "tests" / name
    if not binary.exists():
        outcome = Outcome()
        outcome.fail(f"{preset} {name}: listed in tools/tests.toml, but the build makes no such test")
        return outcome
    results = OUT / preset / f"{name}.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.unlink(missing_ok=True)
    begin = time.monotonic()
    code, text = run([str(binary), f"--gtest_output=json:{results}", "--gtest_brief=1"], timeout=BINARY_TIMEOUT_S, env=env)
    outcome = gtest_outcome(f"{preset} {name}", code, text, results)
    say(f"    {preset} {name}: {outcome.passed} passed, {outcome.failed} failed in {time.monotonic() - begin:.1f} s")
    return outcome


def unit_tests(tests: dict) -> Outcome:
    outcome = Outcome()
    code, text = run(["ctest", "--test-dir", "build/release", "--show-only=json-v1"])
    known = {test["name"] for test in json.loads(text)["tests"]} if code == 0 else set()
    for name in sorted(known - set(tests["release"])):
        outcome.fail(f"{name}: not listed in tools/tests.toml")
    built = {path.name for path in (ROOT / "build" / "release" / "gpu-tests").glob("*_test")}
    for name in sorted(built ^ set(tests["gpu"])):
        outcome.fail(f"{name}: " + ("not listed as gpu in tools/tests.toml" if name in built else "listed, but not built"))
    for name in tests["release"]:
        outcome.add(run_binary("release", name, {}))
    return outcome


def sanitized(preset: str, tests: dict) -> Outcome:
    names = tests[preset]
    outcome = build(preset, names)
    if outcome.failed:
        return outcome
    env = {
        "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
        "GTEST_FILTER": "-" + ":".join(tests["not_sanitized"]),
    }
    for name in names:
        outcome.add(run_binary(preset, name, env))
    return outcome


def asan(tests: dict) -> Outcome:
    return sanitized("asan", tests)


def tsan(tests: dict) -> Outcome:
    return sanitized("tsan", tests)


def fuzz(tests: dict) -> Outcome:
    """Each target runs over its corpus (tests/fuzz/corpus/TARGET), then over mutations of it for some seconds."""
    names = tests["fuzz"]
    if unlisted := {path.stem for path in (ROOT / "tests" / "fuzz").glob("*_fuzz.cc")} - set(names):
        outcome = Outcome()
        outcome.fail(f"fuzz: {', '.join(sorted(unlisted))} not listed in tools/tests.toml")
        return outcome
    outcome = build("fuzz", names)
    if outcome.failed:
        return outcome
    started = []
    for name in names:
        grown = ROOT / "build" / "fuzz" / "corpus" / name
        grown.mkdir(parents=True, exist_ok=True)
        command = [str(ROOT / "build" / "fuzz" / "tests" / name), f"-max_total_time={FUZZ_SECONDS}", "-timeout=10",
                   "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={grown}/../", str(grown)]
        seeds = ROOT / "tests" / "fuzz" / "corpus" / name
        if seeds.is_dir():
            command.append(str(seeds))
        log = open(OUT / f"{name}.log", "w+")
        started.append((name, log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)))
        if len(started) % max(1, os.cpu_count() or 1) == 0:
            started[-1][2].wait()
    for name, log, process in started:
        code = process.wait()
        log.seek(0)
        text = log.read()
        log.close()
        executed = [line.split()[-1] for line in text.splitlines() if "number_of_executed_units" in line]
        if code == 0 and executed and int(executed[0]) > 0:
            outcome.passed += 1
            say(f"    {name}: {executed[0]} inputs in {FUZZ_SECONDS} s")
        else:
            outcome.fail(f"{name}: ended with {code}\n{tail(text)}")
    return outcome


def python_tests(tests: dict) -> Outcome:
    outcome = pytest_in(".venv", tests["python"])
    outcome.add(pytest_in(".venv-clients", tests["clients"]))
    return outcome


def pytest_in(venv: str, folders: list[str]) -> Outcome:
    results = OUT / f"python{venv}.xml"
    results.unlink(missing_ok=True)
    code, text = run([str(ROOT / venv / "bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}",
                      *folders], timeout=BINARY_TIMEOUT_S)
    outcome = Outcome()
    try:
        cases = list(xml.etree.ElementTree.parse(results).getroot().iter("testcase"))
    except (OSError, xml.etree.ElementTree.ParseError):
        outcome.fail(f"pytest ended with {code} before its results were written\n{tail(text)}")
        return outcome
    for case in cases:
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        if bad:
            outcome.fail(f"{case.get('classname')}.{case.get('name')}: {bad[0].tag}\n{tail(bad[0].text or '', 30)}")
        else:
            outcome.passed += 1
    if code != 0 and outcome.failed == 0:
        outcome.fail(f"pytest ended with {code}\n{tail(text)}")
    return outcome


def consumer(_: dict) -> Outcome:
    """Installs into an empty folder, and builds and runs programs that know only find_package(fovea); lays out the files
    of the Python wheel in another one, and uses the package there."""
    prefix = ROOT / "build" / "consumer" / "prefix"
    work = ROOT / "build" / "consumer" / "build"
    shutil.rmtree(prefix, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)
    wheel = prefix / "wheel"
    shutil.copytree(ROOT / "python" / "fovea", wheel / "fovea", ignore=shutil.ignore_patterns("__pycache__"))
    commands = [
        ["cmake", "--install", "build/release", "--prefix", str(prefix)],
        ["cmake", "-S", "tests/consumer", "-B", str(work), "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
         "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(work)],
        [str(work / "consumer")],
        [str(work / "decode")],
        [str(work / "sparse")],
        ["cmake", "--install", "build/release", "--component", "python", "--prefix", str(wheel)],
        ["env", "-u", "FOVEA_LIBRARY", f"PYTHONPATH={wheel}", str(ROOT / ".venv/bin/python"), "-B", "tests/consumer/wheel.py", str(wheel)],
    ]
    outcome = Outcome()
    for command in commands:
        code, text = run(command, timeout=BINARY_TIMEOUT_S)
        if code != 0:
            outcome.fail(f"{' '.join(command)} ended with {code}\n{tail(text)}")
            return outcome
    outcome.passed = 1
    return outcome


STEPS = {
    "checks": checks,
    "build": build_release,
    "unit": unit_tests,
    "python": python_tests,
    "consumer": consumer,
    "lint": lint,
    "asan": asan,
    "tsan": tsan,
    "fuzz": fuzz,
}
# Run one after the other while the unit tests run, which leave a core idle for much of their time.
BESIDE_UNIT = ("python", "consumer", "lint")


def run_step(name: str, tests: dict) -> tuple[Outcome, float]:
    say(f"--- {name}")
    begin = time.monotonic()
    try:
        outcome = STEPS[name](tests)
    except Exception as error:  # a broken step must not hide the others
        outcome = Outcome()
        outcome.fail(f"{name}: {type(error).__name__}: {error}")
    if outcome.passed + outcome.failed == 0:
        outcome.fail(f"{name}: ran no test")
    for problem in outcome.problems:
        say(problem)
    return outcome, time.monotonic() - begin


def main() -> int:
    wanted = sys.argv[1:] or list(STEPS)
    if wanted == ["--list"]:
        print("\n".join(STEPS))
        return 0
    if unknown := [name for name in wanted if name not in STEPS]:
        print(f"no step {unknown[0]}; the steps are {', '.join(STEPS)}", file=sys.stderr)
        return 2
    tests = tomllib.loads((ROOT / "tools" / "tests.toml").read_text())
    OUT.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    beside = [name for name in wanted if name in BESIDE_UNIT and "unit" in wanted]
    results = {}
    with ThreadPoolExecutor(max_workers=1) as other:
        for name in wanted:
            if name in beside:
                continue
            waiting = [other.submit(run_step, step, tests) for step in beside] if name == "unit" else []
            results[name] = run_step(name, tests)
            results.update(zip(beside, (done.result() for done in waiting)))
    total = Outcome()
    print(f"\n{'step':<10}{'passed':>8}{'failed':>8}{'seconds':>10}")
    for name in wanted:
        outcome, seconds = results[name]
        print(f"{name:<10}{outcome.passed:>8}{outcome.failed:>8}{seconds:>10.1f}")
        total.add(outcome)
    print(f"{'all':<10}{total.passed:>8}{total.failed:>8}{time.monotonic() - begin:>10.1f}")
    if total.problems:
        print("\nFailed:" if total.failed else "\nShown above:")
        for problem in total.problems:
            print("  " + problem.splitlines()[0])
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
