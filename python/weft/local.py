"""A run on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, List, Optional

from .errors import Error, InvalidArgument, NotFound, Timeout
from .events import Event, parse_event
from .jobs import last_event, raise_failure
from .prepare import Prepared
from .program import OnInterrupt, checked_program, end_process, say_to_people, text_of
from .weights import load_state, read_arrays

if TYPE_CHECKING:
    import numpy
    import torch

_POLL_SECONDS = 0.02
_GRACE_SECONDS = 60.0  # for the step at hand and its checkpoint


class _Process:
    """`weft local`, whose events go into a file: it waits for nobody to read them."""

    def __init__(self, arguments: List[str], folder: str) -> None:
        self.name = "weft local"
        self._events: IO[bytes] = open(os.path.join(folder, "events.jsonl"), "w+b")
        self._text: IO[bytes] = tempfile.TemporaryFile()
        self._asked = False
        self.process = subprocess.Popen([checked_program(), "local", *arguments], stdin=subprocess.DEVNULL,
                                        stdout=self._events, stderr=self._text, start_new_session=True)

    def events(self, timeout: Optional[float]) -> Iterator[Event]:
        if self._events.closed:
            raise InvalidArgument("the run was closed, and its temporary files are gone: read from it before that")
        at, rest = 0, b""
        heard = time.monotonic()
        while True:
            ended = self.process.poll() is not None  # asked before reading: then what is read is all
            read = os.pread(self._events.fileno(), 1 << 16, at)
            if read:
                at += len(read)
                *lines, rest = (rest + read).split(b"\n")
                for event in map(parse_event, lines):
                    if event is not None:
                        yield event
                heard = time.monotonic()
            elif ended:
                return
            elif timeout is not None and time.monotonic() - heard > timeout:
                raise Timeout(f"no event came within {timeout:g} seconds")
            else:
                time.sleep(_POLL_SECONDS)

    def text(self) -> str:
        return text_of(self._text)

    def exit_code(self) -> int:
        return self.process.wait()

    def close(self) -> None:
        end_process(self.process, _GRACE_SECONDS, asks=not self._asked)
        self._events.close()
        self._text.close()

    def interrupt(self) -> None:
        """Asks it to end after its step, with a checkpoint. Asked twice it would end at once, without."""
        if not self._asked and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self._asked = True

    def is_ending(self) -> bool:
        return self._asked or self.process.poll() is not None


def _finish(process: _Process, folder: str) -> None:
    process.close()
    shutil.rmtree(folder, ignore_errors=True)


class LocalRun:
    """A run of `weft local`. It ends when this object does: keep it."""

    def __init__(self, prepared: Prepared, arguments: List[str]) -> None:
        self.warnings: List[str] = list(prepared.warnings)
        """What of the model is not exported, and what else is to be known."""
        self._prepared = prepared
        self._arguments = arguments
        self._work = tempfile.mkdtemp(prefix="weft-run-")
        try:
            self._start([])
        except BaseException:
            shutil.rmtree(self._work, ignore_errors=True)
            raise

    def _start(self, more: List[str]) -> None:
        self._process = _Process([self._prepared.job, *self._prepared.sets, "--format", "json", *self._arguments, *more],
                                 self._work)
        self._end = weakref.finalize(self, _finish, self._process, self._work)

    def __repr__(self) -> str:
        return f"<weft.LocalRun in {self.directory}>"

    def __enter__(self) -> "LocalRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def directory(self) -> str:
        """Where the job file lies, and what it names by a relative path."""
        return os.path.dirname(self._prepared.job)

    def events(self, timeout: Optional[float] = None) -> Iterator[Event]:
        """What happens in the run, from its beginning, until it ends.

        A run that fails has its `result` event, where it got so far, and then raises. Timeout is raised where no
        event comes within `timeout` seconds. Ctrl-C asks the run to finish its step and save a checkpoint: resume()
        goes on from there.
        """
        result: Optional[Event] = None
        error: Optional[Event] = None
        process = self._process
        with OnInterrupt(self._stop_and_say):
            for event in process.events(timeout):
                if event.kind == "error":
                    error = event
                    continue
                if event.kind == "result":
                    result = event
                yield event
        raise_failure(result, error, process.exit_code(), process, None)

    def wait(self, timeout: Optional[float] = None) -> Event:
        """Waits for the end: the `result` event. Raises what events() raises; Timeout after `timeout` seconds."""
        return last_event(self.events(timeout), timeout, "the run")

    def stop(self) -> Event:
        """Ends it after the step at hand; returns the `result` event."""
        self._process.interrupt()
        return self.wait()

    def resume(self) -> None:
        """Goes on from the checkpoint that it was stopped with."""
        if not self._process.is_ending():
            raise InvalidArgument("the run goes on: there is nothing to resume")
        checkpoint = None
        for event in self._process.events(None):  # it may still be writing it
            if event.kind == "result":
                checkpoint = event.checkpoint
        if checkpoint is None:
            raise NotFound("there is no checkpoint: the run was not stopped after a step")
        self._end.detach()
        self._process.close()
        self._start(["--resume", str(checkpoint)])

    def fetch(self, path: "str | os.PathLike[str]") -> Event:
        """Waits for the end, and copies the trained ONNX file, with its data where they lie beside it."""
        result = self.wait()
        trained = self._trained(result)
        target = os.path.abspath(os.fspath(path))
        if os.path.exists(trained + ".data"):
            raise InvalidArgument(f"the model's data lie beside it, in {trained}.data: say directory=..., and take both "
                                  "from there")
        shutil.copyfile(trained, target)
        return result

    def weights(self) -> "Dict[str, numpy.ndarray[Any, Any]]":
        """Waits for the end: what it has learnt, as arrays by name."""
        return read_arrays(self._trained(self.wait()))

    def load_into(self, model: "torch.nn.Module", *, strict: bool = True) -> Event:
        """Waits for the end, and puts what was learnt into a PyTorch model; returns the `result` event."""
        result = self.wait()
        load_state(self._trained(result), model, strict=strict)
        return result

    def watch(self, *, plot: Optional[bool] = None) -> Event:
        """Follows it in one line that is rewritten, in a notebook with a plot of the loss; returns `result`."""
        from .live import watch
        return watch(self.events(), plot=plot)

    def close(self) -> None:
        """Ends the run, if it has not ended, and removes its temporary files."""
        self._end()
        self._prepared.folder.remove()

    def _trained(self, result: Event) -> str:
        if result.output is None:
            raise Error("the run was stopped, and has written no trained model: resume() goes on")
        return str(result.output)

    def _stop_and_say(self) -> None:
        say_to_people("the run stops after this step and saves a checkpoint; resume() goes on from there")
        self._process.interrupt()
