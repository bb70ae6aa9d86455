"""weft: train and serve one neural network across many people's computers, from Python.

    import weft

    job = weft.submit(model, dataset, example=x, loss="cross_entropy", batch_size=64, epochs=3, stages=3)
    for e in job.events():
        if e.kind == "step":
            print(e.step, e.loss)
    job.load_into(model)

The package runs the `weft` program and reads its JSON. docs/PYTHON.md is the reference.
"""

from .api import local, plan, submit
from .errors import (Cancelled, Corrupted, DeviceLost, Diverged, Error, ExportError, ExportWarning, Infeasible,
                     Internal, InvalidArgument, JobFailed, NotFound, OutOfRange, PermissionDenied, ResourceExhausted,
                     Timeout, Unavailable, Unsupported, VersionMismatch)
from .events import Event
from .jobs import Job, job, jobs
from .local import LocalRun
from .program import __version__
from .serving import Server, serve
from .weights import load_state, read_arrays

__all__ = [
    "Cancelled", "Corrupted", "DeviceLost", "Diverged", "Error", "Event", "ExportError", "ExportWarning",
    "Infeasible", "Internal", "InvalidArgument", "Job", "JobFailed", "LocalRun", "NotFound", "OutOfRange",
    "PermissionDenied", "ResourceExhausted", "Server", "Timeout", "Unavailable", "Unsupported", "VersionMismatch",
    "__version__", "job", "jobs", "load_state", "local", "plan", "read_arrays", "serve", "submit",
]
