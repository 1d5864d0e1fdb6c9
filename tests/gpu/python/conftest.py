"""The package from the source tree, with the library of the release build or of FOVEA_LIBRARY; helpers of tests/python."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python"), str(Path(__file__).parent)]
os.environ.setdefault("FOVEA_LIBRARY", str(ROOT / "build" / "release" / "lib" / "libfovea_c.so"))
os.environ.setdefault("FOVEA_CACHE_DIR", str(ROOT / "build" / "release" / "tests" / "kernel-cache"))
