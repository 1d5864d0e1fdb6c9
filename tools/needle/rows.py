"""Training rows from the project's document generator, and the stream of batches that train.py reads.

A row is a chat: document and first question in one user turn, then more questions as further turns, cut at T tokens.
Documents come from the training split only.
"""
import random

import numpy as np
import torch
from generator import Generator
from tokenizers import Tokenizer

PAD, BOS, USER, ASSISTANT, END = range(5)
QUESTION_TOKENS = 34  # of a question, its answer and the marks around them, on average
SEPARATORS = ["\n\n"] * 12 + ["\n"] * 3 + [" "] * 2 + ["\n\n---\n\n", "\n\n\n", "\n\nQ: "]
SYSTEM = ["You are a helpful assistant.", "Answer briefly.", "Read the text and answer the question.",
          "Be precise.", "You answer questions about documents.", "Use only the text that follows."]


class RowMaker:
    def __init__(self, generator, tokenizer, text):
        self.generator = Generator(generator, text)
        self.tokenizer = Tokenizer.from_file(tokenizer)
        self.density = {}  # characters a token, by filler, as last seen

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def chat(self, rng, document, questions):
        """(ids, spans): spans are (first, last) positions whose next token is part of an answer."""
        ids, spans = [BOS], []
        if rng.random() < 0.08:
            ids += [USER] + self.encode(rng.choice(SYSTEM)) + [END]
        layout = rng.random()
        separator = rng.choice(SEPARATORS)
        for index, q in enumerate(questions):
            text = q["question"]
            if index == 0 and layout < 0.88:
                text = document + separator + text
            elif index == 0 and layout < 0.92:
                text = text + "\n\n" + document
            elif index == 0:
                ids += [USER] + self.encode(document) + [END]
            answer = self.encode(q["answer"])
            ids += [USER] + self.encode(text) + [END, ASSISTANT]
            spans.append((len(ids) - 1, len(ids) + len(answer) - 1))
            ids += answer + [END]
        return ids, spans

    def row(self, seed, length):
        rng = random.Random(seed)
        filler = rng.choices(["templates", "prose", "salad", "junk", "text", "mixed"], [18, 18, 8, 10, 24, 22])[0]
        if length <= 512:
            facts = rng.randint(3, max(3, length // 56))
            questions = max(2, length // 80)
        else:
            facts = min(512, rng.choice([length // 64, length // 64, length // 64, length // 96, length // 128,
                                         length // 256, rng.randint(2, 10)]))
            facts = max(facts, 2)
            questions = min(192 if length >= 65536 else 96, max(4, length // 110), facts + facts // 2 + 2)
        # Words of the lists are few and soon known by heart: most keys are made up or come from real text.
        absent = rng.choice([0, 80, 80, 200])
        made_up = rng.choice([150, 250, 400])
        own_words = rng.choice([200, 400, 550])
        variety = rng.choice([0, 300, 300, 500])
        density = self.density.get(filler, 2.4)
        characters = int(max(length - questions * QUESTION_TOKENS - 4, 60) * density * 0.97)
        for attempt in range(4):
            made = self.generator.document(seed * 8 + attempt, "train", filler, characters, facts, questions, absent,
                                           made_up, own_words, variety)
            ids, spans = self.chat(rng, made["document"], made["questions"])
            inside = [s for s in spans if s[1] < length - 1]
            if len(spans) and len(inside) * 10 >= len(spans) * 6:
                break
            characters = int(characters * 0.8)
            facts = max(2, int(facts * 0.8)) if length <= 512 else facts
        else:
            return self.row(seed + (1 << 40), length)
        tail = len(ids) - QUESTION_TOKENS * len(spans)
        self.density[filler] = 0.9 * density + 0.1 * len(made["document"]) / max(tail, 20)
        return ids[:length], inside

    def batch(self, seed, length, rows):
        """ids [rows, length] int32, flat positions whose next token is an answer's, the question each belongs to, and flat
        positions of the document for the language-model part of the loss."""
        rng = np.random.default_rng(seed)
        ids = np.zeros((rows, length), np.int32)
        positions, owners, others = [], [], []
        owner = 0
        for r in range(rows):
            row, spans = self.row(seed * 4096 + r, length)
            ids[r, : len(row)] = row
            for first, last in spans:
                positions.append(np.arange(r * length + first, r * length + last + 1))
                owners.append(np.full(last - first + 1, owner))
                owner += 1
            others.append(r * length + rng.integers(0, len(row) - 1, max(4096 // rows, 1)))
        return (torch.from_numpy(ids), torch.from_numpy(np.concatenate(positions)),
                torch.from_numpy(np.concatenate(owners)), torch.from_numpy(np.concatenate(others)))


class Batches(torch.utils.data.IterableDataset):
    """Batch number i of a plan (length, rows), made by worker i mod W; the order does not depend on timing."""

    def __init__(self, plan, seed, arguments):
        self.plan, self.seed, self.arguments = plan, seed, arguments

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        torch.set_num_threads(1)
        maker = RowMaker(*self.arguments)
        for index in range(first, len(self.plan), step):
            length, rows = self.plan[index]
            yield maker.batch(self.seed * 1_000_003 + index, length, rows)


def repeated_batch(rng, length, rows, vocabulary, device):
    """Phase A: random prefixes repeated to the end of the row, in alphabets of several sizes. Same tuple as batch()."""
    ids = torch.empty(rows, length, dtype=torch.int64)
    begins = []
    for r in range(rows):
        size = rng.choice([16, 64, 256, vocabulary - 5])
        alphabet = torch.randint(5, vocabulary, (size,)) if size < vocabulary - 5 else torch.arange(5, vocabulary)
        period = rng.randint(length // 4, length // 2 - 1)
        prefix = alphabet[torch.randint(0, len(alphabet), (period,))]
        ids[r] = prefix.repeat(length // period + 1)[:length]
        begins.append(torch.arange(r * length + period, (r + 1) * length - 1))
    return ids.to(device), torch.cat(begins).to(device)
