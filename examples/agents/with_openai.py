"""The openai SDK alone: one streamed call with two messages, then one that continues them."""

import json
import os
import sys

import openai

task = json.load(sys.stdin)
client = openai.OpenAI(max_retries=0)
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": task["prompt"]}]
said = ""
for chunk in client.chat.completions.create(
    model=os.environ["OPENAI_MODEL"], messages=messages, stream=True, stream_options={"include_usage": True}
):
    said += (chunk.choices[0].delta.content or "") if chunk.choices else ""
messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Only the number, please."}]
last = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, max_tokens=8, logprobs=True)
assert last.choices[0].logprobs
print(json.dumps({"answer": last.choices[0].message.content}))
