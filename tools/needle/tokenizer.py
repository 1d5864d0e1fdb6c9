"""Trains needle's tokenizer: byte-level BPE, 4096 entries, Qwen's split pattern, digits one by one, five special tokens.

    python tokenizer.py --generator build/release/fovea_needle_docs --out models/needle/tokenizer.json
"""
import argparse

from corpus import collect
from generator import Generator
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|pad|>", "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>"]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--generator", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--vocabulary", type=int, default=4096)
    options = parser.parse_args()

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Real text outweighs generated text: with the lists of words alone the vocabulary goes to whole list words.
    generator = Generator(options.generator)
    fillers = ["prose", "templates", "junk"]
    texts = [
        generator.document(seed, "train", fillers[seed % 3], 6000, 24, 12, 100, 450, 350, 300) for seed in range(1, 91)
    ]
    lines = [t["document"] for t in texts]
    lines += [q["question"] + " " + q["answer"] for t in texts for q in t["questions"]]
    trainer = trainers.BpeTrainer(
        vocab_size=options.vocabulary,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines + collect(5_000_000).split("\n\n"), trainer)
    tokenizer.save(options.out)
    print("vocabulary", tokenizer.get_vocab_size())


if __name__ == "__main__":
    main()
