#!/usr/bin/env python3
"""Checks the Markdown files: links to files and headings exist, and so do the paths that the text names in backticks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from repo import ROOT, project_files, report

LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+(?:\([^()]*\))?)(?:\s+\"[^\"]*\")?\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^\s*(```|~~~)")
HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
# What may be a path: words, dots and slashes, with * for any name, <x> for a name to fill in, {a,b} for alternatives.
PATH = re.compile(r"^[\w.*<>{},/+-]+$")


def anchors(text: str) -> set[str]:
    """Anchors that headings get: lower case, punctuation dropped, spaces to dashes, repeats numbered."""
    result: set[str] = set()
    counts: dict[str, int] = {}
    fenced = False
    for line in text.splitlines():
        if FENCE.match(line):
            fenced = not fenced
        match = None if fenced else HEADING.match(line)
        if match:
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(2)).lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            seen = counts.get(slug, 0)
            counts[slug] = seen + 1
            result.add(slug if seen == 0 else f"{slug}-{seen}")
    return result


def expand(path: str) -> list[str]:
    """a.{h,cc} -> a.h, a.cc"""
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return [path]
    return [one for part in match.group(1).split(",") for one in expand(path[: match.start()] + part + path[match.end():])]


def path_exists(path: str, known: set[str], folders: set[str]) -> bool:
    for one in expand(path.rstrip("/")):
        if re.search(r"[*<]", one):
            pattern = re.compile("^" + re.sub(r"\\\*+|<[^>]*>", "[^/]+", re.escape(one).replace(r"\<", "<").replace(r"\>", ">")) + "$")
            if not any(pattern.match(item) for item in known | folders):
                return False
        elif one not in known and one not in folders:
            return False
    return True


def check_file(root: Path, path: str, known: set[str], folders: set[str]) -> list[str]:
    findings = []
    tops = {name.split("/")[0] for name in known if "/" in name}
    here = path.rsplit("/", 1)[0] if "/" in path else "."
    text = (root / path).read_text(encoding="utf-8")
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        if fenced:
            continue
        for target in LINK.findall(line):
            if re.match(r"^[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            resolved = str((root / here / name).resolve().relative_to(root.resolve())) if name else path
            if resolved not in known and resolved not in folders:
                findings.append(f"{path}:{number}: link to {target}: no such file")
            elif anchor and resolved.endswith(".md") and anchor not in anchors((root / resolved).read_text(encoding="utf-8")):
                findings.append(f"{path}:{number}: link to {target}: no such heading")
        for span in CODE_SPAN.findall(line):
            first = span.split("/")[0]
            if "/" in span and PATH.match(span) and first in tops and not path_exists(span, known, folders):
                findings.append(f"{path}:{number}: `{span}`: no such path")
    return findings


def check(root: Path, files: list[str]) -> tuple[int, list[str]]:
    known = set(files)
    folders = {str(parent) for name in files for parent in Path(name).parents}
    documents = [name for name in files if name.endswith(".md")]
    return len(documents), [finding for name in documents for finding in check_file(root, name, known, folders)]


if __name__ == "__main__":
    sys.exit(report("check_links", *check(ROOT, project_files())))
