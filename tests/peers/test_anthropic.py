"""Anthropic's official client against a live `fovea serve`: messages, streams, tools, counts, errors."""

import json

import anthropic
import jsonschema
import pytest
from test_openai import CODE, DOCUMENT, Server
from test_tools import PARAMETERS

SERVER_OPTIONS = ("--tool-parser", "hermes", "--served-model-name", "needle", "--served-model-name", "claude-test")
TOOLS = [{"name": "get_weather", "description": "The weather.", "input_schema": PARAMETERS},
         {"name": "now", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}]


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)


def ask(client, content, **options):
    return client.messages.create(model="claude-test", messages=[{"role": "user", "content": content}],
                                  **{"max_tokens": 32, "extra_body": {"temperature": 0}, **options})


def test_answers(client):
    message = ask(client, CODE, system="Answer from the document.")
    assert "74912" in message.content[0].text and message.stop_reason == "end_turn" and message.model == "claude-test"
    assert message.id.startswith("msg_") and message._request_id
    again = ask(client, CODE, system="Answer from the document.")
    assert again.usage.cache_read_input_tokens > 0
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == message.usage.input_tokens + (
        message.usage.cache_read_input_tokens)


def test_streams_the_same(client):
    whole = ask(client, CODE)
    with client.messages.stream(model="claude-test", max_tokens=32, messages=[{"role": "user", "content": CODE}],
                                extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == "end_turn" and final.usage.output_tokens == whole.usage.output_tokens


def test_turns_and_blocks(client):
    answer = client.messages.create(
        model="claude-test", max_tokens=32, extra_body={"temperature": 0}, system=[{"type": "text", "text": "Be brief."}],
        messages=[{"role": "user", "content": [{"type": "text", "text": DOCUMENT, "cache_control": {"type": "ephemeral"}},
                                               {"type": "text", "text": "What is the code of the amber lantern?"}]},
                  {"role": "assistant", "content": [{"type": "text", "text": "74912"}]},
                  {"role": "user", "content": "Who is the keeper of the northern gate?"}])
    assert "Marisol" in answer.content[0].text


def test_goes_on_with_the_last_message(client):
    whole = ask(client, CODE).content[0].text
    rest = client.messages.create(model="claude-test", max_tokens=32, extra_body={"temperature": 0}, messages=[
        {"role": "user", "content": CODE}, {"role": "assistant", "content": whole[:8].rstrip()}])
    assert (whole[:8].rstrip() + rest.content[0].text).strip() == whole.strip()


def test_calls(client):
    options = {"tools": TOOLS, "max_tokens": 400, "tool_choice": {"type": "tool", "name": "get_weather"},
               "extra_body": {"temperature": 1.5, "seed": 3}}
    message = ask(client, "Hi.", **options)
    [call] = message.content
    assert call.type == "tool_use" and message.stop_reason == "tool_use"
    jsonschema.validate(call.input, PARAMETERS)
    with client.messages.stream(model="claude-test", messages=[{"role": "user", "content": "Hi."}], **options) as stream:
        pieces = "".join(e.delta.partial_json for e in stream
                         if e.type == "content_block_delta" and e.delta.type == "input_json_delta")
        [streamed] = stream.get_final_message().content
    assert json.loads(pieces) == streamed.input == call.input
    answer = client.messages.create(model="claude-test", max_tokens=8, tools=TOOLS, messages=[
        {"role": "user", "content": "Hi."}, {"role": "assistant", "content": [call.to_dict()]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "9 C"}]}])
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_stops(client):
    assert ask(client, CODE, max_tokens=3).stop_reason == "max_tokens"
    message = ask(client, CODE, stop_sequences=["912"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "912")
    assert ask(client, CODE, max_tokens=10_000_000).stop_reason == "end_turn"  # more than the context holds


def test_counts_tokens(client):
    count = client.messages.count_tokens(model="claude-test", messages=[{"role": "user", "content": CODE}])
    usage = ask(client, CODE).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_are_the_clients_exceptions(server, client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="no", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    with pytest.raises(anthropic.BadRequestError, match="temprature") as refused:
        ask(client, "x", extra_body={"temprature": 1})
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError, match="tokens"):
        ask(client, "word " * 200_000)
    locked = Server("--api-key", "secret")
    try:
        assert anthropic.Anthropic(base_url=locked.url, api_key="secret").messages.count_tokens(
            model="needle", messages=[{"role": "user", "content": "x"}]).input_tokens > 0
        assert anthropic.Anthropic(base_url=locked.url, api_key=None, auth_token="secret").messages.count_tokens(
            model="needle", messages=[{"role": "user", "content": "x"}]).input_tokens > 0
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=locked.url, api_key="wrong", max_retries=0).messages.count_tokens(
                model="needle", messages=[{"role": "user", "content": "x"}])
    finally:
        assert locked.stop() == 0
