"""What the configurations of all capsule Transformers have in common."""

import dataclasses
import difflib
import math
from typing import Any, ClassVar

from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

from .capsule_operators import check_aggregation

CAPSULE_INPUTS = ("all_layers", "own_layer")
LINEAR_INPUTS = ("layers", "votes")
# of stacks whose layers are not normalised; the first one is the default
LAYER_NORMALIZATIONS = ("own", "final")
AGGREGATION_INITS = ("identity", "paper")
EM_DENSITIES = ("product", "geometric_mean")
GUIDED_ROUTINGS = ("none", "routing", "classifier", "attention", "recurrent")
GUIDED_LOSSES = ("bow_loss_weight", "bca_loss_weight")
GUIDED_LOSS_NORMALIZATIONS = ("sentence", "token")
# fields whose default is d_model
FOLLOW_D_MODEL = ("num_capsules", "aggregation_hidden_size", "guided_hidden_size")
# with these, a layer is left out at random in training
LAYERDROPS = ("encoder_layerdrop", "decoder_layerdrop")

logger = logging.get_logger(__name__)


@dataclasses.dataclass(init=False, repr=False, eq=False)
class CapsuleConfigMixin:
    """Validation and conversion shared by the capsule configurations, and the fields that all of them have.

    A family that wants another default repeats the field.

    Args:
        aggregation (`str`): how the outputs H^1..H^L of a stack's layers are combined into its output (Dou et al.
            2019): "none" (the plain parent), "linear" (Eq. 3), "dynamic" (Eq. 4), "dynamic_routing" (Alg. 1) or
            "em_routing" (Alg. 2); or an operator from outside that `register_aggregation` has made known.
        aggregation_options (`dict`): options of such an operator, by name.
        aggregate_encoder, aggregate_decoder (`bool`): which stacks aggregate (Table 4).
        capsule_inputs (`str`): input capsules from "all_layers", F_l(H^1..H^L), or "own_layer", F_l(H^l) (Table 3).
        linear_inputs (`str`): what "linear" combines: the "layers" themselves, as in the paper, or the "votes" that
            the routing systems would route, a control with as many parameters as they have.
        layer_normalization (`str`): the layer norm that the outputs of layers go through before they are combined,
            where the stack normalises before its sub-layers and they are the residual stream (M2M100, mBART): "own",
            one for each layer, or "final", the stack's. None where layers are normalised already.
        num_capsules (`int`): N, the number of output capsules, a divisor of d_model; each has size d_model / N.
            Defaults to d_model (Figure 2).
        routing_iterations (`int`): R >= 1 (Figure 3), of the aggregation and of guided routing. R = 1 with
            "dynamic_routing" is the uniform control.
        aggregation_init (`str`): "identity" adds the layer-normalised aggregate to the top layer through a gate that
            starts at zero, and lets the guided head start at zero, so that a converted model starts as its parent;
            "paper" replaces the top layer by the aggregate, as printed, and starts the guided head at random.
        aggregation_hidden_size (`int`): hidden size of F_l and FFN_l, which the paper does not give. Defaults to
            d_model.
        em_inverse_temperature (`float`): final value of the inverse temperature lambda of Eq. 14.
        em_density (`str`): the density of a vote over its d_model / N dimensions in EM routing: their "product", as
            in the paper, or their "geometric_mean" (ours), with which few, large capsules train as well as many.
        guided_routing (`str`): how the source words are assigned to PAST and FUTURE contents at each decoding step
            (Zheng et al. 2019): "none", "routing" (guided dynamic routing, Alg. 1), or the paper's baselines
            "classifier" (CLF), "attention" (ATTN) and "recurrent" (PFRNN, Zheng et al. 2018).
        num_past_capsules, num_future_capsules (`int`): J/2 capsules each, so both must be the same number. With
            "recurrent" PAST and FUTURE have one state each, of the size of these capsules together.
        num_redundant_capsules (`int`): capsules for words of neither group, 0 for none. "classifier" then has three
            classes instead of two; "attention" and "recurrent" have no such group.
        guided_capsule_size (`int`): d_c, the size of one of these capsules.
        guided_hidden_size (`int`): hidden size of the FeedForward that reads the capsules, which the paper does not
            give. Defaults to d_model.
        bow_loss_weight, bca_loss_weight (`float`): lambda_1 and lambda_2, the weights of the bag-of-words and the
            bilingual content agreement loss (1 in the paper); 0 leaves a loss and its parameters out.
        guided_loss_normalization (`str`): how the steps of a sentence count in these losses: "sentence", as printed,
            or "token", which weighs them more (see `capsule_losses`).
        label_smoothing (`float`): label smoothing of the cross-entropy, in [0, 1), applied inside the model.
    """

    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "past_key_values",
        "encoder_agreements",
        "decoder_agreements",
        "source_agreements",
        "translation_loss",
        "bow_loss",
        "bca_loss",
        "guided_assignment",
    ]
    # the model type of the plain models that a config can start from, if there are any
    parent_model_type: ClassVar[str | None] = None
    # whether the output of a layer is normalised: not so in stacks that normalise before their sub-layers
    layers_are_normalized: ClassVar[bool] = True

    aggregation: str = "em_routing"
    aggregation_options: dict[str, Any] | None = None
    aggregate_encoder: bool = True
    aggregate_decoder: bool = True
    capsule_inputs: str = "all_layers"
    linear_inputs: str = "layers"
    layer_normalization: str | None = None
    num_capsules: int | None = None
    routing_iterations: int = 3
    aggregation_init: str = "identity"
    aggregation_hidden_size: int | None = None
    em_inverse_temperature: float | int = 1.0
    em_density: str = "product"
    guided_routing: str = "none"
    num_past_capsules: int = 2
    num_future_capsules: int = 2
    num_redundant_capsules: int = 2
    guided_capsule_size: int = 256
    guided_hidden_size: int | None = None
    bow_loss_weight: float | int = 0.0
    bca_loss_weight: float | int = 0.0
    guided_loss_normalization: str = "sentence"
    label_smoothing: float | int = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_misspelt(kwargs)
        # before the parent, which takes 0 for none given
        for name in ("vocab_size", "decoder_vocab_size"):
            if getattr(self, name, None) is not None:
                check_minimum(name, getattr(self, name), 1)
        for name in FOLLOW_D_MODEL:
            if getattr(self, name) is None:
                setattr(self, name, self.d_model)
        if self.layer_normalization is None and not self.layers_are_normalized:
            self.layer_normalization = LAYER_NORMALIZATIONS[0]
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any):
        """Builds the config from a dictionary; fields in kwargs are merged first, so that they are validated too.

        A dictionary of the plain parent loses its model type and architectures and becomes a capsule config.

        Raises:
            ValueError: if the dictionary belongs to a model of another type.
        """
        config_dict = cls._without_parent_identity(config_dict)
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type != cls.model_type:
            refuse_experts(model_type)
            types = " or ".join(f"'{name}'" for name in (cls.parent_model_type, cls.model_type) if name is not None)
            raise ValueError(
                f"{cls.__name__} can start from a checkpoint of type {types}, but this one is of type "
                f"'{model_type}'; load it with AutoModelForSeq2SeqLM instead"
            )
        if "transformers_version" in config_dict and any(config_dict.get(name) for name in GUIDED_LOSSES):
            # trained and saved before there was a choice
            config_dict = {"guided_loss_normalization": "token"} | config_dict
        fields = {field.name for field in dataclasses.fields(cls)}
        overrides = {name: kwargs.pop(name) for name in list(kwargs) if name in fields and name != "dtype"}
        # sizes that default to d_model follow it when it is overridden
        if "d_model" in overrides:
            config_dict = {key: value for key, value in config_dict.items() if key not in FOLLOW_D_MODEL}
        # options are those of one operator
        if overrides.get("aggregation", config_dict.get("aggregation")) != config_dict.get("aggregation"):
            config_dict = {key: value for key, value in config_dict.items() if key != "aggregation_options"}
        return super().from_dict(config_dict | overrides, **kwargs)

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As in the parent; a plain parent checkpoint does not provoke the warning about its model type."""
        config_dict, kwargs = super().get_config_dict(*args, **kwargs)
        return cls._without_parent_identity(config_dict), kwargs

    @classmethod
    def _without_parent_identity(cls, config_dict: dict[str, Any]) -> dict[str, Any]:
        """The dictionary of a plain parent without what names its class, and without layerdrop; any other as it is.

        Old checkpoints hold keys that nothing reads any more, and that look misspelt (BART's classif_dropout beside
        classifier_dropout): these go too.
        """
        if cls.parent_model_type is None or config_dict.get("model_type") != cls.parent_model_type:
            return config_dict
        for name in LAYERDROPS:
            if config_dict.get(name):
                logger.warning(f"{name}={config_dict[name]} becomes 0: layer aggregation reads every layer")
        foreign = ("model_type", "architectures", *LAYERDROPS)
        return {
            key: value for key, value in config_dict.items() if key not in foreign and cls._meant_field(key) is None
        }

    def plain(self) -> PreTrainedConfig | None:
        """The config of the plain parent with the same sizes; None for a family without a parent."""
        if self.parent_model_type is None:
            return None
        dropped = {
            "model_type",
            "architectures",
            "auto_map",
            "custom_pipelines",
            "operator_file",
            *capsule_field_types(),
        }
        return CONFIG_MAPPING[self.parent_model_type].from_dict(
            {name: value for name, value in self.to_dict().items() if name not in dropped}
        )

    def aggregates(self, stack: str) -> bool:
        """Whether the stack ("encoder" or "decoder") combines its layers."""
        return self.aggregation != "none" and getattr(self, f"aggregate_{stack}")

    def validate_aggregation(self) -> None:
        """Checks the fields of aggregation and label smoothing, at construction and at save.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        check_minimum("d_model", self.d_model, 1)
        check_aggregation(self.aggregation, self.aggregation_options)
        check_choice("capsule_inputs", self.capsule_inputs, CAPSULE_INPUTS)
        check_choice("linear_inputs", self.linear_inputs, LINEAR_INPUTS)
        check_choice("aggregation_init", self.aggregation_init, AGGREGATION_INITS)
        if not self.layers_are_normalized:
            check_choice("layer_normalization", self.layer_normalization, LAYER_NORMALIZATIONS)
        elif self.layer_normalization is not None:
            raise ValueError(
                f"layer_normalization='{self.layer_normalization}' is for stacks that normalise before their "
                f"sub-layers: the layers of a {self.model_type} model are normalised already; leave it out"
            )
        if self.num_capsules < 1 or self.d_model % self.num_capsules:
            # of a width that no model has, the first ones
            divisors = [n for n in range(1, min(self.d_model, 2**16) + 1) if self.d_model % n == 0]
            raise ValueError(
                f"num_capsules={self.num_capsules} does not divide d_model={self.d_model}; choose one of {divisors}"
            )
        for name in ("routing_iterations", "aggregation_hidden_size", "encoder_layers", "decoder_layers"):
            check_minimum(name, getattr(self, name), 1)
        if not self.em_inverse_temperature > 0:
            raise ValueError(f"em_inverse_temperature={self.em_inverse_temperature} must be greater than 0")
        check_choice("em_density", self.em_density, EM_DENSITIES)
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing={self.label_smoothing} must be at least 0 and less than 1")
        for name in LAYERDROPS:
            if getattr(self, name, 0) != 0:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not supported: layer aggregation reads every layer; set it to 0"
                )

    def validate_guided_routing(self) -> None:
        """Checks the fields of guided routing, at construction and at save.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        check_choice("guided_routing", self.guided_routing, GUIDED_ROUTINGS)
        for name in ("num_past_capsules", "num_future_capsules", "guided_capsule_size", "guided_hidden_size"):
            check_minimum(name, getattr(self, name), 1)
        check_minimum("num_redundant_capsules", self.num_redundant_capsules, 0)
        if self.num_past_capsules != self.num_future_capsules:
            raise ValueError(
                f"num_past_capsules={self.num_past_capsules} and num_future_capsules={self.num_future_capsules} "
                "must be the same number: half of the capsules are PAST, half are FUTURE"
            )
        check_choice("guided_loss_normalization", self.guided_loss_normalization, GUIDED_LOSS_NORMALIZATIONS)
        for name in GUIDED_LOSSES:
            weight = getattr(self, name)
            if not 0 <= weight < float("inf"):
                raise ValueError(f"{name}={weight} must be a number of at least 0")
            if weight > 0 and self.guided_routing == "none":
                raise ValueError(
                    f"{name}={weight} needs PAST and FUTURE contents: set guided_routing to 'routing', "
                    "'classifier', 'attention' or 'recurrent', or the weight to 0"
                )

    def validate_sizes(self) -> None:
        """Checks the sizes of the layers and the vocabularies, at construction and at save.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        sizes = ("vocab_size", "max_position_embeddings", "encoder_ffn_dim", "decoder_ffn_dim")
        heads = ("encoder_attention_heads", "decoder_attention_heads")
        # a recurrent model has no positions and no heads
        for name in (*sizes, *heads):
            if hasattr(self, name):
                check_minimum(name, getattr(self, name), 1)
        if getattr(self, "decoder_vocab_size", None) is not None:
            check_minimum("decoder_vocab_size", self.decoder_vocab_size, 1)
        for name in heads:
            if self.d_model % getattr(self, name, 1):
                raise ValueError(
                    f"{name}={getattr(self, name)} does not divide d_model={self.d_model}: each head has an equal "
                    "share of it"
                )

    def validate_layers(self) -> None:
        """Checks dropout, the activation and the initialisation, at construction and at save.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            probability = getattr(self, name, 0)
            if probability is None or not 0 <= probability < 1:
                raise ValueError(f"{name}={probability} must be at least 0 and less than 1")
        # with 0 every weight would start as zero, and no gradient would tell them apart
        if self.init_std is None or not 0 < self.init_std < math.inf:
            raise ValueError(f"init_std={self.init_std} must be a finite number greater than 0")
        if self.activation_function not in ACT2FN:
            known = list(ACT2FN)
            near = difflib.get_close_matches(str(self.activation_function), known) or known
            raise ValueError(
                f"activation_function='{self.activation_function}' is not known to transformers; choose one of "
                f"{', '.join(near)}"
            )

    def validate_special_tokens(self) -> None:
        """Checks that the special tokens are in the vocabularies; None, for no such token, is allowed.

        Raises:
            ValueError: names the field, its value and what is allowed.
        """
        source = self.vocab_size
        target = getattr(self, "decoder_vocab_size", None) or source
        sizes = {
            "bos_token_id": max(source, target),
            # the embeddings of both sides have it
            "pad_token_id": min(source, target),
            "eos_token_id": target,
            "decoder_start_token_id": target,
            "forced_bos_token_id": target,
            "forced_eos_token_id": target,
        }
        for name, size in sizes.items():
            value = getattr(self, name, None)
            for token in value if isinstance(value, list) else [value]:
                if token is not None and not 0 <= token < size:
                    raise ValueError(
                        f"{name}={value} is not in the vocabulary: it must be at least 0 and less than {size}, or None"
                    )

    def _refuse_misspelt(self, extra: dict[str, Any]) -> None:
        # Foreign keys are legitimate in configs from the Hub, so only near misses of real fields are refused.
        for key in extra:
            meant = self._meant_field(key)
            if meant is not None:
                raise ValueError(f"unknown configuration field '{key}'; did you mean '{meant}'?")

    @classmethod
    def _meant_field(cls, key: str) -> str | None:
        """The field that a key is a near miss of, if it is none itself."""
        own = [field.name for field in dataclasses.fields(cls)]
        if key in own or key.startswith("_"):
            return None
        return next(iter(difflib.get_close_matches(key, own, n=1, cutoff=0.85)), None)


def capsule_field_types() -> dict[str, Any]:
    """The fields that every capsule configuration adds to its parent's, with their types."""
    return {field.name: field.type for field in dataclasses.fields(CapsuleConfigMixin)}


def refuse_experts(model_type: str, source: Any = "this checkpoint") -> None:
    """Raises a ValueError for mixtures of experts, which are easily taken for the dense models of their family."""
    if model_type == "nllb-moe":
        raise ValueError(
            f"{source} is of type 'nllb-moe', a mixture of experts, for which there are no capsules; take a dense "
            "NLLB checkpoint, of type 'm2m_100', such as facebook/nllb-200-distilled-600M"
        )


def check_minimum(name: str, value: int | None, minimum: int) -> None:
    """Raises a ValueError if a field is missing or below what is allowed."""
    if value is None or value < minimum:
        raise ValueError(f"{name}={value} must be at least {minimum}")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises a ValueError if a field is not among what is allowed."""
    if value not in allowed:
        raise ValueError(f"{name}='{value}' is not known; choose one of {', '.join(allowed)}")
