r"""Normalisation of the gold answer and the model's answer before a scorer compares them.

`STEPS` lists the changes, each with an example. Numbers, units and words keep their meaning. For example, a
superscript becomes a power, so that `3²` is never read as 32.
"""

from __future__ import annotations

import re
import unicodedata

STEPS = (
    ("thoughts are removed", "<think>Is it B?</think>C", "C"),
    ("an unclosed thought is not an answer", "<think>The answer is C", ""),
    ("superscripts are powers", "3² m", "3^2 m"),
    ("fractions of one character are written out", "2¼", "2 1/4"),
    ("full-width and other compatible characters are plain", "Ａｎｓ：Ｄ", "Ans:D"),
    ("digits of all scripts are 0 to 9", "४२", "42"),
    ("invisible characters are removed", "4\u200b2", "42"),
    ("all spaces are plain spaces", "65\u202f432", "65 432"),
    ("dashes before a value are minus signs", "−3 and –4", "-3 and -4"),
    ("quotation marks and full stops are plain", "“yes”。", '"yes".'),
)
"""Steps of `normalised`. Each step has a description, and an example before and after the step."""

_THOUGHTS = ("think", "thinking", "thought", "thoughts", "reasoning", "seed:think", "analysis")
_THOUGHT_MARK = re.compile(
    rf"<(?P<end>/?)(?:{'|'.join(_THOUGHTS)})>|\[(?P<end2>/?)THINK\]|◁(?P<end3>/?)think▷"
    r"|(?P<channel><\|channel\|>\s*(?:analysis|commentary)\b)|(?P<final><\|channel\|>\s*final\s*<\|message\|>)",
    re.IGNORECASE,
)
_RAISED = {"⁺": "+", "⁻": "-", "⁽": "(", "⁾": ")", "ⁿ": "n", "ⁱ": "i"} | {
    raised: str(number) for number, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")
}
_POWER = re.compile(f"[{''.join(_RAISED)}]+")
_VULGAR = re.compile("[¼½¾⅐-⅞↉]")
_MARKS = str.maketrans(
    {
        "。": ".", "｡": ".", "।": ".", "۔": ".", "、": ", ", "،": ",", "؛": ";", "؟": "?", "⁄": "/", "∕": "/",
        "−": "-", "‐": "-", "‑": "-", "‒": "-", "﹣": "-", "\u2028": "\n", "\u2029": "\n",
        "“": '"', "”": '"', "„": '"', "‟": '"', "«": '"', "»": '"', "「": '"', "」": '"', "『": '"', "』": '"',
        "‘": "'", "’": "'", "‚": "'", "`": "`", "ʼ": "'",
        "〈": "<", "〉": ">", "【": "[", "】": "]", "〔": "(", "〕": ")",
        "٫": ".", "٬": ",",
    }
)  # fmt: skip
_EN_DASH = re.compile(r"–(?=\s*[\d.√π\\($€£]|\S)|(?<=\S)–")
_BLANKS = re.compile(r"[^\S\n]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
RETRACTION = (
    r"(?:no,|wait\b|actually\b|scratch\s+that|correction\b|on\s+second\s+thought|i\s+was\s+wrong"
    r"|that(?:['’]s|\s+is)\s+(?:wrong|incorrect|not\s+right))"
)
"""Pattern of the phrases that retract the text before them."""
_CORRECTED = re.compile(
    rf"(?<![^\W_])(?:{RETRACTION}|no[:.]|i\s+mean\b|oops\b|sorry\b|or\s+rather\b|final\s+answer\b)",
    re.IGNORECASE,
)
_DECORATION = " \t\n*_`#$\"'.,;:!"


def normalised(text: str) -> str:
    """Return the text after all `STEPS`."""
    text = without_thinking(text)
    if text.isascii():
        return _BLANKS.sub(" ", text).strip() if "\t" in text or "\r" in text else text.strip()
    text = _POWER.sub(_power, text)
    text = _VULGAR.sub(_written_out, text)
    text = unicodedata.normalize("NFKC", text)
    text = "".join(map(_plain_character, text)).translate(_MARKS)
    return _BLANKS.sub(" ", _EN_DASH.sub("-", text)).strip()


def _plain_character(character: str) -> str:
    if character.isascii():
        return character
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    return (
        ""
        if unicodedata.category(character) == "Cf" or character in "\ufe0e\ufe0f\u3164\u115f\u1160"
        else character
    )


def _power(match: re.Match[str]) -> str:
    plain = "".join(_RAISED[digit] for digit in match[0])
    return f"^{plain}" if len(plain) == 1 else f"^{{{plain}}}"


def _written_out(match: re.Match[str]) -> str:
    before = match.string[: match.start()]
    fraction = unicodedata.normalize("NFKC", match[0]).replace("⁄", "/")
    return f" {fraction}" if before[-1:].isdecimal() else fraction


def without_thinking(text: str) -> str:
    """Remove thoughts, which are between tags or in a separate channel. An unclosed thought is the rest of the text."""
    if "think" not in text.lower() and "<" not in text:
        return text.strip()
    kept: list[str] = []
    place = depth = 0
    for match in _THOUGHT_MARK.finditer(text):
        ends = match["final"] or match["end"] or match["end2"] or match["end3"]
        if ends:
            if match["final"] or depth == 0:  # the opening tag was in the prompt
                kept.clear()
            depth = 0
            place = match.end()
        elif depth == 0:
            kept.append(text[place : match.start()])
            depth = 1
    if depth == 0:
        kept.append(text[place:])
    return "".join(kept).strip()


def closing_brace(text: str, start: int) -> int:
    """Return the index of the brace that closes the brace before `start`, or the text's length without such a brace."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    return len(text)


def boxes(text: str) -> list[str]:
    r"""Return the different contents of all `\boxed{...}` after the last correction ("Wait, no") between boxes."""
    found: list[str] = []
    place = 0
    while match := _BOX.search(text, place):
        if found and _CORRECTED.search(text, place, match.start()):
            found.clear()
        end = closing_brace(text, match.end())
        inner = text[match.end() : end].strip()
        if inner not in found:
            found.append(inner)
        place = max(end, match.end())
    return found


def last_correction(text: str) -> re.Match[str] | None:
    """Return the match of the last correction, such as "Wait, no". Return None if the text has no correction."""
    found = None
    for match in _CORRECTED.finditer(text):
        if not match[0].lower().startswith("final"):
            found = match
    return found


def text_key(text: str) -> str:
    r"""Return a form of a text for comparison: two texts count as equal if their forms are equal.

    Case, decoration such as `**`, a final full stop, `\text{}` and the kind of a dash do not change the form. But the
    point of `.5` and the sign of `C#` do.
    """
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\s*[–—―]\s*", "-", text)
    bare = text.lstrip(_DECORATION)
    if bare[:1].isdigit() and text[: -len(bare)].endswith("."):
        bare = f".{bare}"
    text, bare = bare, bare.rstrip(_DECORATION)
    if bare[-1:].isalnum() and text.startswith("#", len(bare)):
        bare = f"{bare}#"
    return " ".join(bare.replace("**", "").split()).casefold()
