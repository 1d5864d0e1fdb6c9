"""Checks of the simulator on a small random model, on a CPU, in seconds: python tools/research/selftest.py

No document and no trained weights are needed. CI has no torch; run it by hand after a change here.
"""
import unittest

import numpy as np
import torch
from keysketch import bounds, hadamard, integer_sketch, learn_bases, plane_sketch, scalar_sketch
from policies import NEWEST, Policy, top, unit_scores
from simulate import LOCAL, SINK, KvFormat, Questions, answers, fake_quantize, prefill, window_attention

from model import Config, Needle  # simulate.py has put tools/needle on the path

DOCUMENT = 700  # tokens; not a multiple of any unit


class Simulator(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(7)
        torch.set_grad_enabled(False)
        cls.model = Needle(Config(layers=2)).eval()
        for layer in cls.model.layers:  # sharp attention, so that what is hidden shows
            layer.q *= 8
            layer.k *= 8
        cls.ids = torch.randint(5, 4096, (DOCUMENT,))
        cls.cache = prefill(cls.model, cls.ids, torch.float32)
        sizes = [9, 14, 11, 20]
        cls.questions = Questions([(np.random.default_rng(i).integers(5, 4096, n), 5, 0.0) for i, n in enumerate(sizes)], "cpu")
        # Sketches of every layer, learned from this document's own keys and random queries.
        cls.statistics = []
        for k, _ in cls.cache:
            basis = learn_bases(k, torch.randn(2, 500, 128))["channel"]
            cls.statistics.append({"codes": integer_sketch(k, basis, 32, 4), "plane": plane_sketch(k, basis, 32, 4, 2),
                                   "bounds": ("bounds", 16, *bounds(k, 16), None, None)})

    def outcome(self, policy, **more):
        """(expected tokens' verdicts, counts) with the dense model's own greedy tokens as what is expected."""
        return answers(self.model, self.cache, self.questions, policy, self.statistics, torch.float32, **more)

    def seen(self, policy):
        """Logits of every token by capturing what right() is given."""
        kept = {}
        original = self.questions.right
        self.questions.right = lambda logits: kept.setdefault("logits", logits) is None
        try:
            _, counts = self.outcome(policy)
        finally:
            self.questions.right = original
        there = self.questions.flat
        return kept["logits"].flatten(0, 1)[there], counts

    def test_dense_is_the_model(self):
        reference = self.model.continue_from(self.model.prefill(self.ids, torch.float32), self.questions.ids, torch.float32)
        logits, _ = self.seen(Policy("dense"))
        torch.testing.assert_close(logits, reference.flatten(0, 1)[self.questions.flat], rtol=1e-4, atol=1e-4)

    def test_a_budget_of_everything_is_dense(self):
        dense, _ = self.seen(Policy("dense"))
        for policy in (Policy("all", "codes", budget=5000), Policy("two", "plane>codes", budget=5000, candidates=1),
                       Policy("reuse", "codes", budget=5000, reuse=4), Policy("pages", "bounds", unit=64, budget=5000)):
            logits, counts = self.seen(policy)
            torch.testing.assert_close(logits, dense, rtol=1e-4, atol=1e-4, msg=policy.name)
            self.assertGreaterEqual(counts[0], DOCUMENT)

    def test_a_small_budget_hides_and_is_kept(self):
        dense, _ = self.seen(Policy("dense"))
        for policy in (Policy("random", "random", budget=160), Policy("codes", "codes", budget=160),
                       Policy("reuse", "codes", budget=160, reuse=4, candidates=2), Policy("heads", "bounds", lists="head", budget=160)):
            logits, counts = self.seen(policy)
            self.assertEqual(counts[0], 160 - NEWEST, policy.name)
            self.assertGreater(float((logits - dense).abs().max()), 1e-3, policy.name)

    def test_reuse_scores_fewer_units(self):
        _, fresh = self.seen(Policy("fresh", "codes", budget=160))
        _, plain = self.seen(Policy("plain", "codes", budget=160, reuse=4))
        _, kept = self.seen(Policy("kept", "codes", budget=160, reuse=4, candidates=2))
        self.assertLess(plain[1], 0.5 * fresh[1])
        self.assertTrue(plain[1] < kept[1] < fresh[1])

    def test_refresh_rows(self):
        q = self.questions
        step = q.step.tolist()
        for row, back in enumerate(q.refresh.tolist()):
            self.assertTrue(0 <= row - back < 4 and step[row] - step[back] == row - back)
            self.assertEqual(int(q.refresh[back]), back)
            before = int(q.before[back])
            self.assertTrue(before == back if step[back] == 0 else before < back)

    def test_windows_equal_masks(self):
        q, k, v = (torch.randn(1, h, DOCUMENT, 16) for h in (2, 1, 1))
        at = torch.arange(DOCUMENT)
        mask = (at[None] <= at[:, None]) & ((at[None] < SINK) | (at[:, None] - at[None] < LOCAL))
        expected = torch.nn.functional.scaled_dot_product_attention(q, k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1), attn_mask=mask)
        torch.testing.assert_close(window_attention(q, k, v), expected, rtol=1e-4, atol=1e-4)

    def test_bounds_bound_every_key(self):
        k = torch.randn(2, 100, 32)
        q = torch.randn(2, 6, 32)
        score = unit_scores(q, ("bounds", 16, *bounds(k, 16), None, None), k, 16, 100, 1.0)
        exact = unit_scores(q, "exact", k, 16, 100, 1.0)
        self.assertTrue(bool((score >= exact - 1e-4).all()))

    def test_sketches(self):
        k = torch.randn(2, 400, 128) * torch.linspace(0.05, 2, 128) + 0.3
        basis = learn_bases(k, torch.randn(2, 300, 128))["channel"]
        q = torch.randn(2, 5, 128)
        integer = unit_scores(q, integer_sketch(k, basis, 32, 4), k, 1, 400, 1.0)
        rebuilt = unit_scores(q, scalar_sketch(k, basis, [(32, 4)]), k, 1, 400, 1.0)
        self.assertLess(float((integer - rebuilt).abs().mean() / rebuilt.std()), 0.01)  # only the queries' int8 differs
        codes, plane = (f[2] for f in (integer_sketch(k, basis, 32, 4), plane_sketch(k, basis, 32, 4, 2)))
        self.assertEqual((float(codes.min()), float(codes.max())), (-7.5, 7.5))
        self.assertTrue(torch.equal(plane, ((codes - 0.5) / 4).floor() + 0.5))
        turn = hadamard(128, "cpu")
        torch.testing.assert_close(turn @ turn.t(), torch.eye(128, dtype=torch.float64))

    def test_top_and_quantization(self):
        score = torch.tensor([[3.0, float("inf"), 1.0, 2.0]])
        self.assertEqual(top(score, 2).tolist(), [[True, True, False, False]])
        x = torch.randn(1, 2, 50, 128)
        for bits, rotation in ((8, None), (4, None), (4, hadamard(128, "cpu").float())):
            y = x if rotation is None else x @ rotation
            step = (y.amax(-1) - y.amin(-1)) / (2**bits - 1)
            wrong = (fake_quantize(x, bits, rotation) - x).pow(2).mean(-1).sqrt()
            self.assertTrue(bool((wrong < 0.6 * step).all()))
        k, v = KvFormat((8, 4))(0, x, x, {(0, 1)})
        self.assertTrue(torch.equal(k[:, 1], x[:, 1]) and torch.equal(v[:, 1], x[:, 1]) and not torch.equal(v[:, 0], x[:, 0]))


if __name__ == "__main__":
    unittest.main()
