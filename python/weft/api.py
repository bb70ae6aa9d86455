"""What people call: submit, local, plan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, List, Optional

from .errors import InvalidArgument
from .events import Event
from .jobs import Job
from .local import LocalRun
from .prepare import prepare
from .program import ask, broker_environment, checked_program, only_event
from .weights import bare_module

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .types import Terms


def submit(model: Any, dataset: Any = None, *, name: Optional[str] = None, broker: Optional[str] = None,
           token: Optional[str] = None, resume: "Optional[str | os.PathLike[str]]" = None,
           **terms: "Unpack[Terms]") -> Job:
    """Hands a job to a broker; returns as soon as the broker has model and data.

        job = weft.submit(model, dataset, example=x, loss="cross_entropy", batch_size=64, epochs=3, stages=3)
        for e in job.events(): ...
        job.load_into(model)

    `model` is a torch module, an ONNX file, or a job file. `dataset` is a torch Dataset, a list of samples, a mapping
    of names to arrays, an .npz file, or what a job file says under data.train. The other arguments are those of
    weft.types.Terms; docs/PYTHON.md explains them. Broker and token are those of `weft login`, unless they are
    named here. `name` is what lists call the job: by default the model's class. `resume` is a checkpoint that
    local() wrote.
    """
    checked_program()
    arguments: List[str] = []
    if name is None and not isinstance(model, (str, os.PathLike)):
        name = type(bare_module(model)).__name__
    if name is not None:
        arguments += ["--name", name]
    if resume is not None:
        arguments += ["--resume", os.path.abspath(os.fspath(resume))]
    prepared = prepare(model, dataset, terms)
    try:
        events = ask(["submit", prepared.job, *prepared.sets, *arguments, "--detach", "--format", "json"],
                     broker_environment(broker, token))
    finally:
        prepared.folder.remove()  # the broker has all of it
    submitted = only_event(events, "submitted", "weft submit")
    job = Job(int(submitted.job), broker=broker, token=token)
    job.warnings = prepared.warnings
    for event in events:
        job.warnings += [str(text) for text in event.warnings or []]
    return job


def local(model: Any, dataset: Any = None, *, threads: Optional[int] = None, backend: Optional[str] = None,
          resume: "Optional[str | os.PathLike[str]]" = None, **terms: "Unpack[Terms]") -> LocalRun:
    """Trains on this machine, in a process of its own; the arguments are those of submit().

    `threads` and `backend` are those of `weft local`; `resume` is a checkpoint to go on from, or "auto": the one
    that an earlier run left in `directory`.
    """
    checked_program()
    arguments: List[str] = []
    if threads is not None:
        arguments += ["--threads", str(int(threads))]
    if backend is not None:
        arguments += ["--backend", backend]
    if resume is not None:
        arguments += ["--resume", "auto" if resume == "auto" else os.path.abspath(os.fspath(resume))]
    return LocalRun(prepare(model, dataset, terms), arguments)


def plan(model: Any, dataset: Any = None, *, cluster: "Optional[str | os.PathLike[str]]" = None, live: bool = False,
         strategy: Optional[str] = None, html: "Optional[str | os.PathLike[str]]" = None,
         broker: Optional[str] = None, token: Optional[str] = None, **terms: "Unpack[Terms]") -> Event:
    """Which device would run what, and how fast, without running anything: the `plan` event.

    `cluster` is a cluster file; `live=True` takes the peers of the broker. The other arguments are those of submit().
    """
    if (cluster is None) == (not live):
        raise InvalidArgument("a plan is for a cluster: say cluster=FILE, or live=True for the peers of your broker")
    checked_program()
    arguments = ["--live"] if live else ["--cluster", os.path.abspath(os.fspath(cluster))]  # type: ignore[arg-type]
    if strategy is not None:
        arguments += ["--strategy", strategy]
    if html is not None:
        arguments += ["--html", os.path.abspath(os.fspath(html))]
    prepared = prepare(model, dataset, terms)
    try:
        return only_event(ask(["plan", prepared.job, *prepared.sets, *arguments, "--format", "json"],
                              broker_environment(broker, token)), "plan", "weft plan")
    finally:
        prepared.folder.remove()
