"""Hypothesis's streams of events, as a journal could hold them: any kinds in any order, with branches."""

from __future__ import annotations

from card_runs import start_event
from hypothesis import strategies as st

from llm_sandbox_nb.trajectory import events as ev

STEPS = st.integers(1, 4)
CALLS = st.sampled_from(["a", "b", "__proto__"])
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LONG = st.integers(1, 3).map(lambda count: "0123456789abcdef" * (count * 1700))
PATHS = st.sampled_from(["x.txt", "ü/y.png", "constructor"])
CONTENT = st.one_of(TEXT, st.none(), st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})))
MESSAGE = st.fixed_dictionaries({"role": st.just("user"), "content": CONTENT})
USAGE = st.builds(
    ev.Usage,
    prompt_tokens=st.integers(0, 9),
    cached_tokens=st.integers(0, 9),
    cost=st.sampled_from([None, 0.0, 0.25, 2.0]),
)

WHAT = st.sampled_from(["both", "files", "conversation"])

EVENTS: st.SearchStrategy[ev.Event] = st.one_of(
    st.builds(start_event, TEXT),
    st.builds(ev.SandboxReady, sandbox_id=TEXT, protection=st.just({}), start_time=st.just(0.1)),
    st.builds(ev.MessageAdded, message=MESSAGE),
    st.builds(ev.ModelRequested, step=STEPS),
    st.builds(ev.ModelDelta, step=STEPS, text=TEXT, reasoning=TEXT),
    st.builds(ev.ModelFailed, step=STEPS, attempt=st.just(1), error=TEXT, message=TEXT),
    st.builds(
        ev.ModelReplied, step=STEPS, message=MESSAGE, reasoning=st.none() | TEXT, usage=st.none() | USAGE,
        finish_reason=st.none() | TEXT, model_time=st.sampled_from([0.0, 1.5]),
    ),
    st.builds(
        ev.CallProposed, step=STEPS, call_id=CALLS, tool=TEXT, raw_arguments=TEXT,
        arguments=st.none() | st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    st.builds(ev.CallStarted, step=STEPS, call_id=CALLS, tool=TEXT, arguments=st.dictionaries(TEXT, TEXT, max_size=2)),
    st.builds(ev.CallOutput, call_id=CALLS, stream=st.just("stdout"), text=TEXT | LONG),
    st.builds(ev.CallFinished, step=STEPS, call_id=CALLS, observation=TEXT),
    st.builds(ev.ArtifactSaved, step=st.none() | STEPS, path=PATHS, mime=TEXT, size=st.just(1), sha256=TEXT),
    st.builds(ev.ArtifactSkipped, reason=TEXT),
    st.builds(ev.ArtifactRemoved, path=PATHS),
    st.builds(ev.ConnectionMade, step=st.none() | STEPS, line=TEXT),
    st.builds(ev.Noted, text=TEXT),
    st.builds(ev.Controlled, action=st.sampled_from(["pause", "paused", "resume", "say", "stop"])),
    st.builds(
        ev.CallHeld, step=STEPS, call_id=CALLS, at=st.sampled_from(["call", "observation"]), reason=st.just("step")
    ),
    st.builds(
        ev.CallDecided, step=STEPS, call_id=CALLS, action=st.sampled_from(["run", "edit", "skip", "observe"]),
        observation=st.none() | TEXT,
    ),
    st.builds(ev.SettingsChanged, model=st.none() | TEXT),
    st.builds(ev.Checkpointed, step=st.none() | STEPS, checkpoint=TEXT),
    st.builds(ev.Forked, run_id=TEXT, folder=TEXT, step=STEPS),
    st.builds(ev.Continued),
    st.builds(ev.ContextKnown, model=TEXT, tokens=st.just(9), source=st.just("server")),
    st.builds(ev.ContextReduced, step=STEPS, how=st.just("mask")),
    st.builds(ev.CheckStarted, number=STEPS, what=TEXT),
    st.builds(ev.Checked, number=STEPS, what=TEXT, verdict=st.just(ev.Verdict(outcome="passed", summary="exit 0"))),
    st.builds(ev.Rewarded, training_step=STEPS, group=TEXT, reward=st.sampled_from([None, 0.0, 1.0])),
    st.builds(ev.RewindStarted, to=st.just("?"), step=STEPS, safety=st.none() | TEXT),
    st.builds(ev.Rewound, to=st.just("?"), step=STEPS, what=WHAT, target=st.none() | TEXT, safety=st.none() | TEXT),
    st.builds(ev.RunFinished, stop_reason=st.just("submitted"), usage=USAGE),
    st.builds(ev.UnknownEvent, kind=st.just("later.kind")),
)  # fmt: skip


def proposed_first(events: list[ev.Event]) -> list[ev.Event]:
    """Without the events of calls that nobody proposed: a journal has none."""
    known: set[str] = set()
    kept = []
    for event in events:
        if isinstance(event, ev.CallProposed):
            known.add(event.call_id)
        if getattr(event, "call_id", None) in known or not hasattr(event, "call_id"):
            kept.append(event)
    return kept


@st.composite
def a_tree(draw: st.DrawFn) -> list[ev.Event]:
    """A stream in which rewinds lead to earlier events (or nowhere) and some events say what they follow."""
    events = proposed_first(draw(st.lists(EVENTS, max_size=40)))
    written = [event for event in events if event.kind not in ev.TRANSIENT]
    for place, event in enumerate(written):
        earlier = [one.id for one in written[:place]]
        if isinstance(event, ev.RewindStarted | ev.Rewound) and earlier:
            event.to = draw(st.sampled_from([*earlier, "nowhere"]))
        if earlier and draw(st.integers(0, 5)) == 0:
            event.parent = draw(st.sampled_from([*earlier, "nowhere"]))
    return events
