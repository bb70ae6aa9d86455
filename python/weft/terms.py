"""What PyTorch calls losses, optimizers and schedules, as a job file says it.

What a job file cannot say is refused by its name: a run that computes something else than PyTorch would is worse
than none.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .errors import InvalidArgument, Unsupported

LOSSES = ("cross_entropy", "mse", "l1", "bce_with_logits", "output")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "linear", "cosine")

Fields = Dict[str, Any]


def _plain(value: Any) -> Any:
    """A number or a list of a tensor or an array."""
    return value.tolist() if hasattr(value, "tolist") else value


def _number(value: Any, what: str) -> float:
    number = float(_plain(value))
    if not math.isfinite(number):
        raise InvalidArgument(f"{what} is {number}")
    return number


# ---- losses ----------------------------------------------------------------------------------------------------


def loss_fields(loss: Any) -> List[Fields]:
    """A loss, or a list of them, as the fields of a job file; what they read of graph and data may be missing."""
    if isinstance(loss, (list, tuple)):
        if not loss:
            raise InvalidArgument("the list of losses is empty")
        return [_one_loss(item) for item in loss]
    return [_one_loss(loss)]


def _one_loss(loss: Any) -> Fields:
    if loss is None:
        raise InvalidArgument('say what is minimised: loss="cross_entropy", "mse", "l1" or "bce_with_logits"')
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise InvalidArgument(f"there is no loss '{loss}'; there are {', '.join(LOSSES)}")
        return {"type": loss}
    if isinstance(loss, Mapping):
        if loss.get("type") not in LOSSES:
            raise InvalidArgument(f"the type of a loss is one of {', '.join(LOSSES)}, not {loss.get('type')!r}")
        return {str(key): _plain(value) for key, value in loss.items()}
    name = _torch_name(loss)
    if name in _LOSS_MODULES:
        return _LOSS_MODULES[name](loss)
    if name in _LOSS_FUNCTIONS:
        return {"type": _LOSS_FUNCTIONS[name]}
    advice = _LOSS_ADVICE.get(name, "compute it in forward, return it from there, and say loss=\"output\"")
    raise Unsupported(f"weft has no loss {name}: {advice}")


def _torch_name(thing: Any) -> str:
    """Of a loss module its class, of a function of torch.nn.functional its name."""
    name = getattr(thing, "__name__", None)
    return name if isinstance(name, str) and callable(thing) else type(thing).__name__


def _is_mean(loss: Any, name: str) -> None:
    if loss.reduction != "mean":
        raise Unsupported(f"{name}(reduction='{loss.reduction}'): a step's loss is the mean; scale the learning rate "
                          "instead")


def _cross_entropy(loss: Any) -> Fields:
    _is_mean(loss, "CrossEntropyLoss")
    fields: Fields = {"type": "cross_entropy"}
    if loss.weight is not None:
        fields["class_weights"] = [float(weight) for weight in _plain(loss.weight)]
    if loss.label_smoothing:
        fields["label_smoothing"] = float(loss.label_smoothing)
    if loss.ignore_index != -100:
        fields["ignore_index"] = int(loss.ignore_index)
    return fields


def _plain_loss(kind: str) -> Any:
    def fields(loss: Any) -> Fields:
        _is_mean(loss, type(loss).__name__)
        return {"type": kind}
    return fields


def _bce_with_logits(loss: Any) -> Fields:
    _is_mean(loss, "BCEWithLogitsLoss")
    for name in ("weight", "pos_weight"):
        if getattr(loss, name) is not None:
            raise Unsupported(f"BCEWithLogitsLoss({name}=...): weigh samples by a column of the data instead, "
                              'loss={"type": "bce_with_logits", "sample_weights": COLUMN}')
    return {"type": "bce_with_logits"}


_LOSS_MODULES: Dict[str, Callable[[Any], Fields]] = {
    "CrossEntropyLoss": _cross_entropy, "MSELoss": _plain_loss("mse"), "L1Loss": _plain_loss("l1"),
    "BCEWithLogitsLoss": _bce_with_logits,
}
_LOSS_FUNCTIONS = {"cross_entropy": "cross_entropy", "mse_loss": "mse", "l1_loss": "l1",
                   "binary_cross_entropy_with_logits": "bce_with_logits"}
_LOSS_ADVICE = {
    "NLLLoss": "return the logits, without log_softmax, and take CrossEntropyLoss",
    "nll_loss": "return the logits, without log_softmax, and take cross_entropy",
    "BCELoss": "return the logits, without sigmoid, and take BCEWithLogitsLoss",
    "binary_cross_entropy": "return the logits, without sigmoid, and take binary_cross_entropy_with_logits",
}


# ---- optimizers ------------------------------------------------------------------------------------------------

# What changes the numbers and is not in a job file, with what it must be.
_REFUSED = {"amsgrad": False, "maximize": False}


class OptimizerTerms:
    """An optimizer as a job file has it, and the parameters that it leaves out."""

    def __init__(self, fields: Fields, left_out: Optional[List[str]] = None,
                 warnings: Optional[List[str]] = None) -> None:
        self.fields = fields
        self.left_out = left_out or []
        self.warnings = warnings or []


def optimizer_terms(optimizer: Any, learning_rate: Optional[float], model: Any) -> OptimizerTerms:
    """An optimizer by name, by the fields of a job file, or one of torch.optim over the model's parameters."""
    if optimizer is None:
        optimizer = "adamw"
    if isinstance(optimizer, str):
        optimizer = {"type": optimizer}
    if isinstance(optimizer, Mapping):
        fields = {str(key): _plain(value) for key, value in optimizer.items()}
        if fields.get("type") not in OPTIMIZERS:
            raise InvalidArgument(f"the optimizers are {', '.join(OPTIMIZERS)}, and there is no "
                                  f"'{fields.get('type')}'")
        if learning_rate is not None:
            fields["learning_rate"] = _number(learning_rate, "the learning rate")
        return OptimizerTerms(fields)
    if learning_rate is not None:
        raise InvalidArgument("the optimizer has its learning rate: leave learning_rate out")
    return _torch_optimizer(optimizer, model)


def _torch_optimizer(optimizer: Any, model: Any) -> OptimizerTerms:
    kind = type(optimizer).__name__
    if not hasattr(optimizer, "param_groups"):
        raise InvalidArgument(f"an optimizer is a name, a mapping or one of torch.optim, not a {kind}")
    if kind.lower() not in OPTIMIZERS:
        raise Unsupported(f"weft has no optimizer {kind}; it has SGD, Adam and AdamW")
    if model is None:
        raise InvalidArgument("a torch optimizer goes with a torch model")
    groups = [(_group_fields(kind, group), _group_names(group, model)) for group in optimizer.param_groups]
    # The settings of the most parameters are the optimizer's; the other groups say how they differ.
    base = max(groups, key=lambda group: len(group[1]))[0]
    fields: Fields = {"type": kind.lower(), **base}
    more = [_difference(base, group, names) for group, names in groups if group is not base]
    if more:
        fields["groups"] = more
    named = {name for _, names in groups for name in names}
    left_out = [name for name, parameter in model.named_parameters() if parameter.requires_grad and name not in named]
    warnings = []
    if any(optimizer.state.values()):
        warnings.append("the optimizer has made steps already; weft begins with a fresh one, without its momentum: "
                        "the first steps may differ")
    return OptimizerTerms(fields, left_out, warnings)


def _group_fields(kind: str, group: Mapping[str, Any]) -> Fields:
    for name, wanted in _REFUSED.items():
        if group.get(name, wanted) != wanted:
            raise Unsupported(f"{kind}({name}={group[name]}): a job file cannot say that")
    fields: Fields = {"learning_rate": _number(group["lr"], "the learning rate"),
                      "weight_decay": _number(group["weight_decay"], "the weight decay")}
    if kind == "SGD":
        fields["momentum"] = _number(group["momentum"], "the momentum")
        if group["dampening"]:
            fields["dampening"] = _number(group["dampening"], "the dampening")
        if group["nesterov"]:
            fields["nesterov"] = True
    else:
        fields["betas"] = [_number(beta, "a beta") for beta in group["betas"]]
        fields["epsilon"] = _number(group["eps"], "epsilon")
    return fields


def _group_names(group: Mapping[str, Any], model: Any) -> List[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    unknown = sum(1 for parameter in group["params"] if id(parameter) not in names)
    if unknown:
        raise InvalidArgument(f"{unknown} tensors of the optimizer are not parameters of the model; was it made for "
                              "another one, or before the model was changed?")
    return [names[id(parameter)] for parameter in group["params"] if parameter.requires_grad]


def _difference(base: Fields, group: Fields, names: List[str]) -> Fields:
    fields: Fields = {"parameters": names}
    for key, value in group.items():
        if key == "weight_decay":
            fields[key] = value
        elif key == "learning_rate":
            if base[key] == 0 and value != 0:
                raise Unsupported("a parameter group has a learning rate, and that of most parameters is 0: freeze "
                                  "those instead (requires_grad=False)")
            fields["learning_rate_factor"] = value / base[key] if base[key] else 1.0
        elif base.get(key) != value:
            raise Unsupported(f"parameter groups may differ in lr and weight_decay; here they differ in {key}")
    if set(base) != set(group):
        raise Unsupported("parameter groups may differ in lr and weight_decay; here they differ in "
                          f"{', '.join(sorted(set(base) ^ set(group)))}")
    return fields


def keep_groups_of(fields: Fields, trained: Sequence[str]) -> None:
    """Takes the names out of the groups that are not trained: a pattern that names nothing is an error."""
    if "groups" not in fields:
        return
    kept = set(trained)
    groups = []
    for group in fields["groups"]:
        names = group["parameters"]
        if any(char in name for name in names for char in "*?"):
            groups.append(group)  # patterns, which somebody wrote
            continue
        names = [name for name in names if name in kept]
        if names:
            groups.append({**group, "parameters": names})
    fields["groups"] = groups
    if not groups:
        del fields["groups"]


# ---- schedules -------------------------------------------------------------------------------------------------


def schedule_fields(schedule: Any) -> Optional[Fields]:
    """A schedule by name, by the fields of a job file, or one of torch.optim.lr_scheduler that it can say."""
    if schedule is None:
        return None
    if isinstance(schedule, str):
        schedule = {"type": schedule}
    if isinstance(schedule, Mapping):
        if schedule.get("type") not in SCHEDULES:
            raise InvalidArgument(f"the schedules are {', '.join(SCHEDULES)}, and there is no "
                                  f"'{schedule.get('type')}'")
        return {str(key): _plain(value) for key, value in schedule.items()}
    raise Unsupported(f"a job file cannot say {type(schedule).__name__} exactly as PyTorch computes it; the schedules "
                      'are {"type": "constant" | "linear" | "cosine", "warmup_steps": N, "final": F}, over all steps '
                      "of the job (docs/JOB.md)")
