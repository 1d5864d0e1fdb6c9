#!/usr/bin/env python3
"""Checks, or with --fix mends, all C++ files against .clang-format (clang-format 14, on every machine), and lints all
Python files by ruff.toml."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from repo import ROOT, project_files, report


RUFF = ROOT / ".venv" / "bin" / "ruff"


def lint_python(files: list[str], fix: bool) -> list[str]:
    """Findings of ruff, one a line."""
    found = subprocess.run([RUFF, "check", "--quiet", "--output-format", "concise", *(["--fix"] if fix else []), *files],
                           cwd=ROOT, check=False, capture_output=True, text=True)
    findings = found.stdout.splitlines()
    return findings if findings or found.returncode == 0 else [found.stderr.strip()]


def main() -> int:
    sources = [path for path in project_files() if re.search(r"\.(h|hpp|inl|cuh|cu|cc|cpp)$", path)]
    scripts = [path for path in project_files() if path.endswith(".py")]
    tool = shutil.which("clang-format-14")
    if tool is None or not RUFF.exists():
        print(f"{'clang-format-14' if tool is None else 'ruff'} is missing; run tools/setup.sh test", file=sys.stderr)
        return 1
    fix = "--fix" in sys.argv[1:]
    bad = lint_python(scripts, fix)
    if fix:
        subprocess.run([tool, "-i", *sources], cwd=ROOT, check=True)
    else:
        found = subprocess.run([tool, "--dry-run", "-Werror", *sources], cwd=ROOT, check=False, capture_output=True, text=True)
        unformatted = sorted({line.split(":")[0] for line in found.stderr.splitlines() if "error:" in line})
        if found.returncode != 0 and not unformatted:
            unformatted = [found.stderr.strip()]
        bad += [f"{path}: not formatted; run make format" for path in unformatted]
    return report("check_format", len(sources) + len(scripts), bad)


if __name__ == "__main__":
    sys.exit(main())
