"""The Responses API through the official client: whole and streamed, items sent back, tools, forms, refusals; and a turn as
Codex sends it.
"""

import json

import jsonschema
import openai
import pydantic
import pytest
from test_openai import CODE, DOCUMENT, Server
from test_tools import PARAMETERS

TOOLS = [{"type": "function", "name": "get_weather", "description": "The weather.", "parameters": PARAMETERS, "strict": True},
         {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}},
         {"type": "namespace", "name": "files", "description": "Files.", "tools": [
             {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {
                 "path": {"type": "string", "maxLength": 6}}, "required": ["path"], "additionalProperties": False}}]},
         {"type": "web_search"}]


@pytest.fixture(scope="module")
def client(device):
    one = Server("--tool-parser", "hermes")
    yield one.client()
    assert one.stop() == 0


def respond(client, model, given, **options):
    return client.responses.create(model=model, input=given, **{"temperature": 0, "max_output_tokens": 32, **options})


def test_answers_and_streams_the_same(client, model):
    whole = respond(client, model, CODE, instructions="Answer from the document.")
    assert "74912" in whole.output_text and whole.status == "completed" and whole.error is None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    assert whole.store is False and whole.tools == [] and whole.tool_choice == "auto" and whole.parallel_tool_calls
    text, final = "", None
    for number, event in enumerate(respond(client, model, CODE, instructions="Answer from the document.", stream=True)):
        assert event.sequence_number == number
        text += event.delta if event.type == "response.output_text.delta" else ""
        final = event.response if event.type == "response.completed" else final
    assert text == whole.output_text == final.output_text
    assert final.output[0].id.startswith("msg_") and final.id.startswith("resp_")


def test_the_clients_own_accumulation(client, model):
    with client.responses.stream(model=model, input=CODE, temperature=0, max_output_tokens=32) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert "74912" in final.output_text


def test_items_are_sent_back(client, model):
    first = respond(client, model, CODE)
    given = [{"role": "user", "content": CODE}, *[item.to_dict() for item in first.output],
             {"role": "user", "content": [{"type": "input_text", "text": "Who is the keeper of the northern gate?"}]}]
    assert "Marisol" in respond(client, model, given).output_text


def test_calls_are_forced_and_streamed(client, model):
    options = {"tools": TOOLS, "temperature": 1.5, "max_output_tokens": 400, "extra_body": {"seed": 3}}
    choice = {"type": "function", "name": "get_weather"}
    [call] = respond(client, model, "Hi.", tool_choice=choice, **options).output
    assert call.type == "function_call" and call.name == "get_weather" and call.call_id and call.id != call.call_id
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    events = list(respond(client, model, "Hi.", tool_choice=choice, stream=True, **options))
    pieces = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert pieces == done.arguments == call.arguments and done.name == "get_weather"
    assert [e.item for e in events if e.type == "response.output_item.done"] == events[-1].response.output
    call = None
    named = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "read", "namespace": "files"}]}
    for item in respond(client, model, "Hi.", tool_choice=named, parallel_tool_calls=False, **options).output:
        assert item.type == "function_call" and (item.name, item.namespace) == ("read", "files")
        call = item
    answer = respond(client, model, [{"role": "user", "content": "Hi."}, call.to_dict(),
                                     {"type": "function_call_output", "call_id": call.call_id, "output": "text"}], tools=TOOLS)
    assert answer.status in ("completed", "incomplete")


def test_custom_tools_take_text(client, model):
    events = list(respond(client, model, "Hi.", tools=TOOLS, tool_choice={"type": "custom", "name": "apply_patch"},
                          temperature=1.5, max_output_tokens=120, stream=True, extra_body={"seed": 5}))
    [done] = [event for event in events if event.type == "response.custom_tool_call_input.done"]
    item = events[-1].response.output[0]
    assert item.type == "custom_tool_call" and item.input == done.input
    assert "".join(e.delta for e in events if e.type == "response.custom_tool_call_input.delta") == done.input
    assert not item.input.startswith('{"input"')


def test_forms(client, model):
    class Event(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        day: int = pydantic.Field(ge=1, le=31)

    answer = client.responses.parse(model=model, input="When?", temperature=1.5, max_output_tokens=300, text_format=Event,
                                    extra_body={"seed": 2})
    assert isinstance(answer.output_parsed, Event)


def test_logprobs_and_lengths(client, model):
    answer = respond(client, model, CODE, max_output_tokens=3, top_logprobs=2, include=["message.output_text.logprobs"])
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert [len(entry.top_logprobs) for entry in answer.output[0].content[0].logprobs] == [2] * 3
    assert client.responses.create(model=model, input=[], max_output_tokens=1).usage.output_tokens == 1


def test_what_needs_a_store_is_refused(client, model):
    for field, value in (("previous_response_id", "resp_1"), ("conversation", "c"), ("background", True), ("temprature", 1)):
        with pytest.raises(openai.BadRequestError) as refused:
            respond(client, model, "x", extra_body={field: value})
        assert refused.value.param == field
    with pytest.raises(openai.NotFoundError):
        respond(client, "no-such-model", "x")


def test_a_turn_of_codex(client, model):
    """As recorded: tools in an item, no ids on items that come back, headers and hints that have no effect here."""
    body = {
        "model": model, "instructions": "You are a coding agent." * 50, "tool_choice": "auto", "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "thread-1", "service_tier": "auto",
        "text": {"verbosity": "medium"}, "client_metadata": {"originator": "codex"}, "max_output_tokens": 16,
        "input": [
            {"type": "additional_tools", "role": "developer", "tools": [
                {"type": "namespace", "name": "functions", "tools": [
                    {"type": "function", "name": "exec_command", "strict": False, "parameters": {
                        "type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}},
                    {"type": "custom", "name": "apply_patch", "format": {
                        "type": "grammar", "syntax": "lark", "definition": "start: \"x\""}}]},
                {"type": "namespace", "name": "mcp__docs", "tools": [{"type": "function", "name": "search"}]},
                {"type": "tool_search", "execution": "client", "description": "d", "parameters": {"type": "object"}}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Permissions."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": DOCUMENT}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAAABo"},
            {"type": "message", "role": "assistant", "content": [], "phase": "commentary"},
            {"type": "function_call", "name": "exec_command", "arguments": "{\"cmd\": ", "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "Exit code: 0"},
            {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch", "call_id": "call_2"},
            {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "done"}]},
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "After compaction."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is the code?"}]}]}
    events = list(client.responses.create(**{k: v for k, v in body.items() if k != "client_metadata"}, extra_headers={
        "session-id": "s", "x-codex-turn-metadata": "{}"}, extra_body={"client_metadata": body["client_metadata"]}))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.model == model
