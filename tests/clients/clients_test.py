"""Frameworks against a live `fovea serve`, over the older openai package that they still ask for: LangChain's clients of both
APIs, LiteLLM's routes, and a loop of the Agents SDK. The embedded model was never taught to call tools: the grammar makes it.
"""

import asyncio

import agents
import litellm
import pydantic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from openai import AsyncOpenAI
from test_openai import CODE, KEEPER

ASK = [{"role": "user", "content": CODE}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}}}


LOOP = asyncio.new_event_loop()  # one for all: clients keep connections beyond a call


class Event(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    day: int = pydantic.Field(ge=1, le=31)


@tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"sunny in {city} for {days} days"


def langchain(url, **options):
    return ChatOpenAI(base_url=url + "/v1", api_key="none", model="needle", max_retries=0,
                      **{"temperature": 0, "max_tokens": 32, **options})


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_langchain_answers_and_streams(url, responses):
    model = langchain(url, use_responses_api=responses, stream_usage=True)
    whole = model.invoke(CODE)
    assert "74912" in whole.text and whole.usage_metadata["output_tokens"] > 3
    total = None
    for chunk in model.stream(CODE):
        total = chunk if total is None else total + chunk
    assert total.text == whole.text and total.usage_metadata == {**whole.usage_metadata, "input_token_details": total.usage_metadata[
        "input_token_details"]}
    assert [("74912" in answer.text, "Marisol" in answer.text) for answer in model.batch([CODE, KEEPER])] == [
        (True, False), (False, True)]
    assert LOOP.run_until_complete(model.ainvoke([HumanMessage(CODE), AIMessage(whole.text), HumanMessage("Who is the keeper of the northern "
                                                                                              "gate?")])).text


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
def test_langchain_calls_tools(url, responses):
    model = langchain(url, use_responses_api=responses, temperature=1.5, max_tokens=1500, extra_body={"seed": 4})
    model = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    answer = model.invoke("Hi.")
    [call] = answer.tool_calls
    assert call["name"] == "get_weather" and isinstance(call["args"]["days"], int)
    total = None
    for chunk in model.stream("Hi."):
        total = chunk if total is None else total + chunk
    assert [(one["name"], one["args"]) for one in total.tool_calls] == [(call["name"], call["args"])]
    result = ToolMessage(get_weather.invoke(call).content, tool_call_id=call["id"])
    assert isinstance(langchain(url, use_responses_api=responses).invoke([HumanMessage("Hi."), answer, result]), AIMessage)


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_langchain_structured_output(url, method):
    model = langchain(url, temperature=1.5, max_tokens=1500, seed=5).with_structured_output(Event, method=method, include_raw=True)
    answer = model.invoke("When, as JSON?")
    if method == "json_mode":  # an object, of whatever the model makes up
        assert answer["raw"].text.startswith("{")
    else:
        assert isinstance(answer["parsed"], Event)


def test_langchain_completions_and_messages(url):
    text = OpenAI(base_url=url + "/v1", api_key="none", model="needle", temperature=0, max_tokens=4, n=2, best_of=2)
    assert len(text.generate(["The code of", "It was"]).generations) == 2

    def messages(tokens, **sampling):
        return ChatAnthropic(base_url=url, api_key="none", model_name="needle", max_tokens=tokens, model_kwargs={"extra_body": sampling})

    model = messages(32, temperature=0)
    assert "74912" in model.invoke(CODE).text
    assert "74912" in "".join(chunk.text for chunk in model.stream(CODE))
    bound = messages(1500, temperature=1.5, seed=4).bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    [call] = bound.invoke("Hi.").tool_calls
    assert call["name"] == "get_weather" and "days" in call["args"]


@pytest.mark.parametrize("route", ["openai/needle", "hosted_vllm/needle"])
def test_litellm(url, route):
    options = {"model": route, "api_base": url + "/v1", "api_key": "none", "num_retries": 0, "timeout": 120}
    answer = litellm.completion(messages=ASK, temperature=0, max_tokens=32, **options)
    assert "74912" in answer.choices[0].message.content and answer.usage.completion_tokens > 3
    chunks = list(litellm.completion(messages=ASK, temperature=0, max_tokens=32, stream=True, stream_options={"include_usage": True},
                                     **options))
    assert litellm.stream_chunk_builder(chunks).choices[0].message.content == answer.choices[0].message.content
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        called = litellm.completion(messages=[{"role": "user", "content": "Hi."}], tools=[WEATHER], tool_choice=choice,
                                    parallel_tool_calls=False, max_tokens=400, seed=3, **options).choices[0]
        assert called.message.tool_calls[0].function.name == "get_weather" and called.finish_reason in ("tool_calls", "stop")
    formed = litellm.completion(messages=[{"role": "user", "content": "When?"}], response_format=Event, max_tokens=400, seed=3, **options)
    Event.model_validate_json(formed.choices[0].message.content)
    assert "74912" in LOOP.run_until_complete(litellm.acompletion(messages=ASK, temperature=0, max_tokens=32, **options)).choices[0].message.content
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=ASK, **{**options, "model": route.replace("needle", "other")})


def test_litellm_of_the_other_apis(url):
    answer = litellm.responses(model="openai/needle", input=CODE, api_base=url + "/v1", api_key="none", max_output_tokens=32, temperature=0)
    assert "74912" in answer.output[-1].content[0].text
    message = litellm.completion(model="anthropic/needle", messages=ASK, api_base=url, api_key="none", max_tokens=32, temperature=0)
    assert "74912" in message.choices[0].message.content


@pytest.mark.parametrize("model", [agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel])
def test_agents_loop(url, model):
    agents.set_tracing_disabled(True)
    cities = []

    @agents.function_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return "sunny"

    agent = agents.Agent(name="one", instructions="Be brief.", tools=[weather],
                         model=model(model="needle", openai_client=AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)),
                         model_settings=agents.ModelSettings(tool_choice="required", temperature=1.5, max_tokens=1500,
                                                             parallel_tool_calls=False, extra_body={"seed": 7}))
    result = LOOP.run_until_complete(agents.Runner.run(agent, "Hi.", max_turns=4))
    assert len(cities) == 1 and isinstance(result.final_output, str)

    async def streamed():
        run = agents.Runner.run_streamed(agent, "Hi.", max_turns=4)
        names = [event.name async for event in run.stream_events() if event.type == "run_item_stream_event"]
        return names

    names = LOOP.run_until_complete(streamed())
    assert names[:2] == ["tool_called", "tool_output"] and names[-1] == "message_output_created"
    assert cities[1] == cities[0]
