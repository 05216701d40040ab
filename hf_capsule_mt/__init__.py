"""Capsule routing for neural machine translation on Hugging Face transformers.

Importing the package registers its models with AutoConfig and AutoModelForSeq2SeqLM; it never touches the network.
"""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from ._version import __version__
from .models.configuration_capsule_marian import CapsuleMarianConfig
from .models.modeling_capsule_marian import CapsuleMarianModel, CapsuleMarianMTModel
from .registration import register

__all__ = ["CapsuleMarianConfig", "CapsuleMarianMTModel", "CapsuleMarianModel", "__version__", "register"]

AutoConfig.register("capsule-marian", CapsuleMarianConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(CapsuleMarianConfig, CapsuleMarianMTModel, exist_ok=True)
