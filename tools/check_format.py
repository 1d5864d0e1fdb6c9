#!/usr/bin/env python3
"""Checks, or with --fix mends, the formatting of all C++ files against .clang-format (clang-format 14, on every machine)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from repo import ROOT, project_files, report


def main() -> int:
    files = [path for path in project_files() if re.search(r"\.(h|hpp|inl|cuh|cu|cc|cpp)$", path)]
    tool = shutil.which("clang-format-14")
    if tool is None:
        print("clang-format-14 is missing; run tools/setup.sh test", file=sys.stderr)
        return 1
    if "--fix" in sys.argv[1:]:
        return subprocess.run([tool, "-i", *files], cwd=ROOT, check=False).returncode
    found = subprocess.run([tool, "--dry-run", "-Werror", *files], cwd=ROOT, check=False, capture_output=True, text=True)
    bad = sorted({line.split(":")[0] for line in found.stderr.splitlines() if "error:" in line})
    if found.returncode != 0 and not bad:
        bad = [found.stderr.strip()]
    return report("check_format", len(files), [f"{path}: not formatted; run make format" for path in bad])


if __name__ == "__main__":
    sys.exit(main())
