"""What tables call the systems that were trained and measured: names and data, nothing else."""

from __future__ import annotations

from typing import NamedTuple


class System(NamedTuple):
    """A row of a paper's table: how to ask for it, its name, the paper's number, its names in speed.py and studies."""

    configuration: str
    name: str
    paper: str
    speed: str
    studied: str = ""


# by recipe; Dou et al. 2019, Table 1: BLEU on newstest2014 over its baseline
LAYER_SYSTEMS = {
    "baseline": System('aggregation="none"', "Transformer", "27.31", "none", "none"),
    "linear": System('aggregation="linear"', "linear combination", "+0.42", "linear", "linear"),
    "dynamic": System('aggregation="dynamic"', "dynamic combination", "+1.02", "dynamic", "dynamic"),
    "dynamic_routing": System(
        'aggregation="dynamic_routing"', "dynamic routing", "+0.91", "dynamic_routing", "dynamic_routing"
    ),
    "em_routing": System('aggregation="em_routing"', "EM routing", "+1.50", "em_routing", "em_routing"),
}
BOTH = "bow_loss_weight=1, bca_loss_weight=1"
# by recipe; Zheng et al. 2019, Table 1: average over MT04-06 over its baseline; CLF and ATTN are in a figure only
GUIDED_SYSTEMS = {
    "baseline": System('guided_routing="none"', "Transformer", "44.06", "none", "none"),
    "gdr": System('guided_routing="routing"', "GDR", "+0.75", "guided_routing", "GDR"),
    "gdr_bow": System('guided_routing="routing", bow_loss_weight=1', "GDR + BOW", "+1.42", "-", "GDR+BOW"),
    "gdr_bca": System('guided_routing="routing", bca_loss_weight=1', "GDR + BCA", "+1.37", "-", "GDR+BCA"),
    "gdr_full": System(
        f'guided_routing="routing", {BOTH}', "GDR + BOW + BCA", "+1.59", "guided_routing_bow_bca", "GDR+losses"
    ),
    "gdr_full_token": System(
        'the same, guided_loss_normalization="token"',
        "GDR + BOW + BCA, weighed per token (ours)",
        "-",
        "-",
        "GDR+losses per token",
    ),
    "gdr_no_redundant": System(
        f'guided_routing="routing", num_redundant_capsules=0, {BOTH}',
        "without redundant capsules",
        "+1.24",
        "-",
        "GDR+losses no redundant",
    ),
    "clf": System(f'guided_routing="classifier", {BOTH}', "CLF + BOW + BCA", "-", "guided_classifier", "CLF+losses"),
    "attn": System(f'guided_routing="attention", {BOTH}', "ATTN + BOW + BCA", "-", "guided_attention", "ATTN+losses"),
    "pfrnn": System(
        f'guided_routing="recurrent", {BOTH}', "PFRNN + BOW + BCA", "-", "guided_recurrent", "PFRNN+losses"
    ),
}
RNMT = 'source_memory="attention"'
# the same table over its other baseline; PFRNN is that of Zheng et al. 2018
GUIDED_RNMT = {
    "rnmt": System(RNMT, "RNMT", "36.61", "rnn_attention", "RNMT"),
    "rnmt_gdr": System(f'{RNMT}, guided_routing="routing"', "RNMT + GDR", "-", "-", "RNMT+GDR"),
    "rnmt_gdr_full": System(
        f'{RNMT}, guided_routing="routing", {BOTH}', "RNMT + GDR + BOW + BCA", "+1.84", "-", "RNMT+GDR+losses"
    ),
    "rnmt_pfrnn": System(
        f'{RNMT}, guided_routing="recurrent", {BOTH}',
        "RNMT + PFRNN + BOW + BCA",
        "+1.24 (PFRNN of 2018)",
        "-",
        "RNMT+PFRNN+losses",
    ),
}
ABLATIONS = {
    "share_routing_weights": "True",
    "position_aware_routing": "False",
    "separable_scoring": "False",
}


def ablation(*names: str) -> str:
    """Configuration of CapsNMT with these fields against their defaults."""
    return ", ".join(['source_memory="capsule"', *(f"{name}={ABLATIONS[name]}" for name in names)])


# by recipe; Wang et al. 2019, Tables 1 and 2: BLEU on newstest2014 (En-De) over simple aggregation, 21.3
RECURRENT_SYSTEMS = {
    "baseline": System('CapsuleMarianConfig(aggregation="none")', "Transformer", "+6.0", "-", "none"),
    "simple": System('source_memory="simple"', "simple aggregation", "21.3", "rnn_simple", "simple"),
    "simple_kd": System(
        "the same, on a teacher's translations", "simple + knowledge distillation", "+2.1", "-", "simple+KD"
    ),
    "capsnmt_base": System(ablation(*ABLATIONS), "base CapsNMT", "+3.4", "-", "base CapsNMT"),
    "capsnmt_non_shared": System(
        ablation("position_aware_routing", "separable_scoring"),
        "+ non-shared weights",
        "+3.8",
        "-",
        "CapsNMT non-shared",
    ),
    "capsnmt_position_aware": System(
        ablation("separable_scoring"), "+ position-aware routing", "+4.0", "-", "CapsNMT position-aware"
    ),
    "capsnmt": System(ablation(), "CapsNMT (+ separable scoring)", "+4.4", "rnn_capsule", "CapsNMT"),
    "capsnmt_kd": System(
        "the same, on a teacher's translations", "CapsNMT + knowledge distillation", "+5.6", "-", "CapsNMT+KD"
    ),
    "capsnmt_balanced": System(
        'source_memory="capsule", balanced_routing=True',
        "CapsNMT, balanced routing (ours)",
        "-",
        "rnn_capsule_balanced",
        "CapsNMT balanced",
    ),
    "capsnmt_calibrated": System(
        "CapsuleRNNConfig.calibrated(...)",
        "CapsNMT, calibrated (ours)",
        "-",
        "rnn_capsule_calibrated",
        "CapsNMT calibrated",
    ),
    "capsnmt_calibrated_kd": System(
        "the same, on a teacher's translations",
        "CapsNMT, calibrated + knowledge distillation",
        "-",
        "-",
        "CapsNMT calibrated+KD",
    ),
    "rnmt": System(RNMT, "RNMT", "-", "rnn_attention", "RNMT"),
    "hybrid": System('source_memory="hybrid"', "hybrid", "-", "rnn_hybrid", "hybrid"),
}
SYSTEMS = (LAYER_SYSTEMS, GUIDED_SYSTEMS, RECURRENT_SYSTEMS, GUIDED_RNMT)
# names by those in studies
STUDIED = {system.studied: system.name for systems in SYSTEMS for system in systems.values()}
# by name in linear_time.py
LINEAR_TIME_SYSTEMS = {
    "transformer": "Transformer",
    "rnmt": "RNMT",
    "hybrid": "hybrid, M = 6",
    "simple": "simple aggregation",
    "capsnmt_4": "CapsNMT, M = 4",
    "capsnmt_6": "CapsNMT, M = 6",
    "capsnmt_8": "CapsNMT, M = 8",
}
# what benchmarks/speed.py measures, by its name there
MEASURED = {
    "marian": "`MarianMTModel`",
    "none": "no aggregation",
    "linear": "linear combination",
    "dynamic": "dynamic combination",
    "dynamic_routing": "dynamic routing",
    "em_routing": "EM routing",
    "guided_routing": "GDR",
    "guided_routing_bow_bca": "GDR + BOW + BCA",
    "guided_classifier": "CLF + BOW + BCA",
    "guided_attention": "ATTN + BOW + BCA",
    "guided_recurrent": "PFRNN + BOW + BCA",
    "em_routing_guided": "EM routing + GDR",
    "bart": "`BartForConditionalGeneration`",
    "bart_none": "BART, no aggregation",
    "bart_em_routing": "BART, EM routing",
    "rnn_simple": "simple aggregation",
    "rnn_capsule": "CapsNMT",
    "rnn_capsule_balanced": "CapsNMT, balanced routing",
    "rnn_capsule_calibrated": "CapsNMT, calibrated",
    "rnn_attention": "RNMT",
    "rnn_hybrid": "hybrid",
}
# of these, those that the README names
SUMMARISED = ("none", "linear", "em_routing", "guided_routing", "guided_routing_bow_bca", "em_routing_guided")
JOBS = ("training step", "greedy, 1 sentence", "beam 5, 16 sentences")
# what the probes of past and future call them
GUIDED = {"routing": "GDR", "classifier": "CLF", "attention": "ATTN", "recurrent": "PFRNN"}
# texts that runs were probed on, by record
PROBED_TEXTS = {"europarl100": "Europarl, aligned by hand", "test2016": "test2016, fast_align"}
# recorded by ctranslate2_ratio.py
CTRANSLATE2 = ("ctranslate2_multi30k", "ctranslate2_base")
# recorded by speed.py on a GPU
GPU = "speed/speed_base_cuda.json"
# recorded by serving.py
SERVING = ("serving_yardstick", "serving_base")
