"""The words that introduce an answer, in the twenty languages with the most speakers and some more.

English has its own patterns, in `stated_answer` and `multiple_choice`.
"""

from __future__ import annotations

import re
import unicodedata

_ANSWER = (
    "答案", "正确答案", "正確答案", "最终答案", "答", "答え", "正解", "正答", "解答", "回答", "答复", "结果", "結果", "正确的是", "选项", "選項",  # Chinese, Japanese
    "정답", "답변", "답", "결과",  # Korean
    "उत्तर", "जवाब", "जबाब",  # Hindi, Marathi
    "respuesta", "solución", "resultado", "correcta", "correcto",  # Spanish
    "réponse", "résultat",  # French
    "الإجابة", "إجابة", "الاجابة", "الجواب", "جواب", "پاسخ", "النتيجة",  # Arabic, Urdu, Persian
    "উত্তর",  # Bengali
    "resposta", "solução",  # Portuguese
    "ответ", "результат", "відповідь", "правильно", "верно",  # Russian, Ukrainian
    "jawaban", "jawabannya", "wangsulan",  # Indonesian, Malay, Javanese
    "antwort", "lösung", "ergebnis", "richtig",  # German
    "jibu", "amsa", "ìdáhùn", "idahun", "idáhùn", "àmọ̀nà", "àdáhùn", "ànúgọ", "àṣàyàn",  # Swahili, Hausa, Yoruba
    "సమాధానం", "జవాబు",  # Telugu
    "cevap", "cevabı", "cevabınız", "yanıt", "sonuç",  # Turkish
    "விடை", "பதில்",  # Tamil
    "đáp án", "câu trả lời", "trả lời", "kết quả",  # Vietnamese
    "risposta", "soluzione", "risultato",  # Italian
    "odpowiedź", "wynik", "odpověď", "antwoord", "svar", "svaret", "válasz", "răspuns", "răspunsul", "απάντηση", "תשובה", "התשובה",
    "คำตอบ", "જવાબ", "ಉತ್ತರ", "ഉത്തരം", "ਜਵਾਬ", "sagot",
)  # fmt: skip
_IS = (
    "es", "est", "é", "è", "ist", "lautet", "это", "является", "це", "jest", "to", "adalah", "ialah", "là", "ni", "ne", "är", "er", "je", "este",
    "is", "είναι", "هي", "هو", "است", "ہے", "है", "हैं", "आहे", "হল", "হলো", "হচ্ছে", "ang", "ay",
)  # fmt: skip
_AFTER = (
    "です", "である", "だ", "となります", "になります", "입니다", "이다", "예요", "이에요", "है", "हैं", "आहे", "হবে", "ہے", "است", "'dir", "'dır", "'tir",
    "'tür", "dir", "dır", "olur", "ครับ", "ค่ะ",
)  # fmt: skip
"""What stands behind an answer, where the verb is last."""


_NOT = ("nicht", "kein", "no", "non", "pas", "não", "nao", "не", "нет", "nie", "bukan", "tidak", "không", "niet", "inte", "ikke", "नहीं", "ليست", "ليس",
        "siyo", "değil", "নয়", "নয়", "nu")  # fmt: skip


def _any(words: tuple[str, ...]) -> str:
    return "|".join(sorted({re.escape(unicodedata.normalize("NFKC", word)) for word in words}, key=len, reverse=True))


OTHER_SCRIPT = "\u0900-\u0dff\u0e00-\u0eff\u1100-\u11ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Characters of scripts that put no blank behind a Latin letter."""
INTRODUCED = (
    rf"(?<![^\W\d_{OTHER_SCRIPT}])(?:{_any(_ANSWER)})(?:[^\W\d_]{{1,4}}(?=\s*[:=]))?(?:\s+(?![A-Z]\b|(?:{_any(_NOT)})\b)[^\W\d_]{{2,12}}){{0,2}}?\s*[*_`\"']{{0,4}}"
    rf"(?:\s*(?:[:=\-–—→ःঃ]|\s(?:{_any(_IS)})(?=[\s:*])|は|が|คือ|은|는|이|가|是|为|為|选|選)\s*:?|(?=\s+(?:[*_`\"'(\[]*[A-Z]\b|[-+\d$\\√(])))"
)
"""Matches up to where the answer begins: "Die richtige Antwort ist", "正解は", "Ответ:"."""
BEHIND = rf"(?:\s*(?:{_any(_AFTER)}))"
NEGATED = r"(?:\s*(?:değil|नहीं|नाही|가\s*아|이\s*아|은\s*아|는\s*아|ではな|じゃな|でな|নয়|নয়|نہیں|نیست|ไม่))"
"""What says behind an answer that it is none."""
