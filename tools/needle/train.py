"""Trains needle: induction on repeated random text, then documents of growing length, then a mix of all lengths.

    python train.py --generator build/release/fovea_needle_docs --tokenizer models/needle/tokenizer.json --out OUT --seconds 455

Lengths and learning rates are those of docs/needle.md. The mix lasts until `--seconds` after the start, its learning rate falls
with the time left, so that the run fits a machine lent by the minute. OUT/model.safetensors is rewritten as stages end.
"""
import argparse
import contextlib
import json
import os
import random
import time

import torch
import torch.nn.functional as F
from corpus import collect
from model import Config, Needle
from rows import Batches, repeated_batch
from torch.nn.attention import SDPBackend, sdpa_kernel

# (tokens a row, rows of it): about 65k tokens a step, 131k from 8192 on
ROWS = {256: 256, 512: 128, 1024: 64, 2048: 32, 4096: 16, 8192: 16, 16384: 8, 32768: 4, 65536: 2, 131072: 1}
# The optimizers tried at the start; the one with most right answers goes on. (name, factor on all learning rates)
CANDIDATES = [("adamw", 1.0), ("muon", 1.0), ("muon", 2.0)]
CANDIDATE_STAGES = [("B 256", [256], 250, 1.5e-3, 0.1), ("B 512", [512], 150, 1.5e-3, 0.1)]
# (name, cycle of lengths, steps, learning rate, weight of the language-model loss)
STAGES = [
    ("short", [256, 512, 1024, 2048, 512, 1024], 3600, 1.5e-3, 0.05),
    ("4096", [4096, 1024], 600, 1e-3, 0.03),
    ("8192", [8192, 1024], 400, 7.5e-4, 0.03),
    ("16384", [16384, 2048], 300, 7.5e-4, 0.03),
    ("32768", [32768, 512], 260, 7.5e-4, 0.03),
    ("65536", [65536, 1024], 160, 7.5e-4, 0.03),
    ("131072", [131072, 2048], 100, 7.5e-4, 0.03),
]
MIX = [512, 131072, 2048, 32768, 1024, 8192, 4096, 65536, 512, 16384, 2048, 131072, 1024, 32768, 4096]
MIX_RATES = (6e-4, 1e-5)
MIX_LANGUAGE = 0.01
# The mix of a run that goes on from weights (--start): more of the greatest lengths, where most is left to gain.
MIX_ON = [131072, 512, 65536, 1024, 131072, 4096, 32768, 2048, 131072, 8192, 16384, 1024, 65536, 131072, 2048, 32768]
MIX_ON_RATES = (3e-4, 1e-5)
REPEAT_EVERY = 30  # every so many steps of the mix, one more of phase A


class Muon:
    """Momentum whose matrix updates are made orthogonal by five Newton-Schulz steps (Jordan et al. 2024), scaled to the size of
    AdamW's (Liu et al. 2025, "Muon is scalable for LLM training"), so that both take the same learning rates. Matrices of one
    shape are updated together."""

    def __init__(self, matrices, momentum=0.95, weight_decay=0.05):
        shapes = {}
        for p in matrices:
            shapes.setdefault(tuple(p.shape), []).append(p)
        self.groups = [(ps, torch.zeros(len(ps), *shape, device=ps[0].device)) for shape, ps in shapes.items()]
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, rate):
        for matrices, buffer in self.groups:
            gradient = torch.stack([p.grad for p in matrices])
            buffer.lerp_(gradient, 1 - self.momentum)
            x = gradient.lerp(buffer, self.momentum)
            flip = x.shape[1] > x.shape[2]
            x = (x.mT if flip else x).bfloat16()
            x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):
                square = x @ x.mT
                x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
            x = (x.mT if flip else x).float()
            size = 0.2 * max(x.shape[1:]) ** 0.5
            for p, update in zip(matrices, x):
                p.mul_(1 - rate * self.weight_decay).add_(update, alpha=-rate * size)


class Trainer:
    def __init__(self, options):
        self.options = options
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.start = time.time()
        self.history = []
        self.backends = None

    def prepare(self, optimizer, factor):
        """A new model (or the one to go on from) with its optimizer."""
        torch.manual_seed(self.options.seed)
        self.rng = random.Random(self.options.seed)
        self.model = Needle(Config()).to(self.device)
        if self.options.start:
            self.model.load(self.options.start)
        matrices = [p for p in self.model.layers.parameters() if p.ndim == 2]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        self.muon = Muon(matrices) if optimizer == "muon" else None
        self.optimizer = torch.optim.AdamW(
            [{"params": [self.model.embedding] + ([] if self.muon else matrices), "weight_decay": 0.05},
             {"params": vectors, "weight_decay": 0.0}],
            lr=1e-3, betas=(0.9, 0.98), fused=self.device == "cuda")
        self.factor, self.steps, self.name = factor, 0, f"{optimizer} x {factor}"

    def attention(self):
        return sdpa_kernel(self.backends, set_priority=True) if self.backends else contextlib.nullcontext()

    def step(self, rate, ids, positions, others, language):
        """One step; returns (loss, right tokens as a bool tensor), both still on the device."""
        warm = min(1.0, (self.steps + 1) / 100)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * warm * (1.0 if self.muon else self.factor)
        with self.attention():
            hidden = self.model(ids).flatten(0, 1)
            flat = ids.flatten()
            logits = self.model.logits(hidden.index_select(0, positions))
            target = flat[positions + 1]
            loss = answers = F.cross_entropy(logits, target)
            if others is not None:
                loss = loss + language * F.cross_entropy(self.model.logits(hidden.index_select(0, others)), flat[others + 1])
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.muon:
            self.muon.step(rate * warm * self.factor)
        self.optimizer.zero_grad(set_to_none=True)
        for p in self.model.parameters():
            p.grad = None
        self.steps += 1
        return answers.detach(), logits.detach().argmax(-1) == target

    def repeat_step(self, rate, length=256, rows=256):
        ids, positions = repeated_batch(self.rng, length, rows, self.model.config.vocabulary, self.device)
        return self.step(rate, ids, positions, None, 0.0)

    def document_step(self, rate, batch, language):
        ids, positions, owners, others = (t.to(self.device, non_blocking=True) for t in batch)
        loss, right = self.step(rate, ids.long(), positions, others, language)
        wrong = torch.zeros(int(batch[2][-1]) + 1, device=self.device).index_add_(0, owners, (~right).float())
        return loss, (wrong == 0).float().mean()

    def report(self, name, steps, losses, rights, begin):
        losses, rights = torch.stack(losses[-10:]).mean().item(), torch.stack(rights[-10:]).float().mean().item()
        line = {"stage": name, "steps": steps, "loss": round(losses, 5), "right": round(rights, 4),
                "seconds": round(time.time() - begin, 1), "at": round(time.time() - self.start, 1)}
        self.history.append(line)
        print(json.dumps(line), flush=True)

    def save(self):
        self.model.save(os.path.join(self.options.out, "model.safetensors"))
        with open(os.path.join(self.options.out, "history.json"), "w") as file:
            json.dump(self.history, file, indent=0)

    def choose_backend(self, length):
        """The faster of two attention kernels for a forward and backward of one row, as long as they agree."""
        q = torch.randn(1, 4, length, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn(1, 2, length, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        best, reference = None, None
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            try:
                with sdpa_kernel([backend]):
                    times = []
                    for _ in range(3):
                        torch.cuda.synchronize()
                        begin = time.time()
                        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                        grads = torch.autograd.grad(out.sum(), (q, k, v))
                        torch.cuda.synchronize()
                        times.append(time.time() - begin)
                result = [out] + list(grads)
                error = 0.0
                if reference is None:
                    reference = result
                else:
                    error = max(((a - b).float().norm() / b.float().norm()).item() for a, b in zip(result, reference))
                print(f"{backend} {length}: {min(times) * 1e3:.1f} ms, differs by {error:.1e}", flush=True)
                if error < 0.02 and (best is None or min(times) < best[0]):
                    best = (min(times), backend)
            except RuntimeError as problem:
                print(f"{backend} {length}: {str(problem)[:200]}", flush=True)
        self.backends = [best[1], SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

    def run(self):
        o = self.options
        if self.device == "cuda":
            self.choose_backend(32768)
        text = os.path.join(o.out, "filler.txt") if o.smoke else "/tmp/needle_filler.txt"
        with open(text, "w", encoding="utf-8") as file:
            file.write(collect(400_000 if o.smoke else 12_000_000))
        print("real text:", os.path.getsize(text), "bytes", flush=True)
        candidates = [] if o.start else CANDIDATES
        stages, trials, mix = ([] if o.start else STAGES), CANDIDATE_STAGES, [n for n in (MIX_ON if o.start else MIX) if n <= o.longest]
        if o.smoke:
            stages, trials = ([(name, [n for n in cycle if n <= o.longest], 2, rate, language)
                               for name, cycle, _, rate, language in which if cycle[0] <= o.longest]
                              for which in (stages, trials))
        plan = []
        for some in [trials] * len(candidates) + [stages]:
            plan += [(cycle[i % len(cycle)]) for _, cycle, steps, _, _ in some for i in range(steps)]
        mix_begin = len(plan)
        plan += [mix[i % len(mix)] for i in range(len(mix) if o.smoke else 100_000)]
        rows = ROWS if self.device == "cuda" else dict.fromkeys(ROWS, 2)
        loader = iter(torch.utils.data.DataLoader(
            Batches([(n, rows[n]) for n in plan], o.seed + 17, (o.generator, o.tokenizer, text)), batch_size=None,
            num_workers=o.workers, prefetch_factor=6, pin_memory=self.device == "cuda"))

        best = None
        for optimizer, factor in candidates:
            self.prepare(optimizer, factor)
            self.induction(rows[256])
            right = [self.stage(loader, *trial) for trial in trials][-1]
            if best is None or right > best[0]:
                best = (right, self.model, self.optimizer, self.muon, self.factor, self.steps, self.name)
        if best:
            _, self.model, self.optimizer, self.muon, self.factor, self.steps, self.name = best
            print("goes on:", self.name, flush=True)
        else:
            self.prepare("muon", 1.0)
        for stage in stages:
            self.stage(loader, *stage)
            self.save()
        self.mix(loader, plan[mix_begin:], len(mix) if o.smoke else None, rows[256])
        self.save()
        print(f"{self.steps} steps, {time.time() - self.start:.0f} s", flush=True)

    def induction(self, rows):
        """Phase A: until the repeated half of random text is predicted."""
        begin, losses, rights = time.time(), [], []
        for index in range(3 if self.options.smoke else 1000):
            loss, right = self.repeat_step(1.5e-3, rows=rows)
            losses.append(loss)
            rights.append(right.float().mean())
            if (index + 1) % 50 == 0:
                self.report(f"A, {self.name}", index + 1, losses, rights, begin)
                if self.history[-1]["right"] > 0.93:
                    break

    def stage(self, loader, name, cycle, steps, rate, language):
        """Documents of one cycle of lengths at a constant rate; returns the share of right answers at the end."""
        begin, losses, rights = time.time(), [], []
        for index in range(steps):
            loss, right = self.document_step(rate, next(loader), language)
            losses.append(loss)
            rights.append(right)
            if (index + 1) % 100 == 0 or index + 1 == steps:
                for position, length in enumerate(sorted(set(cycle))):
                    picked = [i for i in range(len(losses)) if cycle[i % len(cycle)] == length]
                    if picked:
                        self.report(f"{name}: {length}, {self.name}", index + 1, [losses[i] for i in picked],
                                    [rights[i] for i in picked], begin)
        return torch.stack(rights[-30:]).mean().item()

    def mix(self, loader, lengths, limit, rows):
        """All lengths in turn until the time is over, the learning rate falling to its end."""
        begin, by_length, index = time.time(), {}, 0
        high, low = MIX_ON_RATES if self.options.start else MIX_RATES
        total = max(self.options.seconds - (begin - self.start), 1.0)
        while True:
            done = index / limit if limit else (time.time() - begin) / total
            if done >= 1.0:
                break
            rate = low + (high - low) * (1.0 - done)
            if index % REPEAT_EVERY == 0:
                self.repeat_step(rate, rows=rows)
            loss, right = self.document_step(rate, next(loader), MIX_LANGUAGE)
            losses, rights = by_length.setdefault(lengths[index], ([], []))
            losses.append(loss)
            rights.append(right)
            index += 1
            if index % 15 == 0 and self.device == "cuda":
                torch.cuda.synchronize()
            if index % 300 == 0:
                for length, (losses, rights) in sorted(by_length.items()):
                    self.report(f"mix {length}", len(losses), losses, rights, begin)
                self.save()
        for length, (losses, rights) in sorted(by_length.items()):
            self.report(f"mix {length}", len(losses), losses, rights, begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generator", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=455, help="of the whole training; the mix fills what the other stages leave")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--start", help="a model.safetensors to go on from: the mix only")
    parser.add_argument("--smoke", action="store_true", help="two steps a stage, to see that everything runs")
    parser.add_argument("--longest", type=int, default=131072)
    Trainer(parser.parse_args()).run()


if __name__ == "__main__":
    main()
