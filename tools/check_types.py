#!/usr/bin/env python3
"""Checks the types of the Python package, of the tools and of the tests beside them with mypy (mypy.ini)."""

from __future__ import annotations

import subprocess
import sys

from repo import ROOT, report

MYPY = ROOT / ".venv" / "bin" / "mypy"
# Tests give wrong types on purpose, and modules of their own making.
TESTS = ["--disable-error-code=" + code for code in ("arg-type", "assignment", "attr-defined", "union-attr")]


def findings(*arguments: str) -> list[str]:
    found = subprocess.run([MYPY, "--no-error-summary", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    lines = [line for line in found.stdout.splitlines() if ": error:" in line]
    return lines if lines or found.returncode == 0 else [(found.stdout + found.stderr).strip()]


def main() -> int:
    if not MYPY.exists():
        print("mypy is missing; run tools/setup.sh test", file=sys.stderr)
        return 1
    tests = sorted(str(path.relative_to(ROOT)) for folder in ("tests/python", "tools/tests") for path in (ROOT / folder).glob("*.py"))
    package = sorted((ROOT / "python" / "fovea").glob("*.py"))
    return report("check_types", len(package) + len(tests), findings() + findings(*TESTS, *tests))


if __name__ == "__main__":
    sys.exit(main())
