"""The project's C++ generator of needle documents as a Python iterator: one child process, one request a line."""
import json
import subprocess


class Generator:
    """Client of the fovea_needle_docs binary. `text`: file with filler for the kinds "text" and "mixed"."""

    def __init__(self, binary: str, text: str | None = None):
        command = [binary] + (["--text", text] if text else [])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def document(self, seed, split, filler, characters, facts, questions, absent=0, made_up=250, own_words=150, variety=300):
        """A dict with "document" and "questions"; see src/workload/needle/document.h for the meaning of the arguments."""
        line = f"{seed} {split} {filler} {characters} {facts} {questions} {absent} {made_up} {own_words} {variety}\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the generator ended on request: {line!r}")
        return json.loads(answer)

    def fitted(self, count, max_tokens, seed, **request):
        """The document of at most max_tokens tokens; the same search as fit_needle_document() in C++, so the same bytes.

        Returns (document, tokens, characters)."""
        characters, best = max_tokens * 3, None
        for _ in range(8):
            document = self.document(seed=seed, characters=characters, **request)
            tokens = max(count(document["document"]), 1)
            size = len(document["document"].encode())
            if best is None or (best[1] > max_tokens or tokens > best[1] if tokens <= max_tokens else tokens < best[1]):
                best = (document, tokens, characters)
            if tokens <= max_tokens and tokens * 100 >= max_tokens * 98:
                break
            following = size * (max_tokens - max_tokens // 100) // tokens
            if following == characters:
                break
            characters = following
        return best
