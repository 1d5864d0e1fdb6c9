"""Where servers of tests run: on the CPU, or on a CUDA device without a GPU (src/cuda/testing/fake_driver.h), whose kernels
compute the embedded model on the host, or do nothing. Used by tests/peers and tests/soak."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BINARY = os.environ.get("FOVEA_BINARY", str(ROOT / "build/release/fovea"))
BUILT = Path(BINARY).parent / "tests"

# Names of devices: "host" answers as the CPU does, but slowly; "hollow" answers nonsense at once.
CPU, HOST, HOLLOW = "cpu", "cuda-host", "cuda-hollow"

# Of servers that are not told; tests/peers/conftest.py sets it.
default = CPU


def arguments(device: str) -> list[str]:
    return [] if device == CPU else ["--device", "cuda:0"]


def environment(device: str, fault: str = "", nccl_fault: str = "") -> dict[str, str]:
    """fault: what the driver or NCCL answers once, as FAKE_CUDA_FAULT and FAKE_NCCL_FAULT say it."""
    if device == CPU:
        return {}
    return {"FOVEA_LIBCUDA": str(BUILT / f"libfovea_{device.removeprefix('cuda-')}_driver.so"),
            "FOVEA_CUBLASLT": str(BUILT / "libfovea_fake_cuda.so"), "FOVEA_CACHE_DIR": str(BUILT / "kernel-cache"),
            "FAKE_CUDA_FAULT": fault, "FAKE_NCCL_FAULT": nccl_fault, "LD_LIBRARY_PATH": str(BUILT / "nccl")}
