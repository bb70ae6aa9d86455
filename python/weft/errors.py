"""The errors of weft, by the codes that the program gives them."""

from __future__ import annotations

from typing import Dict, Optional, Type


class Error(Exception):
    """What went wrong, where, and what to try.

    `code` is weft's name for the kind of error ("InvalidArgument"), `exit_code` what the program ended with, and
    `job` the number of the job that it is about, where it is about one.
    """

    code: str = "Failed"
    exit_code: int = 1

    def __init__(self, message: str, *, code: str = "", exit_code: Optional[int] = None,
                 job: Optional[int] = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.exit_code = type(self).exit_code if exit_code is None else exit_code
        self.job = job


class InvalidArgument(Error, ValueError):
    """What was given is not right: an argument, the job, the model or the data."""

    code, exit_code = "InvalidArgument", 2


class OutOfRange(InvalidArgument):
    """A number is too large or too small."""

    code = "OutOfRange"


class Infeasible(InvalidArgument):
    """No plan fits the machines that there are."""

    code = "Infeasible"


class VersionMismatch(InvalidArgument):
    """The program, this package or the broker are of versions that do not go together."""

    code = "VersionMismatch"


class NotFound(Error, LookupError):
    """A file, a job or a name is not there."""

    code, exit_code = "NotFound", 3


class PermissionDenied(NotFound):
    """It may not be read, or the token does not allow it."""

    code = "PermissionDenied"


class Unsupported(Error):
    """It is understood, but weft does not do it."""

    code, exit_code = "Unsupported", 4


class Corrupted(Error):
    """The bytes of a file are not what they claim to be."""

    code, exit_code = "Corrupted", 5


class ResourceExhausted(Error):
    """Memory, disk or another limit does not suffice."""

    code, exit_code = "ResourceExhausted", 6


class Diverged(Error):
    """A loss, a gradient or a weight was not finite."""

    code, exit_code = "Diverged", 7


class DeviceLost(Error):
    """The device that computed is gone."""

    code, exit_code = "DeviceLost", 8


class Cancelled(Error):
    """The command was interrupted."""

    code, exit_code = "Cancelled", 130


class Unavailable(Error):
    """The broker, or what it needs, cannot be reached."""

    code = "Unavailable"


class Timeout(Error, TimeoutError):
    """Something did not come in time."""

    code = "Timeout"


class Internal(Error):
    """A mistake in weft itself."""

    code = "Internal"


class JobFailed(Error):
    """The job ended in a failure; the message is its reason."""

    code = "JobFailed"


class ExportError(Unsupported):
    """PyTorch could not write the model as ONNX."""

    code = "ExportError"


class ExportWarning(UserWarning):
    """Something of the PyTorch model is not in the exported one, and what to do about it."""


_BY_CODE: Dict[str, Type[Error]] = {
    kind.code: kind
    for kind in (InvalidArgument, OutOfRange, Infeasible, VersionMismatch, NotFound, PermissionDenied, Unsupported,
                 Corrupted, ResourceExhausted, Diverged, DeviceLost, Cancelled, Unavailable, Timeout, Internal,
                 JobFailed)
}
_BY_EXIT_CODE: Dict[int, Type[Error]] = {
    kind.exit_code: kind
    for kind in (InvalidArgument, NotFound, Unsupported, Corrupted, ResourceExhausted, Diverged, DeviceLost,
                 Cancelled)
}


def make_error(message: str, *, code: str = "", exit_code: int = 1, job: Optional[int] = None) -> Error:
    """The exception for what the program said; one of a later version's code is of the class of its exit code."""
    kind = _BY_EXIT_CODE.get(exit_code, Error) if code not in _BY_CODE else _BY_CODE[code]
    if exit_code == Diverged.exit_code:
        kind = Diverged
    return kind(message, code=code, exit_code=exit_code, job=job)
