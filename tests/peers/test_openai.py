"""The official openai client against a live `fovea serve`: chat, completions, streams, usage, errors, cancellation, seeds.

FOVEA_BINARY names the binary (default build/release/fovea), FOVEA_TEST_MODEL another model folder than the embedded one.
The questions are such as the needle model answers. Run by `make test`.
"""

import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import devices
from processes import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("FOVEA_BINARY", str(ROOT / "build/release/fovea"))
MODEL = os.environ.get("FOVEA_TEST_MODEL", "")

FILLER = "The road to the harbour was quiet that morning, and nobody had lit the stove yet. "
DOCUMENT = FILLER * 6 + "The code of the amber lantern is 74912. " + FILLER * 6 + \
    "The keeper of the northern gate is Marisol. " + FILLER * 6
CODE = DOCUMENT + "\n\nWhat is the code of the amber lantern?"
KEEPER = DOCUMENT + "\n\nWho is the keeper of the northern gate?"


class Server:
    def __init__(self, *arguments):
        self.device = devices.default
        command = [BINARY, "serve", "--port", "0", *(["--model", MODEL] if MODEL else []), *devices.arguments(self.device),
                   *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **devices.environment(self.device)})
        line = self.process.stdout.readline()
        found = re.search(r"https?://\S+", line)
        assert found, f"the server did not start: {line!r}"
        self.url = found.group()

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"),
                             max_retries=options.pop("max_retries", 0), timeout=120, **options)

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def metric(self, name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics"), re.M).group(1))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def ask(client, model, text, **options):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}],
                                          **{"temperature": 0, "max_tokens": 32, **options})


def test_models(client, model):
    entry = client.models.list().data[0]
    assert entry.object == "model" and entry.max_model_len > 1000
    assert entry.id == model
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such")


def test_chat_answers_from_the_document(client, model):
    answer = ask(client, model, CODE)
    choice = answer.choices[0]
    assert "74912" in choice.message.content
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens > 3


def test_second_question_finds_the_document_cached(client, model):
    ask(client, model, CODE)
    answer = ask(client, model, KEEPER)
    assert "Marisol" in answer.choices[0].message.content
    assert answer.usage.prompt_tokens_details.cached_tokens > answer.usage.prompt_tokens // 2


def test_turns_and_system_messages(client, model):
    first = ask(client, model, CODE).choices[0].message.content
    answer = client.chat.completions.create(
        model=model, temperature=0, max_tokens=32,
        messages=[{"role": "system", "content": "Answer from the document."},
                  {"role": "user", "content": CODE}, {"role": "assistant", "content": first},
                  {"role": "user", "content": [{"type": "text", "text": "Who is the keeper of the northern gate?"}]}])
    assert "Marisol" in answer.choices[0].message.content


def test_stream_equals_the_whole_answer(client, model):
    whole = ask(client, model, CODE).choices[0].message.content
    chunks = list(ask(client, model, CODE, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in chunks[1:])
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({c.id for c in chunks}) == 1 and len({c.created for c in chunks}) == 1
    assert all(c.usage is None for c in chunks)


def test_stream_usage(client, model):
    chunks = list(ask(client, model, CODE, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 3
    assert all(c.usage is None and c.choices for c in chunks[:-1])


def test_completion_kinds_of_prompts(server, client, model):
    ids = openai.OpenAI(base_url=server.url, api_key="none").post(
        "/tokenize", body={"prompt": "The code of the"}, cast_to=object)["tokens"]
    for prompt in ("The code of the", ["The code of the", "The keeper of"], ids, [ids, ids]):
        count = 2 if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
        answer = client.completions.create(model=model, prompt=prompt, max_tokens=4, temperature=0,
                                           extra_body={"ignore_eos": True})
        assert answer.object == "text_completion"
        assert [c.index for c in answer.choices] == list(range(count))
        assert all(c.finish_reason == "length" for c in answer.choices)
        assert answer.usage.completion_tokens == 4 * count


def test_completion_echo_and_stream(client, model):
    options = {"model": model, "prompt": "The code of the", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**options, echo=True).choices[0].text
    assert whole.startswith("The code of the")
    pieces = client.completions.create(**options, echo=True, stream=True)
    assert "".join(c.choices[0].text for c in pieces) == whole


def test_chat_logprobs(client, model):
    content = ask(client, model, CODE, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    text = b"".join(bytes(entry.bytes) for entry in content).decode(errors="replace")
    assert "74912" in text
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert abs(entry.top_logprobs[0].logprob - entry.logprob) < 1e-4  # greedy: the likeliest


def test_completion_logprobs(client, model):
    answer = client.completions.create(model=model, prompt="The code", max_tokens=5, temperature=0, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset)
    assert logprobs.text_offset[0] == 0


def test_choices_and_seeds(client, model):
    # The model is sure of its answers; where nothing was asked, a high temperature makes it wander.
    def sample(seed):
        answer = client.completions.create(model=model, prompt="It was", temperature=3, n=4, max_tokens=24, seed=seed,
                                           extra_body={"ignore_eos": True})
        return [choice.text for choice in answer.choices]

    first = sample(11)
    assert len(first) == 4 and len(set(first)) > 1
    assert sample(11) == first
    assert sample(12) != first


def test_choices_in_a_stream(client, model):
    texts = {}
    for chunk in ask(client, model, CODE, stream=True, n=3):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert sorted(texts) == [0, 1, 2]
    assert all("74912" in text for text in texts.values())


def test_stop_strings_never_show(client, model):
    answer = ask(client, model, CODE, stop=["749"]).choices[0]
    assert answer.finish_reason == "stop" and "749" not in answer.message.content
    pieces = [c.choices[0].delta.content or "" for c in ask(client, model, CODE, stop=["749"], stream=True)]
    assert "".join(pieces) == answer.message.content


def test_max_tokens(client, model):
    answer = ask(client, model, CODE, max_tokens=3)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 3


def test_errors_are_the_clients_exceptions(client, model):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        ask(client, "no-such-model", "x")
    with pytest.raises(openai.BadRequestError) as bad:
        ask(client, model, "x", temperature=-1)
    assert bad.value.param == "temperature" and bad.value.response.headers["x-request-id"]
    with pytest.raises(openai.BadRequestError) as long:
        ask(client, model, "word " * 200_000)
    assert long.value.code == "context_length_exceeded"
    assert long.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as stops:
        ask(client, model, "x", stop=["x"] * 17)
    assert stops.value.param == "stop"
    with pytest.raises(openai.BadRequestError, match="temperature is near") as typo:
        ask(client, model, "x", extra_body={"temprature": 0})
    assert typo.value.param == "temprature"
    with pytest.raises(openai.BadRequestError) as spaces:
        ask(client, model, " " * 4_500_000)  # more tokens than the context, in one run
    assert spaces.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="tools"):
        ask(client, model, "x", tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(openai.BadRequestError, match="response_format"):
        ask(client, model, "x", response_format={"type": "xml"})
    assert "74912" in ask(client, model, CODE).choices[0].message.content


def test_cancellation_frees_the_pages(server, client, model):
    stream = ask(client, model, CODE, stream=True, max_tokens=3000, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert wait_until(lambda: server.metric("fovea_requests_running") == 1)  # published after the step's events
    stream.close()
    assert wait_until(lambda: server.metric("fovea_requests_running") == 0)
    assert server.metric('fovea_requests_total{outcome="cancelled"}') >= 1
    assert wait_until(lambda: server.metric("fovea_kv_usage_ratio") == 0)


def test_many_at_once_share_the_document(server, client, model):
    ask(client, model, CODE)
    before = [server.metric(f"fovea_kv_bytes_{kind}_total") for kind in ("read", "unshared")]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: ask(client, model, (CODE, KEEPER)[i % 2]), range(16)))
    for i, answer in enumerate(answers):
        assert ("74912", "Marisol")[i % 2] in answer.choices[0].message.content
    after = [server.metric(f"fovea_kv_bytes_{kind}_total") for kind in ("read", "unshared")]
    # On a GPU so little is read faster by each for itself.
    assert server.device != devices.CPU or after[0] - before[0] < after[1] - before[1]


def test_metrics_are_well_formed(server):
    text = server.get("/metrics")
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \S+ .+|[a-z_]+(\{[^{}]*\})? (\d\S*|\+Inf|NaN)", line), line
    assert server.metric("fovea_time_to_first_token_seconds_count") > 0


def test_key_is_asked_for():
    server = Server("--api-key", "secret")
    try:
        with pytest.raises(openai.AuthenticationError):
            server.client(api_key="wrong").models.list()
        assert server.client(api_key="secret").models.list().data
        assert '"ok"' in server.get("/health")
    finally:
        assert server.stop() == 0


def test_stream_interval_puts_more_tokens_into_an_event():
    server = Server("--stream-interval", "4")
    try:
        client = server.client()
        name = client.models.list().data[0].id
        whole = ask(client, name, CODE).choices[0].message.content
        for stream in (ask(client, name, CODE, stream=True, logprobs=True),
                       client.completions.create(model=name, prompt=[5, 6, 7], max_tokens=14, stream=True, logprobs=1,
                                                 temperature=0, extra_body={"ignore_eos": True})):
            chunks = list(stream)
            chat = chunks[0].object == "chat.completion.chunk"
            tokens = [c.choices[0].logprobs for c in chunks]
            counts = [len(found.content if chat else found.tokens) for found in tokens if found]
            assert counts[0] == 1 and all(count == 4 for count in counts[1:-1]) and counts[-1] <= 4, counts
            if chat:
                assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
            assert chunks[-1].choices[0].finish_reason == ("stop" if chat else "length")
    finally:
        assert server.stop() == 0


def test_overload_is_a_rate_limit_error():
    server = Server("--max-running", "1", "--max-queued", "1")
    try:
        client = server.client()
        name = client.models.list().data[0].id
        streams = []
        with pytest.raises(openai.RateLimitError) as refused:
            for _ in range(8):
                streams.append(ask(client, name, CODE, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}))
        assert refused.value.response.headers["retry-after"]
        for stream in streams:
            stream.close()
    finally:
        assert server.stop() == 0


def test_drains_on_sigterm():
    server = Server()
    client = server.client()
    name = client.models.list().data[0].id
    stream = iter(ask(client, name, CODE, stream=True, max_tokens=400, extra_body={"ignore_eos": True}))
    next(stream)
    server.process.send_signal(signal.SIGTERM)
    rest = list(stream)
    assert rest[-1].choices[0].finish_reason == "length"
    assert server.process.wait(60) == 0
