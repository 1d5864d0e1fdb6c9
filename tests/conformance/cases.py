"""What FlashInfer's own tests run (its tests/attention), as plain data: the grids of parameters that a drop-in must pass.

A case is a dict: `kind` (what runs it, see runner.py), the parameters of its grid, and `seed`. Head dims above 256 and
rotary embedding inside of attention are left out: Fovea refuses them by name.
"""
import itertools


def grid(kind, **choices):
    names = list(choices)
    return [{"kind": kind, **dict(zip(names, values))} for values in itertools.product(*choices.values())]


def decode():
    out = grid("decode", batch=(12, 17, 128), kv=(54, 97, 512, 2048, 16384), page=(1, 8, 16), kv_heads=(4,), group=(1, 8),
               head_dim=(128, 256), kv_dtype=("f16", "fp8_e4m3"), layout=("NHD",))
    out += grid("decode", batch=(12, 17), kv=(54, 97, 512), page=(1, 8, 16), kv_heads=(4,), group=(1, 4, 8),
                head_dim=(128, 256), layout=("HND", "NHD"))
    # Several query tokens a request, as speculative decoding verifies them.
    out += grid("decode", batch=(4, 8), kv=(54, 512, 2048), page=(16,), kv_heads=(2, 8), group=(4, 8), head_dim=(128,),
                q_len=(2, 3))
    # Queries and caches that are slices of larger tensors.
    out += grid("decode", batch=(1, 19, 99), kv=(54,), page=(1, 5), kv_heads=(1, 4, 8), group=(1, 2, 4), head_dim=(64, 128, 256),
                strided=(True,))
    # Logits far below zero: no weight may be lost to underflow.
    out += grid("decode", batch=(4,), kv=(54, 2048), page=(16,), kv_heads=(4,), group=(1, 8), head_dim=(128,),
                negative=(True,))
    out += grid("decode", batch=(5,), kv=(97,), page=(16,), kv_heads=(4,), group=(8,), head_dim=(128,), empty=(True,),
                layout=("NHD", "HND"))
    out += grid("single_decode", kv=(54, 128, 999, 32789), kv_heads=(4, 8), group=(1, 4, 8), head_dim=(64, 128, 256),
                layout=("NHD", "HND"))
    return out


def append():
    """Queries of any length over a paged cache."""
    out = grid("prefill", batch=(12, 17, 128), kv=(54, 97, 512, 2048), q_len=(37, 17, 127, 577), page=(1, 5, 16), kv_heads=(4,),
               group=(1, 8), head_dim=(64, 128, 256), causal=(False, True))
    out += grid("prefill", batch=(12,), kv=(54, 97, 512), q_len=(37, 17), page=(1, 16), kv_heads=(4,), group=(1, 8),
                head_dim=(128, 256), causal=(False, True), kv_dtype=("fp8_e4m3",))
    out += grid("prefill", lengths=("mixed_a", "mixed_b", "mixed_c", "mixed_d"), page=(1, 8, 16), kv_heads=(1, 4),
                group=(1, 4, 7, 8), head_dim=(64, 128, 256), causal=(True,), layout=("HND", "NHD"), softcap=(0.0, 50.0))
    out += grid("append_cache", batch=(1, 7, 33), page=(1, 5, 16), kv_heads=(1, 4, 8), head_dim=(64, 128, 256),
                layout=("NHD", "HND"))
    # Requests with more queries than tokens do not exist.
    return [c for c in out if "kv" not in c or c.get("q_len", 1) <= c["kv"]]


# (requests, kv, q) of the batches that mix lengths.
MIXED = {
    "mixed_a": [(1, 146, 146), (1, 67, 67), (1, 819, 793)],
    "mixed_b": [(77, 204, 1), (2, 409, 129)],
    "mixed_c": [(99, 76, 2), (1, 1024, 512)],
    "mixed_d": [(2, 235, 1), (1, 1353, 53)],
}


def custom_masks():
    return [c for c in grid("prefill", batch=(12, 17), kv=(54, 97, 512, 2048), q_len=(37, 17, 127), page=(1, 16),
                            kv_heads=(4,), group=(1, 8), head_dim=(128, 256), causal=(False,), custom_mask=("causal", "random"))
            if c["q_len"] <= c["kv"]]


def cascade():
    return grid("cascade", stage=("decode", "append"), batch=(12, 17), unique=(37, 17), shared=(128, 512, 2048), heads=(8, 16),
                head_dim=(128, 256), page=(1, 16))


def merges():
    return (grid("merge_state", rows=(1, 2048), heads=(8, 32), head_dim=(64, 128), masked=(False, True))
            + grid("merge_states", rows=(512,), heads=(32,), head_dim=(128,), states=(1, 2, 17, 100)))


def windows():
    out = grid("decode", batch=(1, 3, 13, 32), kv=(1, 3, 99, 199, 1999), page=(1, 16), kv_heads=(4,), group=(1, 8),
               head_dim=(64, 128, 256), window=(33, 533))
    out += grid("prefill", batch=(12, 17, 30), kv=(54, 397, 1177), q_len=(1, 37, 47), window=(13, 33, 111), kv_heads=(1, 4, 8),
                group=(1,), head_dim=(64, 128, 256), page=(1, 16), causal=(True,))
    return out


def softcaps():
    return (grid("single_decode", kv=(1, 9, 81, 729, 33001), kv_heads=(4, 8), group=(1, 4), head_dim=(64, 128, 256),
                 softcap=(1.0, 30.0, 50.0), layout=("NHD",))
            + grid("prefill", batch=(12,), kv=(81, 729), q_len=(17, 81), kv_heads=(4,), group=(1, 8), head_dim=(128,), page=(16,),
                   causal=(False, True), softcap=(30.0,)))


def sinks():
    return (grid("prefill", batch=(1, 4, 16), kv=(1, 4, 16, 128), q_len=(1,), kv_heads=(4, 8), group=(1, 4), head_dim=(64, 128),
                 page=(16,), causal=(True,), window=(None, 128), sinks=(True,))
            + grid("prefill", batch=(4, 16), kv=(128, 512), q_len=(16, 128), kv_heads=(8,), group=(1, 4), head_dim=(64,), page=(1, 16),
                   causal=(True,), window=(None, 128), sinks=(True,)))


def ragged():
    """Keys and values one behind the other, without pages."""
    out = grid("ragged", batch=(12, 17, 128), kv=(54, 97, 512, 2048), q_len=(37, 17, 127, 577), kv_heads=(4,), group=(1, 8),
               head_dim=(64, 128, 256), causal=(False, True))
    out += grid("ragged", batch=(12, 17), kv=(54, 97, 512, 2048), q_len=(37, 17, 127), kv_heads=(4,), group=(1, 8),
                head_dim=(128, 256), causal=(False,), custom_mask=("causal", "random"))
    out += grid("ragged", batch=(12,), kv=(54, 512), q_len=(37, 54), kv_heads=(4,), group=(1, 8), head_dim=(128,), causal=(True,),
                softcap=(0.0, 30.0), window=(None, 33))
    out += grid("ragged", lengths=("mixed_a", "mixed_b", "mixed_c", "mixed_d"), kv_heads=(1, 4), group=(1, 4, 7), head_dim=(64, 128),
                causal=(True,))
    return [c for c in out if "kv" not in c or c["q_len"] <= c["kv"]]


def single_prefills():
    return (grid("single_prefill", kv=(17, 54, 81, 129, 999, 1763), q_len=(1, 17, 81, 987), kv_heads=(1, 4, 8), group=(1, 4, 8),
                 head_dim=(64, 128, 256), causal=(False, True), layout=("NHD", "HND"))
            + grid("single_prefill", kv=(81, 1763), q_len=(17, 81), kv_heads=(4,), group=(1, 8), head_dim=(128,), causal=(True,),
                   layout=("NHD",), softcap=(1.0, 30.0), window=(None, 64)))


def block_sparse():
    """FlashInfer's grid; groups are of query heads a KV head there too."""
    return [c for c in grid("block_sparse", rows=(1, 4, 16), columns=(1, 4, 16), queries=(64, 128, 256), kv=(64, 128, 256),
                            heads=(1, 4, 16), kv_heads=(1, 4, 16), head_dim=(128, 256), inside=(True, False))
            if c["heads"] % c["kv_heads"] == 0]


FAMILIES = {"ragged": ragged, "single_prefill": single_prefills, "block_sparse": block_sparse, "decode": decode, "append": append, "custom_mask": custom_masks, "cascade": cascade, "merge": merges,
            "window": windows, "softcap": softcaps, "sinks": sinks}


def tokens_read(case):
    """(query, KV) pairs times heads times head dim: what running a case costs, roughly."""
    heads = case.get("kv_heads", 1) * case.get("group", 1) * case.get("head_dim", 128)
    if case["kind"] == "cascade":
        rows = case["batch"] * (case["unique"] if case["stage"] == "append" else 1)
        return rows * (case["shared"] + case["unique"]) * case["heads"] * case["head_dim"]
    if case["kind"] == "block_sparse":
        return case["queries"] * case["kv"] * case["heads"] * case["head_dim"]
    if case["kind"].startswith("merge"):
        return case["rows"] * case.get("states", 2) * case["heads"] * case["head_dim"]
    if "lengths" in case:
        return sum(n * kv * q for n, kv, q in MIXED[case["lengths"]]) * heads
    return case.get("batch", 1) * case.get("kv", 64) * case.get("q_len", 1) * heads + case.get("batch", 1) * case.get("kv", 64) * heads


def all_cases():
    """{family: cases}, each with a seed of its own."""
    families = {name: make() for name, make in FAMILIES.items()}
    for cases in families.values():
        for seed, case in enumerate(cases):
            case["seed"] = seed
    return families
