"""A headless Chromium driven over DevTools' pipe, with nothing but the standard library.

``Chromium`` starts and ends the program; ``Page`` is one tab: it navigates, evaluates scripts, and keeps what the
console and the network said. Any test of a web page can use it:

    with Chromium(resolve="127.0.0.1:8443") as browser:
        page = browser.open_page("https://news.example/")
        assert page.evaluate("document.title") == "News"
        assert page.console == []
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .build import chromium_program

Params = dict[str, Any]
Listener = Callable[[str, Params], None]

_PIPE_IN, _PIPE_OUT = 3, 4
_WAIT_S = 60.0


class DevToolsError(Exception):
    """The browser refused a command, did not answer in time, or is gone."""


@dataclass(slots=True)
class _Pending:
    """A command that waits for its answer."""

    done: threading.Event = field(default_factory=threading.Event)
    answer: Params = field(default_factory=dict)


class Chromium:
    """A running browser with a profile of its own, deleted at the end.

    ``resolve`` is the host and port that every host name leads to; certificates are not checked. ``flags`` are added to
    the command line. Commands may be given from several threads.
    """

    def __init__(self, *, resolve: str | None = None, flags: Sequence[str] = ()) -> None:
        self._flags = [
            "--remote-debugging-pipe",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--ignore-certificate-errors",
            "--disable-dev-shm-usage",
            *flags,
        ]
        if resolve is not None:
            self._flags.append(f"--host-resolver-rules=MAP * {resolve}")
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._listeners: dict[str | None, Listener] = {}
        self._lock = threading.Lock()
        self._gone = threading.Event()

    def __enter__(self) -> Self:
        program = chromium_program()
        self._profile = Path(tempfile.mkdtemp(prefix="aggservice-chromium-"))
        self._log = (self._profile / "browser.log").open("wb")
        command = [str(program), f"--user-data-dir={self._profile}", *self._flags, "about:blank"]
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(program.parent / "lib"),
            "FONTCONFIG_FILE": str(_fonts(program.parent, self._profile)),
            "HOME": str(self._profile),
        }
        (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
        # The program expects its pipes at 3 and 4, so both ends first move out of the way.
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (their_in, their_out, self._log.fileno())]
        moved = [(os.POSIX_SPAWN_DUP2, end, to) for end, to in zip(high, (_PIPE_IN, _PIPE_OUT, 2), strict=True)]
        self._process = os.posix_spawn(program, command, environment, file_actions=moved, setpgroup=0)
        for end in (their_in, their_out, *high):
            os.close(end)
        self._out, self._in = our_out, our_in
        self._reader = threading.Thread(target=self._read, name="devtools", daemon=True)
        self._reader.start()
        try:
            self.version = str(self.call("Browser.getVersion")["product"])
        except DevToolsError as error:
            said = (self._profile / "browser.log").read_text(errors="replace")[-2000:]
            self.__exit__(None, None, None)
            raise DevToolsError(f"the browser did not start: {error}\n{said}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(DevToolsError):
            self.call("Browser.close", wait_s=5)
        self._gone.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._process, 0)
        self._reader.join(5)
        os.close(self._out)
        os.close(self._in)
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, *, session: str | None = None, wait_s: float = _WAIT_S, **params: Any) -> Params:
        """Send a command and return its result; raise ``DevToolsError`` if it is refused or takes too long."""
        number = next(self._ids)
        message: Params = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        pending = self._pending[number] = _Pending()
        data = json.dumps(message).encode() + b"\0"
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except OSError as error:
                raise DevToolsError(f"{method}: the browser is gone") from error
        arrived = pending.done.wait(wait_s)
        del self._pending[number]
        if not arrived or not pending.answer:
            raise DevToolsError(f"{method}: " + ("the browser is gone" if arrived else f"no answer in {wait_s} s"))
        if "error" in pending.answer:
            raise DevToolsError(f"{method}: {pending.answer['error'].get('message')}")
        return dict(pending.answer.get("result", {}))

    def listen(self, listener: Listener, session: str | None = None) -> None:
        """Call ``listener`` with the name and parameters of each event of a session; it must not call back."""
        self._listeners[session] = listener

    def new_context(self) -> str:
        """Return a new browser context: storage of its own, as a private window has."""
        return str(self.call("Target.createBrowserContext", disposeOnDetach=True)["browserContextId"])

    def close_context(self, context: str) -> None:
        """Close a context's pages and forget its storage."""
        self.call("Target.disposeBrowserContext", browserContextId=context)

    def open_page(self, url: str = "about:blank", *, context: str | None = None) -> Page:
        """Open a tab, in ``context`` if given, and wait until ``url`` is loaded."""
        where = {} if context is None else {"browserContextId": context}
        target = str(self.call("Target.createTarget", url="about:blank", **where)["targetId"])
        session = str(self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        page = Page(self, session, target)
        if url != "about:blank":
            page.navigate(url)
        return page

    def _read(self) -> None:
        """Hand each message to the command or the listener that it belongs to, until the pipe ends."""
        for message in _messages(self._in):
            if "id" in message:
                pending = self._pending.get(message["id"])
                if pending is not None:
                    pending.answer = message
                    pending.done.set()
            else:
                listener = self._listeners.get(message.get("sessionId"))
                if listener is not None:
                    listener(message["method"], message["params"])
        self._gone.set()
        for pending in list(self._pending.values()):
            pending.done.set()


class Page:
    """One tab. ``console`` has its messages and uncaught errors, ``requests`` the method and URL of each request."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self.target = target
        self.console: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.events: list[tuple[str, Params]] = []
        self._loaded: set[str] = set()
        self._load = threading.Condition()
        browser.listen(self._hear, session)
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, *, wait_s: float = _WAIT_S, **params: Any) -> Params:
        """Send a command to this tab."""
        return self._browser.call(method, session=self._session, wait_s=wait_s, **params)

    def navigate(self, url: str) -> None:
        """Go to ``url`` and wait until that document is loaded, whatever was loaded before it."""
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise DevToolsError(f"{url}: {answer['errorText']}")
        loader = answer.get("loaderId")  # missing if only the part after # changes
        with self._load:
            if loader is not None and not self._load.wait_for(lambda: loader in self._loaded, _WAIT_S):
                raise DevToolsError(f"{url} was not loaded in {_WAIT_S} s")

    def evaluate(self, script: str, *, user_gesture: bool = False) -> Any:
        """Return what ``script`` evaluates to, awaited, as a JSON value; with ``user_gesture``, as if after a click."""
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=user_gesture
        )
        if "exceptionDetails" in done:
            details = done["exceptionDetails"]
            raise DevToolsError(details.get("exception", {}).get("description") or details["text"])
        return done["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a PNG of what the tab shows, or of the whole page."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def resize(self, width: int, height: int) -> None:
        """Show the page at this size; a narrow one as a phone would."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def wait_for(self, script: str, *, wait_s: float = 10.0) -> Any:
        """Evaluate ``script`` until it is true; return its value. Raise ``DevToolsError`` after ``wait_s``."""
        until = time.monotonic() + wait_s
        while not (value := self.evaluate(script)):
            if time.monotonic() > until:
                raise DevToolsError(f"not true within {wait_s} s: {script}")
            time.sleep(0.05)
        return value

    def close(self) -> None:
        """Close the tab."""
        self._browser.call("Target.closeTarget", targetId=self.target)

    def _hear(self, method: str, params: Params) -> None:
        if method == "Page.lifecycleEvent":
            if params["name"] == "load":
                with self._load:
                    self._loaded.add(params["loaderId"])
                    self._load.notify_all()
        elif method == "Runtime.consoleAPICalled":
            words = (str(one.get("value", one.get("description"))) for one in params["args"])
            self.console.append(f"{params['type']}: {' '.join(words)}")
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.console.append(f"exception: {details.get('exception', {}).get('description') or details['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append((params["request"]["method"], params["request"]["url"]))
        elif not method.startswith(("Page.", "Network.", "Runtime.")):
            self.events.append((method, params))


def _fonts(build: Path, profile: Path) -> Path:
    """Write a font configuration that names the build's own fonts: its file names folders of another machine."""
    config = profile / "fonts.conf"
    config.write_text(
        f"<fontconfig><dir>{build / 'fonts'}</dir><cachedir>{profile / 'fonts'}</cachedir></fontconfig>\n"
    )
    return config


def _messages(pipe: int) -> Iterator[Params]:
    """Yield the messages of a pipe, which zero bytes separate."""
    rest = b""
    while True:
        try:
            part = os.read(pipe, 1 << 16)
        except OSError:
            return
        if not part:
            return
        *whole, rest = (rest + part).split(b"\0")
        yield from map(json.loads, whole)
