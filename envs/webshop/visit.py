"""One shopper's visit: what is seen at the start and after each action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from skill_ttrl.envs.webshop.goal import Goal
from skill_ttrl.envs.webshop.pages import Page, as_rich_text, as_text, clickables, has_search_bar
from skill_ttrl.envs.webshop.shop import Shop, State, digest, page_url
from skill_ttrl.errors import EnvError

MODES = ("text", "text_rich", "url")
"""Observation modes, upstream's."""


@dataclass(frozen=True, slots=True)
class View:
    """State of a visit as a shopper sees it."""

    observation: str
    """In the visit's mode."""
    clickables: tuple[str, ...]
    """Arguments of `click[...]`, in lower case and upstream's order; includes "search", which cannot be clicked."""
    search_bar: bool
    state: str
    """Digest of where the shopper stands (`shop.digest`)."""
    score: float | None = None
    """Upstream's reward in [0, 1], once something is bought; None before."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """Of the reward, by upstream's names, as far as they are known."""


class ShopVisit:
    """A visit to a shop of this process; `live.LiveVisit` is one to a running server.

    Args:
        shop: shared by all visits.
        mode: one of `MODES`.
    """

    def __init__(self, shop: Shop, mode: str = "text") -> None:
        self.shop, self.mode = shop, mode
        self._goal: Goal | None = None
        self._session = ""
        self.state = State()
        """Where the shopper stands."""
        self._page: Page = ()

    def start(self, goal: Goal, session: str) -> tuple[str, View]:
        """Enter with a goal; the instruction, and what is seen. The session stands in addresses; upstream's is the goal's number."""
        self.resume(goal, session, State())
        return goal.instruction, self._view()

    def resume(self, goal: Goal, session: str, state: State) -> None:
        """Stand where a visit with this goal has come to."""
        self._goal, self._session, self.state = goal, session, state
        self._page = self.shop.page(goal, state)

    def act(self, action: str) -> View:
        """Execute an action and return the new view. Any text is an action; one without a meaning here changes nothing.

        Raises:
            EnvError: `start` was not called before.
        """
        if self._goal is None:
            raise EnvError("step was called before reset.")
        state = self.shop.step(self._goal, self.state, self._page, action)
        if state is not self.state:
            self.state = state
            self._page = self.shop.page(self._goal, state)
        return self._view()

    def close(self) -> None:
        """Nothing is to let go of."""

    def _view(self) -> View:
        bought = self.state.bought
        return View(
            self._observation(),
            tuple(clickables(self._page)),
            has_search_bar(self._page),
            digest(self.state, self.mode),
            None if bought is None else bought.total,
            {} if bought is None else asdict(bought),
        )

    def _observation(self) -> str:
        if self.mode == "text":
            return as_text(self._page)
        url = page_url(self._session, self.state)
        return url if self.mode == "url" else as_rich_text(self._page, url, self.state.seen)
