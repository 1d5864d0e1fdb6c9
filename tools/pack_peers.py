#!/usr/bin/env python3
"""Packs FlashInfer and FlashAttention-3 for bench/peers_gpu.py: of installed or unpacked packages, what attention needs.

    pack_peers.py FOLDER_OR_ARCHIVE... [--out build/peers.tar.xz] [--without fa3_fwd] [--check python3.12]

FOLDER: where `import flashinfer` finds it (a site-packages folder, as `pip install --target` makes one); archives (.tar.xz) are
unpacked together. Of flashinfer and tvm_ffi the Python files go along of every folder that importing flashinfer reads, kernels
compiled ahead (flashinfer/data/aot) and csrc; other packages (fa3_fwd, vllm_fa3) whole. --check imports what was packed with a
Python that has PyTorch. On the GPU machine: unpack, and let PYTHONPATH name the folder (PEERS of make gpu-bench).
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_common import ROOT

TRACED = ("flashinfer", "tvm_ffi")  # packages of which only what is imported goes along
DATA = ("flashinfer/data/aot", "flashinfer/data/csrc", "tvm_ffi/lib/libtvm_ffi")
CHECK = ("import flashinfer, flashinfer.decode, flashinfer.prefill\n"
         "for name in ('BatchDecodeWithPagedKVCacheWrapper', 'BatchAttention', 'BatchPrefillWithPagedKVCacheWrapper',\n"
         "             'BatchPrefillWithRaggedKVCacheWrapper', 'BlockSparseAttentionWrapper', 'MultiLevelCascadeAttentionWrapper'):\n"
         "    getattr(flashinfer, name)\nprint('flashinfer', flashinfer.__version__, 'imported')\n")


def module_file(root: Path, module: str) -> Path | None:
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


def imports_of(root: Path, file: Path) -> set[str]:
    """Modules that importing the file imports: what stands inside of functions waits for their calls."""
    package = list(file.relative_to(root).parent.parts)
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            waiting += ast.iter_child_nodes(node)
    return found


def read_by_import(root: Path, package: str) -> set[Path]:
    """Files of the package and of what it imports below root, while it is imported."""
    seen: set[Path] = set()
    waiting = [package]
    while waiting:
        module = waiting.pop()
        pieces = module.split(".")
        if pieces[0] not in TRACED:
            continue
        for end in range(1, len(pieces) + 1):
            file = module_file(root, ".".join(pieces[:end]))
            if file and file not in seen:
                seen.add(file)
                waiting += imports_of(root, file)
    return seen


def wanted_files(root: Path, without: set[str]) -> list[Path]:
    read = read_by_import(root, "flashinfer")
    if not read:
        sys.exit(f"{root}: no flashinfer there; expected a folder of installed packages, or archives that hold them")
    folders = {file.parent for file in read}
    wanted = []
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        name = file.relative_to(root)
        top = name.parts[0]
        if top in without or top.split(".")[0] in without or file.suffix == ".pyc":
            continue
        if top in TRACED:
            beside = file.parent in folders and file.suffix in (".py", ".so", ".json")
            if not beside and not str(name).startswith(DATA):
                continue
        wanted.append(name)
    return wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "peers.tar.xz")
    parser.add_argument("--without", default="", help="packages to leave out, with commas")
    parser.add_argument("--check", help="a Python with PyTorch that imports what was packed")
    parser.add_argument("--most-mb", type=float, default=25.0)
    args = parser.parse_args()
    if absent := [str(path) for path in args.sources if not path.exists()]:
        parser.error(f"{', '.join(absent)} does not exist")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root, chosen = Path(folder) / "all", Path(folder) / "chosen"
        for path in (root, chosen):
            path.mkdir()
        for source in args.sources:
            command = ["cp", "-r", f"{source}/.", str(root)] if source.is_dir() else ["tar", "-C", str(root), "-xf", str(source)]
            subprocess.run(command, check=True)
        names = wanted_files(root, set(filter(None, args.without.split(","))))
        for name in names:
            (chosen / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(root / name, chosen / name)
        if args.check:
            env = {**os.environ, "PYTHONPATH": str(chosen), "FLASHINFER_DISABLE_JIT": "1", "PYTHONDONTWRITEBYTECODE": "1",
                   "FLASHINFER_WORKSPACE_BASE": folder}
            done = subprocess.run([args.check, "-c", CHECK], env=env, capture_output=True, text=True)
            print((done.stdout + done.stderr).strip()[-2000:])
            if done.returncode != 0:
                return 1
        subprocess.run(["tar", "-C", str(chosen), "-cJf", str(args.out), "."], check=True, env={**os.environ, "XZ_OPT": "-9e"})
    size = args.out.stat().st_size / 1e6
    print(f"{args.out}: {size:.1f} MB, {len(names)} files")
    if size > args.most_mb:
        print(f"expected at most {args.most_mb:g} MB; --without leaves packages out", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
