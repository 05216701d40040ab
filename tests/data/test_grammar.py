"""The embedded corpus: correct German and gold alignments, held-out combinations, and reproducibility."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys

import pytest

from hf_capsule_mt.data import grammar, grammar_lexicon
from hf_capsule_mt.data.grammar import (
    GRAMMAR_LANGUAGES,
    SPLITS,
    combination_split,
    generate_corpus,
    write_corpus,
)
from hf_capsule_mt.data.grammar_lexicon import (
    ALTHOUGH,
    ALWAYS,
    AND,
    BE,
    BECAUSE,
    BEHIND,
    DATIVE,
    FROM,
    IF,
    IN,
    INTO,
    MORNING,
    NOMINATIVE,
    NOUNS,
    OFTEN,
    PLURAL,
    PRONOUNS,
    THAT,
    TODAY,
    VERBS,
    WHETHER,
    WITHOUT,
)
from hf_capsule_mt.data.grammar_syntax import Clause, GrammarPair, NounPhrase, Question, Sentence, Statement, realize

NOUN = {noun.english: noun for noun in NOUNS}
ADJECTIVE = {adjective.english: adjective for adjective in grammar_lexicon.ADJECTIVES}
VERB = {f"{verb.key}/{verb.frame}": verb for verb in VERBS}
DETERMINERS = (
    grammar_lexicon.THE,
    grammar_lexicon.A,
    grammar_lexicon.THIS,
    grammar_lexicon.EVERY,
    *grammar_lexicon.POSSESSIVES,
)
DETERMINER = {determiner.english: determiner for determiner in DETERMINERS} | {"an": grammar_lexicon.A}
PRONOUN = {pronoun.english[0]: pronoun for pronoun in PRONOUNS}


@pytest.fixture(scope="module")
def train() -> list[GrammarPair]:
    return generate_corpus(20_000)


@pytest.fixture(scope="module")
def heldout() -> dict[str, list[GrammarPair]]:
    return {split: generate_corpus(2_000, split=split) for split in ("validation", "test")}


def phrase(text: str, **options) -> NounPhrase:
    """A noun phrase from its English words; "dogs+" is a plural."""
    *modifiers, head = text.split()
    if head in PRONOUN:
        return NounPhrase(PRONOUN[head])
    plural = head.endswith("+")
    determiner = DETERMINER[modifiers.pop(0)] if modifiers and modifiers[0] in DETERMINER else grammar_lexicon.BARE
    adjectives = tuple(ADJECTIVE[word] for word in modifiers)
    return NounPhrase(NOUN[head.rstrip("+")], determiner, plural, adjectives, **options)


def clause(verb: str, subject: str = "", tense: str = "present", **options) -> Clause:
    """A clause with its noun phrases given as text; " + " joins two subjects."""
    for role in ("accusative", "dative"):
        if isinstance(options.get(role), str):
            options[role] = phrase(options[role])
    for role in ("place", "companion"):
        if role in options:
            preposition, text = options[role]
            options[role] = (preposition, phrase(text))
    subjects = tuple(phrase(text) for text in subject.split(" + ") if text)
    return Clause(BE if verb == "be" else VERB[verb], tense, subjects, **options)


def said(*arguments, **options) -> Sentence:
    """A one-clause statement."""
    return Sentence(Statement(clause(*arguments, **options)))


def links(pair: GrammarPair) -> str:
    """The alignment as words, in source order."""
    return " ".join(f"{pair.source_tokens[i]}={pair.target_tokens[j]}" for i, j in pair.alignment)


SLEEPS = clause("sleep/none", "the dog")
READING_BOY = phrase("the boy", relative=clause("read/accusative", accusative="a letter", gap=NOMINATIVE))
THANKED_WOMEN = phrase("the woman+", relative=clause("thank/dative", "I", "past", gap=DATIVE))
OPEN_DOOR = clause("open/accusative", accusative="the door")

# Written by hand: the sentence, its English and German, and the words that stand for each other.
GOLDEN = {
    "weak-adjective": (
        said("see/accusative", "the small dog", accusative="the old man"),
        "The small dog sees the old man.",
        "Der kleine Hund sieht den alten Mann.",
        "The=Der small=kleine dog=Hund sees=sieht the=den old=alten man=Mann .=.",
    ),
    "mixed-adjective": (
        said("find/accusative", "an old horse", "past", accusative="an expensive hat"),
        "An old horse found an expensive hat.",
        "Ein altes Pferd hat einen teuren Hut gefunden.",
        "An=Ein old=altes horse=Pferd found=hat found=gefunden an=einen expensive=teuren hat=Hut .=.",
    ),
    "strong-adjective": (
        said("drink/accusative", "Anna", "progressive", accusative="cold water"),
        "Anna is drinking cold water.",
        "Anna trinkt kaltes Wasser.",
        "Anna=Anna drinking=trinkt cold=kaltes water=Wasser .=.",
    ),
    "n-declension": (
        said("help/dative", "she", dative="this student"),
        "She helps this student.",
        "Sie hilft diesem Studenten.",
        "She=Sie helps=hilft this=diesem student=Studenten .=.",
    ),
    "dative-plural-perfect-with-sein": (
        said("follow/dative", "the cat", "past", dative="my hungry mouse+"),
        "The cat followed my hungry mice.",
        "Die Katze ist meinen hungrigen Mäusen gefolgt.",
        "The=Die cat=Katze followed=ist followed=gefolgt my=meinen hungry=hungrigen mice=Mäusen .=.",
    ),
    "recipient-behind-to": (
        said("give/ditransitive", "we", dative="the child", accusative="an apple", recipient_last=True),
        "We give an apple to the child.",
        "Wir geben dem Kind einen Apfel.",
        "We=Wir give=geben an=einen apple=Apfel the=dem child=Kind .=.",
    ),
    "do-support-nicht": (
        said("invite/accusative", "I", negated=True, accusative="the doctor"),
        "I do not invite the doctor.",
        "Ich lade den Arzt nicht ein.",
        "I=Ich not=nicht invite=lade invite=ein the=den doctor=Arzt .=.",
    ),
    "kein": (
        said("have/accusative", "Peter", negated=True, accusative="a red car"),
        "Peter does not have a red car.",
        "Peter hat kein rotes Auto.",
        "Peter=Peter not=kein have=hat a=kein red=rotes car=Auto .=.",
    ),
    "cannot-kein-without-article": (
        said("find/accusative", "the bird", "can", negated=True, accusative="flower+"),
        "The bird cannot find flowers.",
        "Der Vogel kann keine Blumen finden.",
        "The=Der bird=Vogel cannot=kann cannot=keine find=finden flowers=Blumen .=.",
    ),
    "fronted-time-separable-particle": (
        said("pick up/accusative", "my uncle", accusative="he", time=TODAY, fronted="time"),
        "Today my uncle picks him up.",
        "Heute holt ihn mein Onkel ab.",
        "Today=Heute my=mein uncle=Onkel picks=holt picks=ab him=ihn up=holt up=ab .=.",
    ),
    "pronoun-sie-behind-the-subject": (
        Sentence(Statement(SLEEPS, IF, clause("hear/accusative", "the cat", accusative="they", time=ALWAYS))),
        "The dog sleeps if the cat always hears them.",
        "Der Hund schläft, wenn die Katze sie immer hört.",
        "The=Der dog=Hund sleeps=schläft if=wenn the=die cat=Katze always=immer hears=hört them=sie .=.",
    ),
    "fronted-place-contracted": (
        said("buy/accusative", "the sister", "will", accusative="a cake", place=(IN, "the garden"), fronted="place"),
        "In the garden the sister will buy a cake.",
        "Im Garten wird die Schwester einen Kuchen kaufen.",
        "In=Im the=Im garden=Garten the=die sister=Schwester will=wird buy=kaufen a=einen cake=Kuchen .=.",
    ),
    "goal-accusative-contracted": (
        said("go/into", "he", "want", place=(INTO, "the house"), time=MORNING),
        "He wants to go into the house in the morning.",
        "Er will am Morgen ins Haus gehen.",
        "He=Er wants=will go=gehen into=ins the=ins house=Haus in=am the=am morning=Morgen .=.",
    ),
    "indefinite-object-behind-the-place": (
        said("look for/accusative", "they", "progressive", accusative="key+", place=(IN, "my room")),
        "They are looking for keys in my room.",
        "Sie suchen in meinem Zimmer Schlüssel.",
        "They=Sie looking=suchen for=suchen keys=Schlüssel in=in my=meinem room=Zimmer .=.",
    ),
    "because-verb-final": (
        Sentence(
            Statement(SLEEPS, BECAUSE, clause("be", "the lamp", predicate=ADJECTIVE["red"], very=True)),
        ),
        "The dog sleeps because the lamp is very red.",
        "Der Hund schläft, weil die Lampe sehr rot ist.",
        "The=Der dog=Hund sleeps=schläft because=weil the=die lamp=Lampe is=ist very=sehr red=rot .=.",
    ),
    "although-first-separable-joined": (
        Sentence(
            Statement(SLEEPS, ALTHOUGH, clause("turn on/accusative", "she", accusative="the radio"), first=True),
        ),
        "Although she turns on the radio, the dog sleeps.",
        "Obwohl sie das Radio einschaltet, schläft der Hund.",
        "Although=Obwohl she=sie turns=einschaltet on=einschaltet the=das radio=Radio ,=, the=der dog=Hund "
        "sleeps=schläft .=.",
    ),
    "that-clause-perfect": (
        said("know/that", "Maria", complement=(THAT, clause("write/accusative", "he", "past", accusative="book+"))),
        "Maria knows that he wrote books.",
        "Maria weiß, dass er Bücher geschrieben hat.",
        "Maria=Maria knows=weiß that=dass he=er wrote=geschrieben wrote=hat books=Bücher .=.",
    ),
    "whether-clause-negated": (
        said("ask/whether", "the boy+", complement=(WHETHER, clause("wait/none", "Paul", "can", negated=True))),
        "The boys ask whether Paul cannot wait.",
        "Die Jungen fragen, ob Paul nicht warten kann.",
        "The=Die boys=Jungen ask=fragen whether=ob Paul=Paul cannot=nicht cannot=kann wait=warten .=.",
    ),
    "zu-infinitive-inside-the-verb": (
        said("forget/to", "our neighbor", "past", complement=(None, OPEN_DOOR)),
        "Our neighbor forgot to open the door.",
        "Unser Nachbar hat vergessen, die Tür aufzumachen.",
        "Our=Unser neighbor=Nachbar forgot=hat forgot=vergessen to=aufzumachen open=aufzumachen the=die door=Tür .=.",
    ),
    "relative-subject-embedded": (
        Sentence(Statement(clause("laugh/none", tense="past")._replace(subject=(READING_BOY,)))),
        "The boy who reads a letter laughed.",
        "Der Junge, der einen Brief liest, hat gelacht.",
        "The=Der boy=Junge who=der reads=liest a=einen letter=Brief laughed=hat laughed=gelacht .=.",
    ),
    "relative-dative-plural-extraposed": (
        said("call/accusative", "Peter", "must", accusative=THANKED_WOMEN),
        "Peter must call the women whom I thanked.",
        "Peter muss die Frauen anrufen, denen ich gedankt habe.",
        "Peter=Peter must=muss call=anrufen the=die women=Frauen whom=denen I=ich thanked=gedankt thanked=habe .=.",
    ),
    "joined-subjects-company": (
        said("dance/none", "Anna + the friend", "progressive", companion=(WITHOUT, "he")),
        "Anna and the friend are dancing without him.",
        "Anna und der Freund tanzen ohne ihn.",
        "Anna=Anna and=und the=der friend=Freund dancing=tanzen without=ohne him=ihn .=.",
    ),
    "question-perfect-with-sein": (
        Sentence(Question(clause("come/from", "the bear", "past", place=(FROM, "the dark forest")))),
        "Did the bear come from the dark forest?",
        "Ist der Bär aus dem dunklen Wald gekommen?",
        "Did=Ist the=der bear=Bär come=gekommen from=aus the=dem dark=dunklen forest=Wald ?=?",
    ),
    "question-whom-dative": (
        Sentence(Question(clause("listen to/dative", "the girl", "progressive", gap=DATIVE))),
        "Whom is the girl listening to?",
        "Wem hört das Mädchen zu?",
        "Whom=Wem the=das girl=Mädchen listening=hört listening=zu to=hört to=zu ?=?",
    ),
    "question-who-without-do": (
        Sentence(Question(clause("play/none", gap=NOMINATIVE, place=(BEHIND, "the school"), time=OFTEN))),
        "Who often plays behind the school?",
        "Wer spielt oft hinter der Schule?",
        "Who=Wer often=oft plays=spielt behind=hinter the=der school=Schule ?=?",
    ),
    "joined-statements": (
        Sentence(Statement(SLEEPS), ((AND, Statement(clause("drink/accusative", "I", accusative="tea"))),)),
        "The dog sleeps, and I drink tea.",
        "Der Hund schläft, und ich trinke Tee.",
        "The=Der dog=Hund sleeps=schläft ,=, and=und I=ich drink=trinke tea=Tee .=.",
    ),
}


@pytest.mark.parametrize(("sentence", "english", "german", "words"), GOLDEN.values(), ids=GOLDEN)
def test_golden_sentence(sentence, english, german, words):
    pair = realize(sentence)
    assert pair.source == english
    assert pair.target == german
    assert sorted(links(pair).split()) == sorted(words.split())


ARTICLES = {
    ("the", "m"): "der den dem",
    ("the", "f"): "die die der",
    ("the", "n"): "das das dem",
    ("a", "m"): "ein einen einem",
    ("a", "f"): "eine eine einer",
    ("a", "n"): "ein ein einem",
    ("this", "m"): "dieser diesen diesem",
    ("our", "f"): "unsere unsere unserer",
}
ENDINGS = {
    ("the", "m"): "kleine kleinen kleinen",
    ("the", "f"): "kleine kleine kleinen",
    ("the", "n"): "kleine kleine kleinen",
    ("a", "m"): "kleiner kleinen kleinen",
    ("a", "f"): "kleine kleine kleinen",
    ("a", "n"): "kleines kleines kleinen",
    ("this", "m"): "kleine kleinen kleinen",
    ("our", "f"): "kleine kleine kleinen",
}


@pytest.mark.parametrize(("determiner", "gender"), ARTICLES, ids="-".join)
def test_agreement(determiner, gender):
    noun = {"m": "dog", "f": "cat", "n": "horse"}[gender]
    text = f"{determiner} small {noun}"
    german = [
        realize(said("sleep/none", text)).target_tokens[:2],
        realize(said("see/accusative", "she", accusative=text)).target_tokens[2:4],
        realize(said("help/dative", "she", dative=text)).target_tokens[2:4],
    ]
    assert [article.lower() for article, _ in german] == ARTICLES[determiner, gender].split()
    assert [adjective for _, adjective in german] == ENDINGS[determiner, gender].split()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: f"{verb.key}/{verb.frame}")
def test_verb_forms_are_consistent(verb):
    # Suffixes that hold for regular and irregular verbs alike, against typing errors in the lexicon.
    base, third, progressive, _ = verb.english
    assert third[-1] == "s" and third[:2] == base[:2]
    assert progressive.endswith("ing") and progressive[:2] == base[:2]
    infinitive, ich, er, participle = verb.german
    assert infinitive.endswith("en") and (ich.endswith("e") or ich == er == "weiß")
    assert er.endswith("t") or er == "weiß"
    assert participle.startswith(verb.prefix) and participle[-1] in "nt"
    assert verb.german_present(PLURAL) == infinitive
    assert verb.auxiliary in ("haben", "sein")


def test_german_capitalises_nouns_and_nothing_else(train):
    nouns = {form for noun in NOUNS for form in (noun.german, noun.german_plural)}
    nouns |= {form + "n" for form in nouns} | {"Montag", "Sonntag", "Morgen", "Abend", "Tag", "Woche"}
    for pair in train[:5_000]:
        for word in pair.target_tokens[1:]:
            assert (word in nouns) == word[0].isupper(), pair.target


def test_text_is_capitalised_and_ends_with_its_mark(train):
    for pair in train:
        for text in (pair.source, pair.target):
            assert text[0].isupper() and text[-1] in ".?" and not re.search(r" [,.?]|  |[,.?]{2}|[.?].", text), text


def test_indefinite_article_before_vowels(train):
    text = " ".join(pair.source.lower() for pair in train)
    assert " an old " in text and " an apple " in text
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text)


def test_alignment_is_in_range_and_covers_the_content(train):
    unaligned_english, unaligned_german = set(), set()
    for pair in train[:10_000]:
        source, target = pair.source_tokens, pair.target_tokens
        assert len(set(pair.alignment)) == len(pair.alignment)
        assert list(pair.alignment) == sorted(pair.alignment)
        aligned_source, aligned_target = {i for i, _ in pair.alignment}, {j for _, j in pair.alignment}
        assert aligned_source <= set(range(len(source))) and aligned_target <= set(range(len(target)))
        unaligned_english |= {word.lower() for i, word in enumerate(source) if i not in aligned_source}
        unaligned_german |= {word for j, word in enumerate(target) if j not in aligned_target}
    assert unaligned_english == {"do", "does", "did", "am", "is", "are", "to"}
    assert unaligned_german == {","}


def test_nouns_and_adjectives_align_to_their_own_forms(train):
    stems = {word: (adjective.german, adjective.german_stem) for word, adjective in ADJECTIVE.items()}
    for noun in NOUNS:
        stems[noun.english] = (noun.german,)
        stems.setdefault(noun.english_plural, (noun.german_plural,))
    for pair in train[:10_000]:
        for i, j in pair.alignment:
            word, german = pair.source_tokens[i], pair.target_tokens[j]
            if word in stems:
                assert german.startswith(stems[word]), (word, german)


@pytest.mark.parametrize("split", SPLITS)
def test_same_arguments_same_pairs_and_longer_extends_shorter(split):
    short = generate_corpus(50, seed=7, split=split)
    assert short == generate_corpus(50, seed=7, split=split)
    assert generate_corpus(120, seed=7, split=split)[:50] == short
    assert generate_corpus(50, seed=8, split=split) != short


def test_generation_ignores_hash_randomisation():
    code = "from hf_capsule_mt.data.grammar import generate_corpus; print(generate_corpus(40, split='test'))"
    output = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        check=True,
    ).stdout
    assert output.decode("utf-8").strip() == str(generate_corpus(40, split="test"))


def test_first_sentences_are_frozen():
    # Recorded results depend on the corpus: a change of it must be a decision.
    assert [(pair.source, pair.target) for pair in generate_corpus(3, seed=1)] == [
        ("The neighbor gave the tired girl this soup.", "Der Nachbar hat dem müden Mädchen diese Suppe gegeben."),
        ("The black mouse should come from my schools.", "Die schwarze Maus sollte aus meinen Schulen kommen."),
        ("Whom did my uncle know?", "Wen kannte mein Onkel?"),
    ]


def test_sentences_are_distinct_and_disjoint(train, heldout):
    sources = {split: {pair.source for pair in pairs} for split, pairs in {**heldout, "train": train}.items()}
    sources["train"] |= {pair.source for seed in (1, 2) for pair in generate_corpus(10_000, seed=seed)}
    assert len({pair.source for pair in train}) == len(train)
    for first, second in itertools.combinations(SPLITS, 2):
        assert not sources[first] & sources[second]


def test_translation_is_a_function(train, heldout):
    translations = {}
    for pair in itertools.chain(train, *heldout.values(), generate_corpus(10_000, seed=3, max_length=9)):
        first = translations.setdefault(pair.source, pair)
        assert (first.target, first.alignment) == (pair.target, pair.alignment), pair.source


NOUN_OF_FORM = {form: noun.english for noun in NOUNS for form in (noun.english, noun.english_plural)}
# One-word verbs that stand right before their object.
VERB_OF_FORM = {
    form: verb.key
    for verb in VERBS
    for form in verb.english
    if verb.frame == "accusative" and not verb.particle and not verb.preposition
}


def surface_combinations(pair: GrammarPair) -> set[str]:
    """Splits of the combinations that stand side by side in the English text: found without the generator."""
    found = set()
    for first, second in itertools.pairwise(pair.source_tokens):
        noun = NOUN_OF_FORM.get(second)
        if noun and first.lower() in ADJECTIVE:
            found.add(combination_split("adjective-noun", first.lower(), noun))
        elif noun and first in VERB_OF_FORM:
            found.add(combination_split("verb-object", VERB_OF_FORM[first], noun))
    return found


def test_train_has_no_held_out_combination(train):
    assert {split for pair in train for split in surface_combinations(pair)} == {"train"}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_held_out_sentences_have_their_own_combinations_only(split, heldout):
    found = [surface_combinations(pair) for pair in heldout[split]]
    assert set().union(*found) == {"train", split}
    # Most held-out combinations are not side by side, so that this sees only some of them.
    assert sum(split in splits for splits in found) > len(found) / 5
    sampler = grammar._Sampler(0, split)
    for _ in range(500):
        accepted = sampler.pair(3, 20) is not None
        assert sampler.held or not accepted


def test_every_word_of_the_held_out_splits_is_in_train(train, heldout):
    for side in ("source_tokens", "target_tokens"):
        known = {word.lower() for pair in train for word in getattr(pair, side)}
        for pairs in heldout.values():
            assert {word.lower() for pair in pairs for word in getattr(pair, side)} <= known


@pytest.mark.parametrize("split", SPLITS)
def test_every_word_keeps_partners(split):
    combinations = grammar._combinations(split)
    for verb in VERBS:
        assert len(set(combinations.subjects[verb])) > 3
        assert not verb.objects or len(set(combinations.objects[verb])) >= 2
    assert all(len(set(combinations.adjectives[noun])) >= 2 for noun in NOUNS if not noun.name)


@pytest.mark.parametrize(("low", "high"), [(3, 5), (8, 8), (15, 17), (30, 45)])
@pytest.mark.parametrize("split", ["train", "test"])
def test_length_range(low, high, split):
    lengths = {len(pair.source_tokens) for pair in generate_corpus(60, split=split, min_length=low, max_length=high)}
    assert lengths <= set(range(low, high + 1))
    assert len(lengths) >= min(2, high - low + 1)


def test_repeats_once_the_grammar_is_exhausted(monkeypatch):
    monkeypatch.setattr(grammar, "_PATIENCE", 300)
    pairs = generate_corpus(400, min_length=3, max_length=3)
    distinct = len(set(pairs))
    assert distinct < 400
    assert pairs[distinct:] == (pairs[:distinct] * 400)[: 400 - distinct]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"split": "dev"}, "unknown split 'dev'; choose one of train, validation, test"),
        ({"min_length": 9, "max_length": 8}, "min_length 9 exceeds max_length 8"),
        ({"min_length": 1, "max_length": 2}, "max_length 2 is too short: the shortest sentence has 3 tokens"),
    ],
    ids=["size", "split", "empty-range", "too-short"],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        generate_corpus(**{"size": 5, **options})


def test_unreachable_length_range(monkeypatch):
    monkeypatch.setattr(grammar, "_PATIENCE", 3)
    with pytest.raises(ValueError, match="no test sentence of 3 to 3 tokens found; widen the length range"):
        generate_corpus(5, split="test", min_length=3, max_length=3)


def test_written_corpus(tmp_path):
    pairs = generate_corpus(20, split="test")
    write_corpus(tmp_path / "new", "test", pairs)
    read = {
        suffix: (tmp_path / "new" / f"test.{suffix}").read_text(encoding="utf-8").splitlines()
        for suffix in (*GRAMMAR_LANGUAGES, "align")
    }
    assert read["en"] == [pair.source for pair in pairs]
    assert read["de"] == [pair.target for pair in pairs]
    alignments = [tuple(tuple(map(int, link.split("-"))) for link in line.split()) for line in read["align"]]
    assert alignments == [pair.alignment for pair in pairs]
