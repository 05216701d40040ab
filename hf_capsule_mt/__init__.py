"""Capsule routing for neural machine translation on Hugging Face transformers.

Importing the package makes its models known to the auto classes of transformers; it imports neither transformers nor
PyTorch for that, and never touches the network.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .auto_classes import announce
from .registration import register

__all__ = [
    "CapsuleBartConfig",
    "CapsuleBartForConditionalGeneration",
    "CapsuleBartModel",
    "CapsuleM2M100Config",
    "CapsuleM2M100ForConditionalGeneration",
    "CapsuleM2M100Model",
    "CapsuleMBartConfig",
    "CapsuleMBartForConditionalGeneration",
    "CapsuleMBartModel",
    "CapsuleMarianConfig",
    "CapsuleMarianMTModel",
    "CapsuleMarianModel",
    "CapsuleRNNConfig",
    "CapsuleRNNForConditionalGeneration",
    "CapsuleRNNModel",
    "__version__",
    "register",
]

if TYPE_CHECKING:
    from .models import (
        CapsuleBartConfig,
        CapsuleBartForConditionalGeneration,
        CapsuleBartModel,
        CapsuleM2M100Config,
        CapsuleM2M100ForConditionalGeneration,
        CapsuleM2M100Model,
        CapsuleMarianConfig,
        CapsuleMarianModel,
        CapsuleMarianMTModel,
        CapsuleMBartConfig,
        CapsuleMBartForConditionalGeneration,
        CapsuleMBartModel,
        CapsuleRNNConfig,
        CapsuleRNNForConditionalGeneration,
        CapsuleRNNModel,
    )
else:
    # a type checker would take every name for one that there is

    def __getattr__(name: str) -> Any:
        """The classes of models and configurations, imported when they are asked for."""
        if name == "models" or name in __all__:
            models = import_module(".models", __name__)
            return models if name == "models" else getattr(models, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


# last, as whoever looks for the names may ask for the classes at once
announce()
