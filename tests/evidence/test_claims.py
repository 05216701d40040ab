"""What the records say of the papers' claims."""

import pytest

from hf_capsule_mt.evidence import claims, differences
from hf_capsule_mt.studies.study_file import find_study, read_study

SEEDS = ("1", "2", "3")


def study(means=None, comparisons=None, baselines=None, arguments=None, spread=0.25, **parts):
    """
    A record of a study.

    Args:
        means: of systems, whose seeds are `spread` apart.
        comparisons: system -> difference and corrected p; baselines: baseline -> the same.
        arguments: of systems.
        parts: of its test set.
    """
    scores = {
        name: {
            "mean": mean,
            "sd": spread,
            "runs": 3,
            "by_seed": {seed: mean + spread * (int(seed) - 2) for seed in SEEDS},
        }
        for name, mean in (means or {}).items()
    }

    def compared(pairs):
        return {
            name: {"difference": value, "interval": [value - 0.5, value + 0.5], "p_holm": p, "seeds": 3}
            for name, (value, p) in (pairs or {}).items()
        }

    return {
        "score": "bleu",
        "compare_with": "none",
        "seeds": [int(seed) for seed in SEEDS],
        "systems": {
            name: {"arguments": (arguments or {}).get(name, {}), "runs": dict.fromkeys(SEEDS)} for name in means or {}
        },
        "test_sets": {
            "test": {
                "scores": {"bleu": scores},
                "comparisons": {"bleu": compared(comparisons)},
                "baselines": {name: compared(pairs) for name, pairs in (baselines or {}).items()},
                **parts,
            }
        },
    }


@pytest.fixture
def records(monkeypatch):
    found = {}
    monkeypatch.setattr(claims, "load", found.get)
    monkeypatch.setattr(differences, "load", found.get)
    return found


def row(start):
    line = next(line for line in claims.claims_table().splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


@pytest.mark.parametrize(
    ("found", "verdict", "words"),
    [
        ((0.75, 0.04), "shown again", "+0.75 [+0.25, +1.25] (Multi30k, 3 seeds)"),
        ((0.75, 0.06), "not shown", "+0.75 [+0.25, +1.25], not established (Multi30k, 3 seeds)"),
        ((-0.75, 0.01), "the opposite is shown", "-0.75 [-1.25, -0.25] (Multi30k, 3 seeds)"),
    ],
)
def test_differences_say_whether_they_are_established(records, found, verdict, words):
    records["studies/multi30k.json"] = study(comparisons={"GDR": found})
    assert row("Zheng et al.: GDR, +0.75") == [verdict, words]


def test_embedded_corpus_is_told_and_decides_nothing(records):
    records["studies/grammar.json"] = study(comparisons={"GDR": (2, 0.01)})
    verdict, numbers = row("Zheng et al.: GDR, +0.75")
    assert verdict == "not decided yet" and numbers == "+2.00 [+1.50, +2.50] (embedded corpus, 3 seeds)"


def test_two_corpora_that_contradict_each_other_show_nothing(records):
    records["studies/multi30k.json"] = study(comparisons={"linear": (1, 0.01)})
    records["studies/deep.json"] = study(comparisons={"linear": (-1, 0.01)})
    verdict, numbers = row("Dou et al.: linear combination")
    assert verdict == "not shown" and numbers.startswith("-1.00 ") and "; +1.00 " in numbers


@pytest.mark.parametrize(("established", "verdict"), [(1, "shown again"), (-1, "the opposite is shown")])
def test_one_corpus_decides_where_another_leaves_it_open(records, established, verdict):
    records["studies/multi30k.json"] = study(comparisons={"linear": (established, 0.01)})
    records["studies/deep.json"] = study(comparisons={"linear": (0.25, 0.5)})
    assert row("Dou et al.: linear combination")[0] == verdict


def test_without_records_nothing_is_said(records):
    for line in claims.claims_table().splitlines()[2:]:
        verdict, numbers = (cell.strip() for cell in line.split("|")[2:4])
        assert (verdict, numbers) == ("not run yet", "-") or verdict == "not testable here", line


def test_capsules_are_compared_with_simple_aggregation(records):
    found = {"CapsNMT": (-1.5, 0.3), "CapsNMT calibrated": (2.25, 0.01)}
    records["studies/multi30k.json"] = study(baselines={"simple": found})
    verdict, numbers = row("Wang et al.: CapsNMT above")
    assert verdict == "not shown"
    assert numbers.startswith("printed -1.50 ") and "; calibrated +2.25 [+1.75, +2.75] (Multi30k" in numbers
    records["studies/grammar_recurrent.json"] = {
        **study(comparisons={"CapsNMT calibrated": (4.5, 0.01)}),
        "compare_with": "simple",
    }
    verdict, numbers = row("Wang et al.: CapsNMT above")
    assert verdict == "not shown" and numbers.endswith("; +4.50 [+4.00, +5.00] (embedded corpus, 3 seeds)")


def test_what_a_study_does_not_compare_is_compared_over_seeds(records):
    records["studies/multi30k.json"] = study({"GDR+losses": 37, "CLF+losses": 36, "ATTN+losses": 34.5})
    # three equal variances of two degrees each, 0.25^2: with their expected logarithm, psi(1) = -0.5772, the scale is
    # 0.0625 * exp(0.5772) = 0.1113; moderated (4 * 0.1113 + 2 * 0.0625) / 6 = 0.0950; 2.447 * sqrt(2 * 0.0950 / 3)
    assert row("Zheng et al.: GDR gains more than CLF and ATTN") == [
        "shown again",
        "to CLF+losses +1.00 [+0.38, +1.62] (Multi30k, 3 seeds alone); "
        "to ATTN+losses +2.50 [+1.88, +3.12] (Multi30k, 3 seeds alone)",
    ]
    del records["studies/multi30k.json"]["systems"]["CLF+losses"]["runs"]["3"]
    assert row("Zheng et al.: GDR gains more than CLF and ATTN") == [
        "not decided yet",
        "to CLF+losses +1.00 [+0.38, +1.62] so far (Multi30k, 3 seeds alone); "
        "to ATTN+losses +2.50 [+1.88, +3.12] so far (Multi30k, 3 seeds alone)",
    ]


def test_all_of_several_have_to_be_above(records):
    pairs = {"dynamic": (1, 0.01), "dynamic_routing": (1, 0.01), "em_routing": (1, 0.01)}
    records["studies/deep.json"] = study(baselines={"linear": pairs})
    assert row("Dou et al.: all dynamic systems")[0] == "shown again"
    records["studies/deep.json"] = study(baselines={"linear": {**pairs, "em_routing": (1, 0.5)}})
    assert row("Dou et al.: all dynamic systems")[0] == "not shown"
    records["studies/deep.json"] = study(baselines={"linear": {"dynamic": (1, 0.01)}})
    assert row("Dou et al.: all dynamic systems")[0] == "not run yet"


@pytest.mark.parametrize(
    ("printed", "calibrated", "verdict"),
    [
        ((-16, 0.01), (-1.25, 0.01), "shown again"),
        ((-16, 0.01), (-2.0, 0.2), "not shown"),
        ((-16, 0.01), (-2.0, 0.01), "not shown"),
        ((-16, 0.01), (-2.25, 0.01), "the opposite is shown"),
    ],
)
def test_coming_close_is_within_the_margin_and_its_opposite_certainly_outside(records, printed, calibrated, verdict):
    # the paper's margin is -1.6, the intervals reach 0.5 to each side
    found = {"simple": (-13, 0.01), "CapsNMT": printed, "CapsNMT calibrated": calibrated}
    records["studies/multi30k.json"] = study(comparisons=found)
    assert row("Wang et al.: CapsNMT comes close to the Transformer")[0] == verdict


@pytest.mark.parametrize(("means", "verdict"), [((30, 31, 32), "shown again"), ((30, 33, 32), "not shown")])
def test_best_number_of_capsules(records, means, verdict):
    names = {2: "M2 R3", 4: "M4 R3", 8: "M8 R3"}
    arguments = {name: {"num_source_capsules": number} for number, name in names.items()}
    values = dict(zip(names.values(), means, strict=True))
    # the claim has to hold in every line
    arguments |= {f"M{number} R1": {"num_source_capsules": number, "routing_iterations": 1} for number in (2, 4)}
    values |= {"M2 R1": 34, "M4 R1": 35}
    records["studies/capsnmt_size.json"] = study(values, arguments=arguments)
    found, numbers = row("Wang et al.: the more source capsules M")
    assert found == verdict and "2: 30.0" in numbers and "routing_iterations=1 2: 34.0, 4: 35.0" in numbers
    values["M4 R1"] = 33
    records["studies/capsnmt_size.json"] = study(values, arguments=arguments)
    assert row("Wang et al.: the more source capsules M")[0] == "not shown"


def test_curves_on_the_embedded_corpus_are_told_and_decide_nothing(records):
    arguments = {f"em N{number}": {"num_capsules": number} for number in (4, 32)}
    records["studies/grammar_capsules.json"] = study({"em N4": 30, "em N32": 31}, arguments=arguments)
    assert row("Dou et al.: of EM routing: the more capsules N") == [
        "not decided yet",
        "BLEU by num_capsules: num_capsules 4: 30.0, 32: 31.0 (embedded corpus)",
    ]


def buckets(*values, sentences=100):
    return [
        {"by_seed": {seed: value + 0.125 * int(seed) for seed in SEEDS}, "sentences": sentences} for value in values
    ]


def test_an_unfinished_study_decides_nothing(records):
    found = study({"none": 30, "GDR": 31}, comparisons={"GDR": (0.75, 0.01)}, length={})
    records["studies/multi30k.json"] = found
    assert row("Zheng et al.: GDR, +0.75") == ["shown again", "+0.75 [+0.25, +1.25] (Multi30k, 3 seeds)"]
    del found["systems"]["none"]["runs"]["3"]
    so_far = "+0.75 [+0.25, +1.25] so far (Multi30k, 3 seeds)"
    assert row("Zheng et al.: GDR, +0.75") == ["not decided yet", so_far]


def test_beside_a_finished_study_an_unfinished_one_is_told(records):
    records["studies/multi30k.json"] = study({"none": 30, "linear": 30}, comparisons={"linear": (0.5, 0.2)})
    records["studies/deep.json"] = study({"none": 30, "linear": 31}, comparisons={"linear": (1, 0.01)})
    assert row("Dou et al.: linear combination")[0] == "shown again"
    del records["studies/deep.json"]["systems"]["linear"]["runs"]["2"]
    verdict, numbers = row("Dou et al.: linear combination")
    assert verdict == "not shown" and numbers.startswith("+1.00 [+0.50, +1.50] so far (Multi30k, 6 layers")


def test_what_is_close_or_best_is_not_decided_before_all_runs_are_in(records):
    close = study({"CapsNMT": 36}, comparisons={"CapsNMT": (-1, 0.01)})
    best = study({"M2 R3": 20, "M4 R3": 21}, arguments={f"M{m} R3": {"num_source_capsules": m} for m in (2, 4)})
    records |= {"studies/multi30k.json": close, "studies/capsnmt_size.json": best}
    names = ("Wang et al.: CapsNMT comes close", "Wang et al.: the more source capsules M")
    assert [row(name)[0] for name in names] == ["shown again"] * 2
    del close["systems"]["CapsNMT"]["runs"]["3"], best["systems"]["M2 R3"]["runs"]["1"]
    assert [row(name)[0] for name in names] == ["not decided yet"] * 2
    assert row(names[1])[1] == "BLEU by num_source_capsules: num_source_capsules 2: 20.0, 4: 21.0 (Multi30k, so far)"


def test_long_sentences(records):
    lengths = {"none": buckets(30, 29, 28), "GDR+losses": buckets(30.5, 29.75, 30), "em_routing": buckets(31, 30, 28)}
    records["studies/multi30k.json"] = study({}, length=lengths)
    assert row("Zheng et al.: longer sentences") == [
        "shown again",
        "difference +0.5, +0.8, +2.0 from the shortest sources to the longest "
        "(Multi30k, 3 seeds alone, 100, 100, 100 sentences), change +1.5 [+1.5, +1.5]",
    ]
    assert row("Dou et al.: a gain in every length")[0] == "not shown"
    lengths["em_routing"][-1] = buckets(29)[0]
    assert row("Dou et al.: a gain in every length")[0] == "shown again"
    lengths["em_routing"] = buckets(29, 28, 27)
    assert row("Dou et al.: a gain in every length")[0] == "the opposite is shown"
    lengths["CapsNMT"] = buckets(20, 19, 18)
    assert row("Wang et al.: level with the Transformer")[0] == "the opposite is shown"


def test_a_length_of_few_sentences_decides_nothing(records):
    lengths = {"none": buckets(30, 29), "GDR+losses": buckets(30.5, 29.75), "em_routing": buckets(31, 30)}
    lengths = {
        name: [*values, *buckets(28 if name == "none" else 20, sentences=99)] for name, values in lengths.items()
    }
    records["studies/multi30k.json"] = study({}, length=lengths)
    verdict, numbers = row("Zheng et al.: longer sentences")
    assert verdict == "not decided yet" and "change -8.5 [-8.5, -8.5]" in numbers
    assert row("Dou et al.: a gain in every length")[0] == "shown again"


def test_words_left_out(records):
    def shares(value):
        found = {"cdr": 1 - value, "under_translated_share": value, "over_translated_share": value}
        return {**found, "by_seed": dict.fromkeys(SEEDS, found)}

    adequacy = {"none": shares(0.05), "GDR+losses": shares(0.03)}
    records["studies/multi30k.json"] = study({}, adequacy=adequacy)
    assert row("Zheng et al.: coverage") == ["shown again", "0.950 -> 0.970 (Multi30k)"]
    for kind in ("under", "over"):
        assert row(f"Zheng et al.: less {kind}-translation") == ["shown again", "0.050 -> 0.030 (Multi30k)"]
    adequacy["GDR+losses"] = shares(0.06)
    assert row("Zheng et al.: less under-translation")[0] == "the opposite is shown"


def probed(seed, area, above):
    """A model of GDR with both losses: areas under the ROC curve with intervals, and rOL."""
    intervals = {"auc": area, "auc_above_diagonal": above}
    for group in ("past", "future"):
        intervals |= {f"{group}_overlap": [0.7, 0.8], f"frequent_{group}_overlap": [0.3, 0.4]}
    found = {"auc": sum(area) / 2, "diagonal_auc": 0.93, "intervals": intervals}
    found |= {f"{kind}{group}_overlap": 0.75 for kind in ("", "frequent_") for group in ("past", "future")}
    losses = {"bow_loss_weight": 1.0, "bca_loss_weight": 1.0, "guided_loss_normalization": "sentence"}
    return {"guided_routing": "routing", "seed": seed, **losses, "rol_predictor": "trained", "results": found}


SEPARATION, DIAGONAL = "Zheng et al.: the groups separate", "Zheng et al.: they do so better than the place"


def test_separation_is_above_chance_and_beside_the_diagonal(records):
    records["past_future/europarl100.json"] = [probed(1, [0.94, 0.96], [0.01, 0.05])]
    names = (SEPARATION, DIAGONAL, "Zheng et al.: the capsules predict")
    assert [row(name)[0] for name in names] == ["not decided yet"] * 3
    aligned = [probed(seed, [0.94, 0.96], [0.01, 0.05]) for seed in (1, 2)]
    records["past_future/test2016.json"] = aligned
    assert [row(name)[0] for name in names] == ["shown again"] * 3
    assert "0.950 [0.940, 0.960] (Europarl, aligned by hand, seed 1)" in row(SEPARATION)[1]
    # one model that is below the diagonal, or one that does not differ from it
    for above in ([-0.05, -0.01], [-0.01, 0.05]):
        records["past_future/test2016.json"] = [*aligned, probed(3, [0.94, 0.96], above)]
        assert (row(SEPARATION)[0], row(DIAGONAL)[0]) == ("shown again", "not shown")
    records["past_future/europarl100.json"] = []
    records["past_future/test2016.json"] = [probed(seed, [0.49, 0.96], [-0.05, -0.01]) for seed in (1, 2, 3)]
    assert (row(SEPARATION)[0], row(DIAGONAL)[0]) == ("not shown", "the opposite is shown")


def test_single_runs_are_told_and_decide_nothing(records):
    routed = {"iterations": [{"entropy": 4.85, "diversity": 0}, {"entropy": 4.5, "diversity": 0.25}]}
    records["deep_parts/analysis.json"] = {
        "systems": [
            {"name": "encoder", "routing": {"encoder": routed}},
            {"name": "decoder", "routing": {"decoder": routed}},
            {"name": "own layer", "routing": {"encoder": routed, "decoder": routed}},
        ]
    }
    words = "(Multi30k, 6 layers, one run each)"
    assert row("Dou et al.: entropy") == ["not decided yet", f"encoder 4.85 4.50; decoder 4.85 4.50 {words}"]
    assert row("Dou et al.: diversity") == ["not decided yet", f"encoder 0.00 0.25; decoder 0.00 0.25 {words}"]
    memory = {"iterations": [{"assignment_entropy": value, "capsules_in_use": value} for value in (1.79, 0)]}
    records["multi30k/analysis.json"] = {"systems": [{"name": "CapsNMT", "routing": {"memory": memory}}]}
    for claim in ("a word's assignment", "the words of a sentence"):
        found = row(f"Wang et al.: {claim}")
        assert found == ["not decided yet", "1.79 0.00 by iteration (Multi30k, printed form, one run)"]


@pytest.mark.parametrize(("trained", "verdict"), [(1.48, "shown again"), (1.52, "not shown")])
def test_speed_is_beside_our_plain_model(records, trained, verdict):
    def measured(training, beam):
        return {"training step": {"time_ratio": training}, "beam 5, 16 sentences": {"time_ratio": beam}}

    results = {"none": measured(1.0, 0.94), "guided_routing_bow_bca": measured(trained, 1.0)}
    records["speed/speed_base.json"] = {"results": results}
    found, numbers = row("Zheng et al.: training at 0.67x")
    assert found == verdict and numbers.startswith(f"{1 / trained:.2f}x and 0.94x the speed of our plain model, ")
    assert numbers.endswith("(base size, beam 5)")


@pytest.mark.parametrize(("trained", "verdict"), [(1.8, "shown again"), (1.9, "not shown")])
def test_training_is_as_fast_beside_the_plain_model_on_a_gpu_too(records, trained, verdict):
    def measured(training):
        return {"training step": {"time_ratio": training}, "beam 5, 16 sentences": {"time_ratio": 1.0}}

    results = {"none": measured(1.0), "guided_routing_bow_bca": measured(1.2)}
    records["speed/speed_base.json"] = {"results": results}
    results = {"none": measured(1.25), "guided_routing_bow_bca": measured(trained)}
    records["speed/speed_base_cuda.json"] = {"results": results}
    found, numbers = row("Zheng et al.: training at 0.67x")
    assert found == verdict
    assert numbers.endswith(f"; training on a GPU {1.25 / trained:.2f}x and {1 / trained:.2f}x")


@pytest.mark.parametrize(
    ("changed", "small", "verdict"),
    [(0.74, 0.9, "shown again"), (0.76, 0.9, "not shown"), (0.74, 1.1, "not shown")],
)
def test_latency_is_beside_the_transformer_with_each_number_of_capsules(records, changed, small, verdict):
    def measured(short, long):
        times = {"sentence": {"20": {"ratio": short}, "50": {"ratio": long}}}
        return {"times": times, "operations_per_token": {"10": 5, "1000": 5}}

    results = {"capsnmt_4": measured(0.6, 0.5), "capsnmt_6": measured(0.66, 0.55), "capsnmt_8": measured(0.7, changed)}
    results["transformer"] = {"operations_per_token": {"10": 5, "1000": 6}}
    records["speed/linear_time.json"] = {"results": results}
    beams = {"1": {"CapsNMT": {"ratio": 0.8}}, "5": {"CapsNMT": {"ratio": small}}}
    assert row("Wang et al.: decoding takes")[0] == "not run yet"
    records["speed/latency_multi30k.json"] = {"results": beams}
    found, numbers = row("Wang et al.: decoding takes")
    assert found == verdict
    assert numbers == (
        f"0.60x 0.66x 0.70x the time for 20 words, 0.50x 0.55x {changed:.2f}x the time for 50 words "
        f"(base size, greedy); M = 6: greedy 0.80x, beam 5 {small:.2f}x (Multi30k models)"
    )


@pytest.mark.parametrize(("second", "verdict"), [(0.96, "shown again"), (0.98, "not shown")])
def test_routing_has_to_be_ahead_in_every_seed(records, second, verdict):
    def entry(mechanism, seed, auc, bca=1.0):
        losses = {"bow_loss_weight": 1.0, "bca_loss_weight": bca, "guided_loss_normalization": "sentence"}
        found = {"auc": auc, "diagonal_auc": 0.5, "intervals": {"auc_above_diagonal": [0.1, 0.2]}}
        return {"guided_routing": mechanism, "seed": seed, **losses, "rol_predictor": "fitted", "results": found}

    areas = {"routing": (0.99, 0.97, 0.98), "classifier": (0.95, 0.94, 0.96), "attention": (0.98, second, 0.9)}
    entries = [entry(mechanism, seed, value) for mechanism, found in areas.items() for seed, value in enumerate(found)]
    # neither another system nor a seed that not all have counts
    entries += [entry("routing", 0, 0.1, bca=0.0), entry("routing", 3, 0.1)]
    # what is seen on the embedded corpus is told
    records["past_future/grammar.json"] = entries
    assert row("Zheng et al.: routing does so better")[0] == "not run yet"
    records["past_future/europarl100.json"] = entries[:-3]
    assert row("Zheng et al.: routing does so better")[0] == "not run yet"
    records["past_future/europarl100.json"] = entries
    found, numbers = row("Zheng et al.: routing does so better")
    assert found == verdict
    assert "GDR 0.980, CLF 0.950, ATTN" in numbers and "(embedded corpus, gold alignments, seeds: 3)" in numbers
    assert "(Europarl, aligned by hand, seeds: 3)" in numbers
    # losses that are not weighed as printed are another system
    records["past_future/europarl100.json"] = [
        *entries,
        *({**entries[seed], "guided_loss_normalization": "token", "results": {"auc": 0.1}} for seed in range(3)),
    ]
    assert row("Zheng et al.: routing does so better")[0] == verdict


def test_every_study_and_system_of_a_claim_exists(monkeypatch):
    """A name that no study has would be "not run yet" forever."""
    studies = {name: read_study(find_study(name)) for name in differences.SETTINGS}
    asked = set()

    def load(path):
        name = path.removeprefix("studies/").removesuffix(".json")
        if name not in studies:
            return None
        # every system that is asked for has to be one of some study
        pairs = {system: (0.5, 0.01) for system in studies[name].systems}
        baselines = {baseline: pairs for baseline in studies[name].baselines}
        arguments = {}
        for system, words in studies[name].systems.items():
            given = dict(word[2:].split("=") for word in words[1:] if "=" in word)
            arguments[system] = {key: float(given[key]) for key in studies[name].curves if key in given}
        if name == "capsnmt_size":
            arguments = {s: {"num_source_capsules": int(s[1]), "rest": s[3:]} for s in arguments if s != "simple"}
        lengths = {system: buckets(1, 2) for system in pairs} if "length" in studies[name].details else {}
        shares = {"cdr": 0.5, "under_translated_share": 0.5, "over_translated_share": 0.5}
        runs = {seed: shares for seed in SEEDS}
        words = {system: {**shares, "by_seed": runs} for system in pairs} if lengths else {}
        asked.add(name)
        return study(dict.fromkeys(pairs, 30.0), pairs, baselines, arguments, length=lengths, adequacy=words)

    monkeypatch.setattr(claims, "load", load)
    monkeypatch.setattr(differences, "load", load)
    # what is measured otherwise than by studies
    measured = (
        "entropy",
        "diversity",
        "the speed",
        "the groups",
        "routing does",
        "the capsules",
        "decoding",
        "they do so",
        "a word's assignment",
        "the words of a sentence",
    )
    for line in claims.claims_table().splitlines()[2:]:
        if "not run yet" in line:
            assert any(word in line for word in measured), line
    assert asked == set(studies)
