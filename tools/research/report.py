"""Tables of right answers, answers lost against dense and bytes, in Markdown, from run.py's JSON. Needs no torch.

    python report.py final-8192.json final-16384.json ... > tables.md
"""
import json
import math
import sys

# Bytes kept a token and KV head by a statistic, and bytes of it that a second stage reads again where its first stage is
# part of it (the planes of one code). bf16 bounds of 16 tokens; see grids.STATISTICS.
STORED = {"minmax16": 32, "pick 32x4": 16, "pick 64x4": 32, "pick 32x2": 8, "turn 32x4": 16, "low 32x4": 16, "sign hadamard": 18,
          "plane 1": 4, "plane 2": 8, "pick bounds16": 2, "exact": 256, "random": 0, "dense": 0}
PLANES = ("plane 1", "plane 2")


def paired(dense, other, z=1.96):
    """(share lost, half of the 95 % interval) of right answers between two strings of 0 and 1 about the same questions.

    Interval of Agresti and Min (2005) for matched pairs, which has a width also where no answer differs."""
    if len(dense) != len(other) or not dense:
        raise ValueError(f"strings of {len(dense)} and {len(other)} answers: expected the same questions, at least one")
    lost = sum(a == "1" and b == "0" for a, b in zip(dense, other))
    won = sum(a == "0" and b == "1" for a, b in zip(dense, other))
    count = len(dense)
    spread = math.sqrt((lost + won + 1) - (lost - won) ** 2 / (count + 2)) / (count + 2)
    return (lost - won) / count, z * spread


def statistic_bytes(statistic, read, length):
    """(bytes stored, bytes read a step and document token) a KV head of `first>second` or one statistic; read = run.py's
    (document tokens read, scored by the first, by the second)."""
    names = statistic.split(">")
    if len(names) == 1:
        stored = STORED[names[0]]
        return stored, stored * read[1] / length
    first, second = STORED[names[0]], STORED[names[1]]
    again = second - first if names[0] in PLANES else second
    return (second if names[0] in PLANES else first + second), (first * read[1] + again * read[2]) / length


def rows(results):
    """{policy without budget: {(context, budget): cell}} in order of appearance; cell = share, lost, half, read, bytes."""
    table, dense = {}, {r["context"]: r for r in results if r["policy"] == "dense"}
    for r in results:
        name, _, budget = r["policy"].partition(" @")
        base = dense[r["context"]]
        lost, half = paired(base["bits"], r["bits"])
        length = base["read"][0]
        stored, per_step = statistic_bytes(r["statistic"], r["read"], length) if r.get("statistic") else (None, None)
        table.setdefault(name, {})[(r["context"], budget)] = dict(
            share=r["bits"].count("1") / len(r["bits"]), count=len(r["bits"]), lost=lost, half=half, read=r["read"][0], stored=stored,
            bytes=per_step)
    return table


def main():
    results = []
    for path in sys.argv[1:]:
        with open(path) as file:
            results += json.load(file)
    table = rows(results)
    cells = sorted({c for row in table.values() for c in row if c[1]})
    head = [f"{context // 1024}k {budget}" + (" tokens" if budget.isdigit() else "") for context, budget in cells]
    print("| policy | bytes kept | " + " | ".join(head) + " | bytes scored a step |")
    print("|---" * (len(cells) + 3) + "|")
    for name, row in table.items():
        there = [row.get(c) or row.get((c[0], "")) for c in cells]
        stored = next((c["stored"] for c in there if c), None)
        steps = [f"{c['bytes']:.1f}" if c and c["bytes"] is not None else "" for c in there]
        text = [f"{c['share']:.3f} ({c['lost']:+.3f} ± {c['half']:.3f})" if c else "" for c in there]
        print(f"| {name} | {'' if stored is None else stored} | " + " | ".join(text) + f" | {', '.join(s for s in steps if s)} |")


if __name__ == "__main__":
    main()
