"""Steps on a lent GPU end in time with all they started, leave their outcomes, and are taken up again; rows are compared."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import gpu_compare
import gpu_queue
import pack_peers
import peers_gpu
import serving_gpu
import steps
import write_sweep


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_overran_ends_with_its_children(tmp_path):
    pids = tmp_path / "pids"
    begin = time.monotonic()
    code, text = steps.run_command(f"echo before; sleep 60 & echo $! >{pids}; (trap '' TERM; sleep 61) & echo $! >>{pids}; wait", 0.5)
    assert code == steps.OVERRAN and "before" in text and "took more than" in text and time.monotonic() - begin < 8
    assert not any(is_alive(pid) for pid in pids.read_text().split())


def test_children_that_outlive_their_parent_end_too(tmp_path):
    code, _ = steps.run_command(f"sleep 60 & echo $! >{tmp_path / 'pid'}", 5)
    assert code == 0 and not is_alive((tmp_path / "pid").read_text().strip())


def queue(tmp_path, text, *options):
    (tmp_path / "steps.toml").write_text(text)
    command = [sys.executable, str(ROOT / "tools" / "gpu_queue.py"), str(tmp_path / "steps.toml"), "--state", str(tmp_path / "state.json")]
    return subprocess.run([*command, *options], capture_output=True, text=True)


STEPS = """
[[step]]
name = "good"
minutes = 1
command = "echo ran >>{0}/ran"
[[step]]
name = "hangs"
minutes = 0.01
least = 0
command = "sleep 60 & wait"
[[step]]
name = "later"
minutes = 1
least = 0.05
command = "test -e {0}/there"
"""


def test_a_queue_goes_on_and_is_taken_up_again(tmp_path):
    done = queue(tmp_path, STEPS.format(tmp_path), "--minutes", "1")
    assert done.returncode == 1 and "hangs: ended with 124" in done.stdout and "later: ended with 1" in done.stdout, done.stderr
    assert json.loads((tmp_path / "state.json").read_text())["steps"]["good"]["passed"] == 1
    (tmp_path / "there").touch()
    done = queue(tmp_path, STEPS.format(tmp_path), "--minutes", "1", "--only", "good,later")
    assert done.returncode == 0 and "good: passed before" in done.stdout
    assert (tmp_path / "ran").read_text() == "ran\n"
    done = queue(tmp_path, STEPS.format(tmp_path).replace("hangs", "other"), "--minutes", "0.01", "--only", "other")
    assert done.returncode == 3 and "other: time was up" in done.stdout


@pytest.mark.parametrize("text", ["[[step]]\nname = 1", "no toml", "step = 3", STEPS + STEPS])
def test_a_queue_that_is_none_says_so(tmp_path, text):
    done = queue(tmp_path, text, "--minutes", "1")
    assert done.returncode == 1 and "steps" in done.stderr and "Traceback" not in done.stderr


def test_results_that_are_none_say_so(tmp_path):
    (tmp_path / "state.json").write_text("[]")
    done = queue(tmp_path, STEPS.format(tmp_path), "--minutes", "1")
    assert done.returncode == 1 and "does not hold results" in done.stderr and "Traceback" not in done.stderr


def test_the_steps_there_are_can_be_read():
    assert gpu_queue.read_steps(ROOT / "tools" / "gpu_steps.toml")


def test_without_a_gpu_every_step_says_so(tmp_path):
    (tmp_path / "tools").mkdir()
    for name in ("gpu_common.py", "gpu_test.py", "gpu_run.py", "gpu_compare.py", "steps.py"):
        (tmp_path / "tools" / name).write_text((ROOT / "tools" / name).read_text())
    tool = lambda name, *arguments: subprocess.run([sys.executable, str(tmp_path / "tools" / name), *arguments], capture_output=True, text=True)
    for name, arguments in (("gpu_test.py", []), ("gpu_run.py", ["bench/peers_gpu.py"])):
        assert "make gpu-bundle" in tool(name, *arguments).stderr
    binary = tmp_path / "build" / "gpu-bundle" / "bin" / "fovea"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\necho fovea\n")
    binary.chmod(0o755)
    bundle = str(tmp_path / "build" / "gpu-bundle")
    for name, arguments in (("gpu_test.py", []), ("gpu_run.py", ["bench/peers_gpu.py"]), ("gpu_compare.py", [bundle, bundle])):
        done = tool(name, *arguments)
        assert done.returncode == 1 and "NVIDIA GPU" in done.stderr and "Traceback" not in done.stderr, (name, done.stderr)


def test_tests_are_taken_up_again_and_tell_what_was_compiled(tmp_path):
    (tmp_path / "tools").mkdir()
    for name in ("gpu_common.py", "gpu_test.py", "steps.py"):
        (tmp_path / "tools" / name).write_text((ROOT / "tools" / name).read_text())
    folder = tmp_path / "build" / "gpu-bundle-test"
    for name in ("bin", "cache"):
        (folder / name).mkdir(parents=True)
    case = '{"testsuites": [{"testsuite": [{"result": "COMPLETED"}]}]}'
    script = f"#!/bin/sh\nfor a; do case $a in --gtest_output=*) echo '{case}' >${{a#*json:}};; esac; done\n"
    for name, more in (("fovea", ""), ("a_gpu_test", f"echo x >>{tmp_path}/ran\n"), ("b_gpu_test", "touch $FOVEA_CACHE_DIR/new\n"),
                       ("c_gpu_test", "sleep 60 & sleep 60\n")):
        (folder / "bin" / name).write_text(script + more)
        (folder / "bin" / name).chmod(0o755)
    run = lambda *options: subprocess.run([sys.executable, str(tmp_path / "tools" / "gpu_test.py"), "--driver", "none", "--seconds", "1",
                                           "--resume", *options], capture_output=True, text=True)
    done = run()
    assert "a_gpu_test: 1 passed, 0 failed" in done.stdout and "1 kernels were not in the bundle" in done.stdout, done.stderr
    assert done.returncode == 1 and "c_gpu_test: 1 passed, 1 failed" in done.stdout
    saved = json.loads((tmp_path / "build" / "gpu-test.json").read_text())["steps"]
    assert saved["c_gpu_test"]["code"] == steps.OVERRAN and "1 kernels compiled" in saved["b_gpu_test"]["tail"]
    done = run()
    assert done.returncode == 0 and (tmp_path / "ran").read_text() == "x\n"


def bench_rows(**values):
    return {"rows": [{"suite": "decode", "case": name, "metric": "read" if unit == "GB/s" else "time", "value": value, "unit": unit}
                     for name, (value, unit) in values.items()]}


def test_rows_before_and_after(tmp_path):
    before = gpu_compare.rows_of(bench_rows(a=(100.0, "us"), b=(4000.0, "GB/s"), c=(10.0, "us"), d=(1.0, "us")))
    after = gpu_compare.rows_of(bench_rows(a=(100.9, "us"), b=(3900.0, "GB/s"), c=(9.0, "us")))
    lines, bad = gpu_compare.compared([before], [after], 1.0)
    text = "\n".join(lines)
    assert bad == 2 and "decode/b read" in text and "| gone |" in text and "decode/a" not in text and "3 rows: 1 worse" in text
    noisy = [gpu_compare.rows_of(bench_rows(a=(us, "us"))) for us in (100.0, 140.0, 101.0)]
    assert gpu_compare.medians(noisy)["decode/a time"] == (101.0, "us") and gpu_compare.spread(noisy, "decode/a time") == pytest.approx(40)
    assert gpu_compare.compared([before], [before], 1.0)[1] == 0 and gpu_compare.compared([{}], [{}], 1.0)[1] == 1


def test_two_bundles_run_by_turns(tmp_path, monkeypatch, capsys):
    order = tmp_path / "order"
    for name, us in (("old", 10.0), ("new", 12.0)):
        (tmp_path / name / "bin").mkdir(parents=True)
        binary = tmp_path / name / "bin" / "fovea"
        binary.write_text(f"#!/bin/sh\necho {name} >>{order}\nfor f; do :; done\necho '{json.dumps(bench_rows(a=(us, 'us')))}' >$f\n")
        binary.chmod(0o755)
    monkeypatch.setattr(gpu_compare, "stop_if_missing", lambda bundle: None)
    monkeypatch.setattr(gpu_compare, "end_children_with_us", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_compare.py", str(tmp_path / "old"), str(tmp_path / "new"), "--rounds", "2", "--json",
                                      str(tmp_path / "out.json")])
    assert gpu_compare.main() == 1
    assert order.read_text().split()[::2] == ["old", "new", "new", "old"] and "+20.0 %" in capsys.readouterr().out


def sweep_case(name, q=1, flops=0.0):
    return {"suite": "sweep", "id": f"sweep/{name}", "kv_bytes": 4e8, "qo_bytes": 0.0, "tree": "", "runs": [], "floor_us": None,
            "q_lens": [q], "flops": flops}


def test_the_sweep_counts_cases_behind_a_peer():
    machine = {"gpu": "a GPU", "read_gb_per_s": 4600.0, "empty_node_us": 0.5}
    measured = [("a", 1, {"fovea": 100.0, "fa3": 110.0, "fi_tc": 104.0}), ("b", 4, {"fovea": 100.0, "fa3": 80.0}),
                ("c", 1, {"fovea": 100.0, "fi_tc0": 99.0}), ("long", 64, {"fovea": 900.0, "fa3": 1.0}), ("alone", 1, {"fovea": 5.0})]
    rows = [row for name, q, engines in measured
            for row in peers_gpu.rows_of(sweep_case(name, q), {engine: {"us": us} for engine, us in engines.items()}, machine)]
    document = {"machine": machine, "rows": rows, "notes": ["one note"], "not_compiled": ["sweep/a fi_fa2", "sweep/b fi_fa2"]}
    alone = {"rows": [{"suite": "sweep", "case": "kv bf16: 49 cases, worst 0.08, p10 0.18", "metric": "median share", "value": 0.67}]}
    text = write_sweep.page([document], alone, "today")
    assert "| the best of both | 3 | 2 (66.7%) | 1 | 1.25 | 1.07 |" in text, text
    assert "| FlashInfer | 2 | 1 (50.0%) | 0 |" in text and "| b | 100.0 | fa3 80.0 | 1.25 |" in text and "long" not in text
    assert "| kv bf16 | 49 | 0.08 | 0.18 | 0.67 |" in text and "fi_fa2: 2 cases whose kernel" in text and "- one note" in text


def test_peers_are_packed_as_they_are_imported(tmp_path):
    site = tmp_path / "site"
    files = {"flashinfer/__init__.py": "from .decode import run\n__version__ = '1'\nfrom .jit import core\n",
             "flashinfer/decode.py": "def run():\n    from .lazy.inside import x\n", "flashinfer/beside.py": "",
             "flashinfer/jit/__init__.py": "", "flashinfer/jit/core.py": "import tvm_ffi\n", "flashinfer/lazy/inside.py": "",
             "flashinfer/moe/big.py": "x = 1\n", "flashinfer/data/aot/m/m.so": "", "flashinfer/data/other/big": "",
             "tvm_ffi/__init__.py": "", "tvm_ffi/lib/libtvm_ffi.so": "", "tvm_ffi/lib/other.so": "", "vllm_fa3/c.so": "", "fa3_fwd/c.so": ""}
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    packed = {str(name) for name in pack_peers.wanted_files(site, {"fa3_fwd"})}
    assert packed == {"flashinfer/__init__.py", "flashinfer/decode.py", "flashinfer/beside.py", "flashinfer/jit/__init__.py",
                      "flashinfer/jit/core.py", "flashinfer/data/aot/m/m.so", "tvm_ffi/__init__.py", "tvm_ffi/lib/libtvm_ffi.so",
                      "vllm_fa3/c.so"}
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "pack_peers.py"), str(tmp_path / "absent")], capture_output=True, text=True)
    assert done.returncode == 2 and "does not exist" in done.stderr


def test_the_model_that_is_served_has_half_of_its_heads_streaming(tmp_path):
    serving_gpu.write_model(str(tmp_path))
    config, heads = (json.loads((tmp_path / name).read_text()) for name in ("config.json", serving_gpu.HEADS))
    assert len(heads["streaming"]) * 2 == config["num_hidden_layers"] * config["num_key_value_heads"]
    report = lambda us: {"rows": [{"metric": "step", "case": "random", "value": us, "limit": 1.0}]}
    assert "| 2.00 | 6.00 | 0.33 | 1.00 |" in serving_gpu.table({"long8": {"": report(2.0), "all read": report(6.0)}})


