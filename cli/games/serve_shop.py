"""`skillttrl envs serve webshop --pages`: the shop as pages in a browser, which agents can use as well."""

from __future__ import annotations

import json
import sys
import threading
import webbrowser

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import say
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.cli.games.serve_env import leave_on_signals
from skill_ttrl.errors import ConfigError
from skill_ttrl.signals import Interrupted

PAGES_PORT = 3000


def serve_pages(
    env_data: str | None,
    host: str,
    port: int,
    as_json: bool,
    *,
    goals: str | None,
    nouns: str | None,
    show_attributes: bool,
    query_codes: bool,
    images: bool,
    open: bool,
    public: bool,
) -> None:
    """Serve the shop as pages until a signal comes; see the options of `skillttrl envs serve`.

    Raises:
        ConfigError: other machines would be let in without --public.
        EnvError: there is no such catalogue, or the port is taken.
    """
    from skill_ttrl.envs.http_server import is_loopback

    if not public and not is_loopback(host):
        raise ConfigError(
            f"--host {host[:60]} accepts other machines. Use 127.0.0.1, or give --public if everybody there may use the shop."
        )
    from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue, progress_unit
    from skill_ttrl.envs.webshop.shop import shared_shop
    from skill_ttrl.envs.webshop.site.site import Site, SiteServer
    from skill_ttrl.progress import OPENING, Counting

    with RunView(Console(stderr=True), "serve webshop", loop=False, waits=True) as view:
        catalogue = open_catalogue(env_data, Counting(view, OPENING, progress_unit(env_data)))
    listed = catalogue.goals(goals or "auto")
    shop = shared_shop(catalogue.store, nouns or "auto", query_codes, show_attributes)
    source = f"{catalogue.source}, {listed.kind} goals, nouns by {shop.nouns.name}"
    with SiteServer(Site(shop, listed, source, images=images), host, port) as server:
        try:
            leave_on_signals("The shop is closed.")
            if as_json:
                print(json.dumps({"address": server.address, "source": source, "goals": len(listed)}))
            else:
                say(f"WebShop is open at {server.address} ({source}). Ctrl-C closes it.")
            sys.stdout.flush()
            if open:
                threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
            server.serve_forever()
        except Interrupted as leaving:
            Console(stderr=True).print(str(leaving))
            raise typer.Exit(leaving.exit_code) from None
