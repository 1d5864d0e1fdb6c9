"""Exact-match accuracy of needle by context length, on documents of the evaluation split, with Wilson 95 % intervals.

    python evaluate.py --generator build/release/fovea_needle_docs --folder models/needle --out OUT

Many questions are asked of one document: its KV is computed once and every question continues from it alone, as a first turn
would. Greedy decoding gives the expected answer if and only if, at each of its tokens and at its end mark, the arg-max given
the expected tokens so far is the expected token; so one forward over question + answer judges it without decoding.
"""
import argparse
import json
import math
import multiprocessing
import os
import time

import torch
from generator import Generator
from model import Config, Needle
from rows import ASSISTANT, BOS, END, USER
from tokenizers import Tokenizer

ROOM = 80  # tokens of the context kept free for the chat marks, the question and the answer
LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]


def wilson(right, count, z=1.96):
    if count == 0:
        return (0.0, 1.0)
    p, s = right / count, z * z / count
    middle, half = (p + s / 2) / (1 + s), z * math.sqrt(p * (1 - p) / count + s / count / 4) / (1 + s)
    return (max(0.0, middle - half), min(1.0, middle + half))


def cell_requests(name, context, questions):
    """The documents of one cell: keyword arguments of Generator.fitted(). name: "few prose", "many text absent", ..."""
    words = name.split()
    facts = 8 if words[0] == "few" else min(512, max(8, context // 64))
    each = min(50, facts)
    absent = 1000 if "absent" in words else 0
    requests = []
    while len(requests) * each < questions:
        requests.append(dict(seed=context * 1000 + len(requests), split="eval", filler=words[1], facts=facts, questions=each,
                             absent=absent, variety=0 if "plain" in words else 300))
    return requests


STATE = {}


def start_worker(generator, tokenizer, text):
    STATE["generator"] = Generator(generator, text)
    STATE["tokenizer"] = Tokenizer.from_file(tokenizer)


def encode(text):
    return STATE["tokenizer"].encode(text, add_special_tokens=False).ids


def make_item(task):
    """(cell, prefix ids, questions as (ids up to the answer, answer ids, meta))."""
    cell, context, request = task
    document, tokens, characters = STATE["generator"].fitted(lambda t: len(encode(t)), context - ROOM, **request)
    prefix = [BOS, USER] + encode(document["document"] + "\n\n")
    items = [(encode(q["question"]) + [END, ASSISTANT], encode(q["answer"]) + [END], q) for q in document["questions"]]
    return cell, dict(request, characters=characters), prefix, items, document["document"]


def judge(model, prefix, items, dtype, device):
    """For each question: list of (arg-max id, margin between the two best logits) at each position of the expected answer."""
    cache = model.prefill(torch.tensor(prefix, device=device), dtype)
    results = []
    for begin in range(0, len(items), 64):
        part = items[begin : begin + 64]
        width = max(len(q) + len(a) for q, a, _ in part)
        ids = torch.zeros(len(part), width, dtype=torch.int64)
        for i, (q, a, _) in enumerate(part):
            ids[i, : len(q) + len(a)] = torch.tensor(q + a)
        top = model.continue_from(cache, ids.to(device), dtype).topk(2, -1)
        best = top.indices[..., 0].cpu()
        margin = (top.values[..., 0] - top.values[..., 1]).cpu()
        for i, (q, a, _) in enumerate(part):
            at = slice(len(q) - 1, len(q) + len(a) - 1)
            results.append((best[i, at].tolist(), margin[i, at].tolist()))
    return results


def greedy(model, prefix, question, dtype, device, limit=48):
    """The answer's ids, decoded token by token (the end mark included where it came)."""
    cache = model.prefill(torch.tensor(prefix, device=device), dtype)
    ids = list(question)
    while len(ids) - len(question) < limit:
        following = model.continue_from(cache, torch.tensor([ids], device=device), dtype)[0, -1].argmax().item()
        ids.append(following)
        if following == END:
            break
    return ids[len(question) :]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generator", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--text", required=True, help="real text never trained on, for the cells named text")
    parser.add_argument("--out", required=True)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS)
    parser.add_argument("--cells", nargs="*",
                        default=["few prose plain", "many prose plain", "few prose", "many prose", "many templates", "many text",
                                 "many text plain", "few prose absent", "many prose absent"])
    parser.add_argument("--seconds", type=float, default=1e9, help="stop between cells after so long")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    options = parser.parse_args()
    begin = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = False
    model = Needle(Config()).to(device).eval()
    model.load(os.path.join(options.folder, "model.safetensors"))
    tokenizer_file = os.path.join(options.folder, "tokenizer.json")
    tokenizer = Tokenizer.from_file(tokenizer_file)
    tasks = []
    for cell in options.cells:
        share = {"few prose plain": 1, "many prose plain": 1, "many prose": 1, "few prose": 2}.get(cell, 4)
        for context in options.lengths:
            count = max(options.questions // share, 1)
            tasks += [((cell, context), context, r) for r in cell_requests(cell, context, count)]
    results = {}
    context_of_fork = multiprocessing.get_context("spawn")
    with context_of_fork.Pool(options.workers, start_worker, (options.generator, tokenizer_file, options.text)) as pool:
        for cell, request, prefix, items, _ in pool.imap(make_item, tasks, chunksize=1):
            if time.time() - begin > options.seconds:
                print("stopped for time", flush=True)
                break
            entry = results.setdefault(cell, {"right": 0, "count": 0, "deciles": [[0, 0] for _ in range(10)], "plain": [0, 0],
                                              "value": 0, "tokens": 0, "wrong": []})
            for (best, margin), (question, answer, q) in zip(judge(model, prefix, items, dtype, device), items):
                right = best == answer
                entry["right"] += right
                entry["count"] += 1
                entry["tokens"] = max(entry["tokens"], len(prefix))
                decile = entry["deciles"][min(int(q["depth"] * 10), 9)]
                decile[0] += right
                decile[1] += 1
                # Plain: the fact as hidden holds the answer's own words, so that it needs no rewording.
                if q["answer"][1:-1] in q["fact"]:
                    entry["plain"][0] += right
                    entry["plain"][1] += 1
                if not right and len(entry["wrong"]) < 12:
                    first = next(i for i in range(len(answer)) if best[i] != answer[i])
                    entry["wrong"].append({"question": q["question"], "fact": q["fact"], "answer": q["answer"],
                                           "depth": round(q["depth"], 3), "good": tokenizer.decode(answer[:first]),
                                           "then": tokenizer.decode([best[first]], skip_special_tokens=False)})
    rows = []
    for (cell, context), e in results.items():
        low, high = wilson(e["right"], e["count"])
        rows.append({"cell": cell, "context": context, "questions": e["count"], "right": e["right"],
                     "accuracy": round(e["right"] / e["count"], 4), "low": round(low, 4), "high": round(high, 4),
                     "plain": e["plain"], "deciles": e["deciles"], "wrong": e["wrong"]})
        plain = e["plain"][0] / max(e["plain"][1], 1)
        print(f"{cell:22s} {context:7d}  {e['right']:5d}/{e['count']:5d}  {e['right'] / e['count']:.4f} "
              f"[{low:.4f}, {high:.4f}]  plain facts {plain:.3f}  "
              + " ".join(f"{a / max(b, 1):.2f}" for a, b in e["deciles"]), flush=True)
    with open(os.path.join(options.out, "evaluation.json"), "w") as file:
        json.dump({"dtype": str(dtype), "seconds": round(time.time() - begin, 1), "rows": rows}, file, indent=0)
    for row in rows:
        if row["cell"] in ("many prose plain", "many prose") and row["wrong"]:
            for w in row["wrong"][:3]:
                print(row["cell"], row["context"], json.dumps(w, ensure_ascii=False), flush=True)
    print(f"evaluation: {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
