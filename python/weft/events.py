"""What a run says, one event after the other."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, Mapping, Optional


class Event(Mapping[str, Any]):
    """A line of `weft ... --format json`: a mapping whose keys can be read as attributes, too.

        for e in job.events():
            if e.kind == "step":
                print(e.step, e.loss)

    A key that the event does not have is None as an attribute, and a KeyError in brackets.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_fields", dict(fields))

    @property
    def kind(self) -> str:
        """`step`, `evaluation`, `state`, `status`, `result`, ..."""
        return str(self._fields.get("event", ""))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._fields.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"an event cannot be changed: {name}")

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value!r}" for key, value in self._fields.items() if key != "event")
        return f"<{self.kind or 'event'}{' ' if shown else ''}{shown}>"

    def __reduce__(self) -> Any:
        return Event, (self.to_dict(),)

    def to_dict(self) -> Dict[str, Any]:
        """Its fields, as a dictionary of one's own."""
        return dict(self._fields)


def parse_event(line: bytes) -> Optional[Event]:
    """The event of a line; None for a line that holds none."""
    line = line.strip()
    if not line:
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return Event(fields) if isinstance(fields, dict) else None
