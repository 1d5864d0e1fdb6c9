"""The kernels of src/kernels/cache, plan and limits compile under NVRTC for every use of them, without spills or local memory.

Needs no GPU: NVRTC comes from its PyPI wheel and has ptxas inside.
"""
import pathlib
import re

import pytest

from nvrtc_test import compile_source, nvrtc, options  # noqa: F401 (nvrtc is a fixture)

ROOT = pathlib.Path(__file__).resolve().parents[2]
F32, F16, BF16, E4M3 = range(4)  # abi::KvDType
ARCHS = ["sm_80", "sm_90a"]


def compile_kernel(nvrtc, header, macros, arch):  # noqa: F811
    """Returns what ptxas says of each entry point: {name: (registers, spilled bytes, bytes of stack)}."""
    source = "".join(f"#define {name} {value}\n" for name, value in macros.items()) + f'#include "{header}"\n'
    ok, text = compile_source(nvrtc, source, options(arch) + ["--ptxas-options=-v"])
    assert ok, text
    assert "warning" not in text, text
    found = {}
    for entry in re.split(r"Compiling entry function '", text)[1:]:
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", entry)
        registers = re.search(r"Used (\d+) registers", entry)
        found[entry.split("'")[0]] = (int(registers[1]), int(frame[2]) + int(frame[3]), int(frame[1]))
    return found


def check(kernels, names, registers):
    assert set(kernels) == set(names)
    for name, (used, spilled, stack) in kernels.items():
        assert (spilled, stack) == (0, 0), name
        assert used <= registers, f"{name}: {used} registers"


# A CTA of 256 threads and 128 registers leaves room for two on an SM.
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("vec", [8, 1])
@pytest.mark.parametrize("rotate", [0, 1])
@pytest.mark.parametrize("q, pool", [(BF16, BF16), (F16, F16), (F32, BF16), (BF16, F32), (BF16, E4M3), (F32, E4M3)])
def test_append(nvrtc, q, pool, rotate, vec, arch):  # noqa: F811
    macros = {"FOVEA_HEAD_DIM": 128, "FOVEA_Q_DTYPE": q, "FOVEA_KV_DTYPE": pool, "FOVEA_VEC": vec,
              "FOVEA_ROTATE": rotate}
    check(compile_kernel(nvrtc, "kernels/cache/append.cuh", macros, arch), ["fovea_append"], 128)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("head_dim, vec", [(80, 8), (96, 4), (256, 8)])
def test_append_of_other_head_dims(nvrtc, head_dim, vec, arch):  # noqa: F811
    macros = {"FOVEA_HEAD_DIM": head_dim, "FOVEA_Q_DTYPE": BF16, "FOVEA_KV_DTYPE": BF16, "FOVEA_VEC": vec,
              "FOVEA_ROTATE": 1}
    check(compile_kernel(nvrtc, "kernels/cache/append.cuh", macros, arch), ["fovea_append"], 128)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("head_dim, vec", [(128, 8), (80, 8), (256, 1)])
@pytest.mark.parametrize("q, out", [(F32, F32), (F16, F16), (BF16, BF16), (F32, BF16)])
def test_merge(nvrtc, q, out, head_dim, vec, arch):  # noqa: F811
    macros = {"FOVEA_HEAD_DIM": head_dim, "FOVEA_Q_DTYPE": q, "FOVEA_OUT_DTYPE": out, "FOVEA_VEC": vec}
    check(compile_kernel(nvrtc, "kernels/cache/merge_states.cuh", macros, arch),
          ["fovea_merge_state", "fovea_merge_states"], 96)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("threads, unroll", [(512, 8), (1024, 8), (256, 16)])
@pytest.mark.parametrize("slabs", [False, True])
def test_readers(nvrtc, threads, unroll, slabs, arch):  # noqa: F811
    macros = {"FOVEA_READ_THREADS": threads, "FOVEA_READ_UNROLL": unroll} | ({"FOVEA_READ_SLABS": 1} if slabs else {})
    check(compile_kernel(nvrtc, "kernels/limits/read_limit.cuh", macros, arch), ["fovea_empty", "fovea_read_loads"],
          65536 // threads if threads > 512 else 128)


@pytest.mark.parametrize("threads, stages, tile", [(256, 6, 32768), (128, 12, 8192), (256, 4, 16384)])
def test_bulk_reader(nvrtc, threads, stages, tile):  # noqa: F811
    macros = {"FOVEA_READ_THREADS": threads, "FOVEA_READ_STAGES": stages, "FOVEA_READ_TILE": tile}
    check(compile_kernel(nvrtc, "kernels/limits/read_limit.cuh", macros, "sm_90a"), ["fovea_empty", "fovea_read_bulk"], 64)


def test_matrix_rate(nvrtc):  # noqa: F811
    check(compile_kernel(nvrtc, "kernels/limits/matrix_limit.cuh", {"FOVEA_ARCH": 900}, "sm_90a"), ["fovea_matrix_rate"], 128)


# Two CTAs of rung 2 on an SM; 384 threads leave 168 registers each.
@pytest.mark.parametrize("header, overlapped, registers", [("naive", 0, 255), ("tensor_cores", 0, 168), ("wgmma", 0, 255),
                                                           ("specialized", 0, 168), ("specialized", 1, 168)])
def test_ladder(nvrtc, header, overlapped, registers):  # noqa: F811
    macros = {"FOVEA_ARCH": 900, "FOVEA_LADDER_OVERLAPPED": overlapped}
    check(compile_kernel(nvrtc, f"kernels/ladder/{header}.cuh", macros, "sm_90a"), [f"fovea_ladder_{header}"], registers)


def test_header_compiles_alone(nvrtc):  # noqa: F811
    for header in ["cache/append", "cache/merge_states", "limits/matrix_limit", "limits/read_limit", "ptx/vec",
                   "ptx/instructions"]:
        for arch in ARCHS:
            compile_kernel(nvrtc, f"kernels/{header}.cuh", {}, arch)


@pytest.mark.parametrize("arch", ARCHS)
def test_reschedule(nvrtc, arch):  # noqa: F811
    check(compile_kernel(nvrtc, "kernels/plan/reschedule.cuh", {"FOVEA_RESCHEDULE": 1}, arch), ["fovea_reschedule"], 128)
