"""Check the links of a built site: each local one leads to a file that is there, and to an id that is in it.

python docs/check_links.py build/docs
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Ids and links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take what an element is called, and what it leads to."""
        self.ids |= {value for name, value in attrs if name == "id" and value}
        self.links |= {value for name, value in attrs if name in ("href", "src") and value}


def broken_links(site: Path) -> list[str]:
    """Each local link that leads nowhere, as `page: link`. Links to other sites are not followed."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.resolve().rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = path.parent.joinpath(unquote(parts.path)).resolve() if parts.path else path
            missing_id = parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
            if not target.exists() or missing_id:
                found.append(f"{path.name}: {link}")
    return found


if __name__ == "__main__":
    broken = broken_links(Path(sys.argv[1]))
    print("\n".join(broken) or f"All local links of {sys.argv[1]} lead somewhere.")
    sys.exit(bool(broken))
