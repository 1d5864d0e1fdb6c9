"""What gpu_test.py and gpu_bench.py share: the bundle (build/gpu-bundle), what it needs, and the environment it runs in."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "build" / "gpu-bundle"
ARCHIVE = ROOT / "build" / "gpu-bundle.tar.xz"


def missing() -> list[str]:
    """What keeps the bundle from running here, each with what to do."""
    if not (BUNDLE / "bin" / "fovea").exists():
        if ARCHIVE.exists():
            subprocess.run(["tar", "-C", str(ROOT / "build"), "-xJf", str(ARCHIVE)], check=True)
        else:
            return [f"{BUNDLE.relative_to(ROOT)} does not exist: run `make gpu-bundle` on a machine with a compiler (it needs no GPU) "
                    f"and bring {ARCHIVE.relative_to(ROOT)} here"]
    found = []
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        found.append("there is no CUDA driver (libcuda.so.1): this needs a machine with an NVIDIA GPU")
    version = subprocess.run([str(BUNDLE / "bin" / "fovea"), "--version"], capture_output=True, text=True)
    if version.returncode != 0:
        found.append(f"the bundle's binaries do not run here: {version.stderr.strip()}")
    return found


def environment() -> dict[str, str]:
    """The bundle's libraries, package and kernel cache before the machine's own."""
    env = dict(os.environ)
    env["FOVEA_LIBRARY"] = str(BUNDLE / "lib" / "libfovea_c.so")
    env["FOVEA_CACHE_DIR"] = str(BUNDLE / "cache")
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(BUNDLE / "lib"), env.get("LD_LIBRARY_PATH")]))
    paths = [BUNDLE / "python", BUNDLE / "tests", *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    env["FOVEA_TEST_GOLDENS"] = str(ROOT / "tests" / "goldens" / "models")
    env["FOVEA_TEST_NEEDLE"] = str(ROOT / "models" / "needle")
    env["PYTHONUNBUFFERED"] = env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def stop_if_missing() -> None:
    """Ends the program with what is missing, if something is."""
    if found := missing():
        sys.exit("\n".join(found))
