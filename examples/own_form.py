"""A form of one's own for observations and actions: a web shop in which results are numbers, and queries words of the task.

Run it: python examples/own_form.py. A config names it: agent.observations: own_form:FORM. Both functions see the scene alone.
"""

from __future__ import annotations

from skill_ttrl.agents.agent import AgentInput
from skill_ttrl.agents.observations import WORDS, Form, FormActions, Slot


def observe(scene: AgentInput) -> str:
    """The task as `word 1`, `word 2`; of a page its number of results."""
    results = sum(action.startswith("click[b") for action in scene.admissible_actions)
    return f"results {results}" if scene.steps else "<task> " + " ".join(words(scene))


def words(scene: AgentInput) -> dict[str, str]:
    """A number for each word of the task, which the first observation states."""
    first = scene.steps[0].observation if scene.steps else scene.observation
    return {f"word {place}": word for place, word in enumerate(dict.fromkeys(first.lower().split()), start=1)}


def actions(scene: AgentInput) -> FormActions:
    """Results by number, and a query in the words of the task. Actions that read the same go into `alike`."""
    results = [action for action in scene.admissible_actions if action.startswith("click[b")]
    slot = Slot(f"search {WORDS}", f"search[{WORDS}]", words(scene))
    return FormActions({f"result {place}": action for place, action in enumerate(results, start=1)}, slot)


FORM = Form(observe, actions, vocabulary=("search results word 1 word 64 result 1 result 50",))

if __name__ == "__main__":
    shop = AgentInput("Red mug", admissible_actions=("click[b09qqp3356]", "search[<your query>]"))
    form = FORM.actions(shop)
    print(FORM.observe(shop), "|", *form.choices, "|", form.write("click[b09qqp3356]"))
    print([form.read(answer) for answer in ("result 1", "search word 2 word 1", "result 2")])
