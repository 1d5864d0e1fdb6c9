"""The layer checker finds what it should, and nothing else."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import check_layers

KNOWN = {
    "src/base/status.h", "src/core/plan/planner.h", "src/cpu/simd.h", "src/abi/plan.h", "src/device/device.h",
    "src/engine/runner.h", "src/server/http.h", "include/fovea/status.h", "testing/oracle.h", "src/workload/batch.h",
    "apps/fovea/command.h", "apps/fovea/bench/report.h", "src/cpu/attention_test_util.h", "src/server/testing/fake.h",
}


def why(path, header, quoted=True):
    return check_layers.check_include(path, header, quoted, KNOWN.__contains__)


@pytest.mark.parametrize("path, header", [
    ("src/core/plan/planner.cc", "base/status.h"),
    ("src/core/plan/planner.cc", "core/plan/planner.h"),
    ("src/cpu/attention.cc", "abi/plan.h"),
    ("src/engine/runner.cc", "device/device.h"),
    ("src/server/http.cc", "fovea/status.h"),
    ("apps/fovea/main.cc", "command.h"),
    ("apps/fovea/bench/plan.cc", "command.h"),
    ("apps/fovea/bench/plan.cc", "bench/report.h"),
    ("apps/fovea/main.cc", "cpu/simd.h"),
    ("src/cpu/attention_test.cc", "testing/oracle.h"),
    ("src/cpu/attention_test.cc", "workload/batch.h"),
    ("src/cpu/attention_test_util.h", "testing/oracle.h"),
    ("src/cpu/attention_test.cc", "cpu/attention_test_util.h"),
    ("src/server/http_test.cc", "server/testing/fake.h"),
    ("tests/storm.cc", "engine/runner.h"),
])
def test_allowed(path, header):
    assert why(path, header) is None


@pytest.mark.parametrize("path, header", [
    ("src/base/log.cc", "core/plan/planner.h"),          # up
    ("src/core/plan/planner.cc", "cpu/simd.h"),          # core sees no backend
    ("src/core/plan/planner.cc", "cuda/device.h"),       # and no CUDA
    ("src/engine/runner.cc", "cpu/simd.h"),              # the engine sees no device
    ("src/server/http.cc", "engine/runner.h"),           # the server only the public API
    ("src/cpu/attention.cc", "testing/oracle.h"),        # shipped code has no oracle
    ("apps/fovea/main.cc", "testing/oracle.h"),
    ("apps/fovea/bench/plan.cc", "report.h"),            # not by its path below apps/fovea
    ("src/cpu/attention.cc", "cpu/attention_test_util.h"),
    ("src/server/http.cc", "server/testing/fake.h"),
    ("testing/oracle.cc", "core/plan/planner.h"),        # the oracle never sees a plan
    ("include/fovea/engine.h", "base/status.h"),         # public headers stand alone
    ("src/core/plan/planner.cc", "planner.h"),           # not by its path below src/
    ("src/core/plan/planner.cc", "base/gone.h"),
    ("src/novel/x.cc", "base/status.h"),                 # a layer nobody declared
])
def test_refused(path, header):
    assert why(path, header) is not None


@pytest.mark.parametrize("path, header, allowed", [
    ("src/cpu/simd.cc", "hwy/highway.h", True),
    ("src/core/plan/planner.cc", "hwy/highway.h", False),
    ("src/server/http.cc", "boost/beast.hpp", True),
    ("src/engine/runner.cc", "boost/beast.hpp", False),
    ("src/engine/tokenizer/bpe.cc", "pcre2.h", True),
    ("src/engine/template/lexer.cc", "pcre2.h", False),
    ("src/cpu/gemm.cc", "oneapi/dnnl/dnnl.hpp", True),
    ("src/engine/runner.cc", "oneapi/dnnl/dnnl.hpp", False),
    ("src/base/log.cc", "gtest/gtest.h", False),
    ("src/base/log_test.cc", "gtest/gtest.h", True),
    ("src/core/plan/planner.cc", "vector", True),
    ("src/abi/plan.h", "vector", False),
    ("src/abi/plan.h", "cstdint", True),
    ("src/base/file.cc", "sys/mman.h", True),
    ("src/base/file.cc", "curl/curl.h", False),
])
def test_libraries(path, header, allowed):
    assert (why(path, header, quoted=False) is None) == allowed


def test_whole_tree(tmp_path):
    (tmp_path / "src/core").mkdir(parents=True)
    (tmp_path / "src/core/a.cc").write_text('// a\n#include "cpu/b.h"\n')
    (tmp_path / "src/cpu").mkdir()
    (tmp_path / "src/cpu/b.h").write_text("// b\n#include <vector>\n")
    checked, findings = check_layers.check(tmp_path, ["src/core/a.cc", "src/cpu/b.h", "README.md"])
    assert checked == 2
    assert len(findings) == 1 and findings[0].startswith("src/core/a.cc:2: cpu/b.h: core may include ")
