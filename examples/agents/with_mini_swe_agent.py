"""mini-swe-agent: its default agent and prompts, two steps, in a shell that runs nothing of what a small model writes."""

import json
import os
import sys

os.environ |= {
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models import get_model


class Still(LocalEnvironment):
    def execute(self, action, cwd="", *, timeout=None):
        return {"output": "", "returncode": 0, "exception_info": ""}


config = get_config_from_spec("default")
model = get_model(f"openai/{os.environ['OPENAI_MODEL']}", config["model"] | {"model_class": "litellm_textbased"})
settings = {name: config["agent"][name] for name in ("system_template", "instance_template")}
agent = DefaultAgent(model, Still(), **settings, step_limit=2)
agent.run(json.load(sys.stdin)["prompt"])
said = [each["extra"]["response"]["choices"][0] for each in agent.messages if "response" in each.get("extra", {})]
print(json.dumps({"answer": said[-1]["message"]["content"] or "?"}))
