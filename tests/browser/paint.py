"""How soon the studio paints, beside a static page of the same size: ``python tests/browser/paint.py``.

The last line starts with the ratio: time to the first paint of the studio's first part over that of a static page that
loads as many bytes of scripts and styles from the same server program.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread

sys.path.insert(0, str(Path(__file__).parents[2]))

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from tests.browser.devtools import Chromium
from tests.studio.conftest import serve

_PAINT = 'performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0'
TIMES = 7


def first_paint(browser: Chromium, url: str) -> float:
    """Return the milliseconds to the first paint, the median of several fresh loads."""
    times = []
    for _ in range(TIMES):
        context = browser.new_context()
        page = browser.open_page(url, context=context)
        times.append(float(page.wait_for(_PAINT, wait_s=30)))
        browser.close_context(context)
    return median(times)


def static_page(folder: Path, static: Path) -> None:
    """Write a page with text of its own that loads as many bytes as the studio's does."""
    names = [
        "studio.css",
        "main.js",
        "dom.js",
        "api.js",
        "charts.js",
        "tune.js",
        "run.js",
        "vendor/d3.min.js",
        "vendor/plot.umd.min.js",
    ]
    tags = []
    for number, name in enumerate(names):
        size = (static / name).stat().st_size
        if name.endswith(".css"):
            (folder / f"{number}.css").write_text("/*" + "x" * (size - 4) + "*/", encoding="ascii")
            tags.append(f'<link rel="stylesheet" href="/{number}.css">')
        else:
            (folder / f"{number}.js").write_text("//" + "x" * (size - 2), encoding="ascii")
            tags.append(f'<script src="/{number}.js" defer></script>')
    (folder / "index.html").write_text(f"<!doctype html><title>x</title>{''.join(tags)}<h1>Tune</h1>", encoding="ascii")


def main() -> None:
    """Measure both and print the ratio."""
    import aggservice.studio as package

    static = Path(package.__file__).parent / "static"
    with TemporaryDirectory() as name, TemporaryDirectory() as empty:
        static_page(Path(name), static)
        plain = uvicorn.Server(
            uvicorn.Config(
                Starlette(routes=[Mount("/", StaticFiles(directory=name, html=True))]), port=0, log_level="error"
            )
        )
        Thread(target=plain.run, daemon=True).start()
        running = serve(Path(empty))
        studio = next(running)
        while not plain.started:
            pass
        port = plain.servers[0].sockets[0].getsockname()[1]
        with Chromium() as browser:
            first_paint(browser, studio.url)
            ours, theirs = first_paint(browser, studio.url), first_paint(browser, f"http://127.0.0.1:{port}/")
        running.close()
        plain.should_exit = True
    times = f"{ours:.0f} ms, {theirs:.0f} ms"
    print(f"{ours / theirs:.2f} first paint of the studio over that of a static page of the same size: {times}")


if __name__ == "__main__":
    main()
