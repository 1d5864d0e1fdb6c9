#!/usr/bin/env python3
"""Times Fovea and other attention libraries on one GPU over the same tensors, in one process, one case after another.

    peers_gpu.py --fovea build/gpu-bundle/bin/fovea --suite decode,skew --json build/bench/h200.json [--seconds 300]

Cases come from `fovea bench attention --list`, those that figures are judged by first, then prefixes; Fovea runs through
its Python package, peers are what can be imported (bench/gpu/peers.py). Every (case, engine) is checked against fp32 before it is timed and on what the timed graph wrote.
Writes the JSON of `fovea bench`, a row for each (case, peer) with Fovea's value beside it, after every case;
bench/write_h200.py makes docs/measurements/h200-decode.md of it, of suite prefill bench/write_prefill.py h200-prefill.md, of
suite sweep bench/write_sweep.py the table beside peers of sweep.md. An engine that crashes or hangs is noted and left out,
and the run goes on in a new process: what is in the file is not measured again.
"""
import argparse
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import h200_figures as figures

STALL_SECONDS = 60  # without a sign of life, the engine at work hangs
# Relative error against fp32 that bf16 and e4m3 storage may cost; right results stay below a third of it.
MOST_ERROR = {"bf16": 0.012, "f16": 0.012, "fp8_e4m3": 0.08}


def load(path):
    if not os.path.exists(path):
        return {"machine": {}, "rows": [], "notes": [], "done": []}
    with open(path) as file:
        return json.load(file)


def save(path, document):
    with open(path + ".new", "w") as file:
        json.dump(document, file, indent=1)
    os.replace(path + ".new", path)


def listed_cases(args):
    drawn = ["--seed", str(args.seed), "--cases", str(args.cases)]
    done = subprocess.run([args.fovea, "bench", "attention", "--list", "--suite", args.suite, *drawn],
                          capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{args.fovea} lists no cases: {done.stderr.strip()}")
    cases = [case for case in json.loads(done.stdout)["cases"] if any(part in case["id"] for part in args.only.split(","))]
    # No library here reads integers.
    cases = [case for case in cases if case["kv_dtype"] in MOST_ERROR]
    return sorted(cases, key=lambda case: figures.rank(case["id"]))


def engines_of(case, args):
    from gpu import peers
    suite = "prefix" if case["suite"] == "quarter" else case["suite"]
    names = ["fovea", *peers.OF_SUITE[suite].split()]
    return [name for name in names if not args.engines or name in args.engines.split(",")]


def prepare(name, data):
    if name == "fovea":
        from gpu import fovea_engine
        return fovea_engine.prepare(data)
    from gpu import peers
    return peers.PEERS[name](data)


def measure(name, data):
    """{"us", "error", "calls"} of an engine over a case; raises where it is wrong or fails."""
    from gpu import peers, timing
    case, by_leaf = data.case, name in peers.ROWS_BY_LEAF
    call = prepare(name, data)
    first_error = data.error_of(call(0), 0, by_leaf)[1]
    if not first_error < MOST_ERROR[case["kv_dtype"]]:
        raise ArithmeticError(f"wrong: relative error {first_error:.3g}")
    guess = max((case["kv_bytes"] + case["qo_bytes"]) / 4e6, case["flops"] / 5e8, 5.0)
    burst = None
    if case["suite"] in figures.SOAKED_SUITES:
        (burst, us), calls, wrote = timing.burst_and_soaked_us(call, data.sets, guess)
    else:
        us, calls, wrote = timing.replay_us(call, data.sets, guess)
    error = data.error_of(wrote, 0, by_leaf)[1]
    if not error < MOST_ERROR[case["kv_dtype"]]:
        raise ArithmeticError(f"wrong in the graph: relative error {error:.3g}")
    return {"us": us, "burst_us": burst, "error": max(error, first_error), "calls": calls}


def product_rates(case, document):
    """Measures, once for cases of about as many FLOPs, a matrix product of as many: TFLOP/s in a burst and soaked."""
    import torch
    from gpu import timing
    side = figures.product_side(case)
    if str(side) in document.setdefault("products", {}):
        return
    a, b = (torch.empty(side, side, dtype=torch.bfloat16, device="cuda").normal_() for _ in "ab")
    out = torch.empty_like(a)
    times, _, _ = timing.burst_and_soaked_us(lambda copy: torch.matmul(a, b, out=out), 1, 2 * side**3 / 7e8)
    document["products"][str(side)] = [2 * side**3 / us / 1e6 for us in times]


def soaked_rows_of(case, results, products):
    """TFLOP/s in a burst and soaked, beside a matrix product of as many FLOPs, and us of short cases' bytes too."""
    rows = []
    peers = [name for name in results if name != "fovea"] or [None]
    limits = products.get(str(figures.product_side(case)), [None, None])
    for nth, (metric, key) in enumerate((("burst", "burst_us"), ("soaked", "us"))):
        for peer in peers:
            rate = lambda name, key=key: case["flops"] / results[name][key] / 1e6 if name in results else None
            us = lambda name, key=key: results[name][key] if name in results else None
            base = {"suite": case["suite"], "case": case["id"].split("/", 1)[1], "peer": peer}
            value, limit = rate("fovea"), limits[nth]
            rows.append({**base, "metric": metric, "value": value, "unit": "TFLOP/s", "limit": limit,
                         "share": value / limit if value and limit else None, "peer_value": rate(peer)})
            rows.append({**base, "metric": f"{metric} time", "value": us("fovea"), "unit": "us", "limit": None, "share": None,
                         "peer_value": us(peer)})
    return rows


def is_judged(case, floor_us):
    """As `fovea bench attention --suite sweep` has it: short cases are bound by what happens once, prompts by products."""
    return case["suite"] != "sweep" or (max(case["q_lens"]) <= 16 and (floor_us or 0) >= 20)


def rows_of(case, results, machine, products=None):
    """The contract's rows: time (and read, by unique bytes) of Fovea, once for each peer beside it."""
    if case["suite"] in figures.SOAKED_SUITES:
        return soaked_rows_of(case, results, products)
    ours = results.get("fovea")
    peers = [(name, value) for name, value in results.items() if name != "fovea"] or [(None, None)]
    bytes_moved = case["kv_bytes"] + case["qo_bytes"]
    floor = case["floor_us"]
    limit = floor or (bytes_moved / machine["read_gb_per_s"] / 1e3 if "read_gb_per_s" in machine else None)
    if limit and case["suite"] in ("sweep", "cliffs"):
        rate = machine.get("matrix_tflop_per_s", 0)
        limit = max(limit, case["flops"] / rate / 1e6 if rate else 0) + machine.get("empty_node_us", 0)
    rows = []
    for name, peer in peers:
        us = ours and ours["us"]
        peer_us = peer and peer["us"]
        base = {"suite": case["suite"], "case": case["id"].split("/", 1)[1], "peer": name}
        rows.append({**base, "metric": "time" if is_judged(case, limit) else "time, not judged", "value": us, "unit": "us", "limit": limit,
                     "share": limit / us if limit and us else None, "peer_value": peer_us})
        if not case["tree"] and not case["runs"]:
            rate = lambda t: bytes_moved / t / 1e3 if t else None
            read = machine.get("read_gb_per_s")
            rows.append({**base, "metric": "read", "value": rate(us), "unit": "GB/s", "limit": read,
                         "share": rate(us) / read if read and us else None, "peer_value": rate(peer_us)})
    return rows


def work(args):
    """Measures what is not in the file yet, in this process."""
    import torch
    from gpu import peers
    from gpu.data import CaseData
    document = load(args.json)
    missing = set()
    for case in listed_cases(args):
        wanted = [name for name in engines_of(case, args) if f"{case['id']} {name}" not in document["done"]]
        if not wanted:
            continue
        if time.time() > args.until:
            document["notes"].append(f"time was up before {case['id']}")
            break
        if case["suite"] in figures.SOAKED_SUITES:
            beat(args, f"{case['id']} product")
            product_rates(case, document)
        try:
            data = CaseData(case)
        except torch.cuda.OutOfMemoryError as error:
            document["notes"].append(f"{case['id']}: its data does not fit into the GPU's memory ({str(error)[:80]})")
            document["done"] += [f"{case['id']} {name}" for name in wanted]
            torch.cuda.empty_cache()
            continue
        results = document.setdefault("results", {}).setdefault(case["id"], {})
        for name in wanted:
            beat(args, f"{case['id']} {name}")
            document["done"].append(f"{case['id']} {name}")
            if name in missing:
                continue
            try:
                results[name] = measure(name, data)
                print(line_of(case, name, results[name]), flush=True)
            except peers.Unsupported:
                pass
            except ImportError as error:
                missing.add(name)
                document["notes"].append(f"{name}: cannot be imported ({error})")
                print(document["notes"][-1], flush=True)
            except Exception as error:
                if type(error).__name__ == "MissingJITCacheError":  # FlashInfer, told not to compile
                    document.setdefault("not_compiled", []).append(f"{case['id']} {name}")
                    continue
                document["notes"].append(f"{case['id']} {name}: {type(error).__name__}: {str(error)[-300:]}")
                print(document["notes"][-1], flush=True)
                save(args.json, document)
                torch.cuda.synchronize()  # a broken context raises here, and a new process goes on
        document["rows"] = [row for row in document["rows"] if f"{row['suite']}/{row['case']}" != case["id"]]
        if results:
            document["rows"] += rows_of(case, results, document["machine"], document.get("products", {}))
        save(args.json, document)
        del data
        torch.cuda.empty_cache()
    save(args.json, document)


def line_of(case, name, result):
    burst = "" if result["burst_us"] is None else (f"  {case['flops'] / result['burst_us'] / 1e6:5.0f} burst "
                                                   f"{case['flops'] / result['us'] / 1e6:5.0f} soaked TFLOP/s")
    return f"{case['id']:40s} {name:10s} {result['us']:9.2f} us{burst}  error {result['error']:.4f}"


def beat(args, what):
    with open(args.json + ".now", "w") as file:
        file.write(what)


def describe_machine(args):
    """Names the GPU and measures what the read limit is, by `fovea bench attention --suite limits`."""
    document = load(args.json)
    if document["machine"]:
        return
    done = subprocess.run([args.fovea, "bench", "attention", "--device", "cuda:0", "--suite", "limits", "--json", "-"],
                          capture_output=True, text=True)
    if done.returncode == 0:
        document["machine"] = json.loads(done.stdout)["machine"]
    else:
        document["notes"].append(f"the limits were not measured: {done.stderr.strip()[-300:]}")
    versions = {}
    for module in ("torch", "flashinfer"):
        try:
            versions[module] = __import__(module).__version__
        except ImportError:
            pass
    if "torch" in versions:
        import torch
        document["machine"].setdefault("gpu", torch.cuda.get_device_name(0))
        versions["cudnn"] = torch.backends.cudnn.version()
    document["machine"].update(versions)
    save(args.json, document)


def supervise(args):
    """Runs work() in processes of its own until one ends well; names the engine at work when one does not."""
    now = args.json + ".now"
    for _ in range(30):
        beat(args, "start")
        child = subprocess.Popen([sys.executable, *sys.argv, "--worker", "--until", str(args.until)])
        while child.poll() is None:
            time.sleep(0.2)
            limit = 3 * STALL_SECONDS if open(now).read() == "start" else STALL_SECONDS
            if time.time() - os.path.getmtime(now) > limit:
                child.kill()
        if child.returncode == 0:
            break
        with open(now) as file:
            at = file.read()
        document = load(args.json)
        document["notes"].append(f"{at}: the process ended with {child.returncode}")
        print(document["notes"][-1], flush=True)
        if at == "start":
            save(args.json, document)
            sys.exit("no case was begun")
        if at not in document["done"]:
            document["done"].append(at)
        save(args.json, document)
    os.remove(now)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fovea", default="build/gpu-bundle/bin/fovea", help="the binary")
    parser.add_argument("--suite", default="decode,skew,single,fp8,page,variant,append,prefix")
    parser.add_argument("--engines", default="", help="some of fovea, " + ", ".join(PEER_NAMES) + ", with commas; all")
    parser.add_argument("--only", default="", help="cases whose id holds this, or one of these, with commas between")
    parser.add_argument("--seed", type=int, default=1, help="of suite sweep")
    parser.add_argument("--cases", type=int, default=100, help="of suite sweep")
    parser.add_argument("--json", required=True)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after this long")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args)
    args.until = time.time() + args.seconds
    os.makedirs(os.path.dirname(os.path.abspath(args.json)), exist_ok=True)
    describe_machine(args)
    supervise(args)


PEER_NAMES = ("cudnn", "fa3", "fi_xqa", "fi_tc", "fi_tc0", "fi_cc", "fi_cc0", "fi_persist", "fi_fa2", "fi_casc",
              "fa3_dense", "fa3_varlen", "fi_fa3", "fi_blocks")

if __name__ == "__main__":
    main()
