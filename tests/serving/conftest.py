"""Exported systems, made once for all test processes."""

import pytest
from exported import SYSTEMS, System, load_system, save_model
from filelock import FileLock

from hf_capsule_mt.serving.export import export_onnx


@pytest.fixture(scope="session")
def exported_folders(tmp_path_factory, worker_id):
    """A function that gives the checkpoint and the exported folder of one of SYSTEMS."""
    base = tmp_path_factory.getbasetemp()
    base = (base if worker_id == "master" else base.parent) / "exported_systems"
    base.mkdir(exist_ok=True)

    def folders(name):
        checkpoint, folder = base / name, base / f"{name}-onnx"
        with FileLock(base / f"{name}.lock"):
            if not folder.exists():
                export_onnx(save_model(checkpoint, *SYSTEMS[name]), folder)
        return checkpoint, folder

    return folders


@pytest.fixture(scope="session")
def loaded_systems():
    return {}


@pytest.fixture(params=SYSTEMS)
def system(request, exported_folders, loaded_systems):
    """One of SYSTEMS; its generation config and settings are put back."""
    name = request.param
    if name not in loaded_systems:
        loaded_systems[name] = load_system(*exported_folders(name))
    loaded: System = loaded_systems[name]
    config, settings = loaded.model.generation_config, loaded.translator.settings
    yield loaded
    loaded.model.generation_config, loaded.translator.settings = config, settings
