"""Words and inflection of the bilingual grammar: English lemmas, their German counterparts, and the endings.

Every entry pairs one English lemma with one German lemma, and no two readings of an English form differ in German,
so the grammar built on top (:mod:`hf_capsule_mt.data.grammar`) translates by a function. Where English is
ambiguous on paper the entry says how that is avoided (``read`` has no simple past here, because "they read" would
then be two sentences).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

NOMINATIVE, ACCUSATIVE, DATIVE = range(3)

# Agreement of a finite verb with its subject: first person singular, third person singular, plural.
FIRST, THIRD, PLURAL = range(3)

# The rows are the cases above; the columns are masculine, feminine, neuter and plural.
_COLUMNS = "mfnp"
_ARTICLE = (("der", "die", "das", "die"), ("den", "die", "das", "die"), ("dem", "der", "dem", "den"))
_DER_ENDINGS = (("er", "e", "es", "e"), ("en", "e", "es", "e"), ("em", "er", "em", "en"))
_EIN_ENDINGS = (("", "e", "", "e"), ("en", "e", "", "e"), ("em", "er", "em", "en"))
_ADJECTIVE_ENDINGS = {
    "weak": (("e", "e", "e", "en"), ("en", "e", "e", "en"), ("en", "en", "en", "en")),
    "mixed": (("er", "e", "es", "en"), ("en", "e", "es", "en"), ("en", "en", "en", "en")),
    "strong": (("er", "e", "es", "e"), ("en", "e", "es", "e"), ("em", "er", "em", "en")),
}


@dataclass(frozen=True, eq=False)
class Noun:
    """A common noun or a name. ``tags`` say what it can do and be; ``pronoun`` is the English anaphor of a person."""

    english: str
    english_plural: str
    german: str
    gender: str
    german_plural: str
    tags: frozenset[str]
    pronoun: str = ""
    # n-declension: every singular form but the nominative equals the plural (der Junge, den Jungen).
    weak: bool = False
    mass: bool = False
    # How often "my", "his", ... stand before it: 0 where they would be odd or mean something else ("mein Mann" is a
    # husband), high for relatives.
    owned: int = 1

    @property
    def name(self) -> bool:
        """Whether this is a proper name: no article, no plural, no adjective."""
        return "name" in self.tags


@dataclass(frozen=True, eq=False)
class Pronoun:
    """A personal pronoun: English subject and object form, German forms by case, and its verb agreement."""

    english: tuple[str, str]
    german: tuple[str, str, str]
    agreement: int


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective; ``rank`` orders two of them before a noun (opinion, size, age and state, colour)."""

    english: str
    german: str
    german_stem: str
    rank: int
    tags: frozenset[str]


@dataclass(frozen=True, eq=False)
class Determiner:
    """A determiner: English singular and plural ("" is no word), German stem, and which declension it has and sets.

    ``kind`` is ``der`` (dies-, jed-), ``ein`` (mein, kein), ``many`` (strong adjectives follow), ``number`` (no
    endings) or ``bare`` (no word).
    """

    english: str
    english_plural: str
    german: str
    kind: str
    definite: bool


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb with the forms that the grammar uses and what it takes.

    ``english`` holds base, third person, -ing form and past; ``german`` holds infinitive, ich and er form (without
    the separable ``prefix``) and past participle. ``frame`` names the complements; ``subjects`` and ``objects`` are
    noun tags. ``aspect`` is ``action``, ``event`` (no progressive) or ``state`` (no progressive, no modal, no time).
    """

    english: tuple[str, ...]
    german: tuple[str, ...]
    frame: str
    subjects: frozenset[str] = frozenset()
    objects: frozenset[str] = frozenset()
    prefix: str = ""
    # An English particle moves behind a pronoun ("picks him up"); a preposition does not ("looks at him").
    particle: str = ""
    preposition: str = ""
    auxiliary: str = "haben"
    aspect: str = "action"
    # Past by these simple forms (first and third person, plural) instead of the perfect: hatte, war, wusste.
    preterite: tuple[str, str] | None = None
    # The English past is spelled like the base form, so that past sentences would be ambiguous.
    no_past: bool = False
    place: bool = False
    companion: bool = False

    @property
    def key(self) -> str:
        """The English base form with its particle or preposition: what held-out combinations are decided by."""
        return " ".join(word for word in (self.english[0], self.particle, self.preposition) if word)

    @property
    def german_infinitive(self) -> str:
        """Infinitive with its prefix: anrufen."""
        return self.prefix + self.german[0]

    def german_present(self, agreement: int) -> str:
        """Finite present form without its prefix."""
        if agreement == PLURAL:
            return "sind" if self.german[0] == "sein" else self.german[0]
        return self.german[1 + agreement]


@dataclass(frozen=True, eq=False)
class Adverbial:
    """A time expression: English words, and German words each with the English words (by index) it stands for."""

    english: tuple[str, ...]
    german: tuple[tuple[str, tuple[int, ...]], ...]
    # Stands before the English main verb and is never fronted (often, always, sometimes).
    medial: bool = False


@dataclass(frozen=True, eq=False)
class Preposition:
    """A preposition and the German case it governs."""

    english: str
    german: str
    case: int


@dataclass(frozen=True, eq=False)
class Connective:
    """A conjunction or question word with its German counterpart; ``comma`` is the English comma before it."""

    english: str
    german: str
    comma: bool = False


@functools.cache
def noun_form(noun: Noun, case: int, plural: bool) -> str:
    """German noun form: n-declension in the singular, -n in the dative plural."""
    if not plural:
        return noun.german_plural if noun.weak and case != NOMINATIVE else noun.german
    form = noun.german_plural
    return form + "n" if case == DATIVE and form[-1] not in "ns" else form


@functools.cache
def determiner_form(determiner: Determiner, column: str, case: int) -> str:
    """German determiner before a noun of this column (``m``, ``f``, ``n`` or ``p`` for plural), "" for none."""
    index = _COLUMNS.index(column)
    if determiner.kind == "article":
        return _ARTICLE[case][index]
    if determiner.kind in ("der", "many"):
        return determiner.german + _DER_ENDINGS[case][index]
    if determiner.kind == "ein":
        return determiner.german + _EIN_ENDINGS[case][index]
    return determiner.german


@functools.cache
def adjective_form(adjective: Adjective, determiner: Determiner, column: str, case: int) -> str:
    """German attributive adjective: weak after der-words, mixed after ein-words, strong elsewhere."""
    declension = {"article": "weak", "der": "weak", "ein": "mixed"}.get(determiner.kind, "strong")
    return adjective.german_stem + _ADJECTIVE_ENDINGS[declension][case][_COLUMNS.index(column)]


def relative_pronoun(column: str, case: int) -> str:
    """German relative pronoun: the article, but denen in the dative plural."""
    if column == "p" and case == DATIVE:
        return "denen"
    return _ARTICLE[case][_COLUMNS.index(column)]


def _noun(english: str, german: str, tags: str, **flags: Any) -> Noun:
    singular, plural = english.split()
    gender, form, german_plural = german.split()
    return Noun(singular, plural, form, gender, german_plural, frozenset(tags.split()), **flags)


def _mass(english: str, german: str, tags: str) -> Noun:
    gender, form = german.split()
    return Noun(english, english, form, gender, form, frozenset(tags.split()), mass=True)


def _name(name: str, gender: str, pronoun: str) -> Noun:
    return Noun(name, name, name, gender, name, frozenset({"name", "person", "grown"}), pronoun)


NOUNS = (
    _noun("man men", "m Mann Männer", "person grown", pronoun="he", owned=0),
    _noun("woman women", "f Frau Frauen", "person grown", pronoun="she", owned=0),
    _noun("child children", "n Kind Kinder", "person youth"),
    _noun("boy boys", "m Junge Jungen", "person", pronoun="he", weak=True, owned=0),
    _noun("girl girls", "n Mädchen Mädchen", "person youth", pronoun="she", owned=0),
    _noun("teacher teachers", "m Lehrer Lehrer", "person grown", pronoun="he"),
    _noun("student students", "m Student Studenten", "person grown", pronoun="he", weak=True),
    _noun("doctor doctors", "m Arzt Ärzte", "person grown", pronoun="he"),
    _noun("friend friends", "m Freund Freunde", "person grown", pronoun="he"),
    _noun("neighbor neighbors", "m Nachbar Nachbarn", "person grown", pronoun="he", weak=True),
    _noun("daughter daughters", "f Tochter Töchter", "person grown", pronoun="she", owned=4),
    _noun("uncle uncles", "m Onkel Onkel", "person grown", pronoun="he", owned=4),
    _noun("sister sisters", "f Schwester Schwestern", "person grown", pronoun="she", owned=4),
    _noun("brother brothers", "m Bruder Brüder", "person grown", pronoun="he", owned=4),
    _noun("dog dogs", "m Hund Hunde", "animal"),
    _noun("cat cats", "f Katze Katzen", "animal"),
    _noun("horse horses", "n Pferd Pferde", "animal"),
    _noun("bird birds", "m Vogel Vögel", "animal"),
    _noun("bear bears", "m Bär Bären", "animal", weak=True, owned=0),
    _noun("mouse mice", "f Maus Mäuse", "animal"),
    _noun("book books", "n Buch Bücher", "thing colored text portable"),
    _noun("letter letters", "m Brief Briefe", "thing text portable"),
    _noun("newspaper newspapers", "f Zeitung Zeitungen", "thing print portable"),
    _noun("picture pictures", "n Bild Bilder", "thing picture portable"),
    _noun("flower flowers", "f Blume Blumen", "thing colored picture portable"),
    _noun("key keys", "m Schlüssel Schlüssel", "thing portable"),
    _noun("bag bags", "f Tasche Taschen", "thing colored portable lid"),
    _noun("hat hats", "m Hut Hüte", "thing colored portable"),
    _noun("ball balls", "m Ball Bälle", "thing colored portable"),
    _noun("shirt shirts", "n Hemd Hemden", "thing colored portable"),
    _noun("car cars", "n Auto Autos", "thing colored"),
    _noun("lamp lamps", "f Lampe Lampen", "thing colored device"),
    _noun("radio radios", "n Radio Radios", "thing device"),
    _noun("computer computers", "m Computer Computer", "thing device"),
    _noun("door doors", "f Tür Türen", "part lid"),
    _noun("window windows", "n Fenster Fenster", "part lid"),
    _noun("apple apples", "m Apfel Äpfel", "food"),
    _noun("cake cakes", "m Kuchen Kuchen", "food"),
    _mass("bread", "n Brot", "food"),
    _mass("soup", "f Suppe", "food liquid"),
    _mass("water", "n Wasser", "drink liquid"),
    _mass("milk", "f Milch", "drink liquid"),
    _mass("tea", "m Tee", "drink liquid"),
    _mass("coffee", "m Kaffee", "drink liquid"),
    _noun("garden gardens", "m Garten Gärten", "place"),
    _noun("park parks", "m Park Parks", "place", owned=0),
    _noun("forest forests", "m Wald Wälder", "place", owned=0),
    _noun("city cities", "f Stadt Städte", "place"),
    _noun("village villages", "n Dorf Dörfer", "place"),
    _noun("kitchen kitchens", "f Küche Küchen", "place"),
    _noun("room rooms", "n Zimmer Zimmer", "place"),
    _noun("house houses", "n Haus Häuser", "place building"),
    _noun("school schools", "f Schule Schulen", "place building"),
    _noun("office offices", "n Büro Büros", "place"),
    _name("Anna", "f", "she"),
    _name("Maria", "f", "she"),
    _name("Peter", "m", "he"),
    _name("Paul", "m", "he"),
)


def _adjective(english: str, german: str, rank: int, tags: str) -> Adjective:
    base, *stem = german.split()
    return Adjective(english, base, stem[0] if stem else base, rank, frozenset(tags.split()))


ADJECTIVES = (
    _adjective("polite", "höflich", 0, "person"),
    _adjective("happy", "glücklich", 0, "person"),
    _adjective("clever", "klug", 0, "person animal"),
    _adjective("beautiful", "schön", 0, "thing place"),
    _adjective("expensive", "teuer teur", 0, "thing"),
    _adjective("quiet", "ruhig", 0, "place"),
    _adjective("small", "klein", 1, "person animal thing place part"),
    _adjective("big", "groß", 1, "animal thing place part"),
    _adjective("old", "alt", 2, "grown animal thing place part"),
    _adjective("young", "jung", 2, "grown youth animal"),
    _adjective("new", "neu", 2, "thing building part"),
    _adjective("hungry", "hungrig", 2, "person animal"),
    _adjective("tired", "müde müd", 2, "person animal"),
    _adjective("fresh", "frisch", 2, "food"),
    _adjective("warm", "warm", 2, "food liquid"),
    _adjective("cold", "kalt", 2, "liquid"),
    _adjective("dark", "dunkel dunkl", 2, "place"),
    _adjective("red", "rot", 3, "colored part"),
    _adjective("blue", "blau", 3, "colored part"),
    _adjective("black", "schwarz", 3, "animal colored"),
)

THE = Determiner("the", "the", "d", "article", True)
A = Determiner("a", "", "ein", "ein", False)
THIS = Determiner("this", "these", "dies", "der", True)
EVERY = Determiner("every", "", "jed", "der", True)
POSSESSIVES = (
    Determiner("my", "my", "mein", "ein", True),
    Determiner("his", "his", "sein", "ein", True),
    Determiner("our", "our", "unser", "ein", True),
    Determiner("their", "their", "ihr", "ein", True),
)
BARE = Determiner("", "", "", "bare", False)
MANY = Determiner("", "many", "viel", "many", False)
TWO = Determiner("", "two", "zwei", "number", False)
THREE = Determiner("", "three", "drei", "number", False)
# German only: "not a" and "not" before a bare noun.
KEIN = Determiner("", "", "kein", "ein", False)

ME, HE, SHE, WE, THEY = PRONOUNS = (
    Pronoun(("I", "me"), ("ich", "mich", "mir"), FIRST),
    Pronoun(("he", "him"), ("er", "ihn", "ihm"), THIRD),
    Pronoun(("she", "her"), ("sie", "sie", "ihr"), THIRD),
    Pronoun(("we", "us"), ("wir", "uns", "uns"), PLURAL),
    Pronoun(("they", "them"), ("sie", "sie", "ihnen"), PLURAL),
)


def _verb(english: str, german: str, frame: str, subjects: str = "person", objects: str = "", **options: Any) -> Verb:
    prefix, _, forms = german.rpartition("|")
    return Verb(
        tuple(english.split()),
        tuple(forms.split()),
        frame,
        frozenset(subjects.split()),
        frozenset(objects.split()),
        prefix,
        **options,
    )


_ALIVE = "person animal"
_SHOWN = "animal thing building"

VERBS = (
    _verb("sleep sleeps sleeping slept", "schlafen schlafe schläft geschlafen", "none", _ALIVE, place=True),
    _verb("wait waits waiting waited", "warten warte wartet gewartet", "none", _ALIVE, place=True),
    _verb("play plays playing played", "spielen spiele spielt gespielt", "none", _ALIVE, place=True, companion=True),
    _verb("work works working worked", "arbeiten arbeite arbeitet gearbeitet", "none", place=True, companion=True),
    _verb("dance dances dancing danced", "tanzen tanze tanzt getanzt", "none", place=True, companion=True),
    _verb("laugh laughs laughing laughed", "lachen lache lacht gelacht", "none"),
    _verb("get gets getting got", "auf|stehen stehe steht aufgestanden", "none", particle="up", auxiliary="sein"),
    _verb(
        "fall falls falling fell",
        "ein|schlafen schlafe schläft eingeschlafen",
        "none",
        _ALIVE,
        particle="asleep",
        auxiliary="sein",
        place=True,
    ),
    _verb("arrive arrives arriving arrived", "an|kommen komme kommt angekommen", "none", auxiliary="sein"),
    _verb("go goes going went", "gehen gehe geht gegangen", "into", objects="place", auxiliary="sein"),
    _verb("run runs running ran", "laufen laufe läuft gelaufen", "into", _ALIVE, "place", auxiliary="sein"),
    _verb("come comes coming came", "kommen komme kommt gekommen", "from", _ALIVE, "place", auxiliary="sein"),
    _verb(
        "see sees seeing saw",
        "sehen sehe sieht gesehen",
        "accusative",
        _ALIVE,
        "person animal thing building",
        aspect="event",
        place=True,
    ),
    _verb(
        "hear hears hearing heard",
        "hören höre hört gehört",
        "accusative",
        _ALIVE,
        "person animal",
        aspect="event",
        place=True,
    ),
    _verb(
        "look looks looking looked",
        "suchen suche sucht gesucht",
        "accusative",
        _ALIVE,
        "person animal thing",
        preposition="for",
        place=True,
    ),
    _verb(
        "find finds finding found",
        "finden finde findet gefunden",
        "accusative",
        _ALIVE,
        "person animal thing",
        aspect="event",
        place=True,
    ),
    _verb("love loves loving loved", "lieben liebe liebt geliebt", "accusative", "person", _ALIVE, aspect="state"),
    _verb(
        "know knows knowing knew",
        "kennen kenne kennt gekannt",
        "accusative",
        "person",
        "person building",
        aspect="state",
        preterite=("kannte", "kannten"),
    ),
    _verb(
        "have has having had",
        "haben habe hat gehabt",
        "accusative",
        "person",
        "animal thing",
        aspect="state",
        preterite=("hatte", "hatten"),
    ),
    _verb(
        "buy buys buying bought",
        "kaufen kaufe kauft gekauft",
        "accusative",
        "person",
        "thing food drink",
        place=True,
    ),
    _verb(
        "read reads reading read",
        "lesen lese liest gelesen",
        "accusative",
        "person",
        "text print",
        no_past=True,
        place=True,
    ),
    _verb("write writes writing wrote", "schreiben schreibe schreibt geschrieben", "accusative", "person", "text"),
    _verb("eat eats eating ate", "essen esse isst gegessen", "accusative", _ALIVE, "food", place=True),
    _verb("drink drinks drinking drank", "trinken trinke trinkt getrunken", "accusative", _ALIVE, "drink", place=True),
    _verb("visit visits visiting visited", "besuchen besuche besucht besucht", "accusative", "person", "person"),
    _verb(
        "paint paints painting painted",
        "malen male malt gemalt",
        "accusative",
        "person",
        "animal picture building",
        place=True,
    ),
    _verb("carry carries carrying carried", "tragen trage trägt getragen", "accusative", "person", "portable"),
    _verb("call calls calling called", "an|rufen rufe ruft angerufen", "accusative", "person", "person"),
    _verb("invite invites inviting invited", "ein|laden lade lädt eingeladen", "accusative", "person", "person"),
    _verb("pick picks picking picked", "ab|holen hole holt abgeholt", "accusative", "person", "person", particle="up"),
    _verb("open opens opening opened", "auf|machen mache macht aufgemacht", "accusative", "person", "lid"),
    _verb("close closes closing closed", "zu|machen mache macht zugemacht", "accusative", "person", "lid"),
    _verb(
        "turn turns turning turned",
        "ein|schalten schalte schaltet eingeschaltet",
        "accusative",
        "person",
        "device",
        particle="on",
    ),
    _verb(
        "look looks looking looked",
        "an|sehen sehe sieht angesehen",
        "accusative",
        _ALIVE,
        "person animal thing",
        preposition="at",
    ),
    _verb("help helps helping helped", "helfen helfe hilft geholfen", "dative", "person", _ALIVE),
    _verb("thank thanks thanking thanked", "danken danke dankt gedankt", "dative", "person", "person"),
    _verb(
        "follow follows following followed", "folgen folge folgt gefolgt", "dative", _ALIVE, _ALIVE, auxiliary="sein"
    ),
    _verb(
        "listen listens listening listened",
        "zu|hören höre hört zugehört",
        "dative",
        _ALIVE,
        "person",
        preposition="to",
    ),
    _verb("give gives giving gave", "geben gebe gibt gegeben", "ditransitive", "person", "portable food drink"),
    _verb(
        "show shows showing showed", "zeigen zeige zeigt gezeigt", "ditransitive", "person", "animal thing building"
    ),
    _verb("send sends sending sent", "schicken schicke schickt geschickt", "ditransitive", "person", "portable"),
    _verb("say says saying said", "sagen sage sagt gesagt", "that", aspect="event"),
    _verb("believe believes believing believed", "glauben glaube glaubt geglaubt", "that", aspect="state"),
    _verb("think thinks thinking thought", "denken denke denkt gedacht", "that", aspect="state"),
    _verb(
        "know knows knowing knew",
        "wissen weiß weiß gewusst",
        "that",
        aspect="state",
        preterite=("wusste", "wussten"),
    ),
    _verb(
        "know knows knowing knew",
        "wissen weiß weiß gewusst",
        "whether",
        aspect="state",
        preterite=("wusste", "wussten"),
    ),
    _verb("ask asks asking asked", "fragen frage fragt gefragt", "whether"),
    _verb("try tries trying tried", "versuchen versuche versucht versucht", "to"),
    _verb("forget forgets forgetting forgot", "vergessen vergesse vergisst vergessen", "to", aspect="event"),
)

BE = _verb("be is being was", "sein bin ist gewesen", "predicative", preterite=("war", "waren"), aspect="event")
RAIN = _verb("rain rains raining rained", "regnen regne regnet geregnet", "weather", "")
IT = Pronoun(("it", "it"), ("es", "es", "ihm"), THIRD)

# Finite forms by agreement. Perfect and future auxiliaries and modals all leave the main verb at the clause end.
AUXILIARIES = {
    "haben": ("habe", "hat", "haben"),
    "sein": ("bin", "ist", "sind"),
    "will": ("werde", "wird", "werden"),
    "can": ("kann", "kann", "können"),
    "must": ("muss", "muss", "müssen"),
    "should": ("sollte", "sollte", "sollten"),
    "want": ("will", "will", "wollen"),
}

IN = Preposition("in", "in", DATIVE)
BEHIND = Preposition("behind", "hinter", DATIVE)
INTO = Preposition("into", "in", ACCUSATIVE)
FROM = Preposition("from", "aus", DATIVE)
WITH = Preposition("with", "mit", DATIVE)
WITHOUT = Preposition("without", "ohne", ACCUSATIVE)
# German preposition and definite article in one word.
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins"}


def _adverbial(english: str, german: str, *, medial: bool = False) -> Adverbial:
    """Word for word, but "in the" and "on" are the one word "am"."""
    words = tuple(english.split())
    if words[0] == "in":
        first, second = german.split()
        return Adverbial(words, ((first, (0, 1)), (second, (2,))))
    return Adverbial(words, tuple((word, (index,)) for index, word in enumerate(german.split())), medial)


TODAY = _adverbial("today", "heute")
NOW = _adverbial("now", "jetzt")
YESTERDAY = _adverbial("yesterday", "gestern")
TOMORROW = _adverbial("tomorrow", "morgen")
MONDAY = _adverbial("on Monday", "am Montag")
SUNDAY = _adverbial("on Sunday", "am Sonntag")
LAST_WEEK = _adverbial("last week", "letzte Woche")
NEXT_WEEK = _adverbial("next week", "nächste Woche")
EVERY_DAY = _adverbial("every day", "jeden Tag")
MORNING = _adverbial("in the morning", "am Morgen")
EVENING = _adverbial("in the evening", "am Abend")
OFTEN = _adverbial("often", "oft", medial=True)
ALWAYS = _adverbial("always", "immer", medial=True)
SOMETIMES = _adverbial("sometimes", "manchmal", medial=True)

# The time expressions that go with each English tense.
TIMES = {
    "present": (EVERY_DAY, MORNING, EVENING, OFTEN, ALWAYS, SOMETIMES),
    "progressive": (TODAY, NOW),
    "past": (YESTERDAY, LAST_WEEK, MONDAY, SUNDAY, OFTEN),
    "will": (TOMORROW, NEXT_WEEK, MONDAY, SUNDAY, TODAY),
    "can": (TODAY, TOMORROW, NOW),
    "must": (TODAY, TOMORROW, NOW),
    "should": (TODAY, TOMORROW, NOW),
    "want": (TODAY, TOMORROW, NOW),
}

BECAUSE = Connective("because", "weil")
ALTHOUGH = Connective("although", "obwohl", comma=True)
IF = Connective("if", "wenn")
THAT = Connective("that", "dass")
WHETHER = Connective("whether", "ob")
AND = Connective("and", "und", comma=True)
BUT = Connective("but", "aber", comma=True)
WHERE = Connective("where", "wo")
WHY = Connective("why", "warum")
