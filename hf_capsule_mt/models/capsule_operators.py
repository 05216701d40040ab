"""The aggregations that there are: which class the field `aggregation` of a configuration names.

This project's own are in capsule_layers.py. One from outside registers itself in the same way and is one file; where
that file is found, and how it travels with its models, is docs/operators.md.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

Operator = TypeVar("Operator", bound=type)

AGGREGATION_CLASSES: dict[str, type] = {}
# Asked, one after the other, for a name that is not registered; may register it. The installed package adds one.
FINDERS: list[Callable[[str], None]] = []
# Called with a model and the folder that it has just been saved in. The installed package adds one.
AFTER_SAVING: list[Callable[[Any, str], None]] = []


class UnknownAggregationError(ValueError):
    """A configuration names an aggregation that nothing has registered."""


def register_aggregation(name: str) -> Callable[[Operator], Operator]:
    """A class decorator: `aggregation=name` in a configuration then is this class.

    The class is a torch module that is built as `Class(config, num_layers, **aggregation_options)`, hence further
    parameters are its options and have defaults. Its forward takes the layers [..., L, d] and output_agreements, and
    returns the aggregate [..., d] and, where it routes and is asked, R agreements [..., L, N]; None otherwise. A class
    that routes says so by an attribute, `routes = True`: reports, cards and figures then show its agreements. Its
    direct parameters start as its `init_weights` says if it is an `InitialisesItself`.

    Args:
        name: what configurations call it.

    Raises:
        ValueError: the name is taken, or the class cannot be built like that.
    """

    def register(operator: Operator) -> Operator:
        if not is_built_in(operator):
            _register_built_in()
        same = AGGREGATION_CLASSES.get(name, operator)
        # a module that is loaded again registers its class again
        again = (same.__module__, same.__qualname__) == (operator.__module__, operator.__qualname__)
        if not name or name == "none" or not again:
            raise ValueError(
                f"the aggregation {name!r} of {operator.__qualname__} is taken; give it a name that is none of "
                f"{', '.join(known_aggregations())}"
            )
        parameters = list(inspect.signature(operator).parameters.values())
        if len(parameters) < 2 or any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters[2:]):
            raise ValueError(
                f"{operator.__qualname__}.__init__ must take config and num_layers, and options that have defaults"
            )
        AGGREGATION_CLASSES[name] = operator
        return operator

    return register


def known_aggregations() -> tuple[str, ...]:
    """What `aggregation` may be: "none", and all that is registered."""
    _register_built_in()
    return ("none", *AGGREGATION_CLASSES)


def aggregation_class(name: str) -> type:
    """The class of that name.

    Raises:
        UnknownAggregationError: lists those that there are, and says how to add one.
    """
    if name not in known_aggregations():
        for find in FINDERS:
            find(name)
    if name not in AGGREGATION_CLASSES:
        raise UnknownAggregationError(
            f"aggregation='{name}' is not known; choose one of {', '.join(known_aggregations())}, or name the file "
            "that adds it (--operators FILE, see docs/operators.md)"
        )
    return AGGREGATION_CLASSES[name]


def routes_layers(name: Any) -> bool:
    """Whether an aggregation has agreements to show; not if nothing has registered that name."""
    _register_built_in()
    return bool(getattr(AGGREGATION_CLASSES.get(name), "routes", False))


def check_aggregation(name: str, options: dict[str, Any] | None = None) -> None:
    """Checks that there is such an aggregation, and that it has these options.

    Raises:
        UnknownAggregationError: see `aggregation_class`.
        ValueError: it has no such option.
    """
    known: list[str] = []
    if name != "none":
        parameters = list(inspect.signature(aggregation_class(name)).parameters.values())[2:]
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return
        known = [parameter.name for parameter in parameters]
    for option in options or {}:
        if option not in known:
            there = f"its options are {', '.join(known)}" if known else "it has none"
            raise ValueError(f"aggregation_options: aggregation='{name}' has no option {option!r}; {there}")


def operator_file(name: str) -> str | None:
    """The file that an aggregation from outside is in, without its folder; None for this project's own."""
    operator = AGGREGATION_CLASSES.get(name)
    if operator is None or is_built_in(operator):
        return None
    return f"{operator.__module__.rpartition('.')[-1]}.py"


def is_built_in(operator: type) -> bool:
    """Whether a class is one of this project's own."""
    return operator.__module__ == f"{__name__.rpartition('.')[0]}.capsule_layers"


def _register_built_in() -> None:
    # when they are asked for: a configuration alone need not load the layers
    from .capsule_layers import LayerAggregation  # noqa: F401
