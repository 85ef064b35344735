"""pydantic-ai: an agent with a tool and a limit of requests."""

import json
import os
import sys

from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.usage import UsageLimits

agent = Agent(f"openai-chat:{os.environ['OPENAI_MODEL']}", instructions="Be brief.")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


task = json.load(sys.stdin)
try:
    answer = agent.run_sync(task["prompt"], usage_limits=UsageLimits(request_limit=2)).output
except (UnexpectedModelBehavior, UsageLimitExceeded):
    answer = "?"
print(json.dumps({"answer": answer}))
