"""LangChain's and LiteLLM's clients: answers, streams, tools and answers by a schema, as these libraries ask for them."""

import os

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched
os.environ.setdefault("LANGSMITH_TRACING", "false")

import litellm
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from test_openai import Server

FACT = "The code of the amber lantern is 74912. What is the code of the amber lantern?"
ANSWER = "The code of the amber lantern is 74912."


class Weather(BaseModel):
    """The weather of a city."""
    city: str = Field(max_length=8)
    days: int = Field(ge=1, le=9)


@tool(args_schema=Weather)
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"9 C in {city} for {days} days"


@pytest.fixture(scope="module")
def server():
    one = Server("--tool-parser", "hermes")
    yield one
    assert one.stop() == 0


@pytest.fixture(scope="module")
def chat(server):
    return ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model="needle", temperature=0, max_tokens=200, max_retries=0)


def test_langchain_answers_and_streams(chat):
    messages = [SystemMessage("Answer."), HumanMessage(FACT)]
    whole = chat.invoke(messages)
    assert ANSWER in whole.content and whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream(messages)) == whole.content
    assert [answer.content for answer in chat.batch([messages, messages])] == [whole.content] * 2


def test_langchain_tools_and_schemas(chat):
    called = chat.bind_tools([get_weather], tool_choice="any").invoke("Hi.")
    assert isinstance(called, AIMessage) and not called.invalid_tool_calls
    call = called.tool_calls[0]
    assert call["name"] == "get_weather" and isinstance(call["args"]["city"], str)
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert chat.bind_tools([get_weather]).invoke([HumanMessage("Hi."), called, *(
        ToolMessage("9 C", tool_call_id=one["id"]) for one in called.tool_calls)]).content
    for method in ("json_schema", "function_calling"):
        made = chat.with_structured_output(Weather, method=method).invoke("Hi.")
        assert isinstance(made, Weather), method


def ask(server, **options):
    return litellm.completion(model="openai/needle", api_base=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=200,
                              num_retries=0, messages=[{"role": "user", "content": FACT}], **options)


def test_litellm_answers_and_streams(server):
    whole = ask(server)
    assert ANSWER in whole.choices[0].message.content and whole.usage.completion_tokens > 0
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(server, stream=True) if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


def test_litellm_tools_and_errors(server):
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": Weather.model_json_schema()}}]
    call = ask(server, tools=tools, tool_choice="required").choices[0].message.tool_calls[0]
    Weather.model_validate_json(call.function.arguments)
    made = ask(server, response_format=Weather).choices[0].message.content
    Weather.model_validate_json(made)
    with pytest.raises(litellm.exceptions.BadRequestError, match="context holds"):
        litellm.completion(model="openai/needle", api_base=f"{server.url}/v1", api_key="none", num_retries=0,
                           messages=[{"role": "user", "content": "word " * 200_000}])
