"""Real text for the tokenizer and as filler of training documents: what the machine's own Python installation holds.

Called by tokenizer.py and train.py. Nothing of it enters the repository; another installation gives another text, which
changes the model's numbers slightly and its abilities not at all. Evaluation never uses it.
"""
import glob
import os
import random
import sysconfig


def collect(limit: int, seed: int = 1) -> str:
    """About `limit` characters: package descriptions (Markdown, prose), licences and source files of the standard library."""
    stdlib = sysconfig.get_paths()["stdlib"]
    site = sysconfig.get_paths()["purelib"]
    groups = [
        glob.glob(site + "/*.dist-info/METADATA") + glob.glob(site + "/*.dist-info/licenses/*"),
        glob.glob("/usr/share/common-licenses/*") + glob.glob("/usr/share/perl/5*/pod/*.pod"),
        glob.glob(stdlib + "/*.py") + glob.glob(stdlib + "/email/*.py") + glob.glob(stdlib + "/asyncio/*.py"),
    ]
    shares = [0.55, 0.15, 0.30]
    pieces = []
    for files, share in zip(groups, shares):
        files = sorted(f for f in set(files) if os.path.isfile(f))
        random.Random(seed).shuffle(files)
        left = int(limit * share)
        for name in files:
            try:
                text = open(name, encoding="utf-8").read(60_000)
            except (UnicodeDecodeError, OSError):
                continue
            pieces.append(text[:left])
            left -= len(text)
            if left <= 0:
                break
    random.Random(seed).shuffle(pieces)
    return "\n".join(pieces)
