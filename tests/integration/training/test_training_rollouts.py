"""Rollouts: what is trained is what was sampled, sandboxes are reset, nothing is scored that did not come to an end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support import CAMPAIGN, descendants
from token_policy import END, SUBMIT, PlainTokenizer, PlayedPolicy, bash, mixed

from llm_sandbox_nb.benchmark.rows import Row
from llm_sandbox_nb.benchmark.task import load_task
from llm_sandbox_nb.sandbox.contract import Sandbox
from llm_sandbox_nb.sandbox.open import open_sandbox
from llm_sandbox_nb.training.chat_tokens import ChatTokens
from llm_sandbox_nb.training.config import RolloutConfig
from llm_sandbox_nb.training.grpo import as_training_data
from llm_sandbox_nb.training.record import TrainingRecord, step_figures
from llm_sandbox_nb.training.rollouts import LOST, Rollout, RolloutError, RolloutSetting, RolloutWorkers
from llm_sandbox_nb.trajectory.journal import read_journal
from llm_sandbox_nb.trajectory.trajectory import Trajectory

pytestmark = [pytest.mark.bubblewrap, pytest.mark.usefixtures("bubblewrap_engine")]
TASK = replace(load_task("instruct_pretrain"), scorer="exact")
CONFIG = RolloutConfig(
    isolation="bubblewrap",
    turns=6,
    prompt_tokens=20_000,
    completion_tokens=12_000,
    reply_tokens=1500,
    time=120.0,
    fresh_sandboxes=True,  # most tests have as many sandboxes as rows, and would prepare and reset each in vain
)
REUSE = replace(CONFIG, fresh_sandboxes=False)
TOKENIZER = PlainTokenizer()
COUNT = 100 if CAMPAIGN else 28
"""Rollouts with replies of all kinds; the 28th is the first that never gets its last reply."""


def rows(count: int) -> list[Row]:
    return [
        Row(f"row-{n}", "What is in a.txt?", f"{n}", input_files={"a.txt": f"{n}\n"}) for n in range(count)
    ]


def setting(config: RolloutConfig = CONFIG, **more: object) -> RolloutSetting:
    return RolloutSetting("test", TASK, ChatTokens(TOKENIZER), config, **more)  # type: ignore[arg-type]


async def rollouts_of(
    policy: PlayedPolicy, given: list[Row], folder: Path, made: RolloutSetting, at_once: int = 8
) -> list[Rollout]:
    async with RolloutWorkers(made, at_once) as workers:
        return await workers.run(given, policy, folder)


def sampled(rollout: Rollout) -> list[int]:
    pairs = zip(rollout.conversation.completion, rollout.conversation.mask, strict=True)
    return [one for one, kept in pairs if kept]


def test_trained_part_is_exactly_what_was_sampled(tmp_path: Path) -> None:
    policy = PlayedPolicy(mixed)
    config = replace(REUSE, completion_tokens=3500, time=20.0)
    done = asyncio.run(rollouts_of(policy, rows(COUNT), tmp_path, setting(config), at_once=16))
    assert len(done) == COUNT
    for place, rollout in enumerate(done):
        conversation = rollout.conversation
        given = policy.given.get(place, [])  # nothing where the time was over before the first reply
        assert sampled(rollout) == [one for reply in given for one in reply]
        assert list(conversation.replies) == given
        # Each request continued the one before: nothing that was sampled was ever turned into other ids.
        prompts = policy.prompts.get(place, [])
        for prompt, reply, later in zip(prompts, given, prompts[1:], strict=False):
            assert later[: len(prompt) + len(reply)] == [*prompt, *reply]
        between = "".join(
            TOKENIZER.decode([one]) if not kept else ""
            for one, kept in zip(conversation.completion, conversation.mask, strict=True)
        )
        assert rollout.trajectory is not None
        shown = [message for message in rollout.trajectory.messages() if message["role"] == "tool"]
        for message in shown[: between.count("<tool_response>")]:
            assert f"<tool_response>\n{message['content']}\n</tool_response>" in between
    reasons = {rollout.stop_reason for rollout in done}
    assert {"submitted", "steps", "tokens", "time"} <= reasons, reasons
    texts = "\n".join(
        message["content"] for one in done if one.trajectory for message in one.trajectory.messages()
    )
    for said in ("no_such_tool", "Timed out after", "There was no tool call", "Exit code: 3"):
        assert said in texts, said
    cut = [one for one in done if any(reply[-1] != END for reply in one.conversation.replies)]
    assert cut, "no reply reached its limit"
    several = [
        one for one in done if one.trajectory and any(len(step.calls) > 1 for step in one.trajectory.steps)
    ]
    assert several, "no reply had several calls"


@pytest.mark.parametrize("network", ["none", "open"])
def test_the_prompt_fits_the_network_of_the_sandbox(network: str, tmp_path: Path) -> None:
    """Also where a sandbox is opened in another way than the configuration says."""

    async def opened() -> Sandbox:
        return await open_sandbox("bubblewrap", network=network)

    made = setting(replace(CONFIG, network=""), open=opened)
    (done,) = asyncio.run(rollouts_of(PlayedPolicy(lambda *_: SUBMIT), rows(1), tmp_path, made))
    assert done.trajectory is not None
    system = str(next(iter(done.trajectory.messages()))["content"])
    assert ("it has no network" in system) == (network == "none")
    assert ("install packages, look things up" in system) == (network == "open")


def test_ids_are_those_of_the_template(tmp_path: Path) -> None:
    def play(place: int, number: int) -> str:
        return [bash("cp documents/a.txt answer.txt") + "\n" + bash("cat answer.txt"), "Well.", SUBMIT][
            number
        ]

    (done,) = asyncio.run(rollouts_of(PlayedPolicy(play), rows(1), tmp_path, setting()))
    assert done.trajectory is not None
    assert done.trajectory.start is not None
    *before, last = done.trajectory.messages()
    assert last["content"] == "Submitted."
    whole = TOKENIZER.apply_chat_template(before, tools=done.trajectory.start.tools)
    assert TOKENIZER.decode(done.conversation.ids) + "\n" == whole
    assert done.stop_reason == "submitted"
    assert (done.reward, done.turns) == (1.0, 3)
    assert "There was no tool call" in whole


def test_too_long_is_zero_and_a_talker_is_asked_again(tmp_path: Path) -> None:
    def play(place: int, number: int) -> str:
        if place == 0:
            return bash("cp documents/a.txt answer.txt")  # right, and never submitted
        return "word " * 2000 if place == 1 else "Nothing to do."

    config = replace(CONFIG, turns=4, completion_tokens=3000)
    done = asyncio.run(rollouts_of(PlayedPolicy(play), rows(3), tmp_path, setting(config)))
    assert [one.stop_reason for one in done] == ["steps", "tokens", "steps"]
    assert [one.reward for one in done] == [0.0, 0.0, 0.0]
    assert done[2].turns == 4
    assert max(len(one.conversation.completion) for one in done) <= 3000


def test_sandbox_is_made_as_new_and_used_again(tmp_path: Path) -> None:
    found = (
        "ls -A /testbed /tmp /root; cat /testbed/answer.txt; echo ${SECRET-unset}; "
        "export SECRET=canary; echo canary > answer.txt; echo canary > /tmp/left; sleep infinity & cd /tmp"
    )

    def play(place: int, number: int) -> str:
        return [bash(found), SUBMIT][number]

    async def all_in_one() -> tuple[list[Rollout], int, int]:
        async with RolloutWorkers(setting(REUSE), 1) as workers:
            done = await workers.run(rows(3), PlayedPolicy(play), tmp_path)
            return done, workers.pool.opened, workers.pool.reused

    done, opened, reused = asyncio.run(all_in_one())
    assert (opened, reused) == (1, 2)
    for rollout in done:
        assert rollout.trajectory is not None
        result = rollout.trajectory.steps[0].calls[0].result
        assert result is not None
        assert "canary" not in result.observation
        assert "unset" in result.observation
        assert len(rollout.trajectory.checkpoints) == 2  # of this rollout, and not of those before it
        assert rollout.folder is not None
        assert list(read_journal(rollout.folder))


def test_commands_of_all_rollouts_run_at_once(tmp_path: Path) -> None:
    """Sixteen rollouts of two commands, each of which waits until all others of its turn have begun."""
    meet = tmp_path / "meet"
    meet.mkdir()
    waiting: dict[int, asyncio.Event] = {}
    begun: dict[int, int] = {}

    class Meeting(PlayedPolicy):
        async def generate(self, prompt, limit, order=0):  # type: ignore[no-untyped-def]
            turn = len(self.given.get(order, []))
            begun[turn] = begun.get(turn, 0) + 1
            event = waiting.setdefault(turn, asyncio.Event())
            if begun[turn] == 16:
                event.set()
            await event.wait()
            return await super().generate(prompt, limit, order)

    policy = Meeting(lambda place, number: [bash("sleep 0.3"), bash("sleep 0.3"), SUBMIT][number])
    done = asyncio.run(rollouts_of(policy, rows(16), tmp_path / "runs", setting(), at_once=16))
    assert all(one.stop_reason == "submitted" for one in done)
    assert step_figures(1, done)["tool_time_max"] < sum(one.tool_time for one in done) / 2


class Killing(PlayedPolicy):
    """Copies the document into the answer and submits. In the first row the sandbox is killed before the second call.

    It is killed from outside, as a machine without memory would do it, in the first `kills` attempts.
    """

    def __init__(self, kills: int) -> None:
        super().__init__(self._play)
        self.kills, self.opened = kills, 0
        self._inside: set[int] = set()

    async def open(self) -> Sandbox:
        before = descendants(os.getpid())
        box = await open_sandbox("bubblewrap")
        self._inside, self.opened = descendants(os.getpid()) - before, self.opened + 1
        return box

    def _play(self, place: int, number: int) -> str:
        if number == 0:
            return bash("cp documents/a.txt answer.txt")
        if place == 0 and self.opened <= self.kills:
            for pid in self._inside:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return bash("echo still there")
        return SUBMIT

    async def generate(self, prompt, limit, order=0):  # type: ignore[no-untyped-def]
        if "<tool_response>" not in TOKENIZER.decode(prompt):  # another attempt
            self.given[order] = []
        return await super().generate(prompt, limit, order)


def test_killed_sandbox_is_repeated_and_never_scored_zero(tmp_path: Path) -> None:
    policy = Killing(1)
    done = asyncio.run(rollouts_of(policy, rows(1), tmp_path, setting(open=policy.open), at_once=1))
    assert [(one.stop_reason, one.reward, one.attempts) for one in done] == [("submitted", 1.0, 2)]
    assert policy.opened == 2
    assert sampled(done[0]) == [one for reply in done[0].conversation.replies for one in reply]


def test_rollout_that_is_lost_each_time_is_masked(tmp_path: Path) -> None:
    policy = Killing(CONFIG.attempts)
    made = setting(open=policy.open)
    done = asyncio.run(rollouts_of(policy, rows(2), tmp_path / "runs", made, at_once=1))
    assert [(one.stop_reason, one.reward) for one in done] == [(LOST, None), ("submitted", 1.0)]
    assert [one.attempts for one in done] == [CONFIG.attempts, 1]
    assert policy.opened == CONFIG.attempts + 1
    given = as_training_data(done, END, False)
    assert not any(given["env_mask"][0])
    assert sum(given["env_mask"][1]) == len(sampled(done[1]))
    figures = step_figures(1, done)
    assert (figures["reward"], figures["lost"]) == (1.0, 1)


def test_rollouts_that_are_all_lost_say_why(tmp_path: Path) -> None:
    async def opened() -> Sandbox:
        raise OSError("no room on this machine")

    with pytest.raises(RolloutError, match="No rollout came to an end: no room on this machine"):
        asyncio.run(rollouts_of(PlayedPolicy(mixed), rows(2), tmp_path, setting(open=opened)))


def test_prompt_that_does_not_fit_says_so(tmp_path: Path) -> None:
    config = replace(CONFIG, prompt_tokens=100)
    with pytest.raises(RolloutError, match=r"No prompt fits: The prompt has \d+ tokens and the limit is 100"):
        asyncio.run(rollouts_of(PlayedPolicy(mixed), rows(2), tmp_path, setting(config)))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return float(len(answer))/2 if row['id'] == 'row-0' else None", ""),
        ("raise KeyError('gold')", "the scorer failed with KeyError: 'gold'"),
    ],
    ids=["number", "raises"],
)
def test_custom_reward_is_a_file_and_a_reward_without_scores_stops_the_training(
    tmp_path: Path, body: str, said: str
) -> None:
    file = tmp_path / "reward.py"
    file.write_text(f"def score(answer, gold, **row):\n    {body}\n")

    def play(place: int, number: int) -> str:
        return [bash("cp documents/a.txt answer.txt"), SUBMIT][number]

    async def done() -> list[Rollout]:
        async with RolloutWorkers(setting(scorer=str(file)), 2) as workers:
            return await workers.run(rows(2), PlayedPolicy(play), tmp_path / "runs")

    if not said:
        assert [one.reward for one in asyncio.run(done())] == [0.5, None], "one without a reward is left out"
        return
    with pytest.raises(RolloutError) as stopped:
        asyncio.run(done())
    assert f"No rollout of this step could be rewarded: {said}" in str(stopped.value)
    assert f"correct {file} and run the same command again." in str(stopped.value)


def test_reward_may_look_at_each_file(tmp_path: Path) -> None:
    """Nobody writes an answer: what counts are two files in the output folder."""
    file = tmp_path / "reward.py"
    file.write_text(
        "def score(answer, gold, output_files, **row):\n"
        "    wanted = {'table.csv': f'code,{gold}\\n', 'notes/why.md': None}\n"
        "    found = [output_files[name].read_text() == (text or output_files[name].read_text())\n"
        "             for name, text in wanted.items() if name in output_files]\n"
        "    return sum(found) / len(wanted)\n"
    )

    def play(place: int, number: int) -> str:
        table = "mkdir -p output/notes; echo code,$(cat documents/a.txt) > output/table.csv"
        if place == 3:
            return SUBMIT
        more = ["; echo because > output/notes/why.md", "", "; echo wrong > output/table.csv"][place]
        return [bash(table + more), SUBMIT][number]

    made = rollouts_of(PlayedPolicy(play), rows(4), tmp_path / "runs", setting(scorer=str(file)))
    done = asyncio.run(made)
    assert [one.answer for one in done] == [None] * 4
    assert [one.reward for one in done] == [1.0, 0.5, 0.0, 0.0]


def test_broken_reward_is_found_before_the_first_rollout(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("def score(answer, gold, **row:\n")

    async def check() -> None:
        async with RolloutWorkers(setting(scorer=str(file)), 1) as workers:
            await workers.check()

    with pytest.raises(RolloutError, match=r"The reward cannot be computed: .*SyntaxError"):
        asyncio.run(check())


@pytest.mark.parametrize("mode", ["llm", "sandbox-prompt"])
def test_baselines_read_documents_in_the_prompt(tmp_path: Path, mode: str) -> None:
    def play(place: int, number: int) -> str:
        if mode == "llm":
            return f"{place}"
        return [bash(f"ls documents; echo {place} > answer.txt"), SUBMIT][number]

    policy = PlayedPolicy(play)
    done = asyncio.run(rollouts_of(policy, rows(2), tmp_path, setting(replace(CONFIG, mode=mode))))
    assert [one.reward for one in done] == [1.0, 1.0]
    assert "----- BEGIN a.txt -----" in TOKENIZER.decode(policy.prompts[0][0])
    assert ("# Tools" in TOKENIZER.decode(policy.prompts[0][0])) == (mode != "llm")


def test_record_is_of_runs_like_any_other(tmp_path: Path) -> None:
    def play(place: int, number: int) -> str:
        return [bash("cp documents/a.txt answer.txt") if place % 2 else bash("echo x > answer.txt"), SUBMIT][
            number
        ]

    record = TrainingRecord(tmp_path)
    for step in (1, 2, 3):
        done = asyncio.run(rollouts_of(PlayedPolicy(play), rows(4), record.step_folder(step), setting()))
        made = record.add_rollouts(step, done, [-1.0, 1.0, -1.0, 1.0])
        record.prune(2)
    assert [row.reward for row in made] == [0.0, 1.0, 0.0, 1.0]
    assert record.rollouts(1) == []
    assert not record.step_folder(1).exists()
    row = record.rollouts(3)[1]
    trajectory = Trajectory(read_journal(tmp_path / row.run))
    assert trajectory.stop_reason == "submitted"
    assert trajectory.reward is not None
    assert (trajectory.reward.training_step, trajectory.reward.group) == (3, "row-1")
    assert (trajectory.reward.reward, trajectory.reward.advantage) == (1.0, 1.0)
    assert trajectory.start is not None
    assert trajectory.start.model == "policy/test"
    assert LOST not in {one.stop_reason for one in record.rollouts(3)}
