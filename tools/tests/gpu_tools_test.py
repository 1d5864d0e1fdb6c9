"""The page of GPU figures says what a run's JSON says, and the GPU commands say what is missing."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import peers_gpu
import write_h200


def case(suite, name, kv_bytes=1e9, tree="", floor=None):
    return {"suite": suite, "id": f"{suite}/{name}", "kv_bytes": kv_bytes, "qo_bytes": 0.0, "tree": tree, "floor_us": floor}


def page(tmp_path, measured, causes=""):
    """The page of {case: {engine: us}}, its lines by the first cell."""
    machine = {"gpu": "a GPU", "read_gb_per_s": 4660.0}
    rows = [row for c, engines in measured for row in peers_gpu.rows_of(c, {name: {"us": us} for name, us in engines.items()}, machine)]
    (tmp_path / "run.json").write_text(json.dumps({"machine": machine, "rows": rows, "notes": ["one note"]}))
    (tmp_path / "causes.toml").write_text(causes)
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "write_h200.py"), str(tmp_path / "run.json"), "--out",
                           str(tmp_path / "page.md"), "--causes", str(tmp_path / "causes.toml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.md").read_text()
    return text, {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}


def test_a_figure_is_judged_by_goal_and_peers(tmp_path):
    text, lines = page(tmp_path, [
        (case("decode", "32x8/B64/S4096"), {"fovea": 220.0, "fi_tc": 250.0, "cudnn": 219.5}),
        (case("decode", "32x8/B16/S1024", 1e8), {"fovea": 27.0, "fi_tc": 26.0, "cudnn": 26.0}),
        (case("single", "S256", 1e6), {"fovea": 5.0, "fi_xqa": 6.3})], '[causes]\n"bf16 32x8, B16 S1024" = "too few requests"\n')
    assert "meets the goal" in lines["bf16 32x8, B64 S4096"] and "4.55 TB/s" in lines["bf16 32x8, B64 S4096"]
    behind = lines["bf16 32x8, B16 S1024"]
    assert "short of the goal" not in behind and "behind fi_tc" in behind and "behind cudnn" in behind
    assert "- bf16 32x8, B16 S1024: too few requests" in text
    assert "meets the goal" in lines["one request, 32x8, S256"]
    assert "not measured" in lines["bf16 32x32, B64 S4096"]
    assert "- one note" in text


def test_prefix_cells_are_judged_together(tmp_path):
    _, lines = page(tmp_path, [(case("prefix", "01/32x8", tree="1,2_32,32", floor=10.0), {"fovea": 20.0, "fi_casc": 40.0}),
                               (case("prefix", "19/32x8", tree="2_32", floor=10.0), {"fovea": 45.0, "fi_casc": 40.0})])
    assert "| 3.00 |" in next(line for name, line in lines.items() if "all cells (2)" in name)
    assert "| 2.00 |" in next(line for name, line in lines.items() if "trees 1-18" in name)
    slower = next(line for name, line in lines.items() if "slower than the best peer" in name)
    assert "19/32x8" in slower and "01/32x8" not in slower


def test_an_engine_that_failed_leaves_the_others_rows(tmp_path):
    text, lines = page(tmp_path, [(case("skew", "zipf"), {"fi_tc": 300.0})])
    assert "not measured" in lines["Zipf lengths over uniform"]
    assert "300.00" in text


def test_gpu_commands_say_what_is_missing(tmp_path):
    (tmp_path / "tools").mkdir()
    for name in ("gpu_common.py", "gpu_test.py", "gpu_bench.py"):
        (tmp_path / "tools" / name).write_text((ROOT / "tools" / name).read_text())
    for name in ("gpu_test.py", "gpu_bench.py"):
        done = subprocess.run([sys.executable, str(tmp_path / "tools" / name)], capture_output=True, text=True)
        assert done.returncode == 1 and "make gpu-bundle" in done.stderr and "Traceback" not in done.stderr
