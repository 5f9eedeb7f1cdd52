"""Check the built site: every link inside it leads to a file and an anchor, and no page loads anything from elsewhere.

    python docs/_ext/check_links.py docs/_build/html

Sphinx checks the links that pages are written with. This check also sees what the theme and extensions add.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "object": "data", "source": "srcset", "video": "src"}
"""Elements that load a file, with the attribute that names it. A <link> loads one unless its rel says otherwise."""
NOT_LOADED = {"canonical", "index", "search", "next", "prev", "author", "copyright", "license", "top", "up"}


class Page(HTMLParser):
    """Anchors and links of one HTML file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADED and LOADED[tag] in found:
            self.loads.append(found[LOADED[tag]])
        if tag == "link" and found.get("rel") not in NOT_LOADED:
            self.loads.append(found.get("href", ""))


def problems(root: Path) -> list[str]:
    """What is wrong with the site in this folder, one line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.html"))}
    found = [] if pages else [f"{root} has no HTML file"]
    for path, page in pages.items():
        name = path.relative_to(root)
        found += [f"{name}: loads {one} from another server" for one in page.loads if _is_foreign(one)]
        for link in page.links + page.loads:
            url = urlsplit(link)
            if _is_foreign(link) or url.scheme:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file():
                found.append(f"{name}: {link}: there is no such file")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
                found.append(f"{name}: {link}: there is no such anchor")
    return found


def _is_foreign(link: str) -> bool:
    return link.startswith("//") or urlsplit(link).scheme in ("http", "https")


if __name__ == "__main__":
    wrong = problems(Path(sys.argv[1]).resolve())
    print("\n".join(wrong) or "all links inside the documentation lead somewhere")
    sys.exit(1 if wrong else 0)
