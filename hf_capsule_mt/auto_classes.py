"""Makes the models known to the auto classes of transformers without importing either.

AutoConfig knows transformers' own families as names, and imports the module of one when its class is asked for. Ours
are names there too. The module that it then imports is this package, whose attributes import `models`, and that
registers all classes.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

CONFIGS = {
    "capsule-bart": "CapsuleBartConfig",
    "capsule-m2m100": "CapsuleM2M100Config",
    "capsule-marian": "CapsuleMarianConfig",
    "capsule-mbart": "CapsuleMBartConfig",
    "capsule-rnn": "CapsuleRNNConfig",
}
AUTO_CONFIG = "transformers.models.auto.configuration_auto"
PACKAGE = sys.modules["hf_capsule_mt"]


def announce() -> None:
    """Give AutoConfig the names of our configurations: now if it has been imported, and whenever it is."""
    # before the check, so that no other thread imports it between the two
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
    if AUTO_CONFIG in sys.modules:
        # imported again: in another thread it may have begun only
        _add_names(import_module(AUTO_CONFIG))


def _add_names(auto_config: ModuleType) -> None:
    # Nothing may be imported here: transformers imports AutoConfig in the midst of the modules that ours inherit from.
    for model_type in CONFIGS:
        # where AutoConfig looks for the class of a model type
        sys.modules[f"transformers.models.{model_type.replace('-', '_')}"] = PACKAGE
    auto_config.CONFIG_MAPPING_NAMES.update(CONFIGS)


class AutoConfigFinder(MetaPathFinder):
    """Finds the module of AutoConfig as the other finders do, and adds our names when it has been executed.

    It stays in sys.meta_path: taking it out would disturb imports in other threads, and the module may be reloaded.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of that one module; None for all others."""
        if name != AUTO_CONFIG:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = AutoConfigLoader(spec.loader)
                return spec
        return None


class AutoConfigLoader(Loader):
    """The loader that was found, and our names behind it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the loader that was found does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with its own loader, which it keeps, and add the names."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        _add_names(module)


FINDER = AutoConfigFinder()
