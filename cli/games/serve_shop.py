"""`skillttrl envs serve webshop`: the shop as pages in a browser, which agents can use as well."""

from __future__ import annotations

import ipaddress
import json
import signal
import sys
import threading
import webbrowser
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from skill_ttrl.cli.display.output import say
from skill_ttrl.cli.display.views import RunView
from skill_ttrl.errors import ConfigError, did_you_mean
from skill_ttrl.signals import Interrupted

SERVED = ("webshop",)

Env = Annotated[str, typer.Argument(metavar="ENV", help="Environment: `webshop`.")]
EnvData = Annotated[
    str | None,
    typer.Option(
        "--env-data",
        metavar="PATH",
        help="Folder of the official files, a file of products, or `generated`. Default: $WEBSHOP_DATA, else `generated`.",
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]
Host = Annotated[str, typer.Option(help="Address to listen on. Any address but localhost needs --public.")]
Public = Annotated[
    bool, typer.Option("--public", help="Accept other machines: everybody who reaches the port can use the shop.")
]
Goals = Annotated[
    str, typer.Option(help="`synthetic`, `human`, or `auto`: human if there are enough of them for every split.")
]
Nouns = Annotated[str, typer.Option(help="Noun finder of the reward: `auto`, `rule`, `spacy` or `module:attr`.")]
Attributes = Annotated[bool, typer.Option("--show-attributes", help="Show the attributes that the reward compares.")]
Codes = Annotated[
    bool, typer.Option("--query-codes", help="Support the original's searches `<r>`, `<a>`, `<c>` and `<q>`.")
]
Images = Annotated[
    bool, typer.Option("--images", help="Show the catalogue's pictures, which the browser loads from elsewhere.")
]
Open = Annotated[bool, typer.Option("--open", help="Open the shop in the browser.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON on stdout, and nothing else there.")]


def serve(
    env: Env,
    env_data: EnvData = None,
    port: Port = 3000,
    host: Host = "127.0.0.1",
    public: Public = False,
    goals: Goals = "auto",
    nouns: Nouns = "auto",
    show_attributes: Attributes = False,
    query_codes: Codes = False,
    images: Images = False,
    open_browser: Open = False,
    as_json: AsJson = False,
) -> None:
    """Serve the shop as web pages for browsers and for agents (`--env-data http://127.0.0.1:3000`), until Ctrl-C.

    Example: `skillttrl envs serve webshop --open`
    """
    if env not in SERVED:
        raise ConfigError(f"{env[:60]!r} has no pages to serve.{did_you_mean(env[:50], SERVED)}")
    if not public and not _is_own(host):
        raise ConfigError(
            f"--host {host[:60]} accepts other machines. Use 127.0.0.1, or give --public if everybody there may use the shop."
        )
    from skill_ttrl.envs.webshop.catalogue.catalogue import open_catalogue, progress_unit
    from skill_ttrl.envs.webshop.shop import shared_shop
    from skill_ttrl.envs.webshop.site.site import Site, SiteServer
    from skill_ttrl.progress import OPENING, Counting

    with RunView(Console(stderr=True), "serve webshop", loop=False, waits=True) as view:
        catalogue = open_catalogue(env_data, Counting(view, OPENING, progress_unit(env_data)))
    listed = catalogue.goals(goals)
    shop = shared_shop(catalogue.store, nouns, query_codes, show_attributes)
    source = f"{catalogue.source}, {listed.kind} goals, nouns by {shop.nouns.name}"
    with SiteServer(Site(shop, listed, source, images=images), host, port) as server:
        try:
            for signum in (signal.SIGINT, signal.SIGTERM):
                signal.signal(signum, _leave)
            if as_json:
                print(json.dumps({"address": server.address, "source": source, "goals": len(listed)}))
            else:
                say(f"WebShop is open at {server.address} ({source}). Ctrl-C closes it.")
            sys.stdout.flush()
            if open_browser:
                threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
            server.serve_forever()
        except Interrupted as leaving:
            Console(stderr=True).print(str(leaving))
            raise typer.Exit(leaving.exit_code) from None


def _leave(signum: int, frame: FrameType | None) -> None:
    raise Interrupted("The shop is closed.", signum)


def _is_own(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
