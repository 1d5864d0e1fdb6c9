"""Makes cell files: documents and questions of the needle generator as token ids, so that the GPU run needs no tokenizer.

    python cells.py --generator build/release/fovea_needle_docs --tokenizer models/needle/tokenizer.json --out cells 16384:final:20

A cell is CONTEXT:KIND:DOCUMENTS. Kinds differ in seeds: "calibrate" (training split, used to learn rotations and codebooks),
"scan" (to choose among policies), "final" (for published numbers, the documents of tools/needle/evaluate.py's
"many prose plain"), "reworded" (facts and questions worded otherwise in three of ten). Read by run.py.
"""
import argparse
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "needle"))

BOS, USER, ASSISTANT, END = 1, 2, 3, 4
ROOM = 80  # as evaluate.py: tokens of the context kept for chat marks, question and answer
QUESTIONS = 50  # a document
FIRST_SEED = {"calibrate": 700, "scan": 500, "final": 0, "reworded": 200}


def make_cell(generator, encode, context, kind, documents):
    """Arrays of one cell: document ids one after another, then questions (question ids + answer ids) likewise."""
    out = {name: [] for name in ("documents", "document_sizes", "asked", "question_sizes", "answer_sizes", "owner", "depth")}
    facts = min(512, max(8, context // 64))
    for index in range(documents):
        made, tokens, _ = generator.fitted(
            lambda text: len(encode(text)), context - ROOM, seed=context * 1000 + FIRST_SEED[kind] + index,
            split="train" if kind == "calibrate" else "eval", filler="prose", facts=facts, questions=min(QUESTIONS, facts),
            absent=0, variety=300 if kind == "reworded" else 0)
        ids = [BOS, USER] + encode(made["document"] + "\n\n")
        out["documents"].append(np.array(ids, np.uint16))
        out["document_sizes"].append(len(ids))
        for q in made["questions"]:
            question, answer = encode(q["question"]) + [END, ASSISTANT], encode(q["answer"]) + [END]
            out["asked"].append(np.array(question + answer, np.uint16))
            out["question_sizes"].append(len(question))
            out["answer_sizes"].append(len(answer))
            out["owner"].append(index)
            out["depth"].append(q["depth"])
    return {n: np.concatenate(v) if n in ("documents", "asked") else np.array(v) for n, v in out.items()}


def load_cell(path):
    """List of (document ids, list of (ids, size of the question part, depth)) of one cell file."""
    a = np.load(path)
    ends = np.cumsum(a["document_sizes"])
    sizes = a["question_sizes"] + a["answer_sizes"]
    stops = np.cumsum(sizes)
    cell = [(a["documents"][e - n : e].astype(np.int64), []) for e, n in zip(ends, a["document_sizes"])]
    for stop, size, question, owner, depth in zip(stops, sizes, a["question_sizes"], a["owner"], a["depth"]):
        cell[owner][1].append((a["asked"][stop - size : stop].astype(np.int64), int(question), float(depth)))
    return cell


def main():
    from generator import Generator
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("--generator", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("cells", nargs="+")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(options.tokenizer)
    generator = Generator(options.generator)
    os.makedirs(options.out, exist_ok=True)
    for name in options.cells:
        context, kind, documents = name.split(":")
        cell = make_cell(generator, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, int(context), kind,
                         int(documents))
        np.savez_compressed(os.path.join(options.out, f"{context}-{kind}.npz"), **cell)
        print(name, len(cell["owner"]), "questions, longest", int((cell["question_sizes"] + cell["answer_sizes"]).max()), flush=True)


if __name__ == "__main__":
    main()
