"""Answers of which it is known whether they are right: written by hand, and made from a seed."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
LED_IN = {
    "English": "The answer is {}.", "German": "Die richtige Antwort ist {}.", "Spanish": "La respuesta correcta es {}.",
    "French": "La réponse est {}.", "Portuguese": "A resposta é {}.",
    "Russian": "Правильный ответ: {}", "Chinese": "答案是{}。",
    "Japanese": "答えは{}です。", "Korean": "정답은 {}입니다.", "Arabic": "الإجابة الصحيحة هي {}",
    "Hindi": "सही उत्तर {} है।", "Turkish": "Doğru cevap: {}",
    "Vietnamese": "Đáp án là {}.", "Indonesian": "Jawabannya adalah {}.",
    "Italian": "La risposta è {}.", "Bengali": "উত্তর: {}",
}  # fmt: skip
"""How an answer is given in sixteen languages."""


@dataclass(frozen=True)
class Case:
    """An answer and whether it is right. `kind` says what it tries."""

    rule: str
    answer: str
    gold: str
    kind: str = ""


def written(right: bool) -> list[Case]:
    """Those that were written by hand, `tests/data/answers.jsonl`."""
    rows = [json.loads(line) for line in (DATA / "answers.jsonl").read_text("utf-8").splitlines()]
    return [Case(row["rule"], row["answer"], row["gold"], "by hand") for row in rows if row["right"] is right]


_UNITS = [
    "km",
    "m",
    "kg",
    "g",
    "hours",
    "days",
    "minutes",
    "seconds",
    "liters",
    "°C",
    "km/h",
    "m/s",
    "€",
    "$",
    "%",
    "people",
    "apples",
    "N",
    "J",
    "W",
]
_STREETS = ["Baker Street", "Rue de Rivoli", "Main Road", "Downing Street", "Lake View"]
_MONTHS = ["January", "March", "May", "June", "August", "October", "December"]


def wrong(number: int, seed: int) -> list[Case]:
    chance = random.Random(seed)
    return [_wrong(chance, turn) for turn in range(number)]


def _wrong(chance: random.Random, turn: int) -> Case:
    n, k = chance.randint(2, 900), chance.randint(1, 9)
    led_in = chance.choice([*LED_IN.values(), "{}", "{}", "\\boxed{{{}}}"])
    if turn % 12 == 0:
        one, other = chance.sample(_UNITS, 2)
        return Case("math", led_in.format(f"{n} {one}"), f"{n} {other}", "unit")
    if turn % 12 == 1:
        word = chance.choice(["thousand", "million", "billion"])
        return Case("math", f"{n} {word}", str(n), "magnitude")
    if turn % 12 == 2:
        day, month, year = chance.randint(1, 27), chance.choice(_MONTHS), chance.randint(1900, 2020)
        gold = chance.choice([f"{day} {month} {year}", f"{month} {day}, {year}", f"{year}-03-{day:02}"])
        return Case("math", gold.replace(str(year), str(year + k)), gold, "date")
    if turn % 12 == 3:
        gold = f"10.{n % 256}.{k}.7"
        return Case(chance.choice(["math", "routed", "exact"]), f"10.{n % 256}.{k}.{8 + k}", gold, "address")
    if turn % 12 == 4:
        gold = f"{n} {chance.choice(_STREETS)}"
        return Case("math", led_in.format(n), gold, "street")
    if turn % 12 == 5:
        return Case("math", led_in.format(f"{n}-{n + k}"), f"{n + 1}-{n + k + 1}", "range")
    if turn % 12 == 6:
        gold = chance.choice([f"1/{n}!", f"10^{{-{n}}}", f"e^{{-{n}}}"])
        return Case("math", led_in.format(gold.replace(str(n), str(n + 1))), gold, "tiny value")
    if turn % 12 == 7:
        gold, answer = chance.choice([(f"{k}+{n}/e", f"{k}-{n}/e"), (f"{n}{k}", f"{n}**{k}"),
                                      (f"\\sqrt{{{n}}}", str(n)),
                                      (f"{n}.{k}", f"{n}{k}"), (f"{n}/{n + k}", f"{n + k}/{n}")])  # fmt: skip
        return Case("math", answer, gold, "cut parse")
    if turn % 12 == 8:
        answer = chance.choice(
            [
                f"\\boxed{{{n}}} or \\boxed{{{n + k}}}",
                f"{n} or {n + k}",
                f"<think>\\boxed{{{n + k}}}",
                f"It is not {n + k}.",
            ]
        )
        return Case("math", answer, str(n + k), "several or none")
    if turn % 12 == 9:
        inner = f"{n},{n + k}"
        shapes = [f"({inner})", f"\\{{{inner}\\}}", f"[{inner}]", f"[{inner})"]
        one, other = chance.sample(shapes, 2)
        return Case("math", one, other, "brackets")
    if turn % 12 == 10:
        one, other = chance.sample("ABCDE", 2)
        return Case("letter", chance.choice(list(LED_IN.values())).format(one), other, "letter in a language")
    return Case("math", chance.choice(list(LED_IN.values())).format(n), str(n + k), "number in a language")


def right(number: int, seed: int) -> list[Case]:
    chance = random.Random(seed)
    return [_right(chance, turn) for turn in range(number)]


def _right(chance: random.Random, turn: int) -> Case:
    led_in = list(LED_IN.values())[turn % len(LED_IN)]
    n, k = chance.randint(1000, 900_000), chance.randint(1, 9)
    if turn % 8 == 0:
        return Case("letter", led_in.format("ABCDE"[k % 5]), "ABCDE"[k % 5], "letter in a language")
    if turn % 8 == 1:
        form = chance.choice(
            [f"{n:,}", f"{n:_}".replace("_", "\u202f"), f"{n:_}".replace("_", "\\,"), str(n), f"{n}.0"]
        )
        return Case("math", form, str(n), "grouped number")
    if turn % 8 == 2:
        return Case("math", led_in.format(n), str(n), "number in a language")
    if turn % 8 == 3:
        form = chance.choice(
            [
                f"{k},25",
                f"{k}.25",
                f"{4 * k + 1}/4",
                f"{k} 1/4",
                f"{k}¼",
                f"\\frac{{{4 * k + 1}}}{{4}}",
                f"{k}{'.25'.translate(WIDE)}",
            ]
        )
        return Case("math", form, f"{k}.25", "fraction")
    if turn % 8 == 4:
        unit = chance.choice(["km/h", "kg", "hours", "€", "m²", "°C", "apples"])
        return Case("math", led_in.format(f"{k} {unit}"), chance.choice([f"{k} {unit}", str(k)]), "unit")
    if turn % 8 == 5:
        power = "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(k))
        form = chance.choice([f"{k}×10⁻{power}", f"{k}e-{k}", f"{k} \\times 10^{{-{k}}}", f"{k} * 10^-{k}"])
        return Case("math", form, f"0.{'0' * (k - 1)}{k}", "power of ten")
    if turn % 8 == 6:
        letters = sorted(chance.sample("ABCDE", 2))
        form = chance.choice(
            ["{} and {}", "- {}\n- {}", "{}, {}", "{} – {}", "\\boxed{{{}, {}}}", "[{}, {}]"]
        )
        return Case("set_f1", form.format(*letters), ", ".join(letters), "set")
    wrapped = chance.choice(
        [
            "**{}**",
            "\u200b{}\u200b",
            "<think>No?</think>{}",
            "\\boxed{{{}}}",
            "It is 3. Wait, no: it is {}",
            "{}!",
            "${}$",
            "\u2212{}",
        ]
    )
    return Case("math", wrapped.format(n), f"-{n}" if "\u2212" in wrapped else str(n), "wrapped")


WIDE = {ord(str(digit)): chr(0xFF10 + digit) for digit in range(10)}
"""Digits as they are written in Japanese tables."""
