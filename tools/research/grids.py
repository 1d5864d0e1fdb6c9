"""The statistics and policies that are compared, by name. run.py asks for one grid; docs/research tells what came out."""
import dataclasses

import torch
from keysketch import (allocate, allocated_sketch, bounds, code_bounds, integer_sketch, moments, plane_sketch, product_sketch, scalar_sketch, sign_sketch)
from policies import Policy


def mixed(keys, basis, total, most=4):
    return allocated_sketch(keys, basis, allocate(basis.sigma, total, most))


# name: (bytes a token and KV head, maker from (keys [H, T, D] fp32, Learned, layer)). bf16 bounds and means.
STATISTICS = {
    "minmax16": (32.0, lambda k, l, i: ("bounds", 16, *bounds(k, 16), None, None)),
    "minmax64": (8.0, lambda k, l, i: ("bounds", 64, *bounds(k, 64), None, None)),
    "std16": (32.0, lambda k, l, i: ("moments", 16, *moments(k, 16), 3.0)),
    "mean16": (16.0, lambda k, l, i: ("moments", 16, *moments(k, 16), 0.0)),
    "turned minmax16": (32.0, lambda k, l, i: turned(k, l.bases[i]["joint"], 128)),
    "turned minmax16 of 32, int8": (4.0, lambda k, l, i: turned(k, l.bases[i]["joint"], 32)),
    "sign hadamard": (18.0, lambda k, l, i: sign_sketch(k, l.bases[i]["hadamard"], "token")),
    "sign hadamard uncentred": (18.0, lambda k, l, i: sign_sketch(k, uncentred(l.bases[i]["hadamard"]), "token")),
    "sign hadamard mean": (18.0, lambda k, l, i: sign_sketch(k, l.bases[i]["hadamard"], "mean")),
    "sign joint": (16.0, lambda k, l, i: sign_sketch(k, l.bases[i]["joint"], "channel")),
    "2 bits hadamard": (32.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["hadamard"], [(128, 2)])),
    "2 bits channels, best 64": (16.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["channel"], [(64, 2)])),
    "4 bits channels, best 32": (16.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["channel"], [(32, 4)])),
    "channels 16 B": (16.0, lambda k, l, i: mixed(k, l.bases[i]["channel"], 128)),
    "pca 16 B": (16.0, lambda k, l, i: mixed(k, l.bases[i]["pca"], 128)),
    "pca 32 B": (32.0, lambda k, l, i: mixed(k, l.bases[i]["pca"], 256)),
    "joint 32x4": (16.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["joint"], [(32, 4)])),
    "joint 64x2": (16.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["joint"], [(64, 2)])),
    "joint 16x4+32x2": (16.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["joint"], [(16, 4), (32, 2)])),
    "joint 4 B": (4.0, lambda k, l, i: mixed(k, l.bases[i]["joint"], 32)),
    "joint 6 B": (6.0, lambda k, l, i: mixed(k, l.bases[i]["joint"], 48)),
    "joint 8 B": (8.0, lambda k, l, i: mixed(k, l.bases[i]["joint"], 64)),
    "joint 16x4": (8.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["joint"], [(16, 4)])),
    "joint 32x2": (8.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["joint"], [(32, 2)])),
    "joint 12 B": (12.0, lambda k, l, i: mixed(k, l.bases[i]["joint"], 96)),
    "joint 16 B": (16.0, lambda k, l, i: mixed(k, l.bases[i]["joint"], 128)),
    "joint 24 B": (24.0, lambda k, l, i: mixed(k, l.bases[i]["joint"], 192)),
    "joint 64x4": (32.0, lambda k, l, i: scalar_sketch(k, l.bases[i]["joint"], [(64, 4)])),
    "joint 32 B": (32.0, lambda k, l, i: mixed(k, l.bases[i]["joint"], 256, 6)),
    "pick 32x4": (16.0, lambda k, l, i: integer_sketch(k, l.bases[i]["channel"], 32, 4)),
    "pick 64x2": (16.0, lambda k, l, i: integer_sketch(k, l.bases[i]["channel"], 64, 2)),
    "pick 24x4": (12.0, lambda k, l, i: integer_sketch(k, l.bases[i]["channel"], 24, 4)),
    "pick 16x4": (8.0, lambda k, l, i: integer_sketch(k, l.bases[i]["channel"], 16, 4)),
    "pick 32x2": (8.0, lambda k, l, i: integer_sketch(k, l.bases[i]["channel"], 32, 2)),
    "pick 48x4": (24.0, lambda k, l, i: integer_sketch(k, l.bases[i]["channel"], 48, 4)),
    "pick 64x4": (32.0, lambda k, l, i: integer_sketch(k, l.bases[i]["channel"], 64, 4)),
    "pick by keys 32x4": (16.0, lambda k, l, i: integer_sketch(k, l.bases[i]["by keys"], 32, 4)),
    "low 32x4": (16.0, lambda k, l, i: integer_sketch(k, l.bases[i]["low"], 32, 4)),
    "turn 32x4": (16.0, lambda k, l, i: integer_sketch(k, l.bases[i]["joint"], 32, 4)),
    "turn 64x2": (16.0, lambda k, l, i: integer_sketch(k, l.bases[i]["joint"], 64, 2)),
    "plane 1": (4.0, lambda k, l, i: plane_sketch(k, l.bases[i]["channel"], 32, 4, 1)),
    "plane 2": (8.0, lambda k, l, i: plane_sketch(k, l.bases[i]["channel"], 32, 4, 2)),
    "turned plane 1": (4.0, lambda k, l, i: plane_sketch(k, l.bases[i]["joint"], 32, 4, 1)),
    "pick 64x1": (8.0, lambda k, l, i: integer_sketch(k, l.bases[i]["channel"], 64, 1)),
    "turn 64x1": (8.0, lambda k, l, i: integer_sketch(k, l.bases[i]["joint"], 64, 1)),
    "turn 64x4": (32.0, lambda k, l, i: integer_sketch(k, l.bases[i]["joint"], 64, 4)),
    "pick bounds8": (4.0, lambda k, l, i: code_bounds(k, l.bases[i]["channel"], 32, 4, 8)),
    "pick bounds16": (2.0, lambda k, l, i: code_bounds(k, l.bases[i]["channel"], 32, 4, 16)),
    "pick bounds64": (0.5, lambda k, l, i: code_bounds(k, l.bases[i]["channel"], 32, 4, 64)),
    "turn bounds16": (2.0, lambda k, l, i: code_bounds(k, l.bases[i]["joint"], 32, 4, 16)),
    "turn64 bounds16": (2.0, lambda k, l, i: code_bounds(k, l.bases[i]["joint"], 64, 2, 16)),
    "pq32x4": (16.0, lambda k, l, i: product_sketch(k, l.bases[i]["joint"], *l.products[i]["pq32x4"])),
    "pq32x4 of 64": (16.0, lambda k, l, i: product_sketch(k, l.bases[i]["joint"], *l.products[i]["pq32x4 of 64"])),
    "pq16x4 of 64": (8.0, lambda k, l, i: product_sketch(k, l.bases[i]["joint"], *l.products[i]["pq16x4 of 64"])),
    "pq16x8": (16.0, lambda k, l, i: product_sketch(k, l.bases[i]["joint"], *l.products[i]["pq16x8"])),
    "pq8x8 of 64": (8.0, lambda k, l, i: product_sketch(k, l.bases[i]["joint"], *l.products[i]["pq8x8 of 64"])),
}


def turned(keys, basis, channels):
    low, high = bounds((keys - basis.mean) @ basis.encode[..., :channels], 16)
    return ("bounds", 16, low, high, basis.decode[:, :channels], basis.mean)


def uncentred(basis):
    return dataclasses.replace(basis, mean=torch.zeros_like(basis.mean))


LSERVE = dict(statistic="minmax16", unit=64)
SMALL = "joint 16x4+32x2"


def scan(context):
    """Everything once, to choose from."""
    budgets = {8192: ["T/8", 256], 16384: ["T/8", 256], 32768: ["T/16", 256]}.get(context, ["T/16"])
    out = [Policy("dense")]
    for b in budgets:
        out += [Policy(f"random @{b}", "random", budget=b), Policy(f"oracle P16 @{b}", "exact", budget=b),
                Policy(f"oracle P64 @{b}", "exact", budget=b, unit=64),
                Policy(f"LServe P64/L16 @{b}", budget=b, **LSERVE), Policy(f"LServe P64/L16 per head @{b}", budget=b, lists="head", **LSERVE),
                Policy(f"Quest P16 per head @{b}", "minmax16", budget=b, lists="head")]
        out += [Policy(f"{name} @{b}", name, budget=b) for name in STATISTICS if name != "minmax64"]
        for s in (SMALL, "joint 8 B"):
            out += [Policy(f"{s}, unit {u} @{b}", s, budget=b, unit=u) for u in (4, 8, 32, 64)]
            out += [Policy(f"{s}, normal @{b}", s, budget=b, normal=True), Policy(f"{s}, per head @{b}", s, budget=b, lists="head")]
            out += [Policy(f"{s}, R4 @{b}", s, budget=b, reuse=4)]
            out += [Policy(f"{s}, R4 with {c}x @{b}", s, budget=b, reuse=4, candidates=c) for c in (2, 4)]
        out += [Policy(f"joint 4 B > joint 16 B, {c}x @{b}", "joint 4 B>joint 16 B", budget=b, candidates=c) for c in (2, 4)]
        out += [Policy(f"minmax64 > joint 16 B, 4x @{b}", "minmax64>joint 16 B", budget=b, candidates=4)]
        out += [Policy(f"{SMALL}, mass {m} @{b}", SMALL, budget=b, mass=m) for m in (0.9, 0.99)]
        out += [Policy(f"LServe P64/L16, R4 @{b}", budget=b, reuse=4, **LSERVE), Policy(f"Quest P16, R4 @{b}", "minmax16", budget=b, reuse=4)]
    return out


PICK = "pick 32x4"
LAST_LAYERS = ((2, 0), (2, 1), (3, 0), (3, 1))


def refine(context):
    """Around the best of scan(): integer scoring, how to learn channels, and protection of reused lists."""
    budgets = {8192: ["T/8", 256], 16384: ["T/8", 256], 32768: ["T/16", 256], 131072: ["T/16", "T/32"]}[context]
    half = dict(streaming=LAST_LAYERS) if context == 131072 else {}
    out = [Policy("dense")] + ([Policy("dense, half streaming", **half)] if half else [])
    for b in budgets:
        def add(name, *args, b=b, **more):
            out.append(Policy(f"{name} @{b}", *args, budget=b, **(half | more)))

        add("oracle P16", "exact")
        add("Quest P16", "minmax16")
        add("LServe P64/L16", **LSERVE)
        names = [n for n in STATISTICS if n.startswith(("pick", "turn ", "turn64", "low"))] + ["sign hadamard"]
        for name in names if not half else [PICK, "turn 32x4", "pick 64x2", "turn 64x2", "sign hadamard", "pick bounds16"]:
            add(name, name)
        if half:
            out.append(Policy(f"{PICK}, none streaming @{b}", PICK, budget=b))
        for unit in (32, 64):
            add(f"{PICK}, unit {unit}", PICK, unit=unit)
        for mass in (0.5, 0.8, 0.9, 0.95):
            add(f"{PICK}, mass {mass}", PICK, mass=mass)
        for s, c in ((PICK, "pick bounds16"), ("turn 32x4", "turn bounds16")):
            for m in (1, 2, 4):
                add(f"{c} > {s}, {m}x", f"{c}>{s}", candidates=m)
                add(f"{c} > {s}, R4 with {m}x", f"{c}>{s}", candidates=m, reuse=4)
            add(f"{s}, R4", s, reuse=4)
            if half:
                continue
            add(f"{s}, R4, dense question", s, reuse=4, dense_question=True)
            for m, memory in ((1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (2, 8), (4, 1), (4, 4)):
                add(f"{s}, R4 with {m}x of {memory}", s, reuse=4, candidates=m, memory=memory)
        add(f"pick bounds64 > {PICK}, 4x", f"pick bounds64>{PICK}", candidates=4)
        add("oracle P16, R4", "exact", reuse=4)
    return sorted(out, key=lambda p: p.streaming)


def little(context):
    """The learned sketches alone, for calibrations of other sizes."""
    budgets = {8192: [256], 16384: ["T/8", 256], 32768: ["T/16", 256]}[context]
    return [Policy("dense")] + [Policy(f"{name} @{b}", name, budget=b) for b in budgets
                                for name in ("pick 32x4", "pick 64x2", "turn 32x4", "turn 64x2", "pick by keys 32x4", "low 32x4")]


BUDGETS = {8192: ["T/8"], 16384: ["T/8", 256], 32768: ["T/16"], 131072: ["T/16"]}


def protect(context):
    """How to keep lists fresh for few bytes a step: first looks at every step, with and without full selections every fourth."""
    out = [Policy("dense")]
    for b in BUDGETS[context]:
        out.append(Policy(f"{PICK} @{b}", PICK, budget=b))
        for first in ("plane 1", "plane 2", "pick 64x1", "pick bounds8"):
            out.append(Policy(f"{first} @{b}", first, budget=b))
            for m in (2, 4):
                out.append(Policy(f"{first} > {PICK}, {m}x @{b}", f"{first}>{PICK}", budget=b, candidates=m))
            for m in (1, 2):
                out.append(Policy(f"{first} > {PICK}, R4 with {m}x @{b}", f"{first}>{PICK}", budget=b, candidates=m, reuse=4))
    return out


def final(context):
    """The published table."""
    half = dict(streaming=LAST_LAYERS) if context == 131072 else {}
    out = [Policy("dense")] + ([Policy("dense, half streaming", **half)] if half else [])
    for b in BUDGETS[context]:
        def add(name, *args, b=b, **more):
            out.append(Policy(f"{name} @{b}", *args, budget=b, **(half | more)))

        add("random P16", "random")
        add("LServe", **LSERVE)
        add("Quest", "minmax16")
        add("oracle P16", "exact")
        add("sketch 16 B", PICK)
        add("sketch 32 B", "pick 64x4")
        add("sketch 16 B, R4", PICK, reuse=4)
        add("plane 1 > sketch 16 B, 2x", f"plane 1>{PICK}", candidates=2)
        add("plane 2 > sketch 16 B, 2x", f"plane 2>{PICK}", candidates=2)
        add("plane 1 > sketch 16 B, R4 with 2x", f"plane 1>{PICK}", candidates=2, reuse=4)
        if half:
            continue
        add("oracle P64", "exact", unit=64)
        add("LServe per query head", lists="head", **LSERVE)
        add("Quest per query head", "minmax16", lists="head")
        add("LServe, R4", reuse=4, **LSERVE)
        add("Quest, R4", "minmax16", reuse=4)
        add("oracle P16, R4", "exact", reuse=4)
        add("signs after Hadamard, 18 B", "sign hadamard")
        add("lowest frequencies, 16 B", "low 32x4")
        add("learned rotation, 16 B", "turn 32x4")
        add("sketch 8 B", "pick 32x2")
        add("sketch 16 B, unit 32", PICK, unit=32)
        add("sketch 16 B, unit 64", PICK, unit=64)
        add("sketch 16 B, R4 with 4x", PICK, reuse=4, candidates=4)
        add("plane 1 > sketch 16 B, 4x", f"plane 1>{PICK}", candidates=4)
        add("plane 1 > sketch 16 B, R4 with 1x", f"plane 1>{PICK}", candidates=1, reuse=4)
        add("bounds > sketch 16 B, R4 with 2x", f"pick bounds16>{PICK}", candidates=2, reuse=4)
        add("sketch 16 B, mass 0.95", PICK, mass=0.95)
    return sorted(out, key=lambda p: p.streaming)


def reworded(context):
    """The main rows again, for documents whose facts and questions are worded in other ways."""
    names = ("random P16", "LServe", "Quest", "oracle P16", "sketch 16 B", "sketch 32 B", "lowest frequencies, 16 B",
             "plane 1 > sketch 16 B, 2x", "plane 1 > sketch 16 B, R4 with 2x")
    return [p for p in final(context) if p.statistic == "dense" or p.name.partition(" @")[0] in names]
