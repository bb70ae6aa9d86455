"""Jobs of a broker."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

from .errors import Diverged, Error, JobFailed, Timeout
from .events import Event
from .program import Command, OnInterrupt, ask, broker_environment, error_of, only_event, say_to_people
from .weights import load_state, read_arrays

if TYPE_CHECKING:
    import numpy
    import torch


class Job:
    """A job of a broker, by its number. It goes on whether or not this object is there."""

    def __init__(self, number: int, *, broker: Optional[str] = None, token: Optional[str] = None) -> None:
        self.number = int(number)
        self.warnings: List[str] = []
        """What to know of the job: what of the model is not exported, and what weft said when it took it."""
        self._broker, self._token = broker, token

    def __repr__(self) -> str:
        return f"weft.job({self.number})"

    def events(self, timeout: Optional[float] = None) -> Iterator[Event]:
        """What happens to the job, from its beginning, until it ends.

        A job that fails has its `result` event, and then raises JobFailed or Diverged. Timeout is raised where no
        event comes within `timeout` seconds. Ctrl-C stops the looking and not the job.
        """
        result: Optional[Event] = None
        error: Optional[Event] = None
        arguments = ["logs", str(self.number), "--follow", "--format", "json"]
        with OnInterrupt(self._say_how_to_come_back), Command(arguments, self._environment()) as command:
            while True:
                event = command.next_event(timeout)
                if event is None:
                    break
                if event.kind == "error":
                    error = event
                    continue
                if event.kind == "result":
                    result = event
                yield event
            raise_failure(result, error, command.exit_code(), command, self.number)

    def wait(self, timeout: Optional[float] = None) -> Event:
        """Waits for the end: the `result` event. Raises what events() raises; Timeout after `timeout` seconds."""
        return last_event(self.events(timeout), timeout, f"job {self.number}")

    def status(self) -> Event:
        """How it stands: state, step, stages, who has them, and how busy they are."""
        return only_event(self._ask("status"), "status", "weft status")

    def stop(self) -> Event:
        """Ends it after a checkpoint; what it has learnt can be fetched, and resume() goes on."""
        return self._ask("stop")[-1]

    def resume(self) -> Event:
        """Goes on with a job that failed or was stopped, from its last checkpoint."""
        return self._ask("resume")[-1]

    def fetch(self, path: "str | os.PathLike[str]") -> Event:
        """Writes the trained model as an ONNX file, or the predictions; of a running job the last checkpoint."""
        return only_event(self._ask("fetch", "--output", os.path.abspath(os.fspath(path))), "result", "weft fetch")

    def weights(self) -> "Dict[str, numpy.ndarray[Any, Any]]":
        """What it has learnt, as arrays by name; of a running job what the last checkpoint has."""
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            path = os.path.join(folder, "trained.onnx")
            self.fetch(path)
            return read_arrays(path)

    def load_into(self, model: "torch.nn.Module", *, wait: bool = True, strict: bool = True) -> Event:
        """Puts what the job has learnt into a PyTorch model, with the statistics of BatchNorm.

        Waits for the job's end; with `wait=False` it takes the last checkpoint. Returns the `result` event.
        `strict=False` lets the file have tensors that the model lacks.
        """
        result = self.wait() if wait else None
        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            path = os.path.join(folder, "trained.onnx")
            fetched = self.fetch(path)
            load_state(path, model, strict=strict)
        return result or fetched

    def watch(self, *, plot: Optional[bool] = None) -> Event:
        """Follows it in one line that is rewritten, in a notebook with a plot of the loss; returns `result`."""
        from .live import watch
        return watch(self.events(), plot=plot)

    def _ask(self, command: str, *more: str) -> List[Event]:
        return ask([command, str(self.number), *more, "--format", "json"], self._environment(), job=self.number)

    def _environment(self) -> Dict[str, str]:
        return broker_environment(self._broker, self._token)

    def _say_how_to_come_back(self) -> None:
        say_to_people(f"job {self.number} goes on; weft.job({self.number}) is the way back to it, and "
                      f"weft.job({self.number}).stop() ends it")


def raise_failure(result: Optional[Event], error: Optional[Event], exit_code: int, command: Any,
                  job: Optional[int]) -> None:
    """Raises what a run that ended badly comes to; one that was stopped has not."""
    if result is not None and result.status == "failed":
        reason = str((error and error.message) or result.reason or command.text() or "the run failed")
        kind = Diverged if exit_code == Diverged.exit_code else JobFailed
        raise kind(reason, exit_code=exit_code, job=job)
    if error is None and (exit_code == 0 or (result is not None and result.status == "stopped")):
        return
    raise error_of(error, exit_code, command.text(), command.name, job)


def last_event(events: Iterator[Event], timeout: Optional[float], what: str) -> Event:
    """The `result` event at the end of some events, within a time."""
    deadline = None if timeout is None else time.monotonic() + timeout
    result: Optional[Event] = None
    for event in events:
        if event.kind == "result":
            result = event
        if deadline is not None and time.monotonic() > deadline and result is None:
            close = getattr(events, "close", None)
            if close is not None:
                close()
            raise Timeout(f"{what} has not ended within {timeout:g} seconds")
    if result is None:
        raise Error(f"{what} did not say how it ended")
    return result


def job(number: int, *, broker: Optional[str] = None, token: Optional[str] = None) -> Job:
    """A job that was submitted before."""
    return Job(number, broker=broker, token=token)


def jobs(*, before: Optional[int] = None, count: Optional[int] = None, broker: Optional[str] = None,
         token: Optional[str] = None) -> List[Event]:
    """How your jobs stand, the newest last: those of lower numbers than `before`, at most `count`."""
    arguments = ["jobs", "--format", "json"]
    if before is not None:
        arguments += ["--before", str(before)]
    if count is not None:
        arguments += ["--count", str(count)]
    return [event for event in ask(arguments, broker_environment(broker, token)) if event.kind == "status"]
