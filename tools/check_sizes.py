#!/usr/bin/env python3
"""Checks that source files stay readable (at most 800 lines, an opening comment) and that no file exceeds 16 MiB.

Also finds what must not enter the project: paths of one machine and names of package registries.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from repo import ROOT, project_files, report

MAX_LINES = 800
MAX_BYTES = 16 << 20
CODE = re.compile(r"\.(h|hpp|inl|cuh|cu|cc|cpp|py|sh)$")
# The first line, after a "#!" line, opens with what the file is.
OPENING = re.compile(r'^(//|#|"""|/\*)')
TEXT = re.compile(r"\.(h|hpp|inl|cuh|cu|cc|cpp|py|sh|md|txt|cmake|json|toml|yml|svg)$|(^|/)(Makefile|run)$")
FORBIDDEN = re.compile(
    r"(^|[^A-Za-z0-9_.$}])/(work|farm|root)/|https?://[a-z0-9.-]*(pythonhosted|pyp" + r"i\.|debian\.)")


def check(root: Path, files: list[str]) -> tuple[int, list[str]]:
    findings = []
    for path in files:
        full = root / path
        size = full.stat().st_size
        if size > MAX_BYTES:
            findings.append(f"{path}: {size} bytes, expected at most {MAX_BYTES}")
            continue
        if not TEXT.search(path):
            continue
        lines = full.read_text(encoding="utf-8", errors="replace").splitlines()  # fuzz corpora hold any bytes
        for number, line in enumerate(lines, 1):
            if FORBIDDEN.search(line):
                findings.append(f"{path}:{number}: names a path of one machine or a package registry")
        if not CODE.search(path):
            continue
        if len(lines) > MAX_LINES:
            findings.append(f"{path}: {len(lines)} lines, expected at most {MAX_LINES}; split it")
        body = [line for line in lines[:3] if not line.startswith("#!") and line.strip()]
        if not body or not OPENING.match(body[0]):
            findings.append(f"{path}:1: does not open with a comment that says what the file is")
    return len(files), findings


if __name__ == "__main__":
    sys.exit(report("check_sizes", *check(ROOT, project_files())))
