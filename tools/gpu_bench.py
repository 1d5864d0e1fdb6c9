#!/usr/bin/env python3
"""`make gpu-bench`: Fovea on GPU 0 and, where PyTorch is there, other libraries beside it in one run. Needs no compiler.

Writes build/bench/plan.json (what the host does), integers.json (int8 and int4 KV, which no peer has), h200.json (the
bench's JSON with peer columns), prefill.json, and of these h200-decode.md and h200-prefill.md, each with a CSV.
Peers are what Python can import; PEERS names a folder of them (more with colons between). PROFILE=1 also profiles the
cases of figures that fall short (gpu_profile.py, profile.json). Options go to bench/peers_gpu.py. Without PyTorch
`fovea bench attention --device cuda:0` runs alone.
"""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_common import ROOT, bundle_for, environment, stop_if_missing


def main() -> int:
    bundle = bundle_for("bench")
    stop_if_missing(bundle)
    env = environment(bundle)
    if peers := os.environ.get("PEERS"):
        env["PYTHONPATH"] += os.pathsep + peers
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    fovea = str(bundle / "bin" / "fovea")
    if subprocess.run([sys.executable, "-c", "import torch"], env=env, capture_output=True).returncode != 0:
        print("PyTorch is not there, so Fovea is timed alone", file=sys.stderr)
        return subprocess.run([fovea, "bench", "attention", "--device", "cuda:0", "--json", str(out / "gpu.json")], env=env).returncode
    results, plans, integers, profiles = (str(out / name) for name in ("h200.json", "plan.json", "integers.json", "profile.json"))
    python = sys.executable

    def run(*command: str) -> int:
        return subprocess.run(command, env=env).returncode
    alone = (fovea, "bench", "attention", "--device", "cuda:0", "--suite")
    codes = [run(*alone, "plan", "--json", plans), run(*alone, "integers", "--json", integers),
             run(python, str(bundle / "bench" / "peers_gpu.py"), "--fovea", fovea, "--json", results, *sys.argv[1:])]
    written = [path for path in (results, plans, integers) if os.path.exists(path)]
    page = [python, str(bundle / "bench" / "write_h200.py"), *written, "--out", str(out / "h200-decode.md")]
    if os.environ.get("PROFILE"):
        codes.append(run(python, str(ROOT / "tools" / "gpu_profile.py"), *written, "--json", profiles))
        page += ["--profile", profiles]
    codes.append(run(*page))
    prefill, beside = str(out / "prefill.json"), str(bundle / "bench" / "peers_gpu.py")
    codes.append(run(python, beside, "--fovea", fovea, "--suite", "prefill", "--json", prefill))
    if os.path.exists(prefill):
        codes.append(run(python, str(bundle / "bench" / "write_prefill.py"), prefill, "--out", str(out / "h200-prefill.md")))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
