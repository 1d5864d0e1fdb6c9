"""Writes the key sketch of a model (channels, means and steps by layer and KV head) as JSON that the engine reads.

    python export_sketch.py learned.pt needle models/needle/key_sketch.json

learned.pt is what run.py --save-learned wrote. The format is told in docs/research/page-selection.md.
"""
import json
import sys

import torch
from keysketch import STEP

CHANNELS, BITS = 32, 4


def head_entry(basis, head):
    """One KV head's entry from the basis "channel", whose columns are single channels times the queries' size in them."""
    encode = basis["encode"][head][:, :CHANNELS].abs()
    channels, weight = encode.argmax(0), encode.amax(0)
    deviation = basis["sigma"][head, :CHANNELS] / weight
    return {"channels": channels.tolist(), "mean": [round(float(x), 5) for x in basis["mean"][head, 0][channels]],
            "step": [float(f"{float(x) * STEP[BITS]:.5g}") for x in deviation]}


def main():
    source, name, target = sys.argv[1:]
    layers = [[head_entry(layer["channel"], head) for head in range(layer["channel"]["encode"].shape[0])]
              for layer in torch.load(source, map_location="cpu")]
    rows = ",\n".join("  [" + ",\n   ".join(json.dumps(h) for h in heads) + "]" for heads in layers)
    with open(target, "w") as file:
        file.write(f'{{"model": {json.dumps(name)}, "kind": "channels", "bits": {BITS},\n "layers": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
