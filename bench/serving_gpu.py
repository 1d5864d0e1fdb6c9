#!/usr/bin/env python3
"""Measures what sharing prefixes gives a server: each load with attention that reads shared runs once, and without.

    serving_gpu.py --fovea build/gpu-bundle/bin/fovea --out build/bench [--only shared,choices] [--model FOLDER]

Runs `fovea bench serve --in-process`, one engine a setting, over a Llama-3.1-8B of random weights where no model is given.
Writes OUT/h200-serving.json, the rows of every run, and prints the table of docs/measurements/h200-serving.md. --scale
shortens lengths and loads for a trial on a CPU, with --device cpu and --model "" (needle).
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128256,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "hidden_act": "silu", "tie_word_embeddings": False}

# Settings of the engine that are compared, and their flags.
ALONE: dict[str, list[str]] = {"": []}
BOTH = {"": [], "packing off": ["--no-share-prefixes"]}
HEADS = "heads.json"  # beside the config.json of the model of random weights, as is
KEYS = "key_sketch.json"
# 4096 tokens read with half of the heads streaming, against all.
SELECTING = {"": ["--sparse", "auto", "--kv-budget", "4096", "--streaming", HEADS], "all read": []}
# Answers so long that all streams still run when the last prompt has been read.
LONG = ["--rate", "inf", "--itl-target-ms", "0", "--prompt-tokens", "130816", "--max-tokens", "256", "--kv-dtype", "fp8"]


class Case(NamedTuple):
    what: str
    metric: str  # of the table
    requests: int
    arguments: list[str]
    settings: dict[str, list[str]]


CASES = {
    "shared": Case("64 requests sharing 16k, 256 own and 256 generated", "step", 64,
                   ["--rate", "inf", "--itl-target-ms", "0", "--prompt-tokens", "16640", "--shared-tokens", "16384", "--max-tokens",
                    "256"], BOTH),
    "choices": Case("64 prompts of 2k, several answers each", "step", 64,
                    ["--rate", "inf", "--itl-target-ms", "0", "--prompt-tokens", "2048", "--max-tokens", "56", "--choices", "4,16",
                     "--max-running", "1024"], BOTH),
    "conversation": Case("conversation trace, 20 a second", "tpot_mean", 120,
                         ["--rate", "20", "--workload", "conversation", "--max-running", "128", "--ttft-ms", "500", "--tpot-ms",
                          "25"], BOTH),
    "agent": Case("agent trace, 6 a second", "tpot_mean", 40,
                  ["--rate", "6", "--workload", "agent", "--max-running", "128", "--ttft-ms", "1000", "--tpot-ms", "25"], BOTH),
    "interrupted": Case("32 streams beside prompts of 8k", "itl_p99", 6,
                        ["--rate", "inf", "--workload", "interrupted", "--prompt-tokens", "1024", "--max-tokens", "900",
                         "--itl-stretch", "1.5"], ALONE),
    "long1": Case("128k of context, 1 stream, fp8 KV", "step", 1, LONG, SELECTING),
    "long8": Case("128k of context, 8 streams, fp8 KV", "step", 8, LONG, SELECTING),
}


def write_model(folder):
    """A Llama-3.1-8B's config.json, and a profile by which every other KV head streams."""
    os.makedirs(folder, exist_ok=True)
    heads = [[layer, head] for layer in range(LLAMA_8B["num_hidden_layers"]) for head in range(0, LLAMA_8B["num_key_value_heads"], 2)]
    profile = {"model": "", "sink_tokens": 64, "local_tokens": 256, "prefill_local_tokens": 1024, "streaming": heads}
    for name, content in (("config.json", LLAMA_8B), (HEADS, profile)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            json.dump(content, file)


def learn_keys(options, folder):
    """What page selection knows of random weights' keys; documents need no length for that."""
    subprocess.run([options.fovea, "profile", "keys", "--device", options.device, "--model", folder, "--load-format", "dummy",
                    "--context", "2048", "--documents", "2", "--out", os.path.join(folder, KEYS)], check=True, stdout=sys.stderr, timeout=options.seconds)


def run(options, model, folder, name, setting):
    """The JSON of one run, or None when it failed, which is said."""
    case = CASES[name]
    # A model that is given has a profile of its own.
    heads = os.path.join(folder, HEADS) if model == folder else "auto"
    flags = [heads if flag == HEADS else flag for flag in (*case.arguments, *case.settings[setting])]
    command = [options.fovea, "bench", "serve", "--in-process", "--device", options.device, "--chunk-tokens", "8192",
               "--requests", str(max(2, round(case.requests * options.scale))), "--length-scale", str(options.scale), "--json", "-",
               *flags]
    if model:
        command += ["--model", model]
    if model and not os.path.exists(os.path.join(model, "model.safetensors.index.json")):
        command += ["--load-format", "dummy"]
    if options.device != "cpu":
        command += ["--read-rate", str(options.read_rate), "--compute-rate", str(options.compute_rate)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds, check=False)
    except subprocess.TimeoutExpired:
        print(f"{name} {setting}: more than {options.seconds} s", file=sys.stderr)
        return None
    if done.returncode != 0:
        print(f"{name} {setting}: {done.stderr.strip()[-500:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def figures(report, metric):
    """{case: (value, limit)} of one metric, and of ITL alone where streams were interrupted."""
    out = {}
    for row in report["rows"]:
        if row["metric"] == metric:
            out[row["case"]] = [row["value"], row["limit"]]
    for row in report["rows"]:
        if row["metric"] == "itl_alone_p99" and row["case"] in out:
            out[row["case"]][1] = row["value"]
    return out


def table(results):
    lines = ["| ms | Fovea | packing off, or all read | ratio | floor, or alone |", "|---|---|---|---|---|"]
    for name, by_setting in results.items():
        what, metric = CASES[name].what, CASES[name].metric
        beside_it = next((report for setting, report in by_setting.items() if setting and report), None)
        off = figures(beside_it, metric) if beside_it else {}
        if not by_setting.get(""):
            continue
        for case, (value, limit) in figures(by_setting[""], metric).items():
            beside = off.get(case)
            choices = f" ({case.split(' ')[-1]})" if " n=" in case else ""
            cells = [f"{what}{choices}: {metric}", f"{value:.2f}", f"{beside[0]:.2f}" if beside else "",
                     f"{value / beside[0]:.2f}" if beside else "", f"{limit:.2f}" if limit else ""]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fovea", default="build/release/fovea")
    parser.add_argument("--model", help="model folder; without it, a Llama-3.1-8B of random weights; '': needle")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", default="build/bench")
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--read-rate", type=float, default=4660.0, help="GB/s")
    parser.add_argument("--compute-rate", type=float, default=680.0, help="TFLOP/s")
    parser.add_argument("--seconds", type=float, default=120.0, help="most that one run may take")
    parser.add_argument("--write-config", metavar="FOLDER", help="only write that model's config.json there, for fovea warmup")
    options = parser.parse_args()
    if options.write_config:
        write_model(options.write_config)
        return 0
    names = options.only.split(",")
    for name in names:
        if name not in CASES:
            parser.error(f"--only names {name}, expected of {', '.join(CASES)}")
    os.makedirs(options.out, exist_ok=True)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        model = folder if options.model is None else options.model
        if model == folder and any(CASES[name].settings == SELECTING for name in names):
            learn_keys(options, folder)
        for name in names:
            for setting in CASES[name].settings:
                results.setdefault(name, {})[setting] = run(options, model, folder, name, setting)
                with open(os.path.join(options.out, "h200-serving.json"), "w", encoding="utf-8") as file:
                    json.dump(results, file, indent=1)
    print(table(results))
    return 0 if all(report for by_setting in results.values() for report in by_setting.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
