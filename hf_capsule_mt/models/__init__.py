"""Models, and all the code that travels to the Hub with them.

Importing any of it registers all models with the auto classes of transformers.
"""

from transformers import AutoModel, AutoModelForSeq2SeqLM

# finds operators of installed packages, and saves operators with their models
from .. import operators as operators
from .configuration_capsule_bart import CapsuleBartConfig
from .configuration_capsule_m2m100 import CapsuleM2M100Config
from .configuration_capsule_marian import CapsuleMarianConfig
from .configuration_capsule_mbart import CapsuleMBartConfig
from .configuration_capsule_rnn import CapsuleRNNConfig
from .modeling_capsule_bart import CapsuleBartForConditionalGeneration, CapsuleBartModel
from .modeling_capsule_m2m100 import CapsuleM2M100ForConditionalGeneration, CapsuleM2M100Model
from .modeling_capsule_marian import CapsuleMarianModel, CapsuleMarianMTModel
from .modeling_capsule_mbart import CapsuleMBartForConditionalGeneration, CapsuleMBartModel
from .modeling_capsule_rnn import CapsuleRNNForConditionalGeneration, CapsuleRNNModel

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
]

for _base_class, _model_class in (
    (CapsuleMarianModel, CapsuleMarianMTModel),
    (CapsuleBartModel, CapsuleBartForConditionalGeneration),
    (CapsuleM2M100Model, CapsuleM2M100ForConditionalGeneration),
    (CapsuleMBartModel, CapsuleMBartForConditionalGeneration),
    (CapsuleRNNModel, CapsuleRNNForConditionalGeneration),
):
    _config_class = _model_class.config_class
    # AutoConfig has the names of the configurations: see auto_classes.py
    AutoModel.register(_config_class, _base_class, exist_ok=True)
    AutoModelForSeq2SeqLM.register(_config_class, _model_class, exist_ok=True)
    # save_pretrained then writes the code of the model beside its weights: whoever loads it needs no package
    _config_class.register_for_auto_class()
    _base_class.register_for_auto_class("AutoModel")
    _model_class.register_for_auto_class("AutoModelForSeq2SeqLM")
