"""Answers in a given form, through the official client: whatever the embedded model is made to say at temperature 1.5, it
says by the schema. Judged by the `jsonschema` package; forms other than JSON by Python's own `re`. FOVEA_TEST_SCHEMAS: how many
random schemas.
"""

import json
import os
import random
import re

import jsonschema
import openai
import pydantic
import pytest
from test_openai import ask

SCHEMAS = int(os.environ.get("FOVEA_TEST_SCHEMAS", "20"))


def scalar(rng):
    low = rng.randrange(-50, 50)
    return rng.choice([
        {"type": "boolean"}, {"type": "null"}, {"enum": ["red", "green", 7, None]}, {"const": "a \"quoted\" ü"},
        {"type": "integer", "minimum": low, "maximum": low + rng.randrange(200)},
        {"type": "string", "maxLength": rng.randrange(1, 9)}, {"type": "string", "pattern": "^[a-c]{2,5}$"},
        {"type": ["integer", "null"], "minimum": 0, "maximum": 9}, {"type": "string", "format": "date"},
    ])


def schema_of(rng, depth):
    """A random schema whose answers are short whatever is sampled."""
    kind = rng.randrange(4) if depth > 0 else 3
    if kind == 0:
        names = [f"key{i}" for i in range(rng.randrange(1, 5))]
        return {"type": "object", "properties": {name: schema_of(rng, depth - 1) for name in names},
                "required": [name for name in names if rng.random() < 0.6], "additionalProperties": False}
    if kind == 1:
        least = rng.randrange(3)
        return {"type": "array", "items": schema_of(rng, depth - 1), "minItems": least, "maxItems": least + rng.randrange(3)}
    if kind == 2:
        return {"anyOf": [schema_of(rng, depth - 1), scalar(rng)]}
    return scalar(rng)


def test_random_schemas_are_kept(client, model):
    rng = random.Random(15)
    for number in range(SCHEMAS):
        schema = {"type": "object", "properties": {"it": schema_of(rng, 3)}, "required": ["it"]}
        answer = ask(client, model, "Say something.", temperature=1.5, seed=number, n=2, max_tokens=4000,
                     response_format={"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}})
        for choice in answer.choices:
            assert choice.finish_reason == "stop", schema
            jsonschema.validate(json.loads(choice.message.content), schema)


def test_recursive_schema_and_streams(client, model):
    schema = {"$defs": {"node": {"type": "object", "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 99},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["value", "next"]}}, "$ref": "#/$defs/node"}
    options = {"temperature": 1.0, "seed": 4, "max_tokens": 2000,
               "response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": schema}}}
    whole = ask(client, model, "Say something.", **options).choices[0]
    pieces = [chunk.choices[0] for chunk in ask(client, model, "Say something.", stream=True, **options)]
    assert "".join(piece.delta.content or "" for piece in pieces) == whole.message.content
    assert pieces[-1].finish_reason == whole.finish_reason
    if whole.finish_reason == "stop":
        jsonschema.validate(json.loads(whole.message.content), schema)


def test_parsed_into_a_class(client, model):
    class Event(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=12)
        day: int = pydantic.Field(ge=1, le=31)
        kinds: list[bool] = pydantic.Field(max_length=3)

    answer = client.chat.completions.parse(model=model, messages=[{"role": "user", "content": "When?"}], temperature=1.5,
                                           seed=2, max_tokens=300, response_format=Event)
    assert isinstance(answer.choices[0].message.parsed, Event)


def test_other_forms(client, model):
    def text(**outputs):
        return ask(client, model, "Say something.", temperature=1.5, seed=1, max_tokens=300,
                   extra_body={"structured_outputs": outputs}).choices[0].message.content

    assert re.fullmatch(r"[0-9]{3}-(ab|c)+!", text(regex="[0-9]{3}-(ab|c){1,4}!"))
    assert text(choice=["Marisol", "the harbour"]) in ("Marisol", "the harbour")
    assert re.fullmatch(r"<(x|y)*>", text(grammar='root ::= "<" item{0,6} ">"\nitem ::= "x" | "y"'))
    answer = client.completions.create(model=model, prompt="It was", temperature=1.5, seed=3, max_tokens=50,
                                       extra_body={"guided_choice": ["one", "two"]})
    assert answer.choices[0].text in ("one", "two")


def test_what_cannot_be_kept_is_refused_by_name(client, model):
    def refusal(schema, **more):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, model, "x", response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}, **more)
        assert refused.value.param == "response_format"
        return str(refused.value)

    assert "uniqueItems" in refusal({"type": "array", "items": {}, "uniqueItems": True})
    assert "properties.a" in refusal({"type": "object", "properties": {"a": {"not": {}}}}, stream=True)
    assert "itself" in refusal({"$ref": "#"})
    assert "more than" in refusal({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(3000)}})
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, model, "x", extra_body={"structured_outputs": {"regex": "((a{100}){100}){100}"}})
    assert refused.value.param == "structured_outputs.regex"
