"""The test runner counts what ran, and everything that did not show anything as failed."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import run_tests


def results(tmp_path, *cases):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"testsuites": [{"name": "S", "testsuite": list(cases)}]}))
    return path


GOOD = {"name": "good", "result": "COMPLETED"}
BAD = {"name": "bad", "result": "COMPLETED", "failures": [{"failure": "1 is not 2"}]}
SKIPPED = {"name": "skipped", "result": "SKIPPED"}
DISABLED = {"name": "disabled", "result": "SUPPRESSED"}


@pytest.mark.parametrize("cases, code, passed, failed", [
    ((GOOD, GOOD), 0, 2, 0),
    ((GOOD, BAD), 1, 1, 1),
    ((GOOD, SKIPPED), 0, 1, 1),
    ((GOOD, DISABLED), 0, 1, 1),
    ((GOOD,), 1, 1, 1),   # ended badly after its tests, as under a sanitizer that finds a leak
    ((), 0, 0, 1),        # ran no test
])
def test_counts(tmp_path, cases, code, passed, failed):
    outcome = run_tests.gtest_outcome("x", code, "", results(tmp_path, *cases))
    assert (outcome.passed, outcome.failed) == (passed, failed)
    assert len(outcome.problems) == failed


def test_a_crash_shows_the_output(tmp_path):
    outcome = run_tests.gtest_outcome("x", -11, "the last words", tmp_path / "none.json")
    assert (outcome.passed, outcome.failed) == (0, 1)
    assert "the last words" in outcome.problems[0]


def test_a_listed_binary_that_is_gone_fails():
    outcome = run_tests.run_binary("release", "no_such_test", {})
    assert outcome.failed == 1 and "no_such_test" in outcome.problems[0]


def test_steps_run_in_order_and_the_last_line_counts(monkeypatch, capsys):
    monkeypatch.setattr(run_tests, "STEPS", {
        "one": lambda _: run_tests.Outcome(passed=3),
        "broken": lambda _: 1 / 0,
        "empty": lambda _: run_tests.Outcome(),
        "last": lambda _: run_tests.Outcome(passed=2),
    })
    monkeypatch.setattr(sys, "argv", ["run_tests.py"])
    assert run_tests.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 2 failed"
    monkeypatch.setattr(sys, "argv", ["run_tests.py", "one", "last"])
    assert run_tests.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "5 passed, 0 failed"
    monkeypatch.setattr(sys, "argv", ["run_tests.py", "two"])
    assert run_tests.main() == 2


def test_steps_beside_the_unit_tests_count_too(monkeypatch, capsys):
    monkeypatch.setattr(run_tests, "STEPS", {
        "unit": lambda _: run_tests.Outcome(passed=3),
        "python": lambda _: run_tests.Outcome(passed=4),
        "lint": lambda _: 1 / 0,
        "asan": lambda _: run_tests.Outcome(passed=5),
    })
    monkeypatch.setattr(sys, "argv", ["run_tests.py"])
    assert run_tests.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "12 passed, 1 failed"
    monkeypatch.setattr(sys, "argv", ["run_tests.py", "python"])
    assert run_tests.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 0 failed"


def test_the_list_names_only_steps_that_exist():
    tests = run_tests.tomllib.loads((run_tests.ROOT / "tools" / "tests.toml").read_text())
    assert set(tests) == {"release", "asan", "tsan", "not_sanitized", "fuzz", "gpu", "python", "clients", "lint"}
    for preset in ("asan", "tsan"):
        assert set(tests[preset]) <= set(tests["release"])


@pytest.mark.parametrize("text, in_ci, failed", [
    ("[1/2] Building CXX object a.o\n[2/2] Linking", True, 0),
    ("a.cc:3:7: warning: unused variable 'x' [-Wunused-variable]", True, 1),
    ("a.cc:3:7: warning: unused variable 'x' [-Wunused-variable]", False, 0),
    ("CMake Warning at CMakeLists.txt:3 (message):", True, 1),
    ("ninja: warning: premature end of file; recovering", True, 0),
    ("[7/9] Building CXX object warning_test.cc.o", True, 0),
])
def test_warnings_fail_the_build_of_ci(monkeypatch, text, in_ci, failed):
    monkeypatch.setattr(run_tests, "IN_CI", in_ci)
    monkeypatch.setattr(run_tests, "run", lambda command: (0, text))
    outcome = run_tests.build_release({})
    assert (outcome.passed, outcome.failed) == (1 - failed, failed)
    assert bool(outcome.problems) == bool(run_tests.warnings_in(text))


def test_a_failed_build_fails(monkeypatch):
    monkeypatch.setattr(run_tests, "run", lambda command: (1, "ninja: build stopped"))
    assert run_tests.build_release({}).failed == 1


def test_the_changelog_begins_with_the_version():
    version = re.search(r'kVersion = "([0-9.]+)"', (run_tests.ROOT / "include/fovea/version.h").read_text()).group(1)
    heads = re.findall(r"^## \[(.+?)\]", (run_tests.ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == version
