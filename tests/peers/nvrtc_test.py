"""The sources that host and device share compile under NVRTC as they are: src/abi and src/variant, each header alone.

NVRTC comes from its PyPI wheel and needs no GPU. Functions without annotations are device functions (-default-device),
so that one source serves both compilers.
"""
import ctypes
import glob
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = sorted(str(path.relative_to(ROOT / "src")) for folder in ("abi", "variant")
                for path in (ROOT / "src" / folder).glob("*.h") if not path.name.endswith("_inl.h"))


@pytest.fixture(scope="session")
def nvrtc():
    import nvidia

    libraries = [path for folder in nvidia.__path__
                 for path in glob.glob(os.path.join(folder, "**", "libnvrtc*.so*"), recursive=True)]
    # The compiler opens its built-ins by name, and a wheel's folder is on no search path: load them first.
    for path in libraries:
        if "libnvrtc-builtins.so" in path:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    for path in libraries:
        if os.path.basename(path).startswith("libnvrtc.so"):
            return ctypes.CDLL(path)
    raise FileNotFoundError("libnvrtc.so of the package nvidia-cuda-nvrtc")


def compile_source(nvrtc, source, options):
    """Returns (ok, log)."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"test.cu", 0, None, None) == 0
    encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    code = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code == 0, log.value.decode()


def options(arch):
    return [f"-arch={arch}", "-std=c++20", "-default-device", f"-I{ROOT / 'src'}"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("header", SHARED)
def test_shared_header_compiles_alone(nvrtc, header, arch):
    ok, log = compile_source(nvrtc, f'#include "{header}"\n__global__ void nothing() {{}}\n', options(arch))
    assert ok, log


def test_host_headers_do_not(nvrtc):
    """The check can fail: a header that needs the standard library does not pass."""
    ok, _ = compile_source(nvrtc, '#include "base/status.h"\n', options("sm_90a"))
    assert not ok
