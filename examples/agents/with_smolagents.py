"""smolagents: an agent that calls tools, or with the argument `code` one that acts by Python code."""

import json
import os
import sys

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


task = json.load(sys.stdin)
kind = CodeAgent if "code" in sys.argv else ToolCallingAgent
agent = kind([add], OpenAIModel(os.environ["OPENAI_MODEL"]), max_steps=2, verbosity_level=0)
print(json.dumps({"answer": str(agent.run(task["prompt"]))}))
