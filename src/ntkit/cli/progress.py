"""A progress bar through all phases of a command, with the time left. A thread keeps it moving during long fits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ntkit._progress import listening

_INTERVAL = 0.25  # seconds between updates of the bar
_FORMAT = "{desc} {percentage:3.0f}%|{bar:24}| "
COMPILING = "compiling for this machine, on the first run only"


class PhaseBar:
    """A bar through phases, given with the seconds that each is expected to take. It is drawn only if `shown`.

    The time left is the expected time of all phases minus the time already spent. A phase that takes longer than
    expected stays at 98 % of its part of the bar.
    """

    def __init__(self, phases: Sequence[tuple[str, float]], *, shown: bool):
        self.expected = dict(phases)
        self.shown = shown
        self.n_fits, self.note = 0, ""
        self._done: set[str] = set()
        self._current: str | None = None
        self._began = time.perf_counter()
        self._bar: Any = None

    @contextmanager
    def running(self) -> Iterator[PhaseBar]:
        """Show the bar. It is removed at the end, also after an error or an interrupt."""
        if not self.shown:
            yield self
            return
        from tqdm import tqdm

        stop = threading.Event()
        # leave=False: the report that follows replaces the bar.
        self._bar = bar = tqdm(total=100, bar_format=_FORMAT, leave=False, file=sys.stderr, dynamic_ncols=True)
        thread = threading.Thread(target=self._keep_drawing, args=(stop,), daemon=True)
        thread.start()
        try:
            with listening(self.on_event):
                yield self
        finally:
            stop.set()
            thread.join()
            self._bar = None
            bar.close()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show the phase `name` while the body runs."""
        self._current, self._began, self.note = name, time.perf_counter(), ""
        self._draw()
        yield
        self._done.add(name)
        self._current = None

    def on_event(self, event: str, detail: str) -> None:
        """Show an event that the library reports."""
        if event == "fit":
            self.n_fits += 1
            self.note = f"{self.n_fits} fit{'s' * (self.n_fits > 1)}, last {detail}"
        elif event == "compile":
            self.note = COMPILING

    def state(self) -> tuple[float, float]:
        """Return the fraction of the work done and the seconds left, by the expected durations."""
        total = sum(self.expected.values()) or 1.0
        done = sum(self.expected[name] for name in self._done)
        current = self._current
        if current is not None:
            done += min(time.perf_counter() - self._began, 0.98 * self.expected[current])
        return done / total, total - done

    def text(self) -> str:
        """Return the time left, or the delay of a phase that takes longer than expected, and the last event."""
        left, current = self.state()[1], self._current
        over = 0.0 if current is None else time.perf_counter() - self._began - self.expected[current]
        minutes, seconds = divmod(max(round(over if over > 1 else left), 1), 60)
        words = f"{minutes}:{seconds:02} longer than expected" if over > 1 else f"about {minutes}:{seconds:02} left"
        return f"{words}; {self.note}" if self.note else words

    def _draw(self) -> None:
        bar = self._bar
        if bar is not None:
            bar.n = round(100 * self.state()[0])
            bar.bar_format = _FORMAT + self.text().replace("{", "{{").replace("}", "}}")
            bar.set_description_str(self._current or "start", refresh=True)

    def _keep_drawing(self, stop: threading.Event) -> None:
        while not stop.wait(_INTERVAL):
            self._draw()


@contextmanager
def announcing(shown: bool) -> Iterator[None]:
    """Print a note when the first function is compiled. A bar that runs shows compilation itself."""
    announced = False

    def on_event(event: str, _: str) -> None:
        nonlocal announced
        if event == "compile" and not announced:
            announced = True
            print(f"note: {COMPILING}; this takes some seconds.", file=sys.stderr)

    if not shown:
        yield
        return
    with listening(on_event):
        yield
