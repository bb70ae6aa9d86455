"""A run in one line that is rewritten, and in a notebook with a plot of its loss."""

from __future__ import annotations

import sys
import time
from typing import Any, Iterator, List, Optional, Tuple

from .errors import Error
from .events import Event

_REDRAW_SECONDS = 0.2
_PLOT_SECONDS = 2.0
_LINE_SECONDS = 5.0       # from line to line where nothing can be rewritten
_POINTS_MAX = 2000


class Curve:
    """The losses of all steps, thinned evenly to a number of points that is bounded."""

    def __init__(self, points_max: int = _POINTS_MAX) -> None:
        self.points: List[Tuple[int, float]] = []
        self._every, self._max = 1, points_max

    def add(self, step: int, loss: float) -> None:
        if step % self._every == 0 or not self.points:
            self.points.append((step, loss))
        if len(self.points) > self._max:
            self._every *= 2
            self.points = [point for point in self.points if point[0] % self._every == 0]


class Progress:
    """What is to be shown of the events so far."""

    def __init__(self) -> None:
        self.steps = 0
        self.step: Optional[Event] = None
        self.curve, self.evaluations = Curve(), Curve()
        self.state = ""

    def add(self, event: Event) -> Optional[str]:
        """Takes an event; a line that stays, where it is worth one."""
        if event.kind in ("start", "status") and event.steps:
            self.steps = int(event.steps)
        elif event.kind == "step":
            self.step, self.state = event, ""
            if event.loss is not None:
                self.curve.add(int(event.step), float(event.loss))
        elif event.kind == "state":
            self.state = f"{event.state}{': ' + event.reason if event.reason else ''}"
        elif event.kind == "evaluation":
            metrics = event.metrics or {}
            if metrics.get("loss") is not None:
                self.evaluations.add(int(event.after_step), float(metrics["loss"]))
            shown = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items() if value is not None)
            return f"evaluation after step {event.after_step}:  {shown}"
        elif event.kind == "notice":
            return f"notice: {event.text}"
        return None

    def line(self) -> str:
        if self.step is None or self.state:
            return self.state or "waiting"
        loss = "none" if self.step.loss is None else f"{self.step.loss:.4f}"
        of = f"/{self.steps}" if self.steps else ""
        speed = self.step.samples_per_second
        return f"step {self.step.step}{of}  loss {loss}" + (f"  {speed:.0f} samples/s" if speed else "")


class _Terminal:
    """Standard error: one line that is rewritten on a terminal, a line now and then in a file."""

    def __init__(self) -> None:
        self._out = sys.stderr
        self._rewrites = bool(getattr(self._out, "isatty", lambda: False)())
        self._shown = 0.0

    def draw(self, progress: Progress, *, last: bool = False) -> None:
        now = time.monotonic()
        if not last and now - self._shown < (_REDRAW_SECONDS if self._rewrites else _LINE_SECONDS):
            return
        self._shown = now
        self._out.write(("\r\033[K" if self._rewrites else "") + progress.line()
                        + ("\n" if last or not self._rewrites else ""))
        self._out.flush()

    def keep(self, text: str) -> None:
        self._out.write(("\r\033[K" if self._rewrites else "") + text + "\n")
        self._out.flush()


class _Notebook:
    """IPython's display: a text and, where matplotlib is there, a figure; both are replaced in place."""

    def __init__(self, display: Any, plot: Optional[bool]) -> None:
        self._display = display
        self._text = display({"text/plain": "waiting"}, raw=True, display_id=True)
        self._pyplot = _pyplot(plot)
        self._figure: Any = None
        self._shown = self._plotted = 0.0
        self._kept: List[str] = []

    def draw(self, progress: Progress, *, last: bool = False) -> None:
        now = time.monotonic()
        if last or now - self._shown >= _REDRAW_SECONDS:
            self._shown = now
            self._text.update({"text/plain": "\n".join([*self._kept, progress.line()])}, raw=True)
        if self._pyplot is not None and progress.curve.points and (last or now - self._plotted >= _PLOT_SECONDS):
            self._plotted = now
            self._plot(progress)

    def keep(self, text: str) -> None:
        self._kept = [*self._kept[-9:], text]

    def _plot(self, progress: Progress) -> None:
        figure = draw_curve(self._pyplot, progress)
        if self._figure is None:
            self._figure = self._display(figure, display_id=True)
        else:
            self._figure.update(figure)
        self._pyplot.close(figure)


def draw_curve(pyplot: Any, progress: Progress) -> Any:
    """A figure of the loss."""
    figure, axes = pyplot.subplots(figsize=(6, 3))
    axes.plot(*zip(*progress.curve.points), linewidth=1, label="loss of a step")
    if progress.evaluations.points:
        axes.plot(*zip(*progress.evaluations.points), marker="o", label="loss of the test set")
        axes.legend()
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    return figure


def _pyplot(plot: Optional[bool]) -> Any:
    if plot is False:
        return None
    try:
        from matplotlib import pyplot
    except ImportError:
        if plot:
            raise Error("plot=True needs matplotlib") from None
        return None
    return pyplot


def notebook_display() -> Any:
    """IPython's display function, in a notebook; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


def watch(events: Iterator[Event], *, plot: Optional[bool] = None) -> Event:
    """Shows events as they come; returns the `result`."""
    display = notebook_display()
    screen: Any = _Terminal() if display is None else _Notebook(display, plot)
    progress, result = Progress(), None
    for event in events:
        text = progress.add(event)
        if text is not None:
            screen.keep(text)
        if event.kind == "result":
            result = event
        screen.draw(progress)
    screen.draw(progress, last=True)
    if result is None:
        raise Error("the run did not say how it ended")
    return result
