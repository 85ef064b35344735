"""openai-agents: an agent with a tool, streamed; by chat completions, since its default is the Responses API."""

import asyncio
import json
import os
import sys

from agents import Agent, AgentsException, Runner, function_tool, set_default_openai_api, set_tracing_disabled  # noqa: TID251


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main(question: str) -> str:
    agent = Agent("solver", instructions="Be brief.", model=os.environ["OPENAI_MODEL"], tools=[add])
    run = Runner.run_streamed(agent, question, max_turns=2)
    try:
        async for _ in run.stream_events():
            pass
    except AgentsException:  # a tool that is none, or too many turns
        return "?"
    return str(run.final_output)


set_default_openai_api("chat_completions")
set_tracing_disabled(True)
print(json.dumps({"answer": asyncio.run(main(json.load(sys.stdin)["prompt"]))}))
