"""What the GPU commands of this folder share: the bundle that tools/gpu_bundle.sh made, what it needs, and its environment."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "build" / "gpu-bundle"  # for everything


def archive_of(bundle: Path) -> Path:
    return bundle.with_name(bundle.name + ".tar.xz")


def bundle_for(purpose: str) -> Path:
    """The bundle made for one purpose (test, bench or serve) where there is one, else the one for everything."""
    own = BUNDLE.with_name(f"{BUNDLE.name}-{purpose}")
    return own if own.exists() or archive_of(own).exists() else BUNDLE


def missing(bundle: Path, needs_driver: bool = True) -> list[str]:
    """What keeps the bundle from running here, each with what to do. Unpacks it."""
    if not (bundle / "bin" / "fovea").exists():
        archive = archive_of(bundle)
        if not archive.exists():
            return [f"{bundle.relative_to(ROOT)} does not exist: run `make gpu-bundle` on a machine with a compiler (it needs no GPU) "
                    f"and bring {archive.relative_to(ROOT)} here"]
        subprocess.run(["tar", "-C", str(bundle.parent), "-xJf", str(archive)], check=True)
    found = []
    try:
        if needs_driver:
            ctypes.CDLL("libcuda.so.1")
    except OSError:
        found.append("there is no CUDA driver (libcuda.so.1): this needs a machine with an NVIDIA GPU")
    version = subprocess.run([str(bundle / "bin" / "fovea"), "--version"], capture_output=True, text=True)
    if version.returncode != 0:
        found.append(f"the bundle's binaries do not run here: {version.stderr.strip()}")
    return found


def environment(bundle: Path) -> dict[str, str]:
    """The bundle's libraries, package and kernel cache before the machine's own."""
    env = dict(os.environ)
    env["FOVEA_LIBRARY"] = str(bundle / "lib" / "libfovea_c.so")
    env["FOVEA_CACHE_DIR"] = str(bundle / "cache")
    env["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(bundle / "lib"), env.get("LD_LIBRARY_PATH")]))
    paths = [bundle / "python", bundle / "tests", *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    env["FOVEA_TEST_GOLDENS"] = str(ROOT / "tests" / "goldens" / "models")
    env["FOVEA_TEST_NEEDLE"] = env["FOVEA_MODEL_DIR"] = str(ROOT / "models" / "needle")  # bundles embed no model
    env["PYTHONUNBUFFERED"] = env["PYTHONDONTWRITEBYTECODE"] = "1"
    return env


def stop_if_missing(bundle: Path, needs_driver: bool = True) -> None:
    """Ends the program with what is missing, if something is."""
    if found := missing(bundle, needs_driver):
        sys.exit("\n".join(found))
