"""Calls of tools through the official client. The embedded model was never taught to call, so the grammar makes it: in the
format of each family, whole and as a stream.
"""

import json

import jsonschema
import openai
import pytest
from test_openai import Server, ask

PARAMETERS = {"type": "object", "properties": {
    "city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
    "units": {"enum": ["C", "F"]}}, "required": ["city", "units"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}},
         {"type": "function", "function": {"name": "now"}}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module", params=["hermes", "llama3_json", "mistral", "qwen3_coder"])
def client(request, device):
    one = Server("--tool-parser", request.param)
    yield one.client()
    assert one.stop() == 0


def check(name, arguments):
    jsonschema.validate(json.loads(arguments), PARAMETERS if name == "get_weather" else {"maxProperties": 0})


def test_calls_are_forced(client, model):
    options = {"tools": TOOLS, "temperature": 1.5, "max_tokens": 400}
    for seed in range(3):
        for choice in ask(client, model, "Hi.", tool_choice=NAMED, seed=seed, n=2, **options).choices:
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            [call] = choice.message.tool_calls
            assert call.id and call.type == "function" and call.function.name == "get_weather"
            check(call.function.name, call.function.arguments)
    [call] = ask(client, model, "Hi.", tool_choice="required", seed=5, parallel_tool_calls=False,
                 **options).choices[0].message.tool_calls
    check(call.function.name, call.function.arguments)
    answer = client.chat.completions.create(model=model, temperature=0, max_tokens=8, tools=TOOLS, messages=[
        {"role": "user", "content": "Hi."}, {"role": "assistant", "content": None, "tool_calls": [call.to_dict()]},
        {"role": "tool", "tool_call_id": call.id, "content": "9 C"}])
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_streams_are_the_same_calls(client, model):
    options = {"tools": TOOLS, "tool_choice": "required", "temperature": 1.5, "seed": 3, "max_tokens": 400}
    whole = ask(client, model, "Hi.", **options).choices[0]
    calls, finish = [], None
    for chunk in ask(client, model, "Hi.", stream=True, **options):
        assert not chunk.choices[0].delta.content
        finish = chunk.choices[0].finish_reason or finish
        for piece in chunk.choices[0].delta.tool_calls or []:
            if piece.index == len(calls):
                assert piece.id and piece.type == "function"
                calls.append([piece.function.name, ""])
            calls[piece.index][1] += piece.function.arguments
    assert calls == [[call.function.name, call.function.arguments] for call in whole.message.tool_calls]
    assert finish == whole.finish_reason
    for name, arguments in calls[:None if finish == "tool_calls" else -1]:
        check(name, arguments)


def test_calls_beside_a_form(client, model):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS, "strict": True}}
    for seed in range(4):
        choice = ask(client, model, "Hi.", tools=TOOLS, response_format=form, temperature=1.5, seed=seed, max_tokens=400).choices[0]
        if choice.finish_reason == "length":
            continue
        for call in choice.message.tool_calls or []:
            check(call.function.name, call.function.arguments)
        if not choice.message.tool_calls:
            jsonschema.validate(json.loads(choice.message.content), PARAMETERS)


def test_schemas_that_cannot_be_kept_are_refused(client, model):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, model, "Hi.", tools=[tool], tool_choice="required")
    assert refused.value.param == "tools"


def test_other_tools_and_choices(client, model):
    custom = {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "text"}}}
    options = {"tools": [*TOOLS, custom], "temperature": 1.5, "max_tokens": 400, "seed": 6}
    choice = {"type": "custom", "custom": {"name": "apply_patch"}}
    whole = ask(client, model, "Hi.", tool_choice=choice, **options).choices[0]
    [call] = whole.message.tool_calls
    assert (call.type, call.custom.name) == ("custom", "apply_patch") and not call.custom.input.startswith("{")
    pieces = [chunk.choices[0].delta.tool_calls for chunk in ask(client, model, "Hi.", tool_choice=choice, stream=True, **options)]
    assert "".join(one[0].custom["input"] for one in pieces if one) == call.custom.input
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    for call in ask(client, model, "Hi.", tool_choice=allowed, parallel_tool_calls=False, **options).choices[0].message.tool_calls:
        assert call.function.name == "get_weather"
        check(call.function.name, call.function.arguments)
    answer = client.chat.completions.create(model=model, max_tokens=8, tools=options["tools"], messages=[
        {"role": "user", "content": "Hi."}, {"role": "assistant", "content": None, "tool_calls": [whole.message.tool_calls[0].to_dict()]},
        {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "done"}])
    assert answer.choices[0].message.role == "assistant"


def test_strict_tools_leave_the_model_its_choice(client, model):
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]
    text = "The code of the lamp is 5123. What is the code of the lamp?"
    free = ask(client, model, text, tools=TOOLS).choices[0].message.content
    assert ask(client, model, text, tools=strict).choices[0].message.content == free
