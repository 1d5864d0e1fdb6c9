#!/usr/bin/env python3
"""Runs clang-tidy over the sources, remembering what was clean: a file is looked at again only when it, a header it
includes or the configuration changed.

`tools/lint.py` looks at everything, `tools/lint.py src/base src/core` at what stands below those folders. Needs
build/release to be configured and built (for the compile commands and the lists of headers).
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from repo import ROOT, report

BUILD = ROOT / "build" / "release"
CACHE = ROOT / "build" / "lint"
TOOL = "clang-tidy-14"


def header_lists() -> dict[str, list[str]]:
    """Source -> the project's files that its object was made from, as ninja recorded them."""
    text = subprocess.run(["ninja", "-C", str(BUILD), "-t", "deps"], check=True, capture_output=True, text=True).stdout
    lists = {}
    for block in text.split("\n\n"):
        paths = [str((BUILD / line.strip()).resolve()) for line in block.splitlines()[1:] if line.startswith(" ")]
        own = [path for path in paths if path.startswith(f"{ROOT}/") and not path.startswith(f"{ROOT}/build/")]
        if own:
            lists[own[0]] = own
    return lists


def tidy(source: str, depends: list[str], base_key: bytes) -> tuple[str, list[str]]:
    """The source's path, findings. A clean result leaves a stamp named by the hash of all that it depends on."""
    key = hashlib.sha256(base_key)
    for path in sorted({source, *depends}):
        key.update(path.encode() + b"\0" + Path(path).read_bytes())
    stamp = CACHE / key.hexdigest()
    if stamp.exists():
        return source, []
    run = subprocess.run([TOOL, "--quiet", "-p", str(BUILD), source], check=False, capture_output=True, text=True, cwd=ROOT)
    findings = sorted({line for line in run.stdout.splitlines() if re.search(r": (warning|error): ", line)})
    if run.returncode != 0 and not findings:
        findings = [f"{source}: {TOOL} failed: {run.stderr.strip()[-2000:]}"]
    if not findings:
        stamp.touch()
    return source, findings


def main() -> int:
    folders = sys.argv[1:] or ["src", "apps", "testing"]
    if shutil.which(TOOL) is None:
        print(f"{TOOL} is missing; run tools/setup.sh test", file=sys.stderr)
        return 1
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    sources = sorted({
        entry["file"] for entry in commands
        if any(entry["file"].startswith(f"{ROOT}/{folder}/") for folder in folders) and not entry["file"].endswith("_test.cc")
    })
    CACHE.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([TOOL, "--version"], check=True, capture_output=True).stdout
    base_key = version + (ROOT / ".clang-tidy").read_bytes() + Path(__file__).read_bytes()
    lists = header_lists()
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as workers:
        jobs = [workers.submit(tidy, source, lists.get(source, []), base_key) for source in sources]
        results = [job.result() for job in jobs]
    findings = sorted({line.replace(f"{ROOT}/", "") for _, lines in results for line in lines})
    return report("lint", len(sources), findings)


if __name__ == "__main__":
    sys.exit(main())
