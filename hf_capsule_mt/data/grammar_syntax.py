"""Syntax of the bilingual grammar: one language-neutral description becomes an English and a German sentence.

A :class:`Sentence` names words and structure only. :func:`realize` writes the English words in order and, next to
each German word, which English words it stands for; the German fragments are then put in German order (verb second,
verb final, separable prefix last). The gold alignment falls out of this, it is never guessed.

Attachment never makes the translation ambiguous: trailing adjuncts belong to the last clause, so a clause has none
before a relative clause, and ``, and`` / ``, but`` always join main clauses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from .grammar_lexicon import (
    ACCUSATIVE,
    AUXILIARIES,
    BARE,
    BE,
    CONTRACTIONS,
    DATIVE,
    KEIN,
    NOMINATIVE,
    PLURAL,
    THIRD,
    Adjective,
    Adverbial,
    Connective,
    Determiner,
    Noun,
    Preposition,
    Pronoun,
    Verb,
    adjective_form,
    determiner_form,
    noun_form,
    relative_pronoun,
)

_TOKEN = re.compile(r"\w+|[^\w\s]")
_MARKS = frozenset(",.?")
_VOWELS = frozenset("aeiou")
_DO = ("do", "does", "do")
_AM = ("am", "is", "are")
_WAS = ("was", "was", "were")
_MODALS = ("will", "can", "must", "should")

# A German word and the positions of the English words it stands for (none for a word German adds).
GermanWord = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class GrammarPair:
    """One sentence pair: detokenised text on both sides and the gold word alignment.

    ``alignment`` holds sorted ``(i, j)`` pairs, ``source_tokens[i]`` with ``target_tokens[j]``; a word without a
    counterpart is in no pair, a word with several is in several.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]

    @property
    def source_tokens(self) -> tuple[str, ...]:
        """English words, with every punctuation mark a token of its own."""
        return tuple(_TOKEN.findall(self.source))

    @property
    def target_tokens(self) -> tuple[str, ...]:
        """German words, with every punctuation mark a token of its own."""
        return tuple(_TOKEN.findall(self.target))


class NounPhrase(NamedTuple):
    """A pronoun, a name or a common noun with determiner, adjectives and at most one relative clause."""

    head: Noun | Pronoun
    determiner: Determiner = BARE
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    relative: Clause | None = None

    @property
    def agreement(self) -> int:
        """Agreement of a verb whose subject this is."""
        if isinstance(self.head, Pronoun):
            return self.head.agreement
        return PLURAL if self.plural else THIRD

    @property
    def column(self) -> str:
        """Inflection column of a noun: its gender, or ``p``."""
        return "p" if self.plural or isinstance(self.head, Pronoun) else self.head.gender

    @property
    def definite(self) -> bool:
        """Whether it stands before the indefinite part of the German clause (and is negated by nicht, not kein)."""
        return isinstance(self.head, Pronoun) or self.head.name or self.determiner.definite


class Clause(NamedTuple):
    """One clause without its word order.

    ``subject`` is empty where another word is the subject (relative and question pronouns, infinitives); two phrases
    are joined by "and". ``gap`` is the case of the relative or question pronoun that fills this clause's missing
    argument. ``tense`` is ``present``, ``progressive``, ``past``, ``will``, ``can``, ``must``, ``should`` or
    ``want`` (ignored in an infinitive). ``fronted`` is ``time``, ``place`` or "". ``complement`` is the that- or
    whether-clause, or the infinitive clause.
    """

    verb: Verb
    tense: str = "present"
    subject: tuple[NounPhrase, ...] = ()
    negated: bool = False
    accusative: NounPhrase | None = None
    dative: NounPhrase | None = None
    # "gives the book to the child" instead of "gives the child the book"; German does not tell them apart.
    recipient_last: bool = False
    predicate: Adjective | None = None
    very: bool = False
    companion: tuple[Preposition, NounPhrase] | None = None
    place: tuple[Preposition, NounPhrase] | None = None
    time: Adverbial | None = None
    fronted: str = ""
    complement: tuple[Connective | None, Clause] | None = None
    gap: int | None = None
    # Agreement of the finite verb where the pronoun is the subject.
    gap_agreement: int = THIRD

    @property
    def agreement(self) -> int:
        """Agreement of the finite verb."""
        if not self.subject:
            return self.gap_agreement
        return self.subject[0].agreement if len(self.subject) == 1 else PLURAL


class Statement(NamedTuple):
    """A main clause with, if ``connective`` is given, a subordinate clause behind or (``first``) before it."""

    clause: Clause
    connective: Connective | None = None
    subordinate: Clause | None = None
    first: bool = False


class Question(NamedTuple):
    """A yes-no question, or one asked by an adverb (where, why), or by the pronoun that fills the clause's gap."""

    clause: Clause
    adverb: Connective | None = None


class Sentence(NamedTuple):
    """A question, or a statement with further ones joined by "and" or "but"."""

    first: Statement | Question
    joined: tuple[tuple[Connective, Statement], ...] = ()


def realize(sentence: Sentence) -> GrammarPair:
    """English and German text of one sentence with its gold alignment."""
    writer = _Writer()
    if isinstance(sentence.first, Question):
        german, mark = writer.question(sentence.first), "?"
    else:
        german, mark = writer.statement(sentence.first), "."
    for connective, statement in sentence.joined:
        comma = writer.say(",")
        conjunction = writer.say(connective.english)
        german += [(",", comma), (connective.german, conjunction), *writer.statement(statement)]
    german.append((mark, writer.say(mark)))
    words = _merge_commas(german)
    alignment = sorted((source, target) for target, (_, sources) in enumerate(words) for source in sources)
    return GrammarPair(detokenize(writer.english), detokenize([word for word, _ in words]), tuple(alignment))


def detokenize(tokens: list[str]) -> str:
    """Text of a sentence: capitalised, no space before a punctuation mark."""
    pieces = [tokens[0][0].upper() + tokens[0][1:]]
    for token in tokens[1:]:
        if token not in _MARKS:
            pieces.append(" ")
        pieces.append(token)
    return "".join(pieces)


def _merge_commas(words: list[GermanWord]) -> list[GermanWord]:
    """Every embedded clause brings its own commas: keep one of two in a row, and none before the final mark."""
    merged: list[GermanWord] = []
    for word in words:
        if word[0] in _MARKS and merged and merged[-1][0] == ",":
            previous = merged.pop()
            if word[0] == ",":
                word = (",", previous[1] + word[1])
        merged.append(word)
    return merged


@dataclass
class _VerbPositions:
    """English positions by the German verb word they stand for."""

    finite: tuple[int, ...] = ()
    lexical: tuple[int, ...] = ()
    negation: tuple[int, ...] = ()
    zu: tuple[int, ...] = ()


# English verb words, each with the fields of _VerbPositions it belongs to ("" is a word without a counterpart).
_VerbWords = list[tuple[str, str]]


def _english_verb(clause: Clause, support: bool) -> tuple[_VerbWords, _VerbWords]:
    """The auxiliary (with "not") and the rest of the English verb; ``support`` is do-support by a question."""
    base, third, progressive, past = clause.verb.english
    agreement, tense, negation = clause.agreement, clause.tense, [("not", "negation")] if clause.negated else []
    if tense == "can" and clause.negated:
        return [("cannot", "finite negation")], [(base, "lexical")]
    if tense in _MODALS:
        return [(tense, "finite"), *negation], [(base, "lexical")]
    if clause.verb is BE:
        return [((_WAS if tense == "past" else _AM)[agreement], "lexical"), *negation], []
    if tense == "progressive":
        return [(_AM[agreement], ""), *negation], [(progressive, "lexical")]
    support = support or clause.negated
    if tense == "past":
        perfect = clause.verb.preterite is None
        if support:
            return [("did", "finite" if perfect else ""), *negation], [(base, "lexical")]
        return [], [(past, "finite lexical" if perfect else "lexical")]
    do = [(_DO[agreement], ""), *negation] if support else []
    inflected = third if agreement == THIRD and not support else base
    if tense == "want":
        want = "wants" if agreement == THIRD and not support else "want"
        return do, [(want, "finite"), ("to", ""), (base, "lexical")]
    return do, [(inflected, "lexical")]


def _german_verb(clause: Clause, at: _VerbPositions) -> tuple[GermanWord, list[GermanWord], str]:
    """The finite verb, the non-finite words at the clause end, and the separable prefix of the finite verb."""
    verb, tense, agreement = clause.verb, clause.tense, clause.agreement
    if tense in ("present", "progressive"):
        return (verb.german_present(agreement), at.lexical), [], verb.prefix
    if tense == "past" and verb.preterite:
        return (verb.preterite[agreement == PLURAL], at.lexical), [], verb.prefix
    if tense == "past":
        return (AUXILIARIES[verb.auxiliary][agreement], at.finite), [(verb.german[3], at.lexical)], ""
    return (AUXILIARIES[tense][agreement], at.finite), [(verb.german_infinitive, at.lexical)], ""


@dataclass
class _Fields:
    """German fragments of one clause, by the slot they fill between the finite verb and the clause end."""

    pronouns: list[GermanWord] = field(default_factory=list)
    time: list[GermanWord] = field(default_factory=list)
    dative: list[GermanWord] = field(default_factory=list)
    definite: list[GermanWord] = field(default_factory=list)
    negation: list[GermanWord] = field(default_factory=list)
    companion: list[GermanWord] = field(default_factory=list)
    place: list[GermanWord] = field(default_factory=list)
    indefinite: list[GermanWord] = field(default_factory=list)
    predicate: list[GermanWord] = field(default_factory=list)
    # Behind the last verb: relative clauses of an object, that-, whether- and infinitive clauses.
    extraposed: list[GermanWord] = field(default_factory=list)

    def middle(self) -> list[GermanWord]:
        """The slots in German order."""
        return [
            *self.pronouns,
            *self.time,
            *self.dative,
            *self.definite,
            *self.negation,
            *self.companion,
            *self.place,
            *self.indefinite,
            *self.predicate,
        ]


def _subject_and_middle(clause: Clause, subject: list[GermanWord], fields: _Fields) -> list[GermanWord]:
    """A noun subject behind the finite verb or the conjunction lets a pronoun object pass.

    Only "sie" stays behind it: "weil sie die Frau sieht" would be read as "because she sees the woman".
    """
    middle, passing = fields.middle(), len(fields.pronouns)
    if not clause.subject or isinstance(clause.subject[0].head, Pronoun) or "sie" in dict(fields.pronouns):
        passing = 0
    return [*middle[:passing], *subject, *middle[passing:]]


class _Writer:
    """Writes the English words of one sentence in order; every method returns the German words for what it wrote."""

    def __init__(self) -> None:
        self.english: list[str] = []

    def say(self, *words: str) -> tuple[int, ...]:
        """Append English words and return their positions."""
        start = len(self.english)
        self.english += words
        return tuple(range(start, start + len(words)))

    def statement(self, statement: Statement) -> list[GermanWord]:
        """A main clause with its subordinate clause on either side, which leaves the German verb second."""
        if statement.connective is None or statement.subordinate is None:
            return self.main(statement.clause)
        if statement.first:
            subordinate = self.subordinate(statement.connective, statement.subordinate)
            comma = self.say(",")
            return self.main(statement.clause, [*subordinate, (",", comma)])
        main = self.main(statement.clause)
        comma = self.say(",") if statement.connective.comma else ()
        return [*main, (",", comma), *self.subordinate(statement.connective, statement.subordinate)]

    def question(self, question: Question) -> list[GermanWord]:
        """A verb-first question, or one with a question word before the verb."""
        clause = question.clause
        if clause.gap is not None:
            person = clause.gap == NOMINATIVE or "person" in clause.verb.objects
            english = ("who", "whom")[clause.gap != NOMINATIVE] if person else "what"
            german = ("wer", "wen", "wem")[clause.gap] if person else "was"
            return self.main(clause, [(german, self.say(english))], inverted=True)
        lead = [(question.adverb.german, self.say(question.adverb.english))] if question.adverb else []
        return self.main(clause, lead, inverted=True)

    def subordinate(self, connective: Connective, clause: Clause) -> list[GermanWord]:
        """Conjunction and verb-final clause."""
        lead = [(connective.german, self.say(connective.english))]
        return lead + self.final(clause)

    def main(self, clause: Clause, lead: list[GermanWord] | None = None, inverted: bool = False) -> list[GermanWord]:
        """A verb-second clause; ``lead`` stands before the verb already; ``inverted`` is English question order."""
        front = list(lead or [])
        if clause.fronted == "time" and clause.time:
            front = self.adverbial(clause.time)
        elif clause.fronted == "place" and clause.place:
            front = self.prepositional(clause.place)
        subject, fields, finite, ending, prefix = self.parts(clause, inverted)
        if prefix:
            ending = [(prefix, finite[1])]
        if front or inverted:
            middle = _subject_and_middle(clause, subject, fields)
        else:
            front, middle = subject, fields.middle()
        return [*front, finite, *middle, *ending, *fields.extraposed]

    def final(self, clause: Clause) -> list[GermanWord]:
        """A verb-final clause, without its conjunction."""
        subject, fields, (finite, positions), ending, prefix = self.parts(clause, False)
        middle = _subject_and_middle(clause, subject, fields)
        return [*middle, *ending, (prefix + finite, positions), *fields.extraposed]

    def infinitive(self, clause: Clause) -> list[GermanWord]:
        """An infinitive clause: zu before the verb, or between separable prefix and verb."""
        at = _VerbPositions(zu=self.say("to"), lexical=self.say(clause.verb.english[0]))
        fields = _Fields()
        self.complements(clause, at, fields)
        verb = clause.verb
        if verb.prefix:
            ending = [(f"{verb.prefix}zu{verb.german[0]}", at.zu + at.lexical)]
        else:
            ending = [("zu", at.zu), (verb.german[0], at.lexical)]
        return [*fields.middle(), *ending, *fields.extraposed]

    def parts(
        self, clause: Clause, inverted: bool
    ) -> tuple[list[GermanWord], _Fields, GermanWord, list[GermanWord], str]:
        """Write a finite clause; the German subject, slots, finite verb, non-finite words and separable prefix."""
        at, fields = _VerbPositions(), _Fields()
        inverted = inverted and bool(clause.subject)
        auxiliary, rest = _english_verb(clause, inverted)
        if inverted:
            self.verb_words(auxiliary, at)
        subject = self.subject(clause)
        if not inverted:
            self.verb_words(auxiliary, at)
        if clause.time and clause.time.medial:
            fields.time = self.adverbial(clause.time)
        self.verb_words(rest, at)
        if clause.predicate:
            very = [("sehr", self.say("very"))] if clause.very else []
            fields.predicate = [*very, (clause.predicate.german, self.say(clause.predicate.english))]
        self.complements(clause, at, fields)
        return subject, fields, *_german_verb(clause, at)

    def verb_words(self, words: _VerbWords, at: _VerbPositions) -> None:
        """Write English verb words and note their positions."""
        for word, roles in words:
            position = self.say(word)
            for role in roles.split():
                setattr(at, role, getattr(at, role) + position)

    def subject(self, clause: Clause) -> list[GermanWord]:
        """The subject with its relative clause, or two subjects joined by "and"."""
        german: list[GermanWord] = []
        for index, phrase in enumerate(clause.subject):
            if index:
                german.append(("und", self.say("and")))
            german += self.noun_phrase(phrase, NOMINATIVE)
            german += self.relative(phrase)
        return german

    def complements(self, clause: Clause, at: _VerbPositions, fields: _Fields) -> None:
        """Objects, adjuncts and embedded clauses, in English order, into the German slots."""
        verb = clause.verb
        moved = verb.particle and clause.accusative and isinstance(clause.accusative.head, Pronoun)
        if verb.particle and not moved:
            at.lexical += self.say(verb.particle)
        if verb.preposition:
            at.lexical += self.say(verb.preposition)
        if clause.dative and not clause.recipient_last:
            self.object(clause.dative, DATIVE, at, fields)
        if clause.accusative:
            indefinite_negation = clause.negated and not clause.accusative.definite
            self.object(clause.accusative, ACCUSATIVE, at, fields, at.negation if indefinite_negation else None)
        if clause.dative and clause.recipient_last:
            self.say("to")
            self.object(clause.dative, DATIVE, at, fields)
        if moved:
            at.lexical += self.say(verb.particle)
        if clause.negated and (clause.accusative is None or clause.accusative.definite):
            fields.negation = [("nicht", at.negation)]
        if clause.companion:
            fields.companion = self.prepositional(clause.companion)
        if clause.place and clause.fronted != "place":
            fields.place = self.prepositional(clause.place)
        if clause.time and not clause.time.medial and clause.fronted != "time":
            fields.time = self.adverbial(clause.time)
        if clause.complement:
            connective, embedded = clause.complement
            german = self.infinitive(embedded) if connective is None else self.subordinate(connective, embedded)
            fields.extraposed += [(",", ()), *german, (",", ())]

    def object(
        self,
        phrase: NounPhrase,
        case: int,
        at: _VerbPositions,
        fields: _Fields,
        negation: tuple[int, ...] | None = None,
    ) -> None:
        """Write one object into its slot; its relative clause goes behind the German verb."""
        german = self.noun_phrase(phrase, case, negation)
        if isinstance(phrase.head, Pronoun):
            fields.pronouns += german
        elif case == DATIVE:
            fields.dative += german
        elif phrase.definite:
            fields.definite += german
        else:
            fields.indefinite += german
        fields.extraposed += self.relative(phrase)

    def noun_phrase(self, phrase: NounPhrase, case: int, negation: tuple[int, ...] | None = None) -> list[GermanWord]:
        """A noun phrase without its relative clause; with ``negation`` (positions of "not") its determiner is kein."""
        head = phrase.head
        if isinstance(head, Pronoun):
            return [(head.german[case], self.say(head.english[case != NOMINATIVE]))]
        noun = head.english_plural if phrase.plural else head.english
        determiner = phrase.determiner
        word = determiner.english_plural if phrase.plural else determiner.english
        positions: tuple[int, ...] = ()
        if word:
            following = phrase.adjectives[0].english if phrase.adjectives else noun
            positions = self.say("an" if word == "a" and following[0] in _VOWELS else word)
        if negation is not None:
            determiner, positions = KEIN, negation + positions
        german: list[GermanWord] = []
        column = phrase.column
        if determiner is not BARE:
            german.append((determiner_form(determiner, column, case), positions))
        for adjective in phrase.adjectives:
            form = adjective_form(adjective, determiner, column, case)
            german.append((form, self.say(adjective.english)))
        german.append((noun_form(head, case, phrase.plural), self.say(noun)))
        return german

    def relative(self, phrase: NounPhrase) -> list[GermanWord]:
        """The relative clause of a phrase between commas; empty if it has none."""
        clause = phrase.relative
        if clause is None or clause.gap is None or isinstance(phrase.head, Pronoun):
            return []
        person = "who" if clause.gap == NOMINATIVE else "whom"
        english = person if "person" in phrase.head.tags else "that"
        lead = (relative_pronoun(phrase.column, clause.gap), self.say(english))
        return [(",", ()), lead, *self.final(clause), (",", ())]

    def prepositional(self, phrase: tuple[Preposition, NounPhrase]) -> list[GermanWord]:
        """A preposition with its noun phrase; in dem and in das become im and ins."""
        preposition, noun_phrase = phrase
        position = self.say(preposition.english)
        german = self.noun_phrase(noun_phrase, preposition.case)
        contraction = CONTRACTIONS.get((preposition.german, german[0][0]))
        if contraction:
            return [(contraction, position + german[0][1]), *german[1:]]
        return [(preposition.german, position), *german]

    def adverbial(self, adverbial: Adverbial) -> list[GermanWord]:
        """A time expression."""
        positions = self.say(*adverbial.english)
        return [(word, tuple(positions[index] for index in indices)) for word, indices in adverbial.german]
