"""Capsule routing for neural machine translation on Hugging Face transformers.

Importing the package registers its models with the auto classes of transformers; it never touches the network.
"""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from ._version import __version__
from .models.configuration_capsule_bart import CapsuleBartConfig
from .models.configuration_capsule_marian import CapsuleMarianConfig
from .models.configuration_capsule_rnn import CapsuleRNNConfig
from .models.modeling_capsule_bart import CapsuleBartForConditionalGeneration, CapsuleBartModel
from .models.modeling_capsule_marian import CapsuleMarianModel, CapsuleMarianMTModel
from .models.modeling_capsule_rnn import CapsuleRNNForConditionalGeneration, CapsuleRNNModel
from .registration import register

__all__ = [
    "CapsuleBartConfig",
    "CapsuleBartForConditionalGeneration",
    "CapsuleBartModel",
    "CapsuleMarianConfig",
    "CapsuleMarianMTModel",
    "CapsuleMarianModel",
    "CapsuleRNNConfig",
    "CapsuleRNNForConditionalGeneration",
    "CapsuleRNNModel",
    "__version__",
    "register",
]

for _base_class, _model_class in (
    (CapsuleMarianModel, CapsuleMarianMTModel),
    (CapsuleBartModel, CapsuleBartForConditionalGeneration),
    (CapsuleRNNModel, CapsuleRNNForConditionalGeneration),
):
    _config_class = _model_class.config_class
    AutoConfig.register(_config_class.model_type, _config_class, exist_ok=True)
    AutoModel.register(_config_class, _base_class, exist_ok=True)
    AutoModelForSeq2SeqLM.register(_config_class, _model_class, exist_ok=True)
    # save_pretrained then writes the code of the model beside its weights: whoever loads it needs no package
    _config_class.register_for_auto_class()
    _base_class.register_for_auto_class("AutoModel")
    _model_class.register_for_auto_class("AutoModelForSeq2SeqLM")
