"""Words that announce an example or a quotation, in the languages in which models most often write.

A model may write a tool call in its text only to show it. A call after such words is an illustration and is not
executed. Only the last sentence before the call is searched for the words.
"""

from __future__ import annotations

import re

_COLON = r"\b[^.,;:]{0,30}[:：]\s*\Z"
"""Matches the text from a verb to the colon before a quotation, such as ` as follows:` after "The log reads"."""
_WORDS = {
    "English": (
        r"\bfor (?:example|instance)\b", r"\bexamples?\b", r"\be\.?g\.", r"\bsuch as\b", r"\bsyntax\b",
        r"\b(?:format|form|schema|signature) (?:is|would)\b", r"\blooks? like\b", r"\blike (?:this|so)\b",
        r"\binstead of\b", r"\b(?:wrote|printed|returned|quoted?|documented)\b",
        r"\bwould (?:be|look|write|call|use|have|run|execute|send)\b",
        r"\b(?:could|might) (?:write|call|use|look|run|execute|send)\b", r"\bcan (?:write|call|use|look)\b",
        r"\byou(?:'d| would| could| can| should| may| might)\b", r"\bif you\b", r"\bplease confirm\b",
        r"\b(?:shall|should|may) i\b", r"\bdo you want\b", r"\bplease (?:run|execute|try|use|enter|type)\b",
        r"\byour (?:machine|computer|terminal|own)\b", r"\bif the (?:user|model|assistant)\b",
        r"\b(?:assistant|user|model) (?:sent|wrote|said|made|called|sends|writes|calls)\b",
        r"\b(?:do not|don't|never) (?:write|call|use|run|execute|send)\b",
        r"\b(?:the )?(?:output|result|log|file|reply|message|document(?:ation)?|template)"
        r" (?:was|is|says?|said|contains?|shows?|reads?|showed)\b",
        r"\A\W*(?:the )?(?:expected |sample |correct )?(?:outputs?|results?|observations?|std(?:out|err)|logs?"
        r"|contents?|transcript|prompt|sample|template|form|usage)\W*\Z", r"\A\s*(?:[$%] |exit code\b)",
        r"\b(?:found|saw|reads?|contains?|says?|said|shows|showed|has|had)" + _COLON,
    ),
    "German": (
        r"\bbeispiel\w*", r"\bz\.\s?b\.", r"\bsieht\b.*\baus\b", r"\baussehen\b", r"\b(?:niemals|nie)\b",
        r"\b(?:würde|könnte)(?:st|t|n)?\b", r"\bsoll ich\b", r"\bwenn (?:du|sie)\b", r"\bausgabe (?:war|ist)\b",
        r"\b(?:sie|du|kannst) (?:können|kannst|bitte|du)\b", r"\bbitte (?:führe|geben|gib|ausführen)\w*",
        r"\b(?:enthält|lautet|steht|stand)" + _COLON, r"\A\W*(?:ausgabe|ergebnis)\W*\Z",
    ),
    "French": (
        r"\bexemples?\b", r"\bressemble", r"\bcomme (?:ceci|cela|suit)\b", r"\bjamais\b", r"\bsi vous\b",
        r"\bvous (?:pouvez|devez)\b", r"\bveuillez\b", r"\bexécutez\b", r"\b(?:pour|se|écri|appelle|lance)rai[st]\b",
        r"\bdois-je\b", r"\b(?:contient|indique|affiche)" + _COLON,
    ),
    "Spanish, Portuguese, Italian": (
        r"\bejemplos?\b", r"\bexemplos?\b", r"\besemp[io]{1,2}\b", r"\bnunca\b", r"\bjam[aá]s\b", r"\bnon \w+ mai\b",
        r"\bpodr[ií]a\b", r"\bpoderia\b", r"\bpotre[bs]\w*", r"\bser[ií]a\b", r"\bsarebbe\b", r"\bse ve así\b",
        r"\bpued(?:e|es) (?:ejecutar|usar|escribir)\b", r"\bvocê pode\b", r"\bpuoi\b", r"\bpor favor\b",
        r"\bsi quieres\b", r"\bse quiser\b", r"\b(?:conti?ene|contém|dice|diz)" + _COLON,
    ),
    "Dutch, Polish, Turkish, Indonesian, Vietnamese": (
        r"\b(?:bij)?voorbeeld\w*", r"\bnooit\b", r"\bprzykład\w*", r"\bnigdy\b", r"\börne[ğk]\w*", r"\bmesela\b",
        r"\basla\b", r"\bcontoh\w*", r"\bmisalnya\b", r"\bjangan\b", r"\bví dụ\b", r"\b(?:bevat|zawiera)" + _COLON,
    ),
    "Russian, Ukrainian": (
        r"\b(?:на)?пример(?!но)\w*", r"\bк примеру\b", r"\bникогда\b", r"\bне (?:запуска|выполня|пиши|вызыва)\w*",
        r"\bвыгляд\w+", r"\bнаписано\b", r"\b(?:было|была) бы\b", r"\bмог(?:ла|ли)?\b", r"\bесли (?:вы|ты)\b",
        r"\bвы можете\b", r"\b(?:запустите|выполните|введите)\b", r"\b(?:на)?приклад\w*", r"\bніколи\b",
        r"\bякщо ви\b", r"\bсодерж\w+" + _COLON,
    ),
    "Chinese": (
        "例如", "比如", "譬如", "示例", "例子", "举例", "舉例", "範例", "样子", "不要", "切勿", "禁止", "绝不",
        "永远不", "千万别", "如下所示", "[你您]可以", "请(?:运行|执行|使用|输入)", "如果你", "请确认", "写着",
        "格式(?:是(?!否)|为|如下|[:：])", "内容(?:是(?!否)|为)", "输出(?:是(?!否)|为|如下)",
        "(?:文件|日志)(?:内容|里|中)?(?:是(?!否)|为|写|显示|包含)",
    ),
    "Japanese, Korean": (
        "例えば", "たとえば", "例[：:]", "の例", "形式は", "のような", "のようになり", "しないで", "決して",
        "書かれて", "出力は", "예를 들어", "예시", "예제", "예:", "형식은", "절대로", "마세요", "출력은", "포함되어",
    ),
    "Arabic, Hindi": (
        "مثلا", "مثال", "أبدا", "لا تكتب", "उदाहरण", "कभी नहीं",
    ),
}  # fmt: skip
_ANNOUNCES = re.compile("|".join(word for words in _WORDS.values() for word in words), re.IGNORECASE)
_OWN_PROGRAM = re.compile(
    r"\bhere(?:'s|’s| is) (?:a|an|the|my)\b[^.,;:\"]{0,40}\b(?:program|script|code|command)\b"
    r" (?:to \w|(?:that|which) (?!(?:is|was|has|contains|says|shows|reads)\b)\w+s\b)[^:：]*[:：]\s*\Z",
    re.IGNORECASE,
)
"""Matches `Here is a program that counts the lines that contain X:`. Its colon announces the program itself. So the
verb before the colon does not announce a quotation."""
_SENTENCE_END = re.compile(r"[.!?…。！？)\]*\"'”’»\U0001F300-\U0001FAFF☀-➿]\s*\Z")
_LIST_MARK = re.compile(r"\s*(?:\d{1,3}[.)]|[-*+•])\s*")
_SENTENCES = re.compile(r"(?<=[.!?])\s|(?<=[。！？])")
_SEARCHED_LENGTH = 500
"""Maximum number of characters that are searched before a call."""


def why_announced(text: str, place: int) -> str:
    """Return the reason why the call at index `place` is only an illustration, or an empty text for a real call."""
    line = text.rfind("\n", 0, place) + 1
    before = text[max(line, place - _SEARCHED_LENGTH) : place]
    if before.strip() and (_LIST_MARK.fullmatch(before) or not _SENTENCE_END.search(before)):
        return "it is in the middle of a line"
    if not before.strip():
        paragraph = text[max(0, line - _SEARCHED_LENGTH) : line].rstrip()
        before = paragraph[paragraph.rfind("\n") + 1 :]
    sentences = [sentence for sentence in _SENTENCES.split(before.rstrip()) if sentence]
    last = sentences[-1].rstrip() if sentences else ""
    searched = last.rstrip(":：") if _OWN_PROGRAM.search(last) else last
    return "the words before it announce an example" if _ANNOUNCES.search(searched) else ""
