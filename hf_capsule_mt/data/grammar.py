"""The embedded default corpus: English-German sentence pairs from a bilingual grammar, with gold word alignments.

The German is not a word-by-word copy of the English. Articles and adjectives agree in gender, case and number; the
verb is second in main clauses (also behind a fronted adverbial or clause) and last in subordinate ones; separable
prefixes, participles and infinitives stand at the clause end; pronouns, time, definite and indefinite objects have
their own order. English do-support, progressive "is", particle "to" and some commas on either side have no
counterpart. The translation is a function of the English sentence.

Unseen combinations. A sentence combines words in three ways: (adjective, noun), attributive or predicative; (subject
noun, verb); and (verb, object noun), the goal of a motion verb included. A hash of the two lemmas puts every
combination in one split for good: about 6 % in validation, 6 % in test, the rest in train. Train sentences use train
combinations only. A test (validation) sentence has at least one test (validation) combination and none of the other
held-out split. No sentence can therefore be in two splits, whatever the seeds, while each word has enough train
combinations to be in train. Pronoun subjects and objects, recipients and adjuncts are free in every split.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import grammar_lexicon as lexicon
from .grammar_lexicon import (
    ACCUSATIVE,
    DATIVE,
    NOMINATIVE,
    Adjective,
    Adverbial,
    Connective,
    Noun,
    Preposition,
    Pronoun,
    Verb,
)
from .grammar_syntax import (
    Clause,
    GrammarPair,
    NounPhrase,
    Question,
    Sentence,
    Statement,
    realize,
)

__all__ = ["GRAMMAR_LANGUAGES", "SPLITS", "GrammarPair", "combination_split", "generate_corpus", "write_corpus"]

GRAMMAR_LANGUAGES = ("en", "de")
SPLITS = ("train", "validation", "test")

_SHORTEST = 3
# Draws without a new sentence after which the sentences of a length range count as used up.
_PATIENCE = 20_000
# Of the hash that holds combinations out: with this one every word keeps 60 % of its partners in train.
_SALT = "9"
# How much likelier than others the held-out combinations of its own split are drawn: every sentence needs one.
_HELD_OUT_WEIGHT = 4

T = TypeVar("T")


def generate_corpus(
    size: int, *, seed: int = 0, split: str = "train", min_length: int = 3, max_length: int = 20
) -> list[GrammarPair]:
    """Sentence pairs of one split, ``min_length`` to ``max_length`` English tokens long, punctuation included.

    The same arguments always give the same pairs, and a larger ``size`` only appends. Sentences are distinct until no
    new one turns up in this length range, then they repeat in order. Ranges beyond one sentence's natural length are
    filled with coordinated main clauses, so there is no upper limit.

    Raises:
        ValueError: ``size`` is below 1, the split is unknown, or no sentence of the split fits the length range.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    if min_length > max_length:
        raise ValueError(f"min_length {min_length} exceeds max_length {max_length}; no sentence can fit")
    if max_length < _SHORTEST:
        raise ValueError(f"max_length {max_length} is too short: the shortest sentence has {_SHORTEST} tokens")
    sampler = _Sampler(seed, split)
    pairs: list[GrammarPair] = []
    seen: set[str] = set()
    misses = 0
    while len(pairs) < size and misses < _PATIENCE:
        pair = sampler.pair(min_length, max_length)
        if pair is None or pair.source in seen:
            misses += 1
            continue
        misses = 0
        seen.add(pair.source)
        pairs.append(pair)
    if not pairs:
        raise ValueError(f"no {split} sentence of {min_length} to {max_length} tokens found; widen the length range")
    return [pairs[index % len(pairs)] for index in range(size)]


def write_corpus(directory: str | Path, split: str, pairs: Sequence[GrammarPair]) -> None:
    """Write ``SPLIT.en``, ``SPLIT.de`` (raw text) and ``SPLIT.align`` (Pharaoh ``i-j``), one line per pair.

    The alignment counts tokens as :attr:`GrammarPair.source_tokens` and ``target_tokens`` split them, from 0.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    columns = {
        "en": (pair.source for pair in pairs),
        "de": (pair.target for pair in pairs),
        "align": (" ".join(f"{i}-{j}" for i, j in pair.alignment) for pair in pairs),
    }
    for suffix, lines in columns.items():
        (directory / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@functools.cache
def combination_split(kind: str, first: str, second: str) -> str:
    """The split that owns a combination of two English lemmas.

    ``kind`` is ``adjective-noun``, ``subject-verb`` or ``verb-object``; a verb's lemma includes its particle or
    preposition ("look for"). Stable across processes and Python versions.
    """
    bucket = hashlib.sha256(f"{_SALT}|{kind}|{first}|{second}".encode()).digest()[0]
    if bucket < 16:
        return "test"
    return "validation" if bucket < 32 else "train"


def _weighted(weights: dict[T, int]) -> tuple[T, ...]:
    """Each key as often as its weight, for uniform picks."""
    return tuple(key for key, weight in weights.items() for _ in range(weight))


_SIMPLE_FRAMES = _weighted({"none": 5, "accusative": 8, "dative": 3, "ditransitive": 3, "into": 2, "from": 1})
_SUBORDINATE_FRAMES = (*_SIMPLE_FRAMES, *_weighted({"predicative": 4, "weather": 1}))
_MAIN_FRAMES = (*_SIMPLE_FRAMES, *_weighted({"predicative": 3, "that": 3, "whether": 2, "to": 3, "weather": 1}))
_QUESTION_FRAMES = (*_SIMPLE_FRAMES, "predicative", "predicative")
_INFINITIVE_FRAMES = tuple(frame for frame in _SIMPLE_FRAMES if frame != "from")
_MATRIX_FRAMES = frozenset({"that", "whether", "to"})

_TENSES = {
    "action": _weighted(
        {"present": 3, "progressive": 3, "past": 4, "will": 2, "can": 1, "must": 1, "should": 1, "want": 2}
    ),
    "event": _weighted({"present": 3, "past": 3, "will": 2, "can": 1}),
    "state": _weighted({"present": 2, "past": 1}),
}
_ALL_TENSES = frozenset(_TENSES["action"])
_PAST = frozenset({"past"})
_NON_PAST = _ALL_TENSES - _PAST
_OPEN_CONDITION = frozenset({"present", "progressive"})
_RELATIVE_TENSES = frozenset({"present", "progressive", "past", "can"})
_MATRIX_TENSES = frozenset({"present", "progressive", "past"})

# Determiners by number and by what the clause allows: "negatable" ones become kein or stay beside nicht.
_DETERMINER_WEIGHTS = {
    ("any", "singular"): {lexicon.THE: 8, lexicon.A: 5, lexicon.THIS: 2, lexicon.EVERY: 1},
    ("any", "plural"): {
        lexicon.THE: 5,
        lexicon.BARE: 3,
        lexicon.THIS: 2,
        lexicon.MANY: 1,
        lexicon.TWO: 1,
        lexicon.THREE: 1,
    },
    ("any", "mass"): {lexicon.THE: 5, lexicon.BARE: 6, lexicon.THIS: 2},
    ("definite", "singular"): {lexicon.THE: 8, lexicon.THIS: 2},
    ("definite", "plural"): {lexicon.THE: 5, lexicon.THIS: 2},
    ("definite", "mass"): {lexicon.THE: 5, lexicon.THIS: 2},
    ("negatable", "singular"): {lexicon.THE: 5, lexicon.A: 5, lexicon.THIS: 2},
    ("negatable", "plural"): {lexicon.THE: 5, lexicon.BARE: 5, lexicon.THIS: 2},
    ("negatable", "mass"): {lexicon.THE: 5, lexicon.BARE: 5, lexicon.THIS: 2},
}
_DETERMINERS = {
    (*key, owned): _weighted({**weights, **dict.fromkeys(lexicon.POSSESSIVES, owned)})
    for key, weights in _DETERMINER_WEIGHTS.items()
    for owned in {noun.owned for noun in lexicon.NOUNS}
}
_RELATIVE_DETERMINERS = frozenset({lexicon.THE, lexicon.A, lexicon.BARE, lexicon.MANY})

_VERBS_BY_FRAME = {
    frame: tuple(verb for verb in lexicon.VERBS if verb.frame == frame)
    for frame in dict.fromkeys(verb.frame for verb in lexicon.VERBS)
} | {"predicative": (lexicon.BE,), "weather": (lexicon.RAIN,)}
_PERSONS = tuple(noun for noun in lexicon.NOUNS if "person" in noun.tags)
_PLACES = tuple(noun for noun in lexicon.NOUNS if "place" in noun.tags)
_COMPANIONS = tuple(noun for noun in lexicon.NOUNS if noun.tags & {"person", "animal"})
_PERSON_ADJECTIVES = tuple(adjective for adjective in lexicon.ADJECTIVES if adjective.tags & {"person", "grown"})
# What someone can be today; being old or red has no date.
_PASSING_STATES = frozenset(
    adjective for adjective in lexicon.ADJECTIVES if adjective.english in ("happy", "hungry", "tired")
)
_FREQUENCIES = frozenset({lexicon.EVERY_DAY, lexicon.OFTEN, lexicon.ALWAYS, lexicon.SOMETIMES})
_GOALS = {"into": lexicon.INTO, "from": lexicon.FROM}
_OTHERS = (lexicon.HE, lexicon.SHE, lexicon.THEY)
# First person has verb forms of its own, so it comes more often.
_SUBJECT_PRONOUNS = (*lexicon.PRONOUNS, lexicon.ME, lexicon.ME)
_ANAPHORS = {"he": lexicon.HE, "she": lexicon.SHE}

# A partner of a word, and whether the two are a combination held out for the sampler's own split.
_Partners = tuple[tuple[T, bool], ...]


@dataclass(frozen=True)
class _Combinations:
    """What one split may combine."""

    subjects: dict[Verb, _Partners[Noun]]
    objects: dict[Verb, _Partners[Noun]]
    adjectives: dict[Noun, _Partners[Adjective]]
    # Relative clauses start from the noun: the verbs it can be subject or object of.
    verbs_of_subject: dict[Noun, _Partners[Verb]]
    verbs_of_object: dict[Noun, _Partners[Verb]]


@functools.cache
def _combinations(split: str) -> _Combinations:
    """The train combinations, and those held out for this split."""

    def partners(candidates: Iterable[tuple[T, str, str, str]]) -> _Partners[T]:
        weighted = []
        for partner, *combination in candidates:
            owner = combination_split(*combination)
            if owner in ("train", split):
                weighted += [(partner, owner != "train")] * (1 if owner == "train" else _HELD_OUT_WEIGHT)
        return tuple(weighted)

    verbs = (*lexicon.VERBS, lexicon.BE, lexicon.RAIN)
    subjects, objects = {}, {}
    for verb in verbs:
        subjects[verb] = partners(
            (noun, "subject-verb", noun.english, verb.key) for noun in lexicon.NOUNS if noun.tags & verb.subjects
        )
        objects[verb] = partners(
            (noun, "verb-object", verb.key, noun.english) for noun in lexicon.NOUNS if noun.tags & verb.objects
        )
    adjectives = {
        noun: partners(
            (adjective, "adjective-noun", adjective.english, noun.english)
            for adjective in lexicon.ADJECTIVES
            if noun.tags & adjective.tags
        )
        for noun in lexicon.NOUNS
    }

    def verbs_of(table: dict[Verb, _Partners[Noun]], frames: set[str]) -> dict[Noun, _Partners[Verb]]:
        relative = [verb for verb in verbs if verb.frame in frames]
        return {
            noun: tuple((verb, held) for verb in relative for other, held in table[verb] if other is noun)
            for noun in lexicon.NOUNS
        }

    return _Combinations(
        subjects,
        objects,
        adjectives,
        verbs_of(subjects, {"none", "accusative", "dative"}),
        verbs_of(objects, {"accusative", "dative"}),
    )


@functools.cache
def _tenses(verb: Verb, allowed: frozenset[str]) -> tuple[str, ...]:
    """The tenses, repeated by weight, that this verb has among the allowed ones."""
    if verb is lexicon.BE or verb is lexicon.RAIN:
        allowed = allowed & {"present", "past", "will", "progressive"}
    if verb.no_past:
        allowed = allowed - _PAST
    return tuple(tense for tense in _TENSES[verb.aspect] if tense in allowed)


class _Sampler:
    """Draws sentence structures of one split. ``held`` says whether the current one has a held-out combination."""

    def __init__(self, seed: int, split: str) -> None:
        # A string seed is hashed stably, and random() is the one stream that Python promises to keep; nothing here is
        # secret.
        self.random = random.Random(f"{split}:{seed}").random  # nosec B311
        self.split = split
        self.combinations = _combinations(split)
        self.held = False

    def pair(self, min_length: int, max_length: int) -> GrammarPair | None:
        """One sentence pair, or None if the draw is too long or has no held-out combination where it must."""
        self.held = False
        sentence = self.sentence()
        if not (self.held or self.split == "train"):
            return None
        pair = realize(sentence)
        while len(pair.source_tokens) < min_length:
            if isinstance(sentence.first, Question):
                return None
            sentence = Sentence(sentence.first, (*sentence.joined, self.joined()))
            pair = realize(sentence)
        return pair if len(pair.source_tokens) <= max_length else None

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """One of the items, uniformly."""
        return items[int(self.random() * len(items))]

    def partner(self, partners: _Partners[T], exclude: tuple[object, ...] = ()) -> T:
        """One partner of a word, but none of ``exclude``; notes a held-out combination."""
        while True:
            partner, held = self.pick(partners)
            if partner not in exclude:
                self.held = self.held or held
                return partner

    def sentence(self) -> Sentence:
        """Any sentence: mostly statements, a few of them joined, and some questions."""
        if self.chance(0.14):
            return Sentence(self.question())
        first = self.statement()
        return Sentence(first, (self.joined(),) if self.chance(0.06) else ())

    def joined(self) -> tuple[Connective, Statement]:
        """A further statement with the conjunction that joins it."""
        return self.pick((lexicon.AND, lexicon.BUT)), self.statement()

    def statement(self) -> Statement:
        """A main clause, in one of four cases with a subordinate clause."""
        if not self.chance(0.25):
            return Statement(self.clause(_MAIN_FRAMES, fronting=True))
        connective = self.pick((lexicon.BECAUSE, lexicon.BECAUSE, lexicon.ALTHOUGH, lexicon.IF))
        conditional = connective is lexicon.IF
        main = self.clause(_SIMPLE_FRAMES, _NON_PAST if conditional else _ALL_TENSES, relatives=False)
        tenses = _OPEN_CONDITION if conditional else _PAST if main.tense == "past" else _NON_PAST
        first = self.chance(0.35)
        subordinate = self.clause(_SUBORDINATE_FRAMES, tenses, relatives=not first, antecedent=main.subject)
        return Statement(main, connective, subordinate, first)

    def question(self) -> Question:
        """A yes-no question, or one with where, why, who, whom or what."""
        kind = self.pick(("yes-no", "yes-no", "yes-no", "where", "why", "who", "object"))
        if kind == "who":
            verb, tense = self.verb(("none", "accusative", "dative"), _ALL_TENSES)
            clause = self.adjoin(Clause(verb, tense, gap=NOMINATIVE, **self.objects(verb, False, ())))
            return Question(clause)
        if kind == "object":
            verb, tense = self.verb(("accusative", "accusative", "dative"), _ALL_TENSES)
            gap = ACCUSATIVE if verb.frame == "accusative" else DATIVE
            return Question(Clause(verb, tense, self.subject(verb, question=True), gap=gap))
        verb, tense = self.verb(_QUESTION_FRAMES, _ALL_TENSES)
        while kind == "where" and not verb.place:
            verb, tense = self.verb(_QUESTION_FRAMES, _ALL_TENSES)
        clause = self.predicate(verb, tense, self.subject(verb, question=True))
        clause = self.adjoin(clause, places=kind != "where")
        return Question(clause, {"where": lexicon.WHERE, "why": lexicon.WHY}.get(kind))

    def clause(
        self,
        frames: Sequence[str],
        tenses: frozenset[str] = _ALL_TENSES,
        *,
        fronting: bool = False,
        relatives: bool = True,
        antecedent: tuple[NounPhrase, ...] = (),
    ) -> Clause:
        """A clause with a verb of one of the frames; a pronoun may take up the ``antecedent``."""
        verb, tense = self.verb(frames, tenses)
        negated = tense != "must" and self.chance(0.13)
        subject = self.subject(verb, negated=negated, antecedent=antecedent)
        clause = self.predicate(verb, tense, subject, negated)
        if relatives and self.chance(0.16):
            clause = self.relativize(clause)
        return self.adjoin(clause, fronting=fronting)

    def verb(self, frames: Sequence[str], allowed: frozenset[str]) -> tuple[Verb, str]:
        """A verb of one of the frames, and one of its tenses among those allowed."""
        while True:
            frame = self.pick(frames)
            verb = self.pick(_VERBS_BY_FRAME[frame])
            tenses = _tenses(verb, allowed & _MATRIX_TENSES if frame in _MATRIX_FRAMES else allowed)
            if tenses:
                return verb, self.pick(tenses)

    def subject(
        self,
        verb: Verb,
        *,
        negated: bool = False,
        question: bool = False,
        antecedent: tuple[NounPhrase, ...] = (),
        exclude: tuple[NounPhrase, ...] = (),
    ) -> tuple[NounPhrase, ...]:
        """One subject, or two joined by "and", but none with a noun of ``exclude``."""
        if verb is lexicon.RAIN:
            return (NounPhrase(lexicon.IT),)
        anaphor = _anaphor(antecedent)
        if anaphor and self.chance(0.4):
            return (NounPhrase(anaphor),)
        draw = self.random()
        if draw < 0.25:
            return (NounPhrase(self.pick(_OTHERS if question else _SUBJECT_PRONOUNS)),)
        if verb is lexicon.BE:
            return (self.noun_phrase(self.pick(lexicon.NOUNS), "definite", plain=True),)
        nouns = self.combinations.subjects[verb]
        scope = "definite" if negated or question else "any"
        first = self.partner(nouns, _heads(exclude))
        if draw < 0.94:
            return (self.noun_phrase(first, scope),)
        second = self.partner(nouns, (first, *_heads(exclude)))
        return self.noun_phrase(first, "definite"), self.noun_phrase(second, "definite")

    def predicate(self, verb: Verb, tense: str, subject: tuple[NounPhrase, ...], negated: bool = False) -> Clause:
        """Subject and verb with all that the verb's frame asks for."""
        clause = Clause(verb, tense, subject, negated)
        if verb.frame == "predicative":
            head = subject[0].head
            if isinstance(head, Pronoun):
                adjective = self.pick(_PERSON_ADJECTIVES)
            else:
                adjective = self.partner(self.combinations.adjectives[head])
            return clause._replace(predicate=adjective, very=self.chance(0.25))
        if verb.frame == "to":
            return clause._replace(complement=(None, self.infinitive(subject)))
        if verb.frame in _MATRIX_FRAMES:
            connective = lexicon.THAT if verb.frame == "that" else lexicon.WHETHER
            tenses = _PAST if tense == "past" else _ALL_TENSES
            embedded = self.clause(_SUBORDINATE_FRAMES, tenses, relatives=False, antecedent=subject)
            return clause._replace(complement=(connective, embedded))
        return clause._replace(**self.objects(verb, negated, subject))

    def objects(self, verb: Verb, negated: bool, subject: tuple[NounPhrase, ...]) -> dict[str, Any]:
        """The Clause fields for the objects, or the goal, of a verb with this subject."""
        partners = self.combinations.objects[verb]
        if verb.frame in _GOALS:
            return {"place": (_GOALS[verb.frame], self.noun_phrase(self.partner(partners), "any"))}
        if verb.frame == "ditransitive":
            gift = self.noun_phrase(self.partner(partners), "negatable" if negated else "any")
            return {"dative": self.recipient(subject), "accusative": gift, "recipient_last": self.chance(0.4)}
        if verb.frame not in ("accusative", "dative"):
            return {}
        if "person" in verb.objects and self.chance(0.22):
            return {verb.frame: self.object_pronoun(subject)}
        noun = self.partner(partners, _heads(subject))
        # Only an accusative object is negated by kein here.
        scope = "any" if not negated else "negatable" if verb.frame == "accusative" else "definite"
        return {verb.frame: self.noun_phrase(noun, scope)}

    def recipient(self, subject: tuple[NounPhrase, ...]) -> NounPhrase:
        """Whom something is given: a pronoun or a definite person other than the subject."""
        if self.chance(0.35):
            return self.object_pronoun(subject)
        return self.noun_phrase(self.pick_other(_PERSONS, subject), "definite")

    def object_pronoun(self, subject: tuple[NounPhrase, ...]) -> NounPhrase:
        """A pronoun object; never first person twice in a clause, which would be reflexive."""
        heads = _heads(subject)
        return NounPhrase(self.pick(_OTHERS if lexicon.ME in heads or lexicon.WE in heads else lexicon.PRONOUNS))

    def pick_other(self, nouns: Sequence[Noun], subject: tuple[NounPhrase, ...]) -> Noun:
        """A noun that is not a subject of the clause."""
        heads = _heads(subject)
        while True:
            noun = self.pick(nouns)
            if noun not in heads:
                return noun

    def infinitive(self, subject: tuple[NounPhrase, ...]) -> Clause:
        """The infinitive clause of a matrix verb with this subject."""
        verb = self.pick(_VERBS_BY_FRAME[self.pick(_INFINITIVE_FRAMES)])
        while verb.aspect != "action":
            verb = self.pick(_VERBS_BY_FRAME[self.pick(_INFINITIVE_FRAMES)])
        clause = Clause(verb, **self.objects(verb, False, subject))
        return self.adjoin(clause, times=False)

    def noun_phrase(self, noun: Noun, scope: str, *, plain: bool = False) -> NounPhrase:
        """A name, or a noun with a determiner of this scope and, unless ``plain``, zero to two adjectives."""
        if noun.name:
            return NounPhrase(noun)
        plural = not noun.mass and self.chance(0.1 if "place" in noun.tags else 0.25)
        number = "mass" if noun.mass else "plural" if plural else "singular"
        determiner = self.pick(_DETERMINERS[scope, number, noun.owned])
        return NounPhrase(noun, determiner, plural, () if plain else self.adjectives(noun))

    def adjectives(self, noun: Noun) -> tuple[Adjective, ...]:
        """Zero to two adjectives in the order of their ranks."""
        draw = self.random()
        if draw < 0.62:
            return ()
        first = self.partner(self.combinations.adjectives[noun])
        if draw < 0.92:
            return (first,)
        further = tuple(pair for pair in self.combinations.adjectives[noun] if pair[0].rank != first.rank)
        if not further:
            return (first,)
        second = self.partner(further)
        return (first, second) if first.rank < second.rank else (second, first)

    def relativize(self, clause: Clause) -> Clause:
        """Give a relative clause to the subject or the object, where one of them can have it."""
        roles = [] if clause.negated or clause.verb.frame == "ditransitive" else ["accusative", "dative"]
        candidates = [role for role in roles if _can_have_relative(getattr(clause, role))]
        # A short pronoun object beside a long subject would be poor German.
        light = any(phrase and isinstance(phrase.head, Pronoun) for phrase in (clause.accusative, clause.dative))
        if len(clause.subject) == 1 and not light and _can_have_relative(clause.subject[0]):
            candidates.append("subject")
        if not candidates:
            return clause
        role = self.pick(candidates)
        if role == "subject":
            return clause._replace(subject=(self.with_relative(clause.subject[0]),))
        changed: dict[str, Any] = {role: self.with_relative(getattr(clause, role))}
        return clause._replace(**changed)

    def with_relative(self, phrase: NounPhrase) -> NounPhrase:
        """The phrase with a relative clause in which it is the subject or the object."""
        noun = phrase.head
        if isinstance(noun, Pronoun):
            return phrase
        as_subject = self.combinations.verbs_of_subject[noun]
        if as_subject and self.chance(0.6):
            verb = self.partner(as_subject)
            tense = self.pick(_tenses(verb, _RELATIVE_TENSES))
            negated = self.chance(0.1)
            objects = self.objects(verb, negated, (phrase,))
            clause = Clause(verb, tense, (), negated, gap=NOMINATIVE, gap_agreement=phrase.agreement, **objects)
            return phrase._replace(relative=self.adjoin(clause, times=False))
        as_object = self.combinations.verbs_of_object[noun]
        if not as_object:
            return phrase
        verb = self.partner(as_object)
        tense = self.pick(_tenses(verb, _RELATIVE_TENSES))
        gap = ACCUSATIVE if verb.frame == "accusative" else DATIVE
        subject = self.subject(verb, exclude=(phrase,))
        return phrase._replace(relative=Clause(verb, tense, subject, gap=gap))

    def adjoin(self, clause: Clause, *, fronting: bool = False, places: bool = True, times: bool = True) -> Clause:
        """Add company, place and time where verb, negation and embedded clauses leave room for them."""
        verb = clause.verb
        added: dict[str, Any] = {}
        objects = [phrase for phrase in (clause.accusative, clause.dative) if phrase]
        embedding = clause.complement is not None or any(phrase.relative for phrase in objects)
        if not embedding and not (clause.negated and verb.frame != "none"):
            if verb.companion and self.chance(0.35):
                added["companion"] = self.companion(clause.subject)
            if places and verb.place and self.chance(0.3):
                added["place"] = self.place()
        if fronting and "place" in added and not clause.negated and self.chance(0.2):
            added["fronted"] = "place"
        if times and self.chance(0.4):
            time = self.time(clause)
            # Between the verb and nicht a time and a definite object compete for one place: front the time.
            full = any(phrase.definite and not isinstance(phrase.head, Pronoun) for phrase in objects)
            only_front = embedding or (clause.negated and full)
            if time and time.medial:
                added["time"] = time
            elif time:
                front = fronting and "fronted" not in added and (only_front or self.chance(0.4))
                if front:
                    added["fronted"] = "time"
                if front or not only_front:
                    added["time"] = time
        return clause._replace(**added) if added else clause

    def time(self, clause: Clause) -> Adverbial | None:
        """A time expression that fits verb and tense."""
        lasting = clause.predicate is not None and clause.predicate not in _PASSING_STATES
        if clause.verb.aspect == "state" or lasting:
            return None
        time = self.pick(lexicon.TIMES[clause.tense])
        # Negation would have to take "every day" or "often" into its scope.
        return None if clause.negated and time in _FREQUENCIES else time

    def companion(self, subject: tuple[NounPhrase, ...]) -> tuple[Preposition, NounPhrase]:
        """With or without whom."""
        preposition = self.pick((lexicon.WITH, lexicon.WITH, lexicon.WITHOUT))
        if self.chance(0.3):
            return preposition, self.object_pronoun(subject)
        return preposition, self.noun_phrase(self.pick_other(_COMPANIONS, subject), "any")

    def place(self) -> tuple[Preposition, NounPhrase]:
        """Where."""
        noun = self.pick(_PLACES)
        preposition = lexicon.BEHIND if "building" in noun.tags and self.chance(0.4) else lexicon.IN
        return preposition, self.noun_phrase(noun, "any")


def _heads(phrases: tuple[NounPhrase, ...]) -> tuple[Noun | Pronoun, ...]:
    return tuple(phrase.head for phrase in phrases)


def _anaphor(antecedent: tuple[NounPhrase, ...]) -> Pronoun | None:
    """The pronoun that takes up a subject, where English and German agree on it."""
    if not antecedent:
        return None
    head = antecedent[0].head
    if isinstance(head, Pronoun):
        return head
    if len(antecedent) > 1 or antecedent[0].plural:
        return lexicon.THEY
    return _ANAPHORS.get(head.pronoun)


def _can_have_relative(phrase: NounPhrase | None) -> bool:
    if phrase is None or isinstance(phrase.head, Pronoun) or phrase.head.name:
        return False
    return phrase.determiner in _RELATIVE_DETERMINERS
