"""What the checkers in this folder share: the list of the project's files and how findings are reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def project_files(root: Path = ROOT) -> list[str]:
    """Paths of tracked and of new, not ignored files, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout
    return sorted(path for path in listed.split("\0") if path and (root / path).is_file())


def report(name: str, checked: int, findings: list[str]) -> int:
    """Prints findings and a summary; the exit code is 1 when something was found or nothing was looked at."""
    for finding in findings:
        print(finding)
    print(f"{name}: {checked} files, {len(findings)} findings")
    if checked == 0:
        print(f"{name}: no file was checked", file=sys.stderr)
    return 1 if findings or checked == 0 else 0
