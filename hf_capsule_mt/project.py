"""Where this project is found, the one place of its address, and what it requires."""

from importlib.metadata import PackageNotFoundError, requires

from packaging.requirements import Requirement

NAME = "hf_capsule_mt"
URL = f"https://pypi.org/project/{NAME}/"


def requirement(package: str) -> str:
    """
    A dependency with the versions that this project was installed for, as pip takes it ("transformers<6,>=5.17").

    Its name alone where the project is not installed, or does not depend on it.
    """
    try:
        declared = [Requirement(line) for line in requires(NAME) or ()]
    except PackageNotFoundError:
        return package
    return next((str(found) for found in declared if found.name == package and found.marker is None), package)
