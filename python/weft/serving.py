"""A language model that this machine serves."""

from __future__ import annotations

import os
import warnings
import weakref
from typing import Any, List, Mapping, Optional

from .errors import ExportWarning, InvalidArgument, NotFound, Timeout
from .program import Command, error_of
from .prepare import Folder


def _end(command: Command, folder: Optional[Folder]) -> None:
    command.close()
    if folder is not None:
        folder.remove()


class Server:
    """`weft serve` at work: programs that know the OpenAI API ask it at `url`. It ends when this object does."""

    def __init__(self, arguments: List[str], folder: Optional[Folder], timeout: float) -> None:
        command = Command(["serve", *arguments, "--format", "json"])
        self._end = weakref.finalize(self, _end, command, folder)
        self._command = command
        try:
            event = command.next_event(timeout)
            while event is not None and event.kind not in ("serving", "error"):
                event = command.next_event(timeout)
            if event is None or event.kind == "error":
                raise error_of(event, command.exit_code(), command.text(), command.name)
        except BaseException:
            self._end()
            raise
        self.event = event
        self.url: str = str(event.url)
        """Where the model is asked, as "http://127.0.0.1:7781/v1"."""
        self.model: str = str(event.model)
        """The name of the model in requests."""

    def __repr__(self) -> str:
        return f"<weft.Server of '{self.model}' at {self.url}>"

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def is_running(self) -> bool:
        """Whether it still answers."""
        return self._end.alive and self._command.process.poll() is None

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until it ends; Ctrl-C ends it."""
        try:
            while self._command.next_event(timeout) is not None:
                pass
        except Timeout:
            raise
        except KeyboardInterrupt:
            self.stop()

    def stop(self) -> None:
        """Lets answers that are under way end, for some seconds, and ends it."""
        self._end()


def serve(model: Any, *, example: Any = None, http: str = "127.0.0.1:0", name: Optional[str] = None,
          tokenizer: "Optional[str | os.PathLike[str]]" = None, chat_template: Optional[str] = None,
          context: Optional[int] = None, sequences: Optional[int] = None, threads: Optional[int] = None,
          backend: Optional[str] = None, draft: Optional[str] = None,
          dynamic: Optional[Mapping[str, Mapping[int, str]]] = None,
          directory: "Optional[str | os.PathLike[str]]" = None, timeout: float = 300.0) -> Server:
    """Answers with a language model on this machine, by the OpenAI API.

    `model` is an ONNX file, or a module with an example of its tokens, which is exported. The rest is what
    `weft serve` has under these names.
    """
    folder: Optional[Folder] = None
    if isinstance(model, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(model))
        if not os.path.isfile(path):
            raise NotFound(f"{path} is not there")
        if example is not None:
            raise InvalidArgument("a file needs no example")
    else:
        if example is None:
            raise InvalidArgument("say example=tokens: a batch of what the model takes")
        from .export import export_model

        folder = Folder(directory)
        path = folder.file((name or "model").replace("/", "_") + ".onnx")
        try:
            for text in export_model(model, example, path, dynamic=dynamic, trains=False).warnings:
                warnings.warn(text, ExportWarning, stacklevel=2)
        except BaseException:
            folder.remove()
            raise
    arguments = [path, "--http", http]
    for option, value in (("name", name), ("tokenizer", tokenizer), ("chat-template", chat_template),
                          ("context", context), ("sequences", sequences), ("threads", threads),
                          ("backend", backend), ("draft", draft)):
        if value is not None:
            arguments += [f"--{option}", os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return Server(arguments, folder, timeout)
