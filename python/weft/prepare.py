"""A job in a folder: the model, the data and the job file, of what PyTorch has."""

from __future__ import annotations

import difflib
import json
import math
import os
import shutil
import tempfile
import warnings
import weakref
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .dataset import Samples, columns_in_files, data_in_files, flatten, write_columns
from .errors import ExportWarning, InvalidArgument, NotFound
from .events import Event
from .program import ask, only_event
from .terms import Fields, keep_groups_of, loss_fields, optimizer_terms, schedule_fields
from .types import Terms
from .weights import bare_module

_PLAIN_TERMS = ("batch_size", "microbatch_size", "steps", "epochs", "seed", "shuffle", "clip_norm", "evaluate_every",
                "precision", "on_divergence", "gradient_ranges")
_FREE_TARGETS = ("label", "labels", "target", "targets", "y")


class Folder:
    """The folder of a job: a temporary one, or one that was named and stays."""

    def __init__(self, directory: "Optional[str | os.PathLike[str]]") -> None:
        self.is_temporary = directory is None
        if directory is None:
            self.path = tempfile.mkdtemp(prefix="weft-")
            self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        else:
            self.path = os.path.abspath(os.fspath(directory))
            os.makedirs(self.path, exist_ok=True)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def remove(self) -> None:
        """Of a temporary one; a named one stays."""
        if self.is_temporary:
            self._remove()


class Prepared:
    """A job file that is ready, and what to know of it."""

    def __init__(self, job: str, folder: Folder, sets: Sequence[str], warnings: Sequence[str]) -> None:
        self.job, self.folder, self.sets, self.warnings = job, folder, list(sets), list(warnings)


def prepare(model: Any, dataset: Any, terms: Mapping[str, Any]) -> Prepared:
    """Writes what a run needs. `model` is a module, an ONNX file, or a job file, which says all by itself."""
    check_terms(terms)
    if _is_path(model) and not os.fspath(model).endswith(".onnx"):
        return _of_job_file(os.fspath(model), dataset, terms)
    _check_length(terms)
    folder = Folder(terms.get("directory"))
    try:
        return _Preparation(model, dataset, terms, folder).run()
    except BaseException:
        folder.remove()
        raise


def check_terms(terms: Mapping[str, Any]) -> None:
    """A name that is not one of the terms is an error with the nearest one."""
    known = list(Terms.__annotations__)
    for name in terms:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise TypeError(f"weft does not know the argument '{name}'"
                            + (f"; do you mean '{near[0]}'?" if near else "")
                            + "; a key of the job file that has no argument goes into more={...}")


def _is_path(model: Any) -> bool:
    return isinstance(model, (str, os.PathLike))


def _of_job_file(path: str, dataset: Any, terms: Mapping[str, Any]) -> Prepared:
    if not os.path.isfile(path):
        raise NotFound(f"{path} is not there: a model is a torch module, an .onnx file or a job file")
    if dataset is not None:
        raise InvalidArgument(f"{path} is a job file, which says what the data are")
    sets: List[str] = []
    for name, value in terms.items():
        if name == "directory":
            raise InvalidArgument("a job file has its folder: leave directory out")
        if name == "more":
            pairs = list(value.items())
        elif name == "stages":
            pairs = [("placement.stages", value)]
        elif name == "learning_rate":
            pairs = [("optimizer.learning_rate", value)]
        elif name in _PLAIN_TERMS:
            pairs = [(name, value)]
        else:
            raise InvalidArgument(f"beside a job file there is no '{name}'; more={{'a.b': value}} overrides its keys")
        for key, item in pairs:
            sets += ["--set", f"{key}={to_json(item)}"]
    return Prepared(os.path.abspath(path), _NoFolder(), sets, [])


class _NoFolder(Folder):
    """A job file lies where its owner has it."""

    def __init__(self) -> None:
        self.is_temporary, self.path = False, ""


def _check_length(terms: Mapping[str, Any]) -> None:
    if terms.get("batch_size") is None:
        raise InvalidArgument("say batch_size: how many samples a step takes")
    if (terms.get("steps") is None) == (terms.get("epochs") is None):
        raise InvalidArgument("say how long to train: steps, or epochs")


def to_json(value: Any) -> str:
    def plain(item: Any) -> Any:
        if hasattr(item, "tolist"):
            return item.tolist()
        if isinstance(item, os.PathLike):
            return os.fspath(item)
        raise InvalidArgument(f"a job file cannot hold a {type(item).__name__}")
    try:
        return json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False)
    except ValueError as problem:
        raise InvalidArgument(f"a job file cannot hold this: {problem}") from None


class _Preparation:
    """One job, from the model and the data to the file."""

    def __init__(self, model: Any, dataset: Any, terms: Mapping[str, Any], folder: Folder) -> None:
        self.model, self.dataset, self.terms, self.folder = model, dataset, terms, folder
        self.warnings: List[str] = []
        self.job: Dict[str, Any] = {"format": 1, "task": "train"}

    def run(self) -> Prepared:
        terms = self.terms
        losses = loss_fields(terms.get("loss"))
        optimizer = optimizer_terms(terms.get("optimizer"), terms.get("learning_rate"),
                                    None if _is_path(self.model) else bare_module(self.model))
        self.warnings += optimizer.warnings
        if self.dataset is None:
            raise InvalidArgument("there is no data set")
        files = data_in_files(self.dataset)
        samples = None if files is not None else Samples(self.dataset)
        names, outputs = self._model(samples, len(losses))
        keys = columns_in_files(files) if files is not None else samples.keys()  # type: ignore[union-attr]
        inputs, columns = match_columns(names, outputs, losses, keys, terms.get("inputs") or {},
                                        files["type"] if files is not None else "")
        self.job["inputs"] = inputs
        self.job["loss"] = losses if len(losses) > 1 else losses[0]
        self._roles(optimizer.left_out, optimizer.fields)
        self.job["optimizer"] = optimizer.fields
        self._plain_terms()
        self._data(files, samples, columns, keys)
        path = self.folder.file("job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("# Written by weft's Python package. YAML has JSON in it.\n")
            json.dump(json.loads(to_json(self.job)), file, ensure_ascii=False, indent=1)
            file.write("\n")
        for text in self.warnings:
            warnings.warn(text, ExportWarning, stacklevel=4)  # of whoever called submit, local or plan
        return Prepared(path, self.folder, [], self.warnings)

    # ---- the model

    def _model(self, samples: Optional[Samples], losses: int) -> Tuple[List[str], List[str]]:
        """The names of its inputs and outputs. A module is exported; an ONNX file stays where it is."""
        if _is_path(self.model):
            path = os.path.abspath(os.fspath(self.model))
            if not os.path.isfile(path):
                raise NotFound(f"{path} is not there")
            self.job["model"] = path
            self.shown = inspect_model(path)
            return [port["name"] for port in self.shown.inputs], [port["name"] for port in self.shown.outputs]
        from .export import export_model

        path = self.folder.file("model.onnx")
        example = self.terms.get("example")
        if example is None:
            if samples is None:
                raise InvalidArgument("say example=x: a batch of what the model takes")
            example = example_of(samples, self.model, losses, self.terms.get("inputs") or {})
        self.exported = export_model(self.model, example, path, outputs=self.terms.get("outputs"),
                                     dynamic=self.terms.get("dynamic"))
        self.warnings += self.exported.warnings
        self.job["model"] = "model.onnx"
        self.shown = inspect_model(path)
        return self.exported.inputs, self.exported.outputs

    def _roles(self, left_out: Sequence[str], optimizer: Fields) -> None:
        """What is trained is what PyTorch would train: the rest is frozen, and what weft takes for a constant is
        named."""
        freeze = [str(pattern) for pattern in self.terms.get("freeze") or []]
        train: List[str] = [str(pattern) for pattern in self.terms.get("train") or []]
        parameters = {entry["name"] for entry in self.shown.parameters or []}
        if not _is_path(self.model):
            trainable = self._trainable(left_out)
            freeze += sorted(parameters - trainable)
            train += sorted({entry["name"] for entry in self.shown.constants or []} & trainable)
            keep_groups_of(optimizer, sorted((parameters & trainable) | set(train)))
        if freeze:
            self.job["freeze"] = freeze
        if train:
            self.job["train"] = train

    def _trainable(self, left_out: Sequence[str]) -> "set[str]":
        """The names, all of a tied weight's, of the parameters that PyTorch would train."""
        from .audit import named

        out = {*left_out, *self.exported.unreached}
        return {name for name, parameter in named(bare_module(self.model))
                if parameter.requires_grad and name not in out}

    # ---- the rest

    def _plain_terms(self) -> None:
        terms, job = self.terms, self.job
        for name in _PLAIN_TERMS:
            if terms.get(name) is not None:
                job[name] = terms[name]
        schedule = schedule_fields(terms.get("schedule"))
        if schedule is not None:
            job["schedule"] = schedule
        if terms.get("checkpoint") is not None:
            every = terms["checkpoint"]
            job["checkpoint"] = every if isinstance(every, Mapping) else (
                {"every": every} if isinstance(every, str) else {"steps": int(every)})
        if terms.get("compression") is not None:
            policy = terms["compression"]
            job["compression"] = policy if isinstance(policy, Mapping) else {"policy": str(policy)}
        placement = dict(terms.get("placement") or {})
        if terms.get("stages") is not None:
            placement["stages"] = terms["stages"]
        if placement:
            job["placement"] = placement
        job["output"] = "trained.onnx"
        for key, value in (terms.get("more") or {}).items():
            put(job, str(key), value)

    def _data(self, files: Optional[Fields], samples: Optional[Samples], columns: List[str],
              keys: Optional[List[str]]) -> None:
        data: Dict[str, Any] = {}
        if files is not None:
            data["train"] = files
        else:
            assert samples is not None
            data["train"] = write_columns(samples, columns, self.folder.path, "train")
        test = self.terms.get("test")
        if test is not None:
            in_files = data_in_files(test)
            data["test"] = in_files if in_files is not None else write_columns(
                Samples(test, "test"), columns, self.folder.path, "test")
        self.job["data"] = data


def put(job: Dict[str, Any], key: str, value: Any) -> None:
    """Sets a key of the job, as "placement.owner"."""
    *path, last = key.split(".")
    for part in path:
        job = job.setdefault(part, {})
        if not isinstance(job, dict):
            raise InvalidArgument(f"more has the key '{key}', and '{part}' holds no keys")
    job[last] = value


def inspect_model(path: str) -> Event:
    """What weft sees in a model: inputs, outputs, what is trained and what is not."""
    return only_event(ask(["inspect", path, "--format", "json"]), "model", "weft inspect")


def example_of(samples: Samples, model: Any, losses: int, inputs: Mapping[str, str]) -> Any:
    """Two samples of the data as a batch: what the model takes of them."""
    import torch

    from .export import forward_names

    def batch(value: Any) -> Any:
        tensor = torch.as_tensor(value)
        return torch.stack([tensor, tensor])
    names = forward_names(model)
    if isinstance(samples.first, Mapping):
        taken = {name: inputs.get(name, name) for name in names if inputs.get(name, name) in samples.first}
        if not taken and len(names) == 1 and len(samples.first) == losses + 1:
            taken = {names[0]: next(iter(samples.first))}
        if not taken:
            raise InvalidArgument(f"a sample has {', '.join(map(repr, samples.first))}, and forward takes "
                                  f"{', '.join(map(repr, names))}: say inputs={{'{names[0] if names else 'x'}': COLUMN}}")
        return {name: batch(samples.first[column]) for name, column in taken.items()}
    values = flatten(samples.first)
    count = min(len(names), max(1, len(values) - losses)) if names else max(1, len(values) - losses)
    return tuple(batch(value) for value in values[:count])


def match_columns(names: Sequence[str], outputs: Sequence[str], losses: List[Fields], keys: Optional[List[str]],
                  given: Mapping[str, str], kind: str) -> Tuple[Dict[str, str], List[str]]:
    """Which column feeds which input, and the columns that are read. Fills in what the losses leave open.

    `keys` are the names that the data have; None: they have an order alone, the inputs first.
    """
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InvalidArgument(f"inputs speaks of '{unknown[0]}'; the model takes {', '.join(map(repr, names))}")
    inputs = {name: str(given.get(name, name)) for name in names}
    if keys is not None:
        if kind in ("idx", "text", "images") and len(names) == 1 and names[0] not in given:
            inputs[names[0]] = keys[0]
        elif len(names) == 1 and inputs[names[0]] not in keys and not given and len(keys) == len(losses) + 1:
            inputs[names[0]] = keys[0]
        missing = [column for column in inputs.values() if column not in keys]
        if missing:
            raise InvalidArgument(f"the data have no '{missing[0]}'; they have {', '.join(map(repr, keys[:16]))}: say "
                                  f"inputs={{'{names[0]}': COLUMN}}")
    free = None if keys is None else [key for key in keys if key not in inputs.values()]
    targets: List[str] = []
    for index, fields in enumerate(losses):
        _complete_loss(fields, index, losses, outputs, free, targets, list(inputs.values()))
    columns = list(dict.fromkeys([*inputs.values(), *targets]))
    return inputs, columns


def _complete_loss(fields: Fields, index: int, losses: List[Fields], outputs: Sequence[str],
                   free: Optional[List[str]], targets: List[str], taken: Sequence[str]) -> None:
    kind = fields["type"]
    of_output = {"cross_entropy": "logits", "output": "name"}.get(kind, "output")
    if of_output not in fields:
        if index >= len(outputs):
            raise InvalidArgument(f"there are {len(losses)} losses, and the model returns {len(outputs)} tensors: say "
                                  f"which one loss {index} reads, as {{'type': '{kind}', '{of_output}': "
                                  f"'{outputs[0] if outputs else 'output'}'}}")
        fields[of_output] = outputs[index]
    if kind != "output":
        of_target = "labels" if kind == "cross_entropy" else "target"
        if of_target not in fields:
            fields[of_target] = _target_name(index, losses, of_target, free, taken)
        targets.append(str(fields[of_target]))
    if "sample_weights" in fields:
        targets.append(str(fields["sample_weights"]))


def _target_name(index: int, losses: List[Fields], of_target: str, free: Optional[List[str]],
                 taken: Sequence[str]) -> str:
    reading = [fields for fields in losses if fields["type"] != "output"]
    if free is None:
        name = {"labels": "label", "target": "target"}[of_target] + (str(index) if len(reading) > 1 else "")
        while name in taken:
            name += "_"
        return name
    said = {str(fields.get(key)) for fields in losses for key in ("labels", "target", "sample_weights")}
    left = [key for key in free if key not in said]
    common = [key for key in left if key in _FREE_TARGETS]
    if len(reading) == 1 and len(left) != 1 and len(common) == 1:
        return common[0]
    if not left or (len(reading) == 1 and len(left) > 1):
        raise InvalidArgument(f"which column does loss {index} compare with? Say it, as {{'type': "
                              f"'{losses[index]['type']}', '{of_target}': COLUMN}}; the data have "
                              f"{', '.join(map(repr, free)) or 'none beside the inputs'}")
    return left[0]
