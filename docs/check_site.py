"""Visit every page of the built site in a headless browser and complain about what a reader would.

Run by ``make check-docs``: links and anchors inside the site, images that load, nothing fetched from another host, no
errors in the console, no page wider than a telephone. ``--screenshots FOLDER`` keeps pictures of some pages.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from playwright.sync_api import Page, Request, sync_playwright

SITE = Path(__file__).parent / "_build" / "html"
NARROW, WIDE = 390, 1280
PICTURES = (
    "index.html",
    "which-map.html",
    "tutorial/serving.html",
    "api/generated/ntkit.GegenbauerFeatures.html",
    "api/features.html",
    "gallery/index.html",
    "results/index.html",
    "results/papers.html",
    "results/peers.html",
    "theory/index.html",
)
# A quiet browser: it must not ask its maker for updates.
BROWSER = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
           "--disable-sync", "--no-first-run")  # fmt: skip
COLLECT = """() => ({
    links: [...document.querySelectorAll('a[href]')].map(a => a.href),
    ids: [...document.querySelectorAll('[id]')].map(e => e.id),
    images: [...document.images].filter(i => !(i.complete && i.naturalWidth)).map(i => i.src),
})"""
# What sticks out to the right, the innermost first; boxes that scroll on their own are fine.
OVERFLOW = """() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return null;
    const wide = [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > width + 1);
    const found = wide.at(-1);
    return found ? `<${found.tagName.toLowerCase()} class="${found.className}">` : 'something';
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Files without a line in the log for each."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Visitor:
    """Visits pages, one by one, and keeps what was wrong and what they link to."""

    def __init__(self, page: Page, base: str):
        self.page = page
        self.base = base
        self.problems: list[str] = []
        self.ids: dict[str, set[str]] = {}
        self.links: dict[str, set[str]] = {}
        self.current = ""
        page.on("request", self._requested)
        page.on("pageerror", lambda error: self._complain(f"error in a script: {error}"))
        page.on("console", lambda message: message.type == "error" and self._complain(f"console: {message.text}"))
        page.on("response", lambda answer: answer.status >= 400 and self._complain(f"{answer.status}: {answer.url}"))

    def _complain(self, text: str) -> None:
        self.problems.append(f"{self.current}: {text}")

    def _requested(self, request: Request) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self._complain(f"asks another host: {request.url}")

    def visit(self, name: str) -> None:
        """Load a page as a wide and as a narrow screen shows it."""
        self.current = name
        url = urljoin(self.base, name)
        self.page.set_viewport_size({"width": WIDE, "height": 900})
        self.page.goto(url, wait_until="load")
        self.page.evaluate("document.querySelectorAll('img[loading=lazy]').forEach(i => { i.loading = 'eager'; })")
        self.page.wait_for_load_state("networkidle")
        found = self.page.evaluate(COLLECT)
        self.ids[url] = {unquote(name) for name in found["ids"]}
        self.links[url] = {link for link in found["links"] if link.startswith(self.base)}
        for image in found["images"]:
            self._complain(f"image not loaded: {image}")
        self.page.set_viewport_size({"width": NARROW, "height": 844})
        if wide := self.page.evaluate(OVERFLOW):
            self._complain(f"wider than {NARROW} pixels: {wide}")

    def check_links(self, site: Path) -> None:
        """Every link within the site has a file, and every anchor an element, to go to."""
        for source, links in self.links.items():
            self.current = urlsplit(source).path.lstrip("/")
            for link in sorted(links):
                target, anchor = urldefrag(link)
                path = site / unquote(urlsplit(target).path).lstrip("/")
                if not (path / "index.html" if path.is_dir() else path).is_file():
                    self._complain(f"broken link: {link}")
                elif anchor and target in self.ids and unquote(anchor) not in self.ids[target]:
                    self._complain(f"broken anchor: {link}")

    def photograph(self, folder: Path) -> None:
        """Take pictures of some pages, wide and narrow."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in PICTURES:
            for width in (WIDE, NARROW):
                self.page.set_viewport_size({"width": width, "height": 900})
                self.page.goto(urljoin(self.base, name), wait_until="networkidle")
                self.page.screenshot(path=folder / f"{name.removesuffix('.html').replace('/', '_')}_{width}.png")


def main() -> int:
    """Check the site and return the number of problems, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=SITE, help="folder with the built pages")
    parser.add_argument("--screenshots", type=Path, help="folder for pictures of some pages")
    parser.add_argument("--browser", default=shutil.which("chromium"), help="program in place of playwright's own")
    args = parser.parse_args()
    pages = sorted(path.relative_to(args.site).as_posix() for path in args.site.rglob("*.html"))
    pages = [name for name in pages if not name.startswith("_static/")]
    if not pages:
        parser.error(f"there are no pages in {args.site}; run 'make docs' first")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(args.site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=args.browser, args=list(BROWSER))
        visitor = Visitor(browser.new_page(), f"http://127.0.0.1:{server.server_port}/")
        for name in pages:
            visitor.visit(name)
        visitor.check_links(args.site)
        if args.screenshots:
            visitor.photograph(args.screenshots)
        browser.close()
    server.shutdown()
    print("\n".join(visitor.problems) or f"{len(pages)} pages, nothing wrong")
    return bool(visitor.problems)


if __name__ == "__main__":
    sys.exit(main())
