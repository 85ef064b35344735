"""An agent without any library: the model may call a calculator, and sees its result. docs/agents.md trains it."""

import json
import os
import sys
from urllib.request import Request, urlopen

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOL = {"name": "calculator", "description": "Multiply two numbers.", "parameters": PARAMETERS}


def chat(messages):
    body = {
        "model": os.environ["OPENAI_MODEL"],
        "messages": messages,
        "tools": [{"type": "function", "function": TOOL}],
    }
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as reply:
        return json.load(reply)["choices"][0]["message"]


def calculate(name, arguments):
    if name != "calculator":
        return f"Error: there is no tool '{name}'. Known: calculator."
    try:
        a, b = json.loads(arguments)["expression"].split("*")
        return str(int(a) * int(b))
    except (ValueError, LookupError, TypeError, AttributeError):
        return "Error: not arithmetic"


messages = json.load(sys.stdin)["messages"]
said = chat(messages)
if calls := said.get("tool_calls"):
    results = [(each["id"], calculate(each["function"]["name"], each["function"]["arguments"])) for each in calls]
    messages += [said, *({"role": "tool", "tool_call_id": each, "content": text} for each, text in results)]
    said = chat(messages)
print(json.dumps({"answer": said["content"]}))
