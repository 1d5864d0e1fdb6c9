#!/usr/bin/env python3
"""Runs one program of a bundle in its environment: gpu_run.py bench/peers_gpu.py ..., bench/serving_gpu.py ..., bench/fovea ...

The first word names the program: `bench/fovea` the binary, else a Python file of this checkout that takes --fovea. Peers are
what Python imports, and build/peers where that folder is (or build/peers.tar.xz, unpacked there). Used by gpu_steps.toml.
"""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_common import ROOT, bundle_for, environment, stop_if_missing
from steps import end_children_with_us, run_command


def main() -> int:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    program, *arguments = sys.argv[1:]
    bundle = bundle_for("serve" if program == "bench/serving_gpu.py" else "bench")
    stop_if_missing(bundle)
    env = environment(bundle)
    peers = ROOT / "build" / "peers"
    if not peers.exists() and peers.with_name("peers.tar.xz").exists():
        peers.mkdir()
        subprocess.run(["tar", "-C", str(peers), "-xJf", str(peers) + ".tar.xz"], check=True)
    if peers.exists():
        env["PYTHONPATH"] += os.pathsep + str(peers)
        env["FLASHINFER_DISABLE_JIT"] = "1"  # what is not compiled ahead would take minutes
        env.setdefault("FLASHINFER_WORKSPACE_BASE", str(ROOT / "build"))
    fovea = str(bundle / "bin" / "fovea")
    (ROOT / "build" / "bench").mkdir(parents=True, exist_ok=True)
    command = [fovea, *arguments] if program == "bench/fovea" else [sys.executable, program, "--fovea", fovea, *arguments]
    end_children_with_us()
    code, text = run_command(command, 3600, env, ROOT)
    print(text, end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
