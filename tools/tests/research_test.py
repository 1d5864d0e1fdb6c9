"""Tables of the research on page selection say what the answers say, and the files that it shipped are well formed."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "research"))
import report

NEEDLE = ROOT / "models" / "needle"


def test_paired_interval():
    lost, half = report.paired("1111111100", "1111110010")  # two lost, one won
    assert lost == pytest.approx(0.1) and half == pytest.approx(1.96 * (4 - 1 / 12) ** 0.5 / 12)
    same, width = report.paired("1" * 1000, "1" * 1000)
    assert same == 0 and 0.001 < width < 0.003
    with pytest.raises(ValueError, match="the same questions"):
        report.paired("11", "1")


def test_bytes_of_one_and_of_two_stages():
    assert report.statistic_bytes("pick 32x4", (100, 800, 0), 800) == (16, 16)
    # Planes of one code: 4 bytes of every token, the other 12 of a quarter.
    assert report.statistic_bytes("plane 1>pick 32x4", (100, 800, 200), 800) == (16, 7)
    # A statistic beside the code: kept in addition, and the whole code is read for the candidates.
    assert report.statistic_bytes("pick bounds16>pick 32x4", (100, 800, 200), 800) == (18, 6)


def test_rows_pair_with_dense():
    runs = [dict(context=8192, policy="dense", statistic="dense", bits="1110", read=(8000, 0, 0)),
            dict(context=8192, policy="sketch @T/8", statistic="pick 32x4", bits="1100", read=(900, 8000, 0))]
    cell = report.rows(runs)["sketch"][(8192, "T/8")]
    assert cell["share"] == 0.5 and cell["lost"] == 0.25 and cell["bytes"] == 16 and cell["read"] == 900


def test_shipped_files_fit_the_model():
    config = json.loads((NEEDLE / "config.json").read_text())
    shape = config["num_hidden_layers"], config["num_key_value_heads"]
    profile = json.loads((NEEDLE / "head_profile.json").read_text())
    heads = [tuple(h) for h in profile["streaming"]]
    assert len(set(heads)) == len(heads) == 6 and all(layer < shape[0] and head < shape[1] for layer, head in heads)
    assert profile["sink_tokens"] == 64 and profile["local_tokens"] == 256
    sketch = json.loads((NEEDLE / "key_sketch.json").read_text())
    assert sketch["bits"] == 4 and [len(layer) for layer in sketch["layers"]] == [shape[1]] * shape[0]
    for head in (h for layer in sketch["layers"] for h in layer):
        assert len(set(head["channels"])) == 32 and all(0 <= c < config["head_dim"] for c in head["channels"])
        assert len(head["mean"]) == 32 and len(head["step"]) == 32 and min(head["step"]) > 0
