"""What `--speculate ngram` is worth: tokens a second of single streams with it over those without, and whether the answers are
the same, but where the model finds two tokens as good as equal: the attention of several rows adds in another order. Used by
soak.py.

Alone: speculation.py [--rounds N] [--threads N]."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from server import BINARY, Server

CHARACTERS = 8000  # of a document
EQUAL = 0.01  # log-probabilities of the two best tokens this near one another: either may be the answer's
# What answers are like, and the most tokens of one.
KINDS = {"quoting a document": 64, "quoting its names": 64, "going on with it": 200, "looping": 200}


def documents(count: int, kind: str) -> list[dict]:
    """With facts and questions about them, as the embedded model was trained to answer: in 22 tokens about things and names
    that it knows, in 36 about those that are made up, which it can only copy."""
    made_up = 1000 if kind == "quoting its names" else 0
    asked = "".join(f"{seed} eval templates {CHARACTERS} 12 6 0 {made_up} 0 0\n" for seed in range(1, count + 1))
    made = subprocess.run([str(Path(BINARY).parent / "fovea_needle_docs")], input=asked, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in made.stdout.splitlines()]


def bodies(kind: str, document: dict) -> list[dict]:
    if kind.startswith("quoting"):
        return [{"messages": [{"role": "user", "content": f"{document['document']}\n{asked['question']}"}]}
                for asked in document["questions"]]
    # Its own beginning once more, which this model does not copy on; and a line that repeats itself.
    text = document["document"]
    if kind == "going on with it":
        return [{"prompt": f"{text[:4000]}\n{text[:600]}", "ignore_eos": True}]
    return [{"prompt": text[:120] * 6, "ignore_eos": True}]


def post(port: int, path: str, body: dict) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return connection, answer


def request_of(body: dict, most: int) -> tuple[str, dict]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    return path, {**body, "model": "needle", "temperature": 0, "max_tokens": most}


def is_tie(port: int, body: dict, most: int, plain: str, other: str) -> bool:
    """Whether two tokens were as good as equal where the other answer leaves the plain one, which is asked for again."""
    path, asked = request_of(body, most)
    chat = "messages" in body
    asked.update({"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2})
    connection, answer = post(port, path, asked)
    found = json.loads(answer.read())["choices"][0]["logprobs"]
    connection.close()
    if chat:
        tokens = [(token["token"], [top["logprob"] for top in token["top_logprobs"]]) for token in found["content"]]
    else:
        tokens = list(zip(found["tokens"], (list(top.values()) for top in found["top_logprobs"])))
    same = len(os.path.commonprefix([plain, other]))
    length = 0
    for text, best in tokens:
        length += len(text)
        if length > same:
            best.sort()
            return len(best) > 1 and best[-1] - best[-2] < EQUAL
    return False


def stream(port: int, body: dict, most: int) -> tuple[str, int, float]:
    """The answer, its tokens behind the first, and the seconds that those took."""
    path, asked = request_of(body, most)
    connection, answer = post(port, path, {**asked, "stream": True, "stream_options": {"include_usage": True}})
    text, total, begin = "", 0, 0.0
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        total = (chunk.get("usage") or {}).get("completion_tokens", total)
        for choice in chunk["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        end = time.monotonic()
        begin = begin or end  # the first chunk has the first token
    connection.close()
    return text, total - 1, end - begin


def speculation(rounds: int, threads: int = 1, *arguments: str) -> tuple[dict[str, float], list[str]]:
    """By kind: median over rounds, by turns, of tokens a second with drafts over those without; and what was wrong."""
    options = ("--kv-cache-mib", "256", "--num-threads", str(threads), *arguments)
    made = {kind: documents(3, kind) for kind in KINDS}
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    wrong = []
    with Server(*options) as plain, Server(*options, "--speculate", "ngram") as drafting:
        for _ in range(rounds + 1):  # the first fills the prefix cache
            for kind, most in KINDS.items():
                asked = [body for document in made[kind] for body in bodies(kind, document)]
                rates, texts = [], []
                for server in (plain, drafting):
                    answers = [stream(server.port, body, most) for body in asked]
                    rates.append(sum(tokens for _, tokens, _ in answers) / sum(seconds for _, _, seconds in answers))
                    texts.append([text for text, _, _ in answers])
                ratios[kind].append(rates[1] / rates[0])
                wrong += [f"answers {kind} differ: {one!r}, {other!r}" for body, one, other in zip(asked, *texts)
                          if one != other and not is_tie(plain.port, body, most, one, other)]
    return {kind: statistics.median(values[1:]) for kind, values in ratios.items()}, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options, rest = parser.parse_known_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    ratios, wrong = speculation(options.rounds, options.threads, *rest)
    for kind, ratio in ratios.items():
        print(f"{kind}: {ratio:.2f}")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
