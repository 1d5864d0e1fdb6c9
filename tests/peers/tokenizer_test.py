"""Token ids, text and streams against the `tokenizers` library: tokenizers of every style are trained here on a small
corpus, then thousands of generated strings are encoded and decoded by both."""
import json
import pathlib
import random
import unicodedata

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|"
         r"\s+")
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It wasn't the dog's fault; they're friends, I'll say, we've seen it.",
    "def main(argv):\n    for i in range(100):\n        print(f\"{i:>5} squared is {i ** 2}\")\n    return 0\n",
    "Größe, naïve café, señor, crème brûlée, Ångström, Ελληνικά γράμματα, русский язык, українська мова.",
    "你好,世界。这是一个测试。日本語のテキストです。ひらがなとカタカナ。한국어 문장도 있습니다.",
    "مرحبا بالعالم. שלום עולם. हिन्दी में पाठ। ภาษาไทย. Tiếng Việt có dấu.",
    "😀 😃 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ ☕ — “quotes” ‘single’ … • № 12,345.67 €100 ½ ² ³ ℃",
    "In 1984, 3.14159 and 2.71828 were 100% numbers: 0x1F, 1e-9, 192.168.0.1, +49 (0) 30 123456.",
    "the the the and and of of to in a is that it was for on are as with his they at be this have from or one had by",
] * 4

# Only characters whose properties have been the same for a long time: peers carry different versions of Unicode.
OLD = unicodedata.ucd_3_2_0
PIECES = [
    "the ", "quick", " brown", "hello", "Hello", " World", "'s", "'S", "'ll", "'Re", "don't", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0",
    "\u3000", "\u2003", "\u2028", "\u0085", "\u200b", "\u200d", "\ufeff", "\x00", "\x01", "\x1f", "\x7f", "1", "12", "123", "1234567", "٣", "½", "²", "Ⅷ", "!", "?!",
    "...", "(", ")", "[]", "{}", "=>", "//", "#include <x>", "_", "__init__", "-", "—", "“", "”", "é", "e\u0301", "ñ", "n\u0303", "Å", "A\u030a", "\u212b", "ﬁ", "ß", "İ", "ı", "ſ",
    "Σας", "ΑΣ", "Я", "русский", "你好", "世界", "。", "、", "ひらがな", "カタカナ", "ｶﾀｶﾅ", "한국어", "\u1112\u1161\u11ab", "مرحبا", "שָׁלוֹם", "हिन्दी", "क्षि", "ไทย", "Tiếng Việt", "😀", "👍🏽", "👩‍👩‍👧‍👦",
    "🏳️‍🌈", "🇩🇪", "❤️", "\U0001F600\U0001F601", "\U00020000", "\uffff", "\U0010ffff", "\ue000", "a\u0300\u0316\u0301", "\u0301", "▁", "▁▁", "Ġ", "Ċ", "<0x41>", "<unk>", "<s>", "</s>",
    "<|user|>", "<|end|>", "<|tool|>", "<tool>", "WORD", "lstrip", "rstrip", "x" * 40, "aaaaaaaaaa", "zq" * 30, "\t\t\tif", "    return", "http://example.com/a?b=c&d=1",
]


def strings(seed, count):
    rng = random.Random(seed)
    made = ["", " ", "\n", "a", "  a  ", "é"] + PIECES
    while len(made) < count:
        kind = rng.random()
        if kind < 0.75:
            made.append("".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 14))))
        elif kind < 0.85:
            made.append("".join(rng.choice(" \n\t\r") if rng.random() < 0.5 else rng.choice("ab.1'") for _ in range(rng.randrange(1, 60))))
        elif kind < 0.95:
            codes = []
            while len(codes) < rng.randrange(1, 30):
                code = rng.choice([rng.randrange(0x20, 0x250), rng.randrange(0x250, 0x3000), rng.randrange(0x3000, 0xD800), rng.randrange(0xE000, 0x20000)])
                if OLD.category(chr(code)) != "Cn" and unicodedata.category(chr(code)) == OLD.category(chr(code)):
                    codes.append(chr(code))
            made.append("".join(codes))
        else:
            made.append(" ".join(rng.choice(CORPUS).split()[: rng.randrange(1, 20)]) * rng.randrange(1, 4))
    return made


def train(tokenizer, vocab=700, specials=("<unk>", "<s>", "</s>"), alphabet=(), **options):
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(specials), initial_alphabet=list(alphabet), show_progress=False, **options)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level(pre, normalizer=None, ignore_merges=False, post=None):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    if post is not None:
        tokenizer.post_processor = post
    return train(tokenizer, specials=["<s>", "</s>"], alphabet=pre_tokenizers.ByteLevel.alphabet())


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_after(*steps):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def with_bytes(tokenizer, **model):
    """Puts the 256 byte tokens into the vocabulary of a trained tokenizer, behind the rest, and switches fallback on."""
    spec = json.loads(tokenizer.to_str())
    vocab = spec["model"]["vocab"]
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", max(vocab.values()) + 1)
    spec["model"].update(byte_fallback=True, unk_token="<unk>", fuse_unk=True, **model)
    return Tokenizer.from_str(json.dumps(spec))


def sentencepiece(pre=None, normalizer=None, decoder=None, template=True, **model):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    # Trained word by word as SentencePiece does it, used without any pre-tokenizer where the family has none.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    train(tokenizer)
    tokenizer = with_bytes(tokenizer, **model)
    spec = json.loads(tokenizer.to_str())
    spec["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoder or decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    return tokenizer


def plain(pre, normalizer=None, decoder=None, **model):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **model))
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if decoder is not None:
        tokenizer.decoder = decoder
    return train(tokenizer)


PREPEND = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
STYLES = {
    "gpt2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gpt2_prefix_space": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), post=processors.ByteLevel()),
    "llama3": lambda: byte_level(bytes_after(split(LLAMA3)), ignore_merges=True, post=processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])])),
    "qwen2": lambda: byte_level(bytes_after(split(QWEN2)), normalizer=normalizers.NFC()),
    "deepseek_like": lambda: byte_level(bytes_after(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(LLAMA3))),
    "starcoder_like": lambda: byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])),
    "llama2": lambda: sentencepiece(normalizer=PREPEND),
    "llama2_new": lambda: sentencepiece(pre=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "mistral_metaspace_always": lambda: sentencepiece(pre=pre_tokenizers.Metaspace(prepend_scheme="always", split=True), decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])),
    "metaspace_never": lambda: sentencepiece(pre=pre_tokenizers.Metaspace(prepend_scheme="never", split=True), decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")])),
    "gemma": lambda: sentencepiece(pre=pre_tokenizers.Split(" ", "merged_with_previous"), normalizer=normalizers.Replace(" ", "▁"), decoder=decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])),
    "plain_whitespace": lambda: plain(pre_tokenizers.Whitespace()),
    "plain_bert": lambda: plain(pre_tokenizers.BertPreTokenizer(), normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])),
    "plain_nfkc": lambda: plain(pre_tokenizers.WhitespaceSplit(), normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()]), fuse_unk=True),
    "plain_nfkd": lambda: plain(pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.Digits()]), normalizers.NFKD()),
    "plain_none": lambda: plain(None, fuse_unk=True, ),
    "split_removed": lambda: plain(split(r"\s+|,", "removed")),
    "split_next": lambda: plain(split(r"[ .]", "merged_with_next")),
    "split_previous": lambda: plain(split(r"[ .]", "merged_with_previous")),
    "split_contiguous": lambda: plain(split(r"[\w]", "contiguous")),
    "split_inverted": lambda: plain(split(r"\w+|[^\w\s]+", "removed", True)),
    "regex_replace": lambda: plain(pre_tokenizers.Metaspace(), normalizers.Sequence([normalizers.Replace(Regex(r"\s{2,}"), " "), normalizers.Strip(left=True, right=False)]), decoders.Metaspace()),
    "suffix": lambda: plain(pre_tokenizers.WhitespaceSplit(), end_of_word_suffix="</w>", continuing_subword_prefix=""),
}

ADDED = [
    AddedToken("<|user|>", special=True, normalized=False), AddedToken("<|end|>", special=True, normalized=False), AddedToken("<tool>", special=False, normalized=False),
    AddedToken("<tool>x", special=False, normalized=False), AddedToken("WORD", single_word=True, normalized=False), AddedToken("lstrip", lstrip=True, normalized=False), AddedToken("rstrip", rstrip=True, normalized=False),
    AddedToken("Hello W", normalized=True), AddedToken("cafe\u0301", normalized=True),
]


@pytest.fixture(scope="module", params=STYLES, ids=str)
def style(request):
    tokenizer = STYLES[request.param]()
    tokenizer.add_tokens(ADDED[2:])
    tokenizer.add_special_tokens(ADDED[:2])
    return tokenizer


def load(driver, tokenizer, config=None):
    answer = driver.ask(op="load", tokenizer=tokenizer.to_str(), config=json.dumps(config) if config else "")
    assert "error" not in answer, answer["error"]
    return answer


def check_ids(driver, tokenizer, texts, add_special=True):
    ours = driver.get("ids", op="encode", texts=texts, add_special=add_special)
    reference = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=add_special)]
    for text, mine, theirs in zip(texts, ours, reference):
        assert mine == theirs, (text, mine, theirs, [tokenizer.id_to_token(i) for i in mine], [tokenizer.id_to_token(i) for i in theirs])
    return reference


def test_style(driver, style):
    answer = load(driver, style)
    assert answer["vocab_size"] == max(style.get_vocab().values()) + 1
    texts = strings(11, 2500)
    ids = check_ids(driver, style, texts)
    check_ids(driver, style, texts[:300], add_special=False)
    rng = random.Random(3)
    limit = style.get_vocab_size()
    ids += [[rng.randrange(limit) for _ in range(rng.randrange(1, 40))] for _ in range(700)]
    bytes_only = [i for i in (style.token_to_id(f"<0x{b:02X}>") for b in (0x41, 0xC3, 0xA9, 0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x98, 0x80, 0xFF)) if i is not None]
    if bytes_only:
        ids += [[rng.choice(bytes_only) if rng.random() < 0.8 else rng.randrange(limit) for _ in range(rng.randrange(1, 20))] for _ in range(500)]
    for skip in (True, False):
        expected = style.decode_batch(ids, skip_special_tokens=skip)
        texts = driver.get("texts", op="decode", ids=ids, skip_special=skip)
        pieces = driver.get("pieces", op="stream", ids=ids, skip_special=skip)
        for row, theirs, mine, streamed in zip(ids, expected, texts, pieces):
            assert mine == theirs, (row, [style.id_to_token(i) for i in row])
            assert "".join(streamed) == theirs


def test_special_tokens_as_text(driver):
    tokenizer = STYLES["llama3"]()
    tokenizer.add_special_tokens(ADDED[:2])
    load(driver, tokenizer)
    tokenizer.encode_special_tokens = True
    texts = [text for text in strings(5, 600) if "<" in text]
    ours = driver.get("ids", op="encode", texts=texts, parse_special=False)
    assert ours == [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def test_long_texts(driver):
    for name in ("gpt2", "llama3", "llama2", "gemma", "plain_none"):
        tokenizer = STYLES[name]()
        load(driver, tokenizer)
        text = "".join(strings(17, 3000))
        check_ids(driver, tokenizer, [text, "a" * 20000, " " * 20000, "the quick brown " * 2000, "你好世界" * 4000, "\n" * 5000 + "x"])


def test_merges_as_text_or_pairs(driver):
    tokenizer = STYLES["gpt2"]()
    spec = json.loads(tokenizer.to_str())
    merges = spec["model"]["merges"]
    spec["model"]["merges"] = [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    texts = strings(9, 500)
    for form in (spec["model"]["merges"], [merge.split(" ") for merge in spec["model"]["merges"]]):
        spec["model"]["merges"] = form
        answer = driver.ask(op="load", tokenizer=json.dumps(spec))
        assert "error" not in answer
        check_ids(driver, tokenizer, texts)


def test_needle_model(driver):
    """The tokenizer of the embedded model, where it is in the repository."""
    folders = [path.parent for path in (pathlib.Path(__file__).parents[2]).glob("models/*/tokenizer.json")]
    if not folders:
        pytest.skip("the repository holds no model yet")
    for folder in folders:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        answer = driver.ask(op="load", folder=str(folder))
        assert "error" not in answer, answer["error"]
        check_ids(driver, tokenizer, strings(21, 3000), add_special=False)


def test_streams_never_split_a_character(driver):
    tokenizer = STYLES["gpt2"]()
    load(driver, tokenizer)
    text = "naïve 你好 👩‍👩‍👧‍👦 " * 5
    ids = tokenizer.encode(text).ids
    pieces = driver.get("pieces", op="stream", ids=[ids])[0]
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces)
    assert sum(1 for piece in pieces if piece) > len(text.split())
