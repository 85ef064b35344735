"""An agent program: it asks the model, asks again where it finds no answer, and prints what it found. Train its model, from votes alone:

skillttrl train quickstart --agent "python examples/agent_program.py" --set rl.steps=2 --set rl.prompts_per_step=4
"""

import json
import os
import re
import sys
import urllib.request

TRIES = 2


def ask(messages):
    """One call of the model; any client of OpenAI's API does the same."""
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


if __name__ == "__main__":
    task = json.load(sys.stdin)
    for _ in range(TRIES):
        found = re.findall(r"<answer>(.+?)</answer>", ask(task["messages"]))
        if found:
            break
    print(json.dumps({"answer": found[-1] if found else None}))
