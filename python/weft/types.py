"""The arguments of submit, local and plan."""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence, TypedDict, Union

Path = Union[str, "os.PathLike[str]"]


class Terms(TypedDict, total=False):
    """What a job says beside its model and its data; docs/PYTHON.md explains each, docs/JOB.md its values."""

    example: Any
    loss: Any
    batch_size: int
    microbatch_size: Union[int, str]
    steps: int
    epochs: int
    stages: Union[int, str]
    optimizer: Any
    learning_rate: float
    schedule: Union[str, Mapping[str, Any]]
    clip_norm: float
    test: Any
    evaluate_every: int
    checkpoint: Union[str, int, Mapping[str, Any]]
    seed: int
    shuffle: bool
    inputs: Mapping[str, str]
    outputs: Sequence[str]
    dynamic: Mapping[str, Mapping[int, str]]
    freeze: Sequence[str]
    train: Sequence[str]
    placement: Mapping[str, Any]
    compression: Union[str, Mapping[str, Any]]
    precision: str
    on_divergence: str
    gradient_ranges: int
    more: Mapping[str, Any]
    directory: Path
