#!/usr/bin/env python3
"""`make gpu-bench`: Fovea on GPU 0 and, where PyTorch is there, other libraries beside it in one run. Needs no compiler.

Writes build/bench/h200.json (the bench's JSON with peer columns) and build/bench/h200-decode.md. Peers are what Python
can import; PEERS names a folder of them (more with colons between). Options go to bench/peers_gpu.py.
Without PyTorch `fovea bench attention --device cuda:0` runs alone.
"""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_common import BUNDLE, ROOT, environment, stop_if_missing


def main() -> int:
    stop_if_missing()
    env = environment()
    if peers := os.environ.get("PEERS"):
        env["PYTHONPATH"] += os.pathsep + peers
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    fovea = str(BUNDLE / "bin" / "fovea")
    if subprocess.run([sys.executable, "-c", "import torch"], env=env, capture_output=True).returncode != 0:
        print("PyTorch is not there, so Fovea is timed alone", file=sys.stderr)
        return subprocess.run([fovea, "bench", "attention", "--device", "cuda:0", "--json", str(out / "gpu.json")], env=env).returncode
    results = str(out / "h200.json")
    code = subprocess.run([sys.executable, str(BUNDLE / "bench" / "peers_gpu.py"), "--fovea", fovea, "--json", results, *sys.argv[1:]],
                          env=env).returncode
    page = subprocess.run([sys.executable, str(BUNDLE / "bench" / "write_h200.py"), results, "--out", str(out / "h200-decode.md")],
                          env=env).returncode
    return code or page


if __name__ == "__main__":
    sys.exit(main())
