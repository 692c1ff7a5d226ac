"""Search for the chosen letter in a model's answer to a multiple-choice question.

Only a stated choice counts: a letter alone in the text or in the last line, a boxed letter, `<answer>C</answer>`,
"the answer is C", "I choose C", "C is correct", `{"answer": "C"}`, or a text that begins with an option ("(C)
because A is wrong", "C. benzene", "C (benzene)"). A letter that occurs in another role is not a choice: the A of
"N/A", the article of "A guess", the C of "vitamin C". Several letters at once, as in "A or B" and "A B C D", are no
choice either. The same is true for the first letter of a list of all options, and for a letter that is called wrong,
supposed ("if the answer is B") or retracted.

All patterns run in linear time, because successive parts of a pattern cannot match the same characters.
"""

from __future__ import annotations

import re

from llm_sandbox_nb.benchmark.answer_words import ANSWER_INTRODUCTION, ANSWER_SUFFIX, NEGATION, OTHER_SCRIPT
from llm_sandbox_nb.benchmark.normalisation import RETRACTION, boxes, last_correction, normalised

_TAG = re.compile(
    r"<(?:(?:final_)?answer|choice)>([^<]{0,2000})</(?:(?:final_)?answer|choice)>?", re.IGNORECASE
)
_SUPPOSED = re.compile(
    r"\b(?:(?:if|suppose|supposing|assume|assuming|unless|whether)\s+(?:that\s+)?(?:(?:the|its|this|our)\s+)?(?:\w+\s+)?\Z"
    r"|(?:might|may|could|(?<!I\s)would|some|many|others|people|students?)\s+(?:be|think|say|guess|assume|suspect|expect|argue|claim)\b"
    r"|(?:tempting|unclear|not\s+sure|doubt|thought|according|neither|nor|both|statement|student|deny|(?:don['’]t|not)\s+think)\b)",
    re.IGNORECASE,
)
_RETRACTED = re.compile(rf"(?<![^\W_]){RETRACTION}", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?;:](?=\s|\Z)|\n")
_LOOKBACK_CHARACTERS = 200
"""Maximum number of characters before a match that are searched for the beginning of the sentence."""


def tagged(text: str) -> str | None:
    """Return the content of the last `<answer>`, or None if the text has no such tag."""
    inner = None
    for match in _TAG.finditer(text):
        inner = match[1].strip()
    return inner


def is_supposed(text: str, place: int) -> bool:
    """Return True if the statement at `place` is part of a condition or a doubt, as in "if the answer is B"."""
    before = text[max(0, place - _LOOKBACK_CHARACTERS) : place]
    ends = [end.end() for end in _SENTENCE_END.finditer(before)]
    return _SUPPOSED.search(before, ends[-1] if ends else 0) is not None


def is_retracted(text: str, place: int) -> bool:
    """Return True if a phrase after `place` retracts the text before `place`."""
    return _RETRACTED.search(text, place) is not None


_DECORATION = " \t\r\n*_`$#>\"'“”‘’✅☑✔️👉→"
_MARKS = r"[\s:*_`\"'“‘(\[{$>#✅☑✔️👉]*+"
_OPENING, _CLOSING = frozenset("*_`\"'“‘([{$"), frozenset(")]}*_`\"'”’$")
_LETTER_END = rf"(?![^\W_{OTHER_SCRIPT}]|['’](?!d[iı]r)[^\W_])"
"""Lookahead that fails if the letter is part of a word."""
_ADVERBS = (
    r"(?:\s+(?:(?:most\s+)?likely|therefore|thus|hence|then|indeed|clearly|definitely|probably|simply|just))?"
)
_STATEMENT_PATTERN = re.compile(
    rf"""(?:(?<![^\W_])(?:(?P<answer>answer|ans)|choice|option|solution|response|letter|(?:correct|right|best)\s+one
            |(?:answer|choice|option)_\w{{1,9}})
        (?:\s+(?:here|(?:to|for|of|among)\s+(?:the\s+|this\s+)?\w+))?
        |(?P<chinese>答案|故选|选择|选))["'*_`]*\s*
        (?:(?:is|would\ be|must\ be|should\ be|has\ to\ be|will\ be)\b{_ADVERBS}|[:=→是为]|(?<=ans)\.
            |(?P<bare>(?(answer)(?:[-–—]|(?=[\s(]))|(?(chinese)|(?!)))))
        {_MARKS}
        (?:(?:option|choice|answer|letter)\b{_MARKS})?
        (?P<letter>[A-Za-z]){_LETTER_END}(?!/|-[A-Za-z]|\+|\#)""",
    re.IGNORECASE | re.VERBOSE,
)
_STATED_ELSEWHERE = re.compile(
    rf"""(?i:{ANSWER_INTRODUCTION}){_MARKS}(?P<letter>[A-Za-z]){_LETTER_END}(?!/|-[A-Za-z]|\+|\#|{NEGATION})
        (?=[\s*_`)\]}}"'$]*(?:[.!,;(\n]|:\s|\Z|-\s|{ANSWER_SUFFIX}(?![A-Za-z])|[{OTHER_SCRIPT}]))""",
    re.VERBOSE,
)
"""Matches statements in languages other than English."""
_CHOSEN = re.compile(
    rf"""\b(?:I(?:['’](?:ll|d)|\s+(?:would|will))?\s+(?:choose|pick|select|go\s+(?:with|for)|say|answer|opt\s+for|vote\s+for)(?:\s+it(?:['’]s|\s+is))?
        |(?:I['’]m|I\s+am)\s+(?:choosing|picking|selecting|going\s+(?:with|for))|(?i:my\s+(?:pick|vote|guess|choice)\s+(?:is|would\s+be))
        |(?:\A|(?<=[.!:;,\n]\s)|(?<=\n))(?:[Cc]hoose|[Pp]ick|[Ss]elect|[Gg]o\s+with|[Gg]oing\s+with|[Mm]ark|[Cc]ircle|Take|take)){_MARKS}
        (?:(?:option|choice|answer|letter)\b{_MARKS})?
        (?P<letter>[A-J]){_LETTER_END}(?!/|-[A-Za-z]|\+|\#)""",
    re.VERBOSE,
)
_CALLED_CORRECT = re.compile(
    rf"""(?:\A|(?<=[.!?;:,]\s)|(?<=\n)|(?<=\bthat\s))(?:(?i:therefore|thus|hence|so|I\s+(?:think|believe|conclude)(?:\s+that)?)\b,?\s*)?
        [*_`(\[]*(?:(?i:option|choice|answer)\s+[*_`(\[]*)?(?P<letter>[A-J]){_LETTER_END}[*_`)\]]*{_ADVERBS}
        \s+is{_ADVERBS}\s+(?:the\s+)?(?:only\s+|single\s+)?(?:correct|right|best|answer)(?:\s+(?:answer|option|choice|one))?
        (?=[*_`]*(?:[.!;:]|\s*\Z|\s*\n|,?\s+(?:because|since|as|and\s+the)\b))""",
    re.VERBOSE,
)
_CONCLUDED = re.compile(
    rf"""(?:\A|(?<=[.!?;:,]\s)|(?<=\n))
        (?:(?i:therefore|thus|hence|so)\b,?\s*(?:(?i:it\s+is|it['’]s|it\s+must\s+be)\s+)?|(?i:it\s+is|it['’]s|it\s+(?:must|has\s+to)\s+be)\s+)
        (?:(?i:option|choice)\s+)?[*_`(\[]*(?P<letter>[A-J]){_LETTER_END}(?=[*_`)\]]*[.!]?[*_`]*(?:\s*\Z|\n|(?<=[.!])\s))""",
    re.VERBOSE,
)
_TEX_STYLE = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf)\s*\{([^{}]*)\}")
_MATHEMATICS = re.compile(r"\\[()\[\]]")
_BEGINS = re.compile(
    r"(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Z])\s*[.):]|([A-Z])\s*(?:\n|[-–—]\s)"
    r"|([A-HJ])(?:\s+\(|[,;]\s|\s+(?:because|since)\b)"
    r"|(?i:option|choice|letter)\s+\(?([A-Za-z])(?:\)|\s*[.:,]|\s*\n|\s*\Z))"
)
_NEXT = re.compile(
    rf"(?P<between>[\W_]*+(?:(?:or|and)\b(?:\s+(?:maybe|possibly|perhaps)\b)?[\W_]*+)?)(?P<letter>[A-Z]){_LETTER_END}"
    rf"(?P<enumerated>[\W_]*+(?:(?:or|and)\b[\W_]*+)?(?:\Z|[A-J]{_LETTER_END}))?"
)
_ENDS = re.compile(r"\)\s|[*_`)\]}\"'”’$]*+(?:[.!:,;]|\s*\Z|\n|\s\()")
_OPTION_MARK_PATTERN = re.compile(r"[.:)]\s|\s\(")
"""Matches the punctuation after an option's letter, before the option's text or a remark, as in "C. B > A" or
"C (A is wrong)"."""
_JOINING = re.compile(r"or|and|[/,&+]")
_LISTED = re.compile(
    rf"^(?:[^\w\n]|_)*+(?:(?i:option|choice)\s+\(?)?([A-J]){_LETTER_END}(?:[^\S\n]*+(?:[.):\]|*_]|[-–—]\s|$))"
    rf"|(?<![^\s*_\"'“])\(([A-J])\)(?![\w(])",
    re.MULTILINE,
)
_REJECTED = re.compile(
    r"[\W_]*+(?:(?:is|was)\s+(?:\w+ly\s+)?(?:not|wrong|incorrect|false|excluded|eliminated|impossible|unlikely|ruled\s+out)"
    r"|(?:is|looks?|seems?)\s+(?:tempting|possible|plausible|close|a\s+guess)|isn['’]t|can\s+be\s+(?:excluded|eliminated|ruled\s+out)|cannot\s+be\s+(?:right|correct|true|the))\b",
    re.IGNORECASE,
)
_ONLY_MARKS = re.compile(r"[\s*_`$#>\"'“”‘’.)]*+\Z")
_NEXT_WORD = re.compile(r"[^\S\n]+(\w+)")
_CONDITION = re.compile(
    r"[\W_]*+(?:(?:only|just)\s+)?(?:if|when|unless|which\s+is\s+(?:wrong|false|incorrect|not))\b",
    re.IGNORECASE,
)
"""Matches a condition after a statement, as in "C, if x > 0"."""
_SPECIES = re.compile(
    r"[A-Z]\.\s(?:coli|subtilis|cereus|anthracis|difficile|tetani|botulinum|perfringens|elegans|albicans|neoformans|trachomatis"
    r"|jejuni|diphtheriae|psittaci|faecalis|faecium|histolytica|pylori|influenzae|ducreyi|melanogaster|thaliana|fumigatus|baumannii"
    r"|burgdorferi|pertussis|fragilis|henselae|tularensis|lamblia|vaginalis|burnetii|immitis|dermatitidis)\b"
)
"""Matches species names whose genus is abbreviated to a letter."""
_WORDS_AFTER_CHOICE = frozenset(
    ["because", "since", "as", "for", "and", "or", "which", "is", "with", "due", "given", "while", "but", "not",
     "the", "by", "from"]
)  # fmt: skip
_SMALL_LETTER_PATTERN = re.compile(
    r"^([^\w\n]{0,8})([a-j])(?=[.)]\s)|(?<![\w)])\(([a-j])\)(?=\s|\Z)", re.MULTILINE
)
"""Matches the small letter of an option, as in "b) ethanol"."""
_SHORT_ANSWER = re.compile(r"A\s*[:=]\s*(\(?[A-J]\)?)\s*[.]?")
"""Matches an answer after the abbreviation "A" for "answer", as in "A: D"."""


def find_letter(text: str, options: int = 10) -> str | None:
    """Return the chosen capital letter, or None if the text states no choice among the first `options` letters."""
    whole = _plain(normalised(text))
    text = whole.strip(_DECORATION)
    if short := _SHORT_ANSWER.fullmatch(text):
        whole = text = short[1]
    boxed, tag = _boxed(text), _tagged(text)
    capitals = _SMALL_LETTER_PATTERN.sub(lambda match: match[0].upper(), text)
    for found in (_alone(whole), boxed, tag, _again(capitals), _in_words(capitals)):
        if found is not None:
            return found if found and ord(found) - ord("A") < options else None
    return None


def _again(text: str) -> str | None:
    """Return the letter after a correction, as in "B. Wait, no: it is C"."""
    correction = last_correction(text)
    if correction is None:
        return None
    rest = re.sub(
        r"^[\s,:;.!-]*(?:(?:no|it's|it\s+is|sorry|i\s+mean|make\s+that|should\s+be|it\s+should\s+be)\b[\s,:;.!-]*)*",
        "",
        text[correction.end() :],
        flags=re.IGNORECASE,
    )
    return _alone(rest) or _stated(rest) or None


def _in_words(text: str) -> str | None:
    """Return the stated letter. If none is stated, return the letter at the beginning or in the last line.

    Return an empty text if the last line is a different letter.
    """
    stated, last = _stated(text), _in_the_last_line(text)
    found = _at_the_beginning(text) or last if stated is None else stated
    return "" if found and last and found != last else found


def _plain(text: str) -> str:
    r"""Return the text without TeX around letters: `\(\mathbf{C}\)` becomes `$C$`."""
    for _ in range(2):
        text = _TEX_STYLE.sub(r"\1", text)
    return _MATHEMATICS.sub("$", text)


def _alone(text: str) -> str | None:
    bare = text.strip().removeprefix("- ").strip(_DECORATION + "()[]{}.:,;!")
    if len(bare) == 1 and f"{bare}#" in text:
        return ""  # C# is a programming language
    bare = re.sub(rf"(?<=^.){ANSWER_SUFFIX}+\Z", "", bare)
    return bare.upper() if len(bare) == 1 and bare.isascii() and bare.isalpha() else None


def _boxed(text: str) -> str | None:
    """Return the letter in the boxes, or None if there are no boxes.

    Return an empty text if the boxes differ or contain no letter.
    """
    letters = {_alone(inner) or _at_the_beginning(inner) or "" for inner in boxes(text)}
    return None if not letters else letters.pop() if len(letters) == 1 else ""


def _tagged(text: str) -> str | None:
    """Return the letter in the last `<answer>`, or None if there is no such tag.

    Return an empty text if the tag contains no letter.
    """
    inner = tagged(text)
    if inner is None:
        return None
    inner = inner.strip(_DECORATION)
    return _alone(inner) or _stated(inner) or _at_the_beginning(inner) or ""


def _stated(text: str) -> str | None:
    """Return the letter of the last statement, or None if there is no statement.

    Return an empty text for several letters, or if the statement is retracted or contradicted.
    """
    found, place = None, 0
    for pattern in (_STATEMENT_PATTERN, _STATED_ELSEWHERE, _CHOSEN):
        for match in pattern.finditer(text):
            if match.end() > place and (letter := _statement_letter(match, text)) is not None:
                found, place = letter, match.end()
    called = [match for pattern in (_CALLED_CORRECT, _CONCLUDED) for match in pattern.finditer(text)]
    later = {
        match["letter"] for match in called if match.start() >= place and not is_supposed(text, match.start())
    }
    if found is None and not later:
        return None
    if is_retracted(text, max([place, *(match.end() for match in called)])):
        return ""
    letters = later | ({found} if found is not None else set())
    return letters.pop() if len(letters) == 1 else ""


def _statement_letter(match: re.Match[str], text: str) -> str | None:
    """Return the letter of a statement, or None if the match is not a statement.

    Return an empty text for several letters.
    """
    letter, end = match["letter"], match.end()
    wrapped = text[end - 2] in _OPENING and text[end : end + 1] in _CLOSING
    if letter.islower() and not wrapped and not _ONLY_MARKS.match(text, end):
        return None  # "the answer is a guess"
    if not wrapped and _is_a_word(letter, text, end):
        return None  # "Answer: A guess"
    if match.groupdict().get("bare") is not None and not (letter.isupper() and _ENDS.match(text, end)):
        return None  # "option C is one of several"
    if (
        text[end : end + 1] == "?"
        or _CONDITION.match(text, end)
        or is_supposed(text, match.start())
        or _SPECIES.match(text, end - 1)
    ):
        return None
    return "" if _several(letter.upper(), text, end) else letter.upper()


def _is_a_word(letter: str, text: str, end: int) -> bool:
    """Return True if the letter is the article "a" or the pronoun "I"."""
    word = _NEXT_WORD.match(text, end) if letter in "AI" else None
    return word is not None and word[1].isascii() and word[1].lower() not in _WORDS_AFTER_CHOICE


def _several(letter: str, text: str, place: int) -> bool:
    """Return True if another letter follows, as in "A or B" or "A B C D". "C. A mixture" names one letter."""
    last = letter
    while match := _NEXT.match(text, place):
        other, place = match["letter"], match.end("letter")
        joined = _JOINING.search(match["between"]) and not _is_a_word(other, text, place)
        if not joined and _OPTION_MARK_PATTERN.search(match["between"]) and ord(other) != ord(last) + 1:
            return False  # letters in the text of the option: "C. B > A", "C (A is wrong)"
        last = other
        if other != letter and (joined or match["enumerated"] is not None):
            return True
    return False


def _at_the_beginning(text: str) -> str | None:
    """Return the option at the beginning of the text, or None if the text begins with no option.

    Return an empty text if several options are listed, or if the option is called wrong.
    """
    match = _BEGINS.match(text)
    if not match or _SPECIES.match(text):
        return None
    group = next(number for number, found in enumerate(match.groups(), 1) if found)
    letter, end = match[group].upper(), match.end()
    following = chr(ord(letter) + 1)
    line = text.partition("\n")[0]
    listed = following in _listed(text, end) or re.search(rf"[.;,]\s+{re.escape(following)}\s*:", line)
    return "" if listed or _several(letter, text, match.end(group)) or _REJECTED.match(text, end) else letter


def _listed(text: str, start: int) -> set[str]:
    """Return the letters of options after `start`: at the beginning of a line, or in parentheses in the first line.

    An example of such a first line is "(A) red (B) blue".
    """
    line = text.find("\n", start)
    first = len(text) if line < 0 else line
    return {
        match[1] or match[2] for match in _LISTED.finditer(text, start) if match[1] or match.start() < first
    }


def _in_the_last_line(text: str) -> str | None:
    """Return the letter that stands alone in the last line. Return None if the line may end a list of options."""
    before, _, last = text.rpartition("\n")
    found = _alone(last)
    if found is None or not last.strip(_DECORATION + "-([").startswith(found):
        return None
    return None if chr(ord(found) - 1) in _listed(before.rstrip().rpartition("\n")[2], 0) else found
