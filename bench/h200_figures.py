"""The figures that decode on an H200 is judged by: goals, what was measured, the best peers, verdicts.

Used by write_h200.py, which prints them, and tools/gpu_profile.py, which profiles the cases of those that fall short.
"""
import fnmatch
import json
import math

CONTIGUOUS = {"cudnn"}
SOAKED_SUITES = {"prefill"}  # timed in a burst and soaked
NOISE = 0.005  # of one run

# (name, case, metric, goal, unit): reading rates in GB/s, times in us.
RATES = [(f"bf16 {heads}, {shape.replace('/', ' ')}", f"decode/{heads}/{shape}", goal) for heads, shape, goal in (
    ("32x32", "B64/S4096", 4650), ("32x32", "B16/S1024", 4250), ("32x8", "B64/S4096", 4520), ("32x8", "B128/S2048", 4520),
    ("32x8", "B16/S8192", 4450), ("32x8", "B1/S131072", 4350), ("32x8", "B64/S1024", 4200), ("32x8", "B16/S1024", 3600),
    ("64x8", "B64/S4096", 4500), ("32x4", "B64/S4096", 4450), ("32x4", "B16/S1024", 2500))]
RATES += [("fp8 KV 32x8, B64 S4096", "fp8/B64/S4096", 3900), ("fp8 KV 32x8, B16 S8192", "fp8/B16/S8192", 3500),
          ("window 1024, B64 S4096, visible KV", "variant/window1024", 4000)]
TIMES = [(f"one request, 32x8, S{tokens}", f"single/S{tokens}", goal) for tokens, goal in (
    (256, 5.5), (1024, 6.5), (4096, 10.0), (8192, 13.5), (32768, 35.0))]
# Time of a case over that of another: at most this.
RATIOS = [("pages of 1 over pages of 64", "page/page1", "page/page64", 1.05), ("pages of 16 over pages of 64", "page/page16", "page/page64", 1.02),
          ("Zipf lengths over uniform", "skew/zipf", "skew/uniform", 1.04), ("one long request over uniform", "skew/one_long", "skew/uniform", 1.04),
          ("soft-cap over plain", "variant/softcap30", "variant/plain", 1 + NOISE)]
PREFIX_GOALS = {"all": 2.2, "sharing": 2.4}
# (name, case, metric, goal, unit) of what the host does.
HOST_GOALS = [("plan of 256 requests, full, with the copy", "plan/B256 S4096 32/8", "full, with the copy", 50, "us"),
              ("plan of 256 requests, grown, host time", "plan/B256 S4096 32/8", "grown, host", 5, "us"),
              ("new variant of the decode kernel, cold", "compile/decode kernel", "cold", 2000, "ms"),
              ("new variant of the decode kernel, from disk", "compile/decode kernel", "from disk", 5, "ms")]


def product_side(case):
    """Side of the square matrices whose product has about as many FLOPs as the case: powers of 2, and halfway between."""
    return int(2 ** max(round(math.log2(case["flops"] / 2) / 3 * 2) / 2, 10)) // 128 * 128


class Measured:
    """Rows of all files by case and metric: Fovea's value and its peers'."""

    def __init__(self, documents):
        self.ours, self.peers, self.rows, self.limit = {}, {}, {}, {}
        for document in documents:
            for row in document["rows"]:
                key = f"{row['suite']}/{row['case']}", row["metric"]
                self.rows[key + (row["peer"],)] = row
        for (case, metric, peer), row in self.rows.items():
            key = case, metric
            if row["value"] is not None:
                self.ours[key] = row["value"]
            if row["limit"] is not None:
                self.limit[key] = row["limit"]
            if peer and row["peer_value"] is not None:
                self.peers.setdefault(key, {})[peer] = row["peer_value"]

    def best(self, case, metric, contiguous):
        """(name, value) of the fastest peer that reads pages, or of one that reads contiguous KV."""
        choose = max if metric == "read" else min
        some = [(value, name) for name, value in self.peers.get((case, metric), {}).items() if (name in CONTIGUOUS) == contiguous]
        return choose(some)[::-1] if some else None


def number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}" if value >= 10 else f"{value:.3g}"


def named(peer, show=number):
    return f"{peer[0]} {show(peer[1])}" if peer else ""


def verdict(value, goal, smaller, paged, contiguous):
    """What counts: ahead of every paged peer, not behind contiguous KV by more than noise; and whether the goal is met."""
    if value is None:
        return "not measured"
    better = (lambda a, b, slack=0.0: a <= b * (1 + slack)) if smaller else (lambda a, b, slack=0.0: a >= b * (1 - slack))
    words = ["meets the goal" if better(value, goal) else "**short of the goal**"]
    if paged and not better(value, paged[1]):
        words.append(f"**behind {paged[0]}**")
    if contiguous and not better(value, contiguous[1], NOISE):
        words.append(f"**behind {contiguous[0]}**")
    return ", ".join(words)


def figure_lines(data):
    """[(name, [cells of the table])]"""
    lines = []

    def add(name, goal_text, value, show, paged, contiguous, judged):
        ours = show(value) if value is not None else "–"
        lines.append((name, [name, goal_text, ours, named(paged, show), named(contiguous, show), judged]))
    for group, metric, unit, smaller in ((RATES, "read", "TB/s", False), (TIMES, "time", "us", True)):
        for name, case, goal in group:
            value = data.ours.get((case, metric))
            paged, contiguous = (data.best(case, metric, kind) for kind in (False, True))
            show = (lambda x: f"{x / 1e3:.2f} TB/s") if unit == "TB/s" else (lambda x: f"{x:.2f} us")
            add(name, show(goal), value, show, paged, contiguous, verdict(value, goal, smaller, paged, contiguous))
    for name, case, base, goal in RATIOS:
        value, under = data.ours.get((case, "time")), data.ours.get((base, "time"))
        ratio = value / under if value and under else None
        peers, peers_base = data.peers.get((case, "time"), {}), data.peers.get((base, "time"), {})
        ratios = [(us / peers_base[peer], peer) for peer, us in peers.items() if peer in peers_base]
        best = min(ratios)[::-1] if ratios else None
        add(name, f"{goal:.4g}x", ratio, lambda x: f"{x:.3f}x", best, None,
            "not measured" if ratio is None else "meets the goal" if ratio <= goal else "**short of the goal**")
    add_prefix(data, add)
    for name, case, metric, goal, unit in HOST_GOALS:
        value = data.ours.get((case, metric))
        add(name, f"{goal} {unit}", value, lambda x, unit=unit: f"{x:.1f} {unit}", None, None, verdict(value, goal, True, None, None))
    return lines


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def add_prefix(data, add):
    cells = {case: us for (case, metric), us in data.ours.items() if case.startswith("prefix/") and metric == "time" and case[7].isdigit()
             and (case, "time") in data.limit}
    for label, some, goal in (("all cells", lambda tree: True, PREFIX_GOALS["all"]),
                              ("trees 1-18, which share", lambda tree: tree <= 18, PREFIX_GOALS["sharing"])):
        picked = [case for case in cases_in_order(cells) if some(int(case[7:9]))]
        ratio = geomean([cells[case] / data.limit[case, "time"] for case in picked])
        both = [case for case in picked if data.peers.get((case, "time"))]
        best = geomean([min(data.peers[case, "time"].values()) / data.limit[case, "time"] for case in both])
        add(f"shared prefixes, {label} ({len(picked)}): geomean of time over floor", f"{goal:.2f}", ratio, lambda x: f"{x:.2f}",
            ("best peer of each cell", best) if best else None, None, verdict(ratio, goal, True, None, None))
    both = [case for case in cells if data.peers.get((case, "time"))]
    slower = sorted(case[7:] for case in both if cells[case] > min(data.peers[case, "time"].values()))
    add(f"shared prefixes, cells slower than the best peer (of {len(both)})", "0", len(slower) if both else None, str, None, None,
        "not measured" if not both else "meets the goal" if not slower else "**short of the goal**: " + ", ".join(slower))


def cases_in_order(cases):
    return sorted(cases)


def read_documents(paths):
    documents = []
    for path in paths:
        with open(path) as file:
            documents.append(json.load(file))
    return documents


def figures_short(data):
    """Names of the figures that miss their goal, or are behind a peer."""
    return [name for name, cells in figure_lines(data) if "**" in cells[-1]]


def cases_of_figure(name, data, most=4):
    """Ids of the cases that a figure is measured by; for those over all prefix cells, the ones that lose most time to the best peer."""
    for figure, case, *_ in (*RATES, *TIMES, *RATIOS):
        if figure == name:
            return [case]
    if not name.startswith("shared prefixes"):
        return []

    def lost(case):
        other = min(data.peers.get((case, "time"), {}).values(), default=data.limit.get((case, "time"), math.inf))
        return data.ours[case, "time"] / other
    cells = [case for case, metric in data.ours if metric == "time" and case.startswith("prefix/") and case[7].isdigit()]
    return sorted(cells, key=lost, reverse=True)[:most]


def rank(case):
    """0 for cases that figures are judged by one by one, 1 for prefixes, 2 for the others: when time may run out."""
    judged = {figure[1] for figure in (*RATES, *TIMES, *RATIOS)} | {base for _, _, base, _ in RATIOS}
    return 0 if case in judged else 1 if case.startswith(("prefix/", "quarter/")) else 2


def cause_of(name, causes):
    """The first cause that names the figure, by fnmatch patterns; None where none does."""
    return next((cause["why"] for cause in causes if any(fnmatch.fnmatchcase(name, pattern) for pattern in cause["figures"])), None)
