"""What importing the package imports, and that its models are known to the auto classes all the same."""

import importlib
import pickle
import subprocess
import sys

import pytest
from transformers import AutoConfig, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import hf_capsule_mt
import hf_capsule_mt.models
from hf_capsule_mt.auto_classes import AUTO_CONFIG, CONFIGS, FINDER
from tiny_models import capsule_config

NOT_YET = "assert not {'hf_capsule_mt.models', *names} & set(sys.modules), names\n"
LOAD = "print(type(AutoModelForSeq2SeqLM.from_pretrained('model', trust_remote_code=False)))\n"
THREADS = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
barrier = Barrier(4)
def look(index):
    barrier.wait(60)
    return MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[CONFIG_MAPPING['capsule-marian']]
with ThreadPoolExecutor(4) as pool:
    assert set(pool.map(look, range(4))) == {hf_capsule_mt.CapsuleMarianMTModel}
"""
ORDERS = {
    # the first import of a parent's configuration is where transformers imports its auto classes in the midst of it
    "ours first": (
        "import hf_capsule_mt\nnames = ['torch', 'transformers', 'numpy']\n"
        + NOT_YET
        + "from transformers import BartConfig, AutoModelForSeq2SeqLM\nnames = []\n"
        + NOT_YET
        + LOAD
    ),
    "transformers first, and the class by several threads": (
        "from transformers import CONFIG_MAPPING, MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, AutoModelForSeq2SeqLM\n"
        "import hf_capsule_mt\nnames = []\n" + NOT_YET + THREADS + LOAD
    ),
    "unpickled configuration": (
        "import pickle\nfrom pathlib import Path\n"
        "config = pickle.loads(Path('config.pickle').read_bytes())\n"
        "from transformers import AutoModelForSeq2SeqLM\n"
        "print(type(AutoModelForSeq2SeqLM.from_config(config)))\n"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a saved model, and its configuration as a pickle."""
    folder = tmp_path_factory.mktemp("imports")
    model = AutoModelForSeq2SeqLM.from_config(capsule_config())
    model.save_pretrained(folder / "model")
    (folder / "config.pickle").write_bytes(pickle.dumps(model.config))
    return folder


@pytest.mark.parametrize("order", ORDERS)
def test_models_are_imported_when_they_are_looked_up(order, folder):
    result = subprocess.run(
        [sys.executable, "-c", "import sys\n" + ORDERS[order]], cwd=folder, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "<class 'hf_capsule_mt.models.modeling_capsule_marian.CapsuleMarianMTModel'>\n"


def test_auto_config_has_the_names_of_all_configurations():
    classes = [getattr(hf_capsule_mt.models, name) for name in hf_capsule_mt.models.__all__ if name.endswith("Config")]
    assert {kind.model_type: kind.__name__ for kind in classes} == CONFIGS
    for kind in classes:
        assert CONFIG_MAPPING[kind.model_type] is kind and type(AutoConfig.for_model(kind.model_type)) is kind
    assert len(set(CONFIG_MAPPING)) == len(list(CONFIG_MAPPING))


def test_package_has_the_classes():
    assert set(hf_capsule_mt.__all__) == {*hf_capsule_mt.models.__all__, "__version__", "register"}
    names: dict = {}
    exec("from hf_capsule_mt import *", names)
    assert all(names[name] is getattr(hf_capsule_mt.models, name) for name in hf_capsule_mt.models.__all__)
    assert set(hf_capsule_mt.__all__) <= set(dir(hf_capsule_mt))
    with pytest.raises(AttributeError, match="module 'hf_capsule_mt' has no attribute 'CapsuleModel'"):
        _ = hf_capsule_mt.CapsuleModel


def test_importing_again_changes_nothing():
    before = list(sys.meta_path), list(CONFIG_MAPPING), hf_capsule_mt.CapsuleBartConfig
    importlib.reload(hf_capsule_mt)
    assert (list(sys.meta_path), list(CONFIG_MAPPING), hf_capsule_mt.CapsuleBartConfig) == before


def test_finder_finds_one_module_as_the_others_do():
    # asks every finder to forget what it knows
    importlib.invalidate_caches()
    assert FINDER in sys.meta_path
    assert FINDER.find_spec("transformers", None) is None
    loaded = sys.modules[AUTO_CONFIG]
    spec = importlib.util.find_spec(AUTO_CONFIG)
    assert spec is loaded.__spec__ and spec.loader is loaded.__loader__
    # not executed: that would make a second AutoConfig
    found = FINDER.find_spec(AUTO_CONFIG, sys.modules["transformers.models.auto"].__path__)
    assert found.origin == spec.origin and found.loader.loader.path == spec.origin
