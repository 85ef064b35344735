"""`SkillTTRL/WebShop-v0`: buy what an instruction asks for, one search or click a step."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from skill_ttrl.envs.text_env import TextEnv, check_action, check_choice, check_episode, check_whole, reset_options
from skill_ttrl.envs.webshop.catalogue.catalogue import GENERATED, Progress, open_catalogue
from skill_ttrl.envs.webshop.goals import DEV_GOALS, SPLITS, TEST_GOALS, TRAIN_BOTH, GoalList
from skill_ttrl.envs.webshop.shop import MODES, Shop, ShopVisit, State, View, admissible, is_coded, shared_shop
from skill_ttrl.errors import EnvError
from skill_ttrl.types import Task

if TYPE_CHECKING:
    from skill_ttrl.envs.webshop.live import LiveVisit, ServerGoals

WEBSHOP_ENV_ID = "SkillTTRL/WebShop-v0"
MAX_STEPS = 15
"""Steps of an episode, as in SkillRL and verl-agent; the paper's agents had 100."""
_OPTIONS = ("task", "goal", "walkthrough", "ground_truth")


class WebShopEnv(TextEnv):
    """Shopping of WebShop in text: find and buy what an instruction asks for, among 1,000 to 1.18 million products.

    `reset(options={"task": id})` gives one goal; without, the seed draws one of the split by upstream's weights. Actions are
    `search[words]` and `click[what]`; any other text changes nothing, and so does a click on what the page does not show. Only
    `click[buy now]` ends an episode (`terminated`), with upstream's reward in [0, 1]; `truncated` after `max_steps`.

    `info` has `task` (the instruction), `task_type` (the goal's category), `goal` (its number in the fixed order; its id would name
    the product), `admissible_commands` (a search stands there as "search[<your query>]"), `available_actions` (upstream's), `won`
    (bought with reward 1), `score` (upstream's reward, whatever `reward` and `partial` say), `exploits` (searches with
    upstream's query codes so far), `state` (see `text_env`) and `source`; after a purchase also the parts of the reward, see `reward.PurchaseReward`. With
    `options={"walkthrough": True}` also `walkthrough`: the actions of an oracle that knows the goal, which no agent may.

    Products, index and goals are kept once on a machine and mapped into memory. An environment pickles in mid-episode.

    Args:
        data: the folder of the official files, the path of their file of products, `official` for those of `$WEBSHOP_DATA` and no
            others, `generated` for this package's own shop, or `http://host:port` for a running official server (see `live`). None: `$WEBSHOP_DATA` where it is set, else
            `generated`.
        split: `train`, `dev`, `test`, or `train_both` (train by goal and by product), of which seeds draw.
        split_by: `goal`: upstream's ranges; `product`: no product on two sides. See `goals.GoalList.split`.
        goals: `synthetic`, `human`, or `auto`: human ones where there are enough for every split; see `Catalogue.goals`.
        observation_mode: `text`, `text_rich` or `url`, as upstream's.
        max_steps: steps of an episode.
        reward: of a perfect purchase; others are its fractions.
        partial: share of its score that a purchase is paid that is not perfect: True, all of it; False, nothing (SkillRL: reward 10, partial
            False); 0.5 pays half for the score and half for success.
        show_attributes: products show the attributes that the reward looks at (upstream's `show_attrs`).
        server_goals: how many goals a running server has; the split `train` needs it.

    Raises:
        EnvError: there is no such catalogue, or an argument is not known.
    """

    config_defaults: ClassVar[Mapping[str, Any]] = {
        "agent.template": "webshop",
        "agent.context_mode": "window",
        "agent.action_parser": "action",
        "agent.max_turns": MAX_STEPS,
        "data.max_prompt_tokens": 6000,
        "rl.reward": "env",
    }
    splits = (*SPLITS, TRAIN_BOTH)

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        split: str = "train",
        split_by: str = "goal",
        goals: str = "auto",
        observation_mode: str = "text",
        max_steps: int = MAX_STEPS,
        reward: float = 1.0,
        partial: bool | float = True,
        show_attributes: bool = False,
        server_goals: int | None = None,
    ) -> None:
        super().__init__()
        _check(observation_mode, partial, max_steps=max_steps, reward=reward)
        self.split, self.split_by = split, split_by
        self.shop: Shop | None = None
        self.goals: GoalList | ServerGoals
        self._visit: ShopVisit | LiveVisit
        self._kind, self._mode, self._show_attributes = goals, observation_mode, show_attributes
        if _is_server(data):
            from skill_ttrl.envs.webshop.live import LiveVisit, ServerGoals  # others need no client

            self._data, self.source, self.expensive = str(data), f"server {data}", True
            self.goals = ServerGoals(self._data, TEST_GOALS + DEV_GOALS if server_goals is None else server_goals)
            self._visit = LiveVisit(self._data, observation_mode)
        else:
            self._data = self._enter(data)
        self.max_steps, self.reward, self.partial = max_steps, float(reward), float(partial)
        self._numbers = self.goals.split(split, split_by)
        self._number = 0
        self._begun: dict[str, Any] = {}
        self._view: View | None = None
        self._steps = self._coded = 0

    def _enter(self, data: str | os.PathLike[str] | None) -> str:
        """Open a catalogue and a visit to its shop; gives what `open_catalogue` takes to open it again."""
        catalogue = open_catalogue(data)
        self.goals = catalogue.goals(self._kind)
        self.shop = shared_shop(catalogue.store, self._show_attributes)
        self._visit = ShopVisit(self.shop, self._mode)
        self.source = f"{catalogue.source}, {self.goals.kind} goals by {self.split_by}, nouns by rule"
        return GENERATED if catalogue.files is None else str(catalogue.files.products)

    def __getstate__(self) -> dict[str, Any]:
        """Without the catalogue, which is mapped: the process that reads it opens its own."""
        state = dict(self.__dict__)
        if isinstance(self._visit, ShopVisit):
            del state["shop"], state["goals"], state["_numbers"]
            state["_visit"] = self._visit.state
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self._visit, State):
            at = self._visit
            self._enter(self._data)
            self._numbers = self.goals.split(self.split, self.split_by)
            if self._view is not None and isinstance(self._visit, ShopVisit):
                self._visit.resume(self.goals[self._number], str(self._number), at)

    @classmethod
    def prepare(cls, progress: Progress, data: str | os.PathLike[str] | None = None, **others: Any) -> None:
        """Read or make the catalogue, which takes seconds to minutes the first time; see `skill_ttrl.envs.prepare_env`.

        A running server is asked for a page: where it does not answer, that is said now, and not by every episode.

        Raises:
            EnvError: see the environment.
        """
        _check(**others)
        if _is_server(data):
            from skill_ttrl.envs.webshop.live import LiveVisit

            LiveVisit(str(data)).start(0)
        else:
            open_catalogue(data, progress)

    def tasks(self, split: str | None = None) -> list[Task]:
        """The goals of a split in their fixed order, or of the environment's own split; see `TextEnv.tasks`."""
        numbers = self._numbers if split is None else self.goals.split(split, self.split_by)
        goals, split = (self.goals[int(number)] for number in numbers), self.split if split is None else split
        return [
            Task(goal.id, WEBSHOP_ENV_ID, options={"task": goal.id}, split=split, task_type=goal.category)
            for goal in goals
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: draws a goal where none is given.
            options: `task`, the id of a goal of any split; or `goal`, its number in the fixed order; `walkthrough`, whether
                `info` has one. `ground_truth` means nothing here.

        Raises:
            EnvError: an option is not known, there is no such goal, or a running server does not answer.
        """
        super().reset(seed=seed)
        asked = reset_options(WEBSHOP_ENV_ID, options, _OPTIONS)
        number = self._number = self._asked_number(asked)
        goal = self.goals[number]
        if isinstance(self._visit, ShopVisit):
            instruction, self._view = self._visit.start(goal, str(number))
        else:
            instruction, self._view = self._visit.start(number)
        self._begun = {"task": instruction, "task_type": goal.category, "goal": number, "source": self.source}
        self._steps = self._coded = 0
        info = self._info()
        if asked.get("walkthrough"):
            if self.shop is None or not isinstance(self.goals, GoalList):
                raise EnvError("A running server does not reveal its goals, so there is no walkthrough.")
            from skill_ttrl.envs.webshop.solve import solve

            info["walkthrough"] = list(solve(self.shop, self.goals[number], self.max_steps))
        return self._view.observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One search or click; any text. Once the episode is over, nothing changes and nothing is paid.

        Raises:
            EnvError: `action` is no `str`, there was no `reset` before, or a running server does not answer.
        """
        check_action(WEBSHOP_ENV_ID, action)
        if self._view is None:
            raise EnvError("step was called before reset.")
        if self._view.score is not None or self._steps >= self.max_steps:  # over: nothing is bought or paid any more
            bought = self._view.score is not None
            return self._view.observation, 0.0, bought, not bought, self._info()
        self._view = self._visit.act(action)
        self._steps += 1
        self._coded += is_coded(action)
        score = self._view.score
        bought = score is not None
        earned = 0.0 if score is None else self.reward * score * (1.0 if score == 1.0 else self.partial)
        return self._view.observation, earned, bought, not bought and self._steps >= self.max_steps, self._info()

    def close(self) -> None:
        """Let go of the episode; `reset` begins another."""
        self._view = None

    def _asked_number(self, asked: Mapping[str, Any]) -> int:
        if asked.get("task") is not None and asked.get("goal") is not None:
            raise EnvError("Name a goal by `task` (its id) or by `goal` (its number), not both.")
        if asked.get("task") is not None:
            if not isinstance(asked["task"], str):
                raise EnvError(
                    f"The option task is a goal's id, a text, found {asked['task']!r:.60}. To use a number: goal."
                )
            return self.goals.find(asked["task"])
        if asked.get("goal") is not None:
            return check_whole("The option goal", asked["goal"], 0, len(self.goals) - 1)
        return self.goals.draw(float(self.np_random.random()), self.split, self.split_by)

    def _info(self) -> dict[str, Any]:
        assert self._view is not None
        view = self._view
        shown = list(view.clickables)
        return {
            **self._begun,
            "admissible_commands": admissible(shown, view.search_bar),
            "available_actions": {"has_search_bar": view.search_bar, "clickables": shown},
            "won": view.score == 1.0,
            "score": view.score or 0.0,
            "exploits": self._coded,
            "state": view.state,
            **view.parts,
        }


def _is_server(data: object) -> bool:
    return isinstance(data, str) and data.startswith(("http://", "https://"))


def _check(observation_mode: object = "text", partial: object = True, **others: object) -> None:
    """Check the arguments that take no catalogue to be checked; others than those are not looked at."""
    check_choice("observation mode", observation_mode, MODES)
    check_episode(**others)
    if not isinstance(partial, bool | int | float) or not 0 <= partial <= 1:
        raise EnvError(f"partial must be True, False or a share from 0 to 1, found {partial!r:.60}.")
