"""Capsule routing for neural machine translation on Hugging Face transformers.

Importing the package registers its models with AutoConfig and AutoModelForSeq2SeqLM; it never touches the network.
"""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from ._version import __version__
from .models.configuration_capsule_marian import CapsuleMarianConfig
from .models.configuration_capsule_rnn import CapsuleRNNConfig
from .models.modeling_capsule_marian import CapsuleMarianModel, CapsuleMarianMTModel
from .models.modeling_capsule_rnn import CapsuleRNNForConditionalGeneration, CapsuleRNNModel
from .registration import register

__all__ = [
    "CapsuleMarianConfig",
    "CapsuleMarianMTModel",
    "CapsuleMarianModel",
    "CapsuleRNNConfig",
    "CapsuleRNNForConditionalGeneration",
    "CapsuleRNNModel",
    "__version__",
    "register",
]

AutoConfig.register("capsule-marian", CapsuleMarianConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(CapsuleMarianConfig, CapsuleMarianMTModel, exist_ok=True)
AutoConfig.register("capsule-rnn", CapsuleRNNConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(CapsuleRNNConfig, CapsuleRNNForConditionalGeneration, exist_ok=True)
