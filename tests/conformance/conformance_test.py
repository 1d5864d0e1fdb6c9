"""Some cases of every family on the CPU; `make gpu-test` runs all of them on a GPU."""
import math

import numpy
import pytest

from conformance import cases, reference, runner

# (query, KV, element) triples that a case may take here, and how many of such cases run, spread over the family.
MOST_WORK, MOST_CASES = 6e7, 60


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_cases_of_flashinfer(family):
    counts, failures = runner.run_cases("cpu", MOST_WORK, MOST_CASES, families=[family])
    print(family, counts[family])
    assert not failures, "\n".join(failures)
    assert counts[family]["passed"] > 0


def test_a_spread_holds_both_ends_and_no_more_than_there_is():
    assert runner.spread(5, 10**9) == [0, 1, 2, 3, 4] and runner.spread(5, 2) == [0, 4] and runner.spread(5, 1) == [0]
    assert runner.spread(0, 3) == []


def test_parts_of_a_run_are_the_whole():
    whole, failures = runner.run_cases("cpu", 1e5, 6, families=["merge", "decode"])
    parts = [runner.run_cases("cpu", 1e5, 6, families=["merge", "decode"], part=(i, 3))[0] for i in range(3)]
    assert not failures
    for family, count in whole.items():
        assert all(sum(part[family][name] for part in parts) == count[name] for name in ("passed", "failed", "left_out"))


def test_the_runner_finds_a_wrong_result():
    run = runner.Runner("cpu")
    with pytest.raises(runner.Failure, match="1 of 3 differ, the first at 1"):
        run.expect("output", numpy.array([1.0, 2.0, -math.inf]), numpy.array([1.0, 2.1, -math.inf]), 1e-3)
    with pytest.raises(runner.Failure):
        run.expect("output", numpy.array([math.nan]), numpy.array([1.0]), 1e-3)


def test_the_reference_knows_two_tokens():
    q = numpy.zeros((1, 1, 4))
    q[0, 0, 1] = 1.0
    k, v = numpy.zeros((2, 1, 4)), numpy.array([[[4.0] * 4], [[8.0] * 4]])
    k[1, 0, 1] = math.log(3.0)
    out, lse = reference.attend(numpy, q, k, v, numpy.ones((1, 2), dtype=bool), 1.0)
    assert numpy.allclose(out, 7.0) and numpy.allclose(lse, 2.0)
    out, lse = reference.attend(numpy, q, k, v, numpy.zeros((1, 2), dtype=bool), 1.0)
    assert numpy.all(out == 0) and numpy.all(numpy.isneginf(lse))
