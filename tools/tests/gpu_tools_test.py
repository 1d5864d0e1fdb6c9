"""The page of GPU figures says what a run's JSON says, and the GPU commands say what is missing."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]
import gpu_profile
import peers_gpu
import write_h200
import write_prefill


def case(suite, name, kv_bytes=1e9, tree="", floor=None):
    return {"suite": suite, "id": f"{suite}/{name}", "kv_bytes": kv_bytes, "qo_bytes": 0.0, "tree": tree, "runs": [], "floor_us": floor}


def page(tmp_path, measured, causes="", profiles=None):
    """The page of {case: {engine: us}}, its lines by the first cell."""
    machine = {"gpu": "a GPU", "read_gb_per_s": 4660.0}
    rows = [row for c, engines in measured for row in peers_gpu.rows_of(c, {name: {"us": us} for name, us in engines.items()}, machine)]
    (tmp_path / "run.json").write_text(json.dumps({"machine": machine, "rows": rows, "notes": ["one note"]}))
    (tmp_path / "causes.toml").write_text(causes)
    (tmp_path / "profile.json").write_text(json.dumps({"cases": profiles or {}}))
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "write_h200.py"), str(tmp_path / "run.json"), "--out",
                           str(tmp_path / "page.md"), "--causes", str(tmp_path / "causes.toml"), "--profile",
                           str(tmp_path / "profile.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "page.md").read_text()
    return text, {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}


def test_a_figure_is_judged_by_goal_and_peers(tmp_path):
    text, lines = page(tmp_path, [
        (case("decode", "32x8/B64/S4096"), {"fovea": 220.0, "fi_tc": 250.0, "cudnn": 219.5}),
        (case("decode", "32x8/B16/S1024", 1e8), {"fovea": 27.0, "fi_tc": 26.0, "cudnn": 26.0}),
        (case("single", "S256", 1e6), {"fovea": 5.0, "fi_xqa": 6.3})], '[[cause]]\nfigures = ["bf16 32x8, B16 *"]\nwhy = "too few requests"\n')
    assert "meets the goal" in lines["bf16 32x8, B64 S4096"] and "4.55 TB/s" in lines["bf16 32x8, B64 S4096"]
    behind = lines["bf16 32x8, B16 S1024"]
    assert "short of the goal" not in behind and "behind fi_tc" in behind and "behind cudnn" in behind
    assert "- **bf16 32x8, B16 S1024**: too few requests" in text
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
    assert (tmp_path / "page.csv").read_text() == "suite,case,limit_us,fovea_us,fi_tc\nskew,zipf,214.6,,300.00\n"


# What ncu prints with --csv --page raw: lines of the program, a head, units, a row a launch.
NCU_METRICS = {
    "gpu__time_duration.sum": "254,000", "dram__bytes_read.sum": "1,000,000,000", "dram__bytes_write.sum": "16,000,000",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "88", "lts__throughput.avg.pct_of_peak_sustained_elapsed": "50",
    "lts__t_sector_hit_rate.pct": "3", "sm__inst_issued.avg.pct_of_peak_sustained_active": "21",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "9",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": "4",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": "2",
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": "1",
    "smsp__average_warps_issue_stalled_barrier_not_issued_per_issue_active.ratio": "9",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": "1",
    "launch__registers_per_thread": "168", "launch__shared_mem_per_block_dynamic": "204800", "launch__shared_mem_per_block_static": "0",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "18"}


def ncu_text(cases):
    line = lambda cells: ",".join(f'"{cell}"' for cell in cells)
    rows = [line(["ID", "Kernel Name", *NCU_METRICS]), line(["", "", *("unit" for _ in NCU_METRICS)])]
    rows += [line([i, "fovea_attention", *NCU_METRICS.values()]) for i in range(len(cases))]
    return "\n".join(["==PROF== Connected", *(f"once {case}" for case in cases), *rows]) + "\n"


def test_a_profile_stands_beside_the_figure_that_falls_short(tmp_path):
    measured = [(case("decode", "32x8/B64/S4096"), {"fovea": 250.0, "fi_tc": 249.0}), (case("decode", "64x8/B64/S4096"), {"fovea": 250.0}),
                (case("prefix", "01/32x8", tree="1,2_32,32", floor=10.0), {"fovea": 60.0, "fi_casc": 40.0}),
                (case("prefix", "02/32x8", tree="1,2_32,32", floor=10.0), {"fovea": 41.0, "fi_casc": 40.0})]
    profiles = dict(zip(("decode/32x8/B64/S4096", "prefix/01/32x8"), map(gpu_profile.summary, gpu_profile.launches(ncu_text("ab")))))
    text, _ = page(tmp_path, measured, '[[cause]]\nfigures = ["bf16 ?4x8*", "bf16 32x8*"]\nwhy = "memory"\n', profiles)
    assert "- **bf16 32x8, B64 S4096**; **bf16 64x8, B64 S4096**: memory\n  - decode/32x8/B64/S4096: ncu: 254.0 us" in text
    assert ("DRAM 4.00 TB/s (88 %); L2 50 %; L2 hits 3 %; issue slots 21 %; tensor pipe 9 %; stalls long_scoreboard 50 %, barrier 25 %, "
            "wait 12 %; 168 registers, 200 KB shared memory, 18 % occupancy") in text
    assert "  - prefix/01/32x8: ncu" in text


def test_cases_of_short_figures_are_profiled(tmp_path, monkeypatch, capsys):
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!{sys.executable}\nimport sys\nsys.path[:0] = {sys.path[:2]!r}\nimport gpu_tools_test as t\n"
                   "print(t.ncu_text(sys.argv[sys.argv.index('--only') + 1].split(',')))\n")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(gpu_profile, "stop_if_missing", lambda bundle: None)
    monkeypatch.setattr(gpu_profile, "environment", lambda bundle: {"PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)})
    page(tmp_path, [(case("decode", "32x8/B64/S4096"), {"fovea": 250.0}), (case("decode", "64x8/B64/S4096"), {"fovea": 1.0}),
                    (case("single", "S256"), {"fovea": 9.0})])
    monkeypatch.setattr(sys, "argv", ["gpu_profile.py", str(tmp_path / "run.json"), "--json", str(tmp_path / "p.json")])
    assert gpu_profile.main() == 0, capsys.readouterr().out
    assert set(json.loads((tmp_path / "p.json").read_text())["cases"]) == {"decode/32x8/B64/S4096", "single/S256"}
    ncu.write_text("#!/bin/sh\necho '==ERROR== no counters'; exit 1\n")
    assert gpu_profile.main() == 1
    assert "no counters" in capsys.readouterr().out


def test_judged_cases_are_measured_first():
    ids = ["append/x", "decode/32x8/B64/S4096", "prefix/01/32x8", "decode/32x32/B1/S131072", "page/page64", "skew/uniform"]
    assert sorted(ids, key=write_h200.figures.rank) == [
        "decode/32x8/B64/S4096", "page/page64", "skew/uniform", "prefix/01/32x8", "append/x", "decode/32x32/B1/S131072"]


def test_the_page_of_prefill_says_what_was_measured(tmp_path, monkeypatch):
    cases = [{"suite": "prefill", "id": f"prefill/{name}", "flops": 1e12} for name in ("32x32/D128/S8192", "mixed/prompt2048+63x4096")]
    side = str(write_h200.figures.product_side(cases[0]))
    timed = lambda burst, soaked: {"us": soaked, "burst_us": burst}
    results = [{"fovea": timed(1600.0, 1800.0), "cudnn": timed(1700.0, 1900.0), "fa3_varlen": timed(1500.0, 1700.0)},
               {"fovea": timed(300.0, 310.0)}]
    products = {side: [800.0, 700.0]}
    rows = [row for case, result in zip(cases, results) for row in peers_gpu.rows_of(case, result, {}, products)]
    (tmp_path / "run.json").write_text(json.dumps({"machine": {"gpu": "a GPU"}, "rows": rows, "products": products, "notes": []}))
    monkeypatch.setattr(sys, "argv", ["write_prefill.py", str(tmp_path / "run.json"), "--out", str(tmp_path / "page.md")])
    write_prefill.main()
    text = (tmp_path / "page.md").read_text()
    assert "| 32x32/D128/S8192 | 760 | 660 | 625 | 556 | 79% | 667 | 588 | 0.94 |" in text
    assert "| mixed/prompt2048+63x4096 | 290 us |  | 3333 | 3226 |" in text
    assert f"{side} 700" in text and "ahead in 0 of 1" in text
    rows = (tmp_path / "page.csv").read_text()
    assert "32x32/D128/S8192,625,556,1800,0.79,588,526,667,588,," in rows and ",3333,3226,310,4.61,,,,,,\n" in rows


def test_gpu_commands_say_what_is_missing(tmp_path):
    (tmp_path / "tools").mkdir()
    for name in ("gpu_common.py", "steps.py", "gpu_test.py", "gpu_bench.py"):
        (tmp_path / "tools" / name).write_text((ROOT / "tools" / name).read_text())
    for name in ("gpu_test.py", "gpu_bench.py"):
        done = subprocess.run([sys.executable, str(tmp_path / "tools" / name)], capture_output=True, text=True)
        assert done.returncode == 1 and "make gpu-bundle" in done.stderr and "Traceback" not in done.stderr
