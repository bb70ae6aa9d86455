"""The weft program: where it is, and what it says when it is run.

All of a job is done by it: it holds the tokens and speaks TLS. What it says is read as JSON events; its text for
people is only ever shown.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from typing import IO, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type

from .errors import Corrupted, Error, NotFound, Timeout, VersionMismatch, make_error
from .events import Event, parse_event

__version__ = "0.1.0"

_LINE_MAX = 64 << 20      # bytes of one event
_TEXT_SHOWN = 4000        # of what it said on standard error
_GRACE_SECONDS = 5.0      # between asking a command to end and ending it
_versions: Dict[Tuple[str, int], str] = {}


def find_program() -> str:
    """Where the program is: what WEFT says, else on PATH, else beside this package."""
    named = os.environ.get("WEFT")
    if named:
        found = shutil.which(named)
        if found is None:
            raise NotFound(f"WEFT is {named!r}, and no program is there")
        return os.path.abspath(found)
    found = shutil.which("weft")
    if found is not None:
        return found
    package = os.path.dirname(os.path.abspath(__file__))
    for folder in (package, os.path.join(package, "bin"), os.path.dirname(package)):
        beside = os.path.join(folder, "weft")
        if os.path.isfile(beside) and os.access(beside, os.X_OK):
            return beside
    raise NotFound("the weft program is not there: install weft, or let the variable WEFT name it")


def program_version(path: str) -> str:
    """The program's version, as "0.1.0"; it is asked once."""
    key = (path, os.stat(path).st_mtime_ns)
    if key not in _versions:
        try:
            said = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=30, check=False).stdout
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise NotFound(f"{path} does not run: {problem}") from problem
        match = re.match(rb"weft (\d+\.\d+\.\d+)", said)
        if match is None:
            raise VersionMismatch(f"{path} does not say which weft it is; is it another program of that name? Let "
                                  "the variable WEFT name the right one")
        _versions[key] = match.group(1).decode()
    return _versions[key]


def checked_program() -> str:
    """The program, which must be of this package's version, but for the last number."""
    path = find_program()
    version = program_version(path)
    if version.split(".")[:2] != __version__.split(".")[:2]:
        raise VersionMismatch(f"{path} is weft {version}, and this package is for {__version__}: install the same "
                              "version of both")
    return path


def broker_environment(broker: Optional[str], token: Optional[str]) -> Dict[str, str]:
    """The environment of a command: a token stands there, not among the arguments that others see."""
    environment = dict(os.environ)
    if broker is not None:
        environment["WEFT_BROKER"] = broker
    if token is not None:
        environment["WEFT_TOKEN"] = token
    return environment


def end_process(process: "subprocess.Popen[bytes]", grace: float = _GRACE_SECONDS, *, asks: bool = True) -> None:
    """Asks it to end, ends it where it does not, and collects it."""
    if process.poll() is None:
        if asks:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also where Ctrl-C does not want to wait so long
            if process.poll() is None:
                process.kill()
                process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


class Command:
    """A run of the program whose events are read as they come."""

    def __init__(self, arguments: Sequence[str], environment: Optional[Mapping[str, str]] = None,
                 directory: Optional[str] = None) -> None:
        self.arguments = [checked_program(), *arguments]
        self._text: IO[bytes] = tempfile.TemporaryFile()
        try:
            # A session of its own: Ctrl-C of the terminal comes to us alone, and we say what becomes of it.
            self.process = subprocess.Popen(self.arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                            stderr=self._text, env=environment, cwd=directory,
                                            start_new_session=True)
        except BaseException:
            self._text.close()
            raise
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._rest = b""
        self._lines: List[bytes] = []
        self._ended = False
        _commands.add(self)

    def next_event(self, timeout: Optional[float] = None) -> Optional[Event]:
        """The next event, or None at the end; Timeout where none comes within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            while self._lines:
                event = parse_event(self._lines.pop(0))
                if event is not None:
                    return event
            if self._ended:
                return None
            left = None if deadline is None else deadline - time.monotonic()
            if not self._wait(left):
                raise Timeout(f"no event came within {timeout:g} seconds")

    def _wait(self, seconds: Optional[float]) -> bool:
        """Reads what is there, within a time; whether there was anything."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if not selector.select(None if seconds is None else max(0.0, seconds)):
                return False
        try:
            read = os.read(self._out, 1 << 16)
        except BlockingIOError:
            return True
        if not read:
            self._ended = True
            if self._rest:
                self._lines.append(self._rest)
            self._rest = b""
            return True
        *lines, self._rest = (self._rest + read).split(b"\n")
        self._lines += lines
        if len(self._rest) > _LINE_MAX:
            raise Corrupted(f"`{self.name}` said a line without an end")
        return True

    @property
    def name(self) -> str:
        """The command in words: "weft logs"."""
        return "weft " + self.arguments[1]

    def text(self) -> str:
        """The end of what it said to people."""
        return text_of(self._text)

    def exit_code(self) -> int:
        """Waits until it has ended."""
        return self.process.wait()

    def close(self) -> None:
        """Ends it where it has not ended."""
        end_process(self.process)
        self._text.close()
        _commands.discard(self)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_commands: "weakref.WeakSet[Command]" = weakref.WeakSet()


@atexit.register
def _close_commands() -> None:
    for command in list(_commands):
        command.close()


class OnInterrupt:
    """Around a loop over events: Ctrl-C calls `then`, once, and goes on as KeyboardInterrupt.

    It may be pressed while an event is waited for, or while the loop's own lines run; the latter no generator sees.
    So the signal itself is taken, where nobody else has a handler for it and this is the main thread.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then, self._called = then, False
        self._handler: Optional[Callable[[int, Any], None]] = None

    def __enter__(self) -> "OnInterrupt":
        if (threading.current_thread() is threading.main_thread()
                and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
            self._handler = self._handle
            signal.signal(signal.SIGINT, self._handler)
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        if self._handler is not None and signal.getsignal(signal.SIGINT) is self._handler:
            with contextlib.suppress(ValueError):  # another thread collects the loop
                signal.signal(signal.SIGINT, signal.default_int_handler)
        self._handler = None  # it refers to this, and this to the run
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._call()

    def _handle(self, number: int, frame: Any) -> None:
        self._call()
        signal.default_int_handler(number, frame)

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._then()


def say_to_people(text: str) -> None:
    """A line on standard error, also from within a signal's handler, which may have interrupted another line."""
    with contextlib.suppress(RuntimeError):
        print("\n" + text, file=sys.stderr, flush=True)


def text_of(file: IO[bytes]) -> str:
    """The end of a file with text for people."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TEXT_SHOWN))
    return file.read().decode("utf-8", "replace").strip()


def error_of(event: Optional[Event], exit_code: int, text: str, name: str, job: Optional[int] = None) -> Error:
    """What a command that ended badly comes to; `event` is its `error` event, where it said one."""
    if event is not None:
        return make_error(str(event.message or text), code=str(event.code or ""),
                          exit_code=int(event.exit_code or exit_code), job=event.job or job)
    if exit_code < 0:
        return Error(f"`{name}` was ended by signal {-exit_code}" + (f": {text}" if text else ""),
                     exit_code=exit_code, job=job)
    return make_error(text or f"`{name}` ended with {exit_code}", exit_code=exit_code, job=job)


def ask(arguments: Sequence[str], environment: Optional[Mapping[str, str]] = None, *,
        timeout: Optional[float] = None, job: Optional[int] = None) -> List[Event]:
    """Runs a command to its end: its events, or the exception that its error stands for."""
    deadline = None if timeout is None else time.monotonic() + timeout
    events: List[Event] = []
    error: Optional[Event] = None
    with Command(arguments, environment) as command:
        while True:
            event = command.next_event(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if event is None:
                break
            if event.kind == "error":
                error = event
            else:
                events.append(event)
        exit_code = command.exit_code()
        if exit_code != 0 or error is not None:
            raise error_of(error, exit_code, command.text(), command.name, job)
    return events


def only_event(events: Sequence[Event], kind: str, name: str) -> Event:
    """The event of the kind that a command is to say."""
    for event in events:
        if event.kind == kind:
            return event
    raise Corrupted(f"`{name}` did not say a `{kind}` event; it said "
                    f"{', '.join(event.kind for event in events[:8]) or 'nothing'}")
