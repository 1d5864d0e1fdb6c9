#!/usr/bin/env python3
"""`make soak`: the server under storms, overload, faults and thousands of streams for as long as the figures of
docs/measurements/server.md ask, about twenty minutes. Prints the page's table; ends with 1 where anything was wrong.

Usage: soak.py [--requests 10000] [--overload-seconds 60] [--streams 2000] [--prompts 3] [--prompt-tokens 40000] [--seed N]"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import subprocess
import sys
import time

import faults
import load
import speculation
import storm
from server import Server, raise_descriptor_limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("requests", 10000), ("overload-seconds", 60), ("streams", 2000), ("prompts", 3),
                          ("prompt-tokens", 40000), ("seed", int(time.time()))):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    raise_descriptor_limit()
    wrong: list[str] = []

    def row(what: str, aim: str, measured: str, found: list[str]) -> None:
        wrong.extend(f"{what}: {text}" for text in found)
        print(f"| {what} | {aim} | {measured}{' **wrong**: ' + '; '.join(found) if found else ''} |", flush=True)

    print(f"{datetime.date.today()}, `{' '.join(['make soak', *sys.argv[1:]])}`, {platform.processor() or platform.machine()}, "
          f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start, seed {options.seed}\n")
    print("| | aim | measured |\n|---|---|---|", flush=True)

    with Server("--kv-cache-mib", "256", "--max-context", "4096") as server:
        outcomes, found = storm.run(server, options.requests, options.seed)
        if server.stop() != 0:
            found.append("the server ended badly")
        counts = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
        row(f"{options.requests} requests, clients misbehaving at random", "nothing leaked, nothing stuck",
            f"{counts}; leaked {len(found)}", found)

    figures, found = load.overload(10.0, options.overload_seconds)
    row(f"overload at 10 times {figures['capacity']:.0f} requests/s, {options.overload_seconds} s",
        "an answer or 429/503; memory flat; p99 bounded",
        f"{figures['answered']} answered, {figures['refused']} refused in the second half, p99 {figures['p99_s']:.2f} s, "
        f"allocated {figures['growth_kib']:+.0f} KiB", found)

    grown, found = load.idle_streams(options.streams)
    row(f"{options.streams} streams held, over the idle server", "100 MB", f"{grown / 1e6:.0f} MB", found)

    costs = {interval: load.token_cost(64, 1000, interval) for interval in (1, 2, 4)}
    row("HTTP and JSON a token, 64 streams; with `--stream-interval` 2 · 4", "5 us of CPU",
        " · ".join(f"{1e6 * user:.1f} us, and {1e6 * kernel:.1f} of the kernel" for user, kernel in costs.values()) +
        f" (sending alone {1e6 * load.send_cost(64, 1000):.1f})", [])

    p99, p50, paced = load.pacing(options.prompts, options.prompt_tokens, 30)
    whole_p99, _, whole = load.pacing(options.prompts, options.prompt_tokens, 0)
    row(f"gap between a stream's tokens beside prompts of {options.prompt_tokens}, p99", "30 ms",
        f"{1e3 * p99:.0f} ms (p50 {1e3 * p50:.0f}; {1e3 * whole_p99:.0f} with `--itl-target-ms 0`)", [])
    row("what that costs a prompt, CPU", "12 %",
        f"{100 * (paced / whole - 1):.0f} % ({paced:.1f} s; {whole:.1f} s with `--itl-target-ms 0`)", [])

    ratios, found = speculation.speculation(5)
    row("`--speculate ngram` over `off`, tokens/s of answers " + " · ".join(ratios), "2 (quoting), same tokens",
        " · ".join(f"{ratio:.2f}" for ratio in ratios.values()), found)

    if promtool := shutil.which("promtool"):
        with Server("--kv-cache-mib", "64") as server:
            server.ask()
            said = subprocess.run([promtool, "check", "metrics"], input=server.get("/metrics"), capture_output=True, text=True)
        found = [said.stderr.strip()] if said.returncode != 0 else []
        row("names in `/metrics`, `promtool check metrics`", "nothing to say", "nothing to say" if not found else "", found)

    for fault in faults.ALL:
        found = fault()
        row(f"fault: {fault.__name__.replace('_', ' ')}", "goes on", "goes on" if not found else "", found)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
