#!/usr/bin/env python3
"""Checks that includes point down only (docs/architecture.md) and that third-party headers stay where they belong.

Run by `make test`; `tools/tests/check_layers_test.py` shows that it finds what it should. To let a layer use another one,
change LAYERS; to use a new library, add its headers to THIRD_PARTY.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from repo import ROOT, project_files, report

# What each layer may include besides itself. "public" is include/fovea.
LAYERS: dict[str, set[str]] = {
    "public": set(),
    "base": {"public"},
    "abi": {"public"},
    "variant": {"abi", "public"},
    "core": {"variant", "abi", "base", "public"},
    "workload": {"core", "variant", "abi", "base", "public"},
    "kernels": {"variant", "abi"},
    "jit": {"kernels", "variant", "abi", "base", "public"},
    "cuda": {"jit", "abi", "base", "public"},
    "cpu": {"jit", "core", "variant", "abi", "base", "public"},
    "tune": {"abi", "base", "public"},
    "attention": {"tune", "cuda", "cpu", "jit", "core", "variant", "abi", "base", "public"},
    "select": {"attention", "cuda", "cpu", "jit", "core", "variant", "abi", "base", "public"},
    "device": {"select", "attention", "cuda", "cpu", "jit", "core", "variant", "abi", "base", "public"},
    "capi": {"public"},
    "engine": {"device", "attention", "core", "variant", "abi", "base", "public"},
    "server": {"base", "public"},
    "apps": {
        "server", "engine", "device", "select", "attention", "tune", "cuda", "cpu", "jit", "workload", "core", "variant", "abi", "base",
        "public",
    },
    # Never shipped. The oracle sees batch, page table and mask, never a plan: core is out of its reach.
    "testing": {"kernels", "abi", "base", "public"},
}
SHIPPED = [layer for layer in LAYERS if layer != "testing"]

# A test may also include what its subject is compared with and fed by.
TEST_EXTRA = {"testing", "workload", "base"}
TEST_FILES = ("_test.cc", "_test_util.h")
# Free to include anything: programs that stand outside of the layers.
FREE = ("tests/", "bench/")
# Its headers are included by their path below it.
APP = "apps/fovea/"

# Header (a prefix when it ends in "/") -> folders that may include it.
THIRD_PARTY: dict[str, tuple[str, ...]] = {
    "boost/": ("src/server/",),
    "openssl/": ("src/server/http/",),
    "CLI/": ("apps/",),
    "toml++/": ("apps/",),
    "histedit.h": ("apps/",),
    "hwy/": ("src/cpu/",),
    "oneapi/dnnl/": ("src/cpu/",),
    "pcre2.h": ("src/engine/tokenizer/",),
    "utf8proc.h": ("src/engine/tokenizer/", "src/engine/template/"),
    "xgrammar/": ("src/engine/grammar/xgrammar/",),
    "dlpack/": ("src/engine/grammar/xgrammar/",),
    "spdlog/": ("src/base/",),
    "xxhash.h": ("src/base/",),
    "nlohmann/": ("src/base/", "src/workload/", "src/engine/", "src/server/", "apps/"),
    "fmt/": ("src/", "apps/", "testing/"),
    "immintrin.h": ("src/cpu/",),
    "gtest/": ("testing/",),
    "gmock/": ("testing/",),
}
TEST_ONLY = ("gtest/", "gmock/")

# C and POSIX headers, open to all but the layers that device code shares.
SYSTEM = re.compile(
    r"^((sys|linux|netinet|arpa|asm)/.*|(aio|assert|cpuid|cxxabi|dirent|dlfcn|errno|execinfo|fcntl|fenv|float|glob|inttypes|link|"
    r"limits|locale|malloc|math|netdb|poll|pthread|sched|signal|spawn|stddef|stdint|stdio|stdlib|string|strings|termios|time|ucontext|"
    r"unistd|wchar)\.h)$")
DEVICE_LAYERS = {"abi", "variant"}
DEVICE_HEADERS = {"cstdint", "cstddef"}  # and <cmath>, <limits> behind a test for NVRTC

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')
SOURCE = re.compile(r"\.(h|hpp|cc|cpp|inl|cuh|cu)$")


def layer_of(path: str) -> str | None:
    """The layer a file belongs to, or None outside of the layers."""
    parts = path.split("/")
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if path.startswith("include/fovea/"):
        return "public"
    return parts[0] if parts[0] in ("apps", "testing") else None


def layer_of_include(header: str) -> str | None:
    if header.startswith("fovea/"):
        return "public"
    first = header.split("/")[0]
    return first if "/" in header and (first in LAYERS or first in ("apps", "testing", "bench", "tests")) else None


def check_include(path: str, header: str, quoted: bool, exists) -> str | None:
    """Why this include is wrong, or None."""
    is_test = path.endswith(TEST_FILES) or path.startswith("tests/") or "testing" in path.split("/")
    layer = layer_of(path)
    target = layer_of_include(header)
    if quoted or target == "public":
        if path.startswith(APP) and exists(APP + header):
            return None
        if target is None:
            if layer is None and exists(f"{path.rsplit('/', 1)[0]}/{header}"):
                return None
            return "project headers are included by their path below src/, for example \"base/status.h\""
        if not (exists(f"src/{header}") or exists(f"include/{header}") or exists(header)):
            return "no such header"
        if (header.endswith(TEST_FILES) or "testing" in header.split("/")[1:]) and not is_test:
            return "shipped code includes nothing of a test"
        if layer is None or target == layer:
            return None
        allowed = LAYERS.get(layer)
        if allowed is None:
            return f"layer {layer} is not known; add it to LAYERS in tools/check_layers.py"
        if target in allowed or (is_test and target in TEST_EXTRA):
            return None
        return f"{layer} may include {', '.join(sorted(allowed)) or 'nothing'}, not {target}"
    if not re.search(r"[./]", header):  # C++ standard library
        if layer in DEVICE_LAYERS and not is_test and header not in DEVICE_HEADERS | {"cmath", "limits"}:
            return f"{layer} compiles under NVRTC, which has no <{header}>"
        return None
    if SYSTEM.match(header):
        return None
    for prefix, folders in THIRD_PARTY.items():
        if header == prefix or (prefix.endswith("/") and header.startswith(prefix)):
            if path.startswith(FREE) or (is_test and prefix in TEST_ONLY) or path.startswith(folders):
                return None
            return f"<{prefix}> belongs in {', '.join(folders) or 'tests and bench only'}"
    return "unknown library; add it to THIRD_PARTY in tools/check_layers.py"


def check(root: Path, files: list[str]) -> tuple[int, list[str]]:
    """Number of files looked at, findings."""
    known = set(files)
    checked = 0
    findings = []
    for path in files:
        if not SOURCE.search(path) or not (layer_of(path) or path.startswith(FREE)):
            continue
        checked += 1
        for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if match:
                why = check_include(path, match.group(2), match.group(1) == '"', known.__contains__)
                if why:
                    findings.append(f"{path}:{number}: {match.group(2)}: {why}")
    return checked, findings


if __name__ == "__main__":
    sys.exit(report("check_layers", *check(ROOT, project_files())))
