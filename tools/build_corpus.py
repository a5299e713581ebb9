"""Writes the built-in corpus: `prose.txt`, from which prompts are cut, and `other.txt`, which only trains the tokenizer.

All of it was written for this project: the words are in corpus.yaml, the grammar is below. Each line of the prose is a
paragraph about one topic. The output is the same on every run: its only source of randomness is
`random.Random(n).random()`, which Python keeps stable.
"""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import yaml

PROSE_CHARS = 320_000
OTHER_CHARS = 60_000

WORDS = yaml.safe_load(Path(__file__).with_name("corpus.yaml").read_text(encoding="utf-8"))
TOPICS = list(WORDS["topics"].values())

# <slot> is filled with a word of the topic or a common one; <A slot> also puts the right article before it.
SENTENCES = """
The <adj> <noun> <past> the <noun> <place>.
<Role> <past> <A adj> <noun> <place>, <conj> the <nouns> were <quality>.
<Name> <past> the <noun> and <past> the <adj> <nouns> <time>.
<Starter>, the <noun> was <adverb> <part> by <A noun>.
<A adj> <noun> is more <quality> than <A adj> <noun>.
Most <nouns> are <adj>, but the <nouns> <place> are <adj> as well.
<Time>, <role> <past> <number> <nouns> <place>.
It is <quality> to <base> the <noun> <conj> <role> <third> the <nouns>.
<Name> <reporting> that the <noun> had been <part> <time>.
"<A adj> <noun> can <base> any <noun>," <role> <reporting>, "and it <third> the <nouns> too."
How do you <base> <A noun> without <ing> the <nouns>?
The <noun>, the <noun> and the <noun> were all <part> <place>.
Without the <noun>, <role> would have <part> neither the <nouns> nor the <adj> <noun>.
When <role> <past> the <noun>, the <nouns> <adverb> <past> it.
There are <number> <adj> <nouns> <place>, and each of them <third> <A noun>.
<Ing> <A noun> is <quality>; <ing> <number> of them is not.
<Name> <Surname> of <City> has <part> <nouns> since <year>.
In <Month> <year>, <role> <past> the <adj> <noun> of <City>.
<Starter>, <role> <reporting> that <nouns> should <adverb> be <part>.
The <noun> <third> the <noun>, which <third> the <adj> <noun>.
If the <noun> is <adj>, <base> it <adverb>; if it is not, <base> the <noun> first.
She <past> the <noun> <adverb>, <conj> her <noun> was <adj>.
He has <adverb> <part> <A noun>, and he does not want to <base> one now.
They were <ing> the <nouns> <time> when <A adj> <noun> <past> them.
No <noun> has ever been so <adj>.
Between <City> and <City> lie <number> <measure> of <adj> <nouns>.
About <number> percent of the <nouns> were <part> on <Day>, <conj> the <noun> was <quality>.
The <quality> <noun> cost <number> <measure>, or <decimal> <measure> for each <noun>.
Do not <base> the <noun> <conj> the <noun> has been <part>.
What the <noun> <past> <place>, the <nouns> could <adverb> <base>.
<Role> who <third> <nouns> must also <base> the <adj> <noun>.
We <past> it <time>: the <noun> was <adj>, the <nouns> were <adj>, and <role> had <part> everything.
You can <base> the <noun> with <A noun>, or you can <base> it <place>.
Some <nouns> <base> <nouns>; others, more <adj>, <base> nothing at all.
At <clock> on <Day> the <noun> was still <adj>.
The <noun>'s <noun> was <part> by <name>'s <adj> <noun>.
One <noun> in <number> is <adj> (see page <number>).
<Name> asked whether the <noun> could be <part>; <role> <reporting> that it could not.
<A noun> that <third> <A adj> <noun> will <adverb> <base> another.
Not every <noun> <third> its <noun>, <conj> <nouns> are <quality>.
From the <noun> to the <noun> it is only <number> <measure>.
Nobody <past> the <noun> except <name>, who had <part> <nouns> <time>.
Both the <adj> and the <adj> <nouns> were <part>, <conj> they had <part> <A noun>.
Imagine <A adj> <noun> that cannot <base> its <nouns>.
""".strip().split("\n")

# Compound adjectives: rarer words of several tokens, as in natural text.
COMPOUNDS = """
half-<part>
well-<part>
newly <part>
badly <part>
over<part>
un<part>
<noun>-shaped
<noun>less
<noun>-like
<quality>-looking
once <adj>
all too <adj>
""".strip().split("\n")

HEADINGS = """
<Noun> and <noun>
On <ing> <nouns>
The <adj> <noun>
<Adj> <nouns>, <adj> <nouns>
Why <nouns> <base> <nouns>
<Number> <nouns> <place>
<Noun>, <noun>, <noun>
""".strip().split("\n")

OTHER = """
def <noun>_<noun>(<noun>: int, <noun>s: list[str]) -> bool:\\n    if <noun> > <number>:\\n        return False\\n    return len(<noun>s) == <number>\\n
class <Noun><Noun>:\\n    def __init__(self, <noun>, <noun>=None):\\n        self.<noun> = <noun>\\n        self._<noun> = <noun> or {}\\n
for (int i = 0; i < <number>; i++) {\\n  <noun>[i] += <noun>[i] * <decimal>;\\n}\\n
const <noun> = await fetch(`/api/v1/<nouns>/${id}`);\\nconsole.log(<noun>.status);\\n
import <noun>\\nfrom <noun>.<noun> import <Noun>\\n\\nprint(f"{<noun>:.2f} <nouns>")\\n
SELECT <noun>, COUNT(*) FROM <nouns> WHERE <noun> >= <number> GROUP BY <noun> ORDER BY <number> DESC;
$ <base> --<noun>=<number> --<noun> /var/lib/<noun>/<noun>.conf
https://www.example.com/<nouns>/<noun>?<noun>=<number>&page=<number>
<name>.<surname>@example.org, +49 <number> <number>-<number>
| <noun> | <number> | <decimal> |\\n|---|---|---|\\n| <noun> | <number> | <decimal> |
- [ ] <base> the <noun>\\n- [x] <base> the <nouns>\\n- [ ] <base> <A adj> <noun>
## <Noun>\\n\\n1. <base> the *<noun>*\\n2. <base> the **<noun>**\\n
<noun>: <number>\\n<noun>: <decimal>\\n<noun>: [<number>, <number>, <number>]\\n
x = (<number> + <number>) / <number> - <decimal> * y ** 2 != <number> % 7
2<year>-0<digit>-1<digit>T1<digit>:<number>:0<digit>.<number>Z INFO <noun> <number> <part> in <decimal> ms
WARNING: <NOUN> <number> is <adj>!!! #<noun> @<name> ~$<number> <= <decimal>% \\\\o/
Traceback (most recent call last):\\n  File "<noun>.py", line <number>, in <noun>\\n    raise ValueError("<noun> is <adj>")\\n
""".strip().split("\n")

# Some text in other languages, so that the tokenizer has seen their letters. Written for this project.
FOREIGN = [
    "Der Zug fährt um sieben Uhr ab, und wir müssen noch die Koffer packen. Wo ist der Schlüssel? Er liegt auf dem Tisch neben der Tür.",
    "Heute ist das Wetter schön; morgen wird es regnen. Die Kinder spielen im Garten, während die Großmutter einen Kuchen backt.",
    "Le matin, la boulangerie ouvre à six heures et l'odeur du pain remplit la rue. Où sont les clés ? Elles étaient là hier soir.",
    "Nous avons traversé la forêt jusqu'à la rivière, mais le vieux pont n'existait plus. Il a fallu faire un long détour.",
    "El tren llega tarde otra vez, así que tomamos un café en la estación. ¿Qué hora es? Son las nueve menos cuarto.",
    "Mañana iremos al mercado a comprar fruta, pan y un poco de queso. La señora de la tienda siempre nos da algo más.",
    "O barco saiu do porto ao amanhecer e só voltou à noite. Não havia peixe, mas ninguém se queixou.",
    "La sera la piazza è piena di gente che parla, mangia e ride. Perché non rimani ancora un po'?",
    "De fiets staat achter het huis, onder het afdak. Als het morgen droog is, rijden we langs het kanaal naar de stad.",
    "Tåget går klockan åtta och vi har ännu inte ätit frukost. Var är nyckeln? Den ligger på bordet bredvid dörren.",
    "Pociąg odjeżdża o siódmej, a my jeszcze nie jesteśmy spakowani. Gdzie jest klucz? Leży na stole obok drzwi.",
    "Поезд уходит в семь часов, а мы ещё не собрали вещи. Где ключ? Он лежит на столе у двери. Завтра будет дождь.",
    "Το τρένο φεύγει στις επτά και δεν έχουμε ετοιμάσει ακόμη τις βαλίτσες. Πού είναι το κλειδί;",
    "火车七点出发，我们还没有收拾行李。钥匙在哪里？在门旁边的桌子上。明天会下雨，今天天气很好。",
    "電車は七時に出ます。まだ荷物をまとめていません。鍵はどこですか。ドアのそばの机の上にあります。",
    "기차는 일곱 시에 출발하는데 우리는 아직 짐을 싸지 않았습니다. 열쇠는 어디에 있습니까?",
    "القطار يغادر في الساعة السابعة ولم نجمع أمتعتنا بعد. أين المفتاح؟ إنه على الطاولة بجانب الباب.",
    "ट्रेन सात बजे जाती है और हमने अभी तक सामान नहीं बाँधा है। चाबी कहाँ है?",
    "Tren saat yedide kalkıyor ve biz daha bavulları toplamadık. Anahtar nerede? Kapının yanındaki masanın üstünde.",
    "Café, naïve, façade, jalapeño, Zürich, Łódź, Ærø, smörgåsbord — “quoted”, ‘single’, … and 50 € or £20; 21 °C, ½, ×, π ≈ 3.14159, ✓ 🙂 🚀",
]


class Writer:
    """Fills templates with the words of one topic at a time."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random
        self.topic = TOPICS[0]

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def common(self, words: list[str]) -> str:
        """A random word, more likely one from the start of the list: the probability falls with the cube root of the position."""
        return words[int(self._random() ** 1.5 * len(words))]

    def fill(self, template: str) -> str:
        text = re.sub(r"<(A )?(\w+)>", self._slot, template)
        return re.sub(r"\b[Aa]n? (?=\d)", "", text)

    def _slot(self, match: re.Match[str]) -> str:
        kind = match[2]
        word = SLOTS[kind.lower()](self)
        if match[1]:
            word = f"{article(word)} {word}"
            start = match.string[: match.start()].strip()
            return word[0].upper() + word[1:] if start in ("", '"') else word
        if kind.isupper():
            return word.upper()
        return word[0].upper() + word[1:] if kind[0].isupper() else word

    def number(self) -> str:
        size = self.below(10)
        if size < 4:
            return ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty", "fifty", "a hundred"][self.below(13)]  # fmt: skip
        return f"{self.below(10 ** (2 + size // 4)) + 2:,}" if size == 9 else str(self.below(10 ** (1 + size // 3)) + 2)


def plural(noun: str) -> str:
    if "|" in noun:
        return noun.split("|")[1]
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + ("es" if re.search(r"(s|x|z|ch|sh)$", noun) else "s")


def singular(noun: str) -> str:
    return noun.split("|", maxsplit=1)[0]


def conjugate(verb: str, form: str) -> str:
    """The form `base`, `third` (he writes), `past`, `part` (written) or `ing` of a verb."""
    base, *irregular = verb.split("|")
    if form == "base":
        return base
    if form == "third":
        return plural(base)
    if irregular:
        return irregular[("past", "part", "ing").index(form)]
    if form == "ing":
        return (base[:-1] if base.endswith("e") and not base.endswith("ee") else base) + "ing"
    if base.endswith("e"):
        return base + "d"
    return base[:-1] + "ied" if re.search(r"[^aeiou]y$", base) else base + "ed"


def article(word: str) -> str:
    return "an" if re.match(r"(?!uni[tv]|use|usu|euro|one)[aeiou]|hon(est|o)|hour|heir", word, re.IGNORECASE) else "a"


def _verb(form: str) -> Callable[[Writer], str]:
    return lambda w: conjugate(w.common(w.topic["verbs"]), form)


def _from(key: str) -> Callable[[Writer], str]:
    return lambda w: WORDS[key][w.below(len(WORDS[key]))]


SLOTS: dict[str, Callable[[Writer], str]] = {
    "noun": lambda w: singular(w.common(w.topic["nouns"])),
    "nouns": lambda w: plural(w.common(w.topic["nouns"])),
    "adj": lambda w: w.fill(COMPOUNDS[w.below(len(COMPOUNDS))]) if w.below(4) == 0 else w.common(w.topic["adjectives"]),
    "place": lambda w: w.common(w.topic["places"]),
    **{form: _verb(form) for form in ("base", "third", "past", "part", "ing")},
    "adverb": _from("adverbs"),
    "quality": _from("qualities"),
    "role": _from("roles"),
    "name": _from("names"),
    "surname": _from("surnames"),
    "city": _from("cities"),
    "month": _from("months"),
    "day": _from("days"),
    "time": _from("times"),
    "starter": _from("starters"),
    "conj": _from("conjunctions"),
    "measure": _from("measures"),
    "reporting": _from("reporting"),
    "number": Writer.number,
    "digit": lambda w: str(w.below(10)),
    "decimal": lambda w: f"{w.below(1000) / 10 ** (1 + w.below(2)):g}",
    "year": lambda w: str(1700 + w.below(330)),
    "clock": lambda w: f"{1 + w.below(12)}:{w.below(60):02d}",
}


def prose() -> str:
    """Paragraphs of three to eight sentences, one per line, every third with a heading above it on average."""
    writer, lines, size = Writer(1), [], 0
    while size < PROSE_CHARS:
        writer.topic = TOPICS[writer.below(len(TOPICS))]
        if writer.below(3) == 0:
            lines.append(writer.fill(HEADINGS[writer.below(len(HEADINGS))]))
        sentences = [writer.fill(SENTENCES[writer.below(len(SENTENCES))]) for _ in range(3 + writer.below(6))]
        if writer.below(3) == 0:
            sentences.insert(writer.below(len(sentences)), WORDS["asides"][writer.below(len(WORDS["asides"]))])
        lines.append(" ".join(sentence[0].upper() + sentence[1:] for sentence in sentences))
        size += len(lines[-1])
    return "\n".join(lines) + "\n"


def other() -> str:
    """Code, tables, numbers, JSON, lists of words, and some text in other languages."""
    writer = Writer(2)
    parts = [line for line in FOREIGN for _ in range(2)]
    # A list of words, one per line: a word at the start of a line has no space before it, so it is a different token.
    parts += [singular(noun) for topic in TOPICS for noun in topic["nouns"][:25]] * 3
    while sum(map(len, parts)) < OTHER_CHARS:
        writer.topic = TOPICS[writer.below(len(TOPICS))]
        parts.append(_identifiers(writer, OTHER[writer.below(len(OTHER))]).replace("\\n", "\n"))
        parts.append(_json(writer))
    return "\n".join(parts) + "\n"


def _identifiers(writer: Writer, template: str) -> str:
    return re.sub(r"(?<=[a-z]) (?=[a-z]+[(_.\]])", "_", writer.fill(template))


def _json(writer: Writer) -> str:
    pairs = {
        writer.fill("<noun>").replace(" ", "_"): [
            writer.below(1000), writer.fill("<name> <surname>"), writer.below(2) == 0, None, [writer.below(9), writer.below(99)], writer.fill("<adj> <noun>"),
        ][writer.below(6)]
        for _ in range(4)
    }  # fmt: skip
    return json.dumps(pairs, indent=[None, 2][writer.below(2)])


def main(folder: Path) -> None:
    (folder / "prose.txt").write_text(prose(), encoding="utf-8", newline="\n")
    (folder / "other.txt").write_text(other(), encoding="utf-8", newline="\n")
