"""What is known of a history is the same, however much of it was read before."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llm_sandbox_nb.model import known_history
from llm_sandbox_nb.model.known_history import KnownHistories, KnownHistory, PerConversation

FUNCTION = {"name": "submit", "arguments": "{}"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "12345"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": FUNCTION}]},
    {"role": "tool", "tool_call_id": "a", "content": "123"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": FUNCTION}, {"id": "b", "function": FUNCTION}],
    },
    {"role": "user", "content": [{"type": "text", "text": "x"}]},
]


def facts(known: KnownHistory) -> tuple[int, int, set[str]]:
    return known.replies, known.characters, set(known.call_ids)


def test_replies_characters_and_ids_are_found() -> None:
    assert facts(KnownHistories().read(MESSAGES[:3])) == (1, 16, {"a"})
    assert facts(KnownHistories().read(MESSAGES[:4])) == (2, 32, {"a", "", "b"})
    assert facts(KnownHistories().read([])) == (0, 0, set())


@given(st.lists(st.lists(st.sampled_from(MESSAGES), max_size=6), max_size=12), st.booleans())
def test_what_was_read_before_changes_nothing(histories: list[list[dict[str, Any]]], grow: bool) -> None:
    """Histories that grow, lose their end, get another message in the middle, or have nothing in common."""
    kept, so_far = KnownHistories(), list[dict[str, Any]]()
    for history in histories:
        so_far = [*so_far, *history] if grow else history
        assert facts(kept.read(so_far)) == facts(KnownHistories().read(so_far))


def test_an_earlier_message_is_not_read_again() -> None:
    class Watched(dict[str, Any]):
        reads = 0

        def get(self, *key: Any) -> Any:
            Watched.reads += 1
            return super().get(*key)

    kept, history = KnownHistories(), [Watched(message) for message in MESSAGES]
    for end in range(1, len(history) + 1):
        kept.read(list(history[:end]))
    once = Watched.reads
    kept.read(list(history))
    assert Watched.reads == once
    KnownHistories().read(list(history))
    assert Watched.reads == 2 * once


def test_the_oldest_conversations_are_forgotten() -> None:
    kept: PerConversation[list[dict[str, Any]]] = PerConversation()
    many = [
        [{"role": "user", "content": str(number)}] for number in range(known_history._MAX_CONVERSATIONS + 3)
    ]
    for one in many:
        kept.keep(one, one)
        kept.keep(many[0], many[0])
    assert [kept.get(one) is one for one in many] == [True, *[False] * 3, *[True] * (len(many) - 4)]
    assert kept.get([]) is None
