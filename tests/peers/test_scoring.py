"""Scores of prompts through the official client: as lm-eval's local-completions asks for them, as vLLM's prompt_logprobs, and
both against what the model gives when each token is forced upon it.
"""

import openai
import pytest
from test_openai import CODE, DOCUMENT

SERVER_OPTIONS = ("--batch-invariant", "--chunk-tokens", "96", "--speculate", "ngram")


@pytest.fixture(scope="module")
def ids(server):
    return openai.OpenAI(base_url=server.url, api_key="none").post(
        "/tokenize", body={"prompt": DOCUMENT + "What is the code of the amber lantern?"}, cast_to=object)["tokens"]


def complete(client, model, prompt, **options):
    return client.completions.create(model=model, prompt=prompt, **{"temperature": 0, "max_tokens": 1, **options})


def test_lm_evals_request(client, model, ids):
    batch = [ids, ids[:40], ids[:1]]
    answer = complete(client, model, batch, logprobs=1, echo=True, seed=1234)
    for prompt, choice in zip(batch, sorted(answer.choices, key=lambda choice: choice.index)):
        scores = choice.logprobs
        assert len(scores.token_logprobs) == len(scores.top_logprobs) == len(scores.tokens) == len(prompt) + 1
        assert len(scores.text_offset) == len(prompt) + 1 and scores.text_offset[0] == 0
        assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None
        for own, top in zip(scores.token_logprobs[1:], scores.top_logprobs[1:]):
            assert own <= max(top.values()) and own < 0.01  # bit-equal where it is the likeliest
        assert scores.token_logprobs[-1] == max(scores.top_logprobs[-1].values())
        assert choice.text.startswith(choice.text[:scores.text_offset[-1]])


def test_scores_are_those_of_forced_tokens(client, model, ids):
    count = 24
    scores = complete(client, model, ids[:count], logprobs=2, echo=True, max_tokens=0).choices[0]
    assert scores.finish_reason == "length" and len(scores.logprobs.token_logprobs) == count
    for i in range(1, count):
        forced = complete(client, model, ids[:i], logprobs=0, logit_bias={str(ids[i]): 100}).choices[0].logprobs
        assert forced.token_logprobs == [scores.logprobs.token_logprobs[i]]
        assert forced.tokens == [scores.logprobs.tokens[i]]


def test_the_same_whatever_is_cached_whole_or_streamed(client, model, ids):
    first = complete(client, model, ids, logprobs=1, echo=True, max_tokens=4)
    assert complete(client, model, ids).usage.prompt_tokens_details.cached_tokens > 0
    again = complete(client, model, ids, logprobs=1, echo=True, max_tokens=4)
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    assert again.choices[0].logprobs == first.choices[0].logprobs and again.choices[0].text == first.choices[0].text
    text, tokens, logprobs = "", [], []
    for chunk in complete(client, model, ids, logprobs=1, echo=True, max_tokens=4, stream=True):
        text += chunk.choices[0].text
        if chunk.choices[0].logprobs:
            tokens += chunk.choices[0].logprobs.tokens
            logprobs += chunk.choices[0].logprobs.token_logprobs
    assert (text, tokens) == (first.choices[0].text, first.choices[0].logprobs.tokens)
    assert logprobs == first.choices[0].logprobs.token_logprobs


def test_choices_echo_the_same_scores(client, model, ids):
    choices = complete(client, model, [ids[:30], ids[:50]], logprobs=0, echo=True, n=2, temperature=3, seed=7).choices
    assert [len(choice.logprobs.tokens) for choice in choices] == [31, 31, 51, 51]
    for one, other in (choices[:2], choices[2:]):
        assert one.logprobs.token_logprobs[:-1] == other.logprobs.token_logprobs[:-1]


def test_prompt_logprobs(client, model, ids):
    scores = complete(client, model, ids[:20], logprobs=2, echo=True, max_tokens=0).choices[0].logprobs
    answer = complete(client, model, ids[:20], extra_body={"prompt_logprobs": 2}).choices[0]
    assert answer.prompt_logprobs[0] is None and len(answer.prompt_logprobs) == 20
    for i in range(1, 20):
        entry = answer.prompt_logprobs[i]
        assert entry[str(ids[i])]["logprob"] == scores.token_logprobs[i]
        assert len(entry) in (2, 3) and {1, 2} <= {one["rank"] for one in entry.values()}
    bare = complete(client, model, ids[:20], extra_body={"prompt_logprobs": 0}).choices[0].prompt_logprobs
    for i in range(1, 20):
        assert bare[i] == {str(ids[i]): answer.prompt_logprobs[i][str(ids[i])]} and bare[i][str(ids[i])]["rank"] >= 1
    chat = client.chat.completions.create(model=model, messages=[{"role": "user", "content": CODE}], max_tokens=32,
                                          temperature=0, extra_body={"prompt_logprobs": 0})
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens and "74912" in chat.choices[0].message.content
    assert all(len(entry) == 1 for entry in chat.prompt_logprobs[1:])


def test_echo_alone(client, model):
    assert complete(client, model, "The code", echo=True, max_tokens=0).choices[0].text == "The code"


def test_what_cannot_be_is_refused(client, model, ids):
    for field, options in (("max_tokens", {"max_tokens": 0}), ("logprobs", {"echo": True, "logprobs": 21}),
                           ("prompt_logprobs", {"extra_body": {"prompt_logprobs": -1}}),
                           ("prompt_logprobs", {"extra_body": {"prompt_logprobs": 21}}),
                           ("prompt_logprobs", {"extra_body": {"prompt_logprobs": 1}, "stream": True}),
                           ("n", {"max_tokens": 0, "echo": True, "n": 2})):
        with pytest.raises(openai.BadRequestError) as refused:
            complete(client, model, ids[:5], **options)
        assert refused.value.param == field, options
