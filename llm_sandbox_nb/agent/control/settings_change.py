"""Changes during a run to its model, sampling settings, limits, pause rules and allowed hosts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from llm_sandbox_nb.agent.control.pause_rules import Approve, Breakpoint, PauseRules, approval
from llm_sandbox_nb.agent.errors import ControlError
from llm_sandbox_nb.agent.recorder import public_settings
from llm_sandbox_nb.agent.run_limits import Meter, RunLimits
from llm_sandbox_nb.model.contract import Model, ModelError, ModelSettings
from llm_sandbox_nb.sandbox.contract import Network
from llm_sandbox_nb.sandbox.network.policy import checked_entries
from llm_sandbox_nb.trajectory import events as ev

MakeModel = Callable[[str], Model]


@dataclass(frozen=True)
class Change:
    """Checked changes to a run.

    An empty tuple of `breakpoints` removes all breakpoints. None, and any other empty value, changes nothing.
    """

    model: Model | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    breakpoints: tuple[Breakpoint, ...] | None = None
    approve: Approve | None = None
    allow: tuple[str, ...] = ()
    allow_once: tuple[str, ...] = ()

    @property
    def text_for_model(self) -> str:
        """Text that tells the model about the change. Empty if the model need not know of the change."""
        hosts = [*self.allow, *(f"{host} (one connection)" for host in self.allow_once)]
        return f"From now on the sandbox may also reach {', '.join(hosts)}." if hosts else ""

    def event(self, source: str) -> ev.SettingsChanged:
        halts: dict[str, Any] = {}
        if self.breakpoints is not None:
            halts["breakpoints"] = [breakpoint.text for breakpoint in self.breakpoints]
        if self.approve is not None:
            halts["approve"] = self.approve
        hosts = {"allow": list(self.allow), "allow_once": list(self.allow_once)}
        return ev.SettingsChanged(
            model=self.model.name if self.model else None,
            settings=public_settings(dict(self.settings)),
            limits=dict(self.limits),
            halts=halts,
            network={name: entries for name, entries in hosts.items() if entries},
            source=source,
        )


class _Changed(Protocol):
    """Parts of a loop that can change."""

    model: Model
    settings: ModelSettings
    meter: Meter
    pause_rules: PauseRules


@dataclass
class Changer:
    """Changer of a run's settings. Any thread can check changes. Only the run's event loop applies them."""

    loop: _Changed
    make_model: MakeModel
    used: dict[str, Model] = field(default_factory=dict)
    """Models that the run has used, by name."""
    network: Network | None = None
    """Network of the sandbox if the sandbox is open and the network is an allow-list. Otherwise None."""

    def checked(
        self,
        model: str | Model | None = None,
        settings: ModelSettings | Mapping[str, Any] | None = None,
        limits: RunLimits | Mapping[str, Any] | None = None,
        breakpoints: Iterable[str] | None = None,
        approve: str | None = None,
        allow: Iterable[str] | None = None,
        allow_once: Iterable[str] | None = None,
    ) -> Change:
        """Return a checked change that is not applied yet.

        Raises:
            ControlError: if a value is unknown or invalid, or no change is given.
        """
        if (model, settings, limits, breakpoints, approve, allow, allow_once) == (None,) * 7:
            raise ControlError("Name a change: model, settings, limits, breakpoints, approve or allow.")
        if (allow or allow_once) and self.network is None:
            raise ControlError("Hosts can be allowed only in a run whose sandbox has the network 'allow'.")
        try:
            return Change(
                model=self.make_model(model) if isinstance(model, str) else model,
                settings=checked_changes(self.loop.settings, _mapping("settings", settings)),
                limits=checked_changes(self.loop.meter.limits, _mapping("limits", limits)),
                breakpoints=None if breakpoints is None else tuple(map(Breakpoint, _texts(breakpoints))),
                approve=None if approve is None else approval(approve),
                allow=checked_entries(_texts(allow or ())),
                allow_once=checked_entries(_texts(allow_once or ())),
            )
        except (ModelError, ValueError, TypeError, ImportError) as error:
            raise ControlError(str(error)) from error

    def apply(self, change: Change, source: str) -> ev.SettingsChanged:
        """Apply the change and return its event."""
        if change.model is not None:
            self.loop.model = self.used[change.model.name] = change.model
        self.loop.settings = dataclasses.replace(self.loop.settings, **change.settings)
        if change.limits:
            self.loop.meter.change(dataclasses.replace(self.loop.meter.limits, **change.limits))
        if change.breakpoints is not None:
            self.loop.pause_rules.breakpoints = change.breakpoints
        if change.approve is not None:
            self.loop.pause_rules.approve = change.approve
            self.loop.pause_rules.approved_all = change.approve == "auto"
        if self.network is not None:
            for entries, once in ((change.allow, False), (change.allow_once, True)):
                for entry in entries:
                    self.network.permit(entry, once=once)
        return change.event(source)


def unknown_model(name: str) -> Model:
    """Raise ControlError. This function is the `make_model` of runs that cannot make a model from a name."""
    raise ControlError(
        f"This run cannot change to the model {name[:80]}: stop it, and resume with that model."
    )


_WHOLE_NUMBERS = ("top_k", "max_tokens", "steps", "tokens", "total_tokens")
_ABOVE_ZERO = ("max_tokens", "timeout", *(limit.name for limit in dataclasses.fields(RunLimits)))


def _texts(given: Iterable[str]) -> Iterable[str]:
    return [given] if isinstance(given, str) else given


def _mapping(what: str, value: object) -> Mapping[str, Any]:
    if isinstance(value, ModelSettings | RunLimits):
        return dataclasses.asdict(value)
    if value is None or isinstance(value, Mapping):
        return value or {}
    raise ControlError(f"The {what} to change are a mapping of names to values, not {value!r:.80}.")


def checked_changes(now: RunLimits | ModelSettings, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes to limits or settings if they are valid. Raise ControlError if a change is invalid."""
    word, label = ("limit", "limit on") if isinstance(now, RunLimits) else ("setting", "setting")
    known = [field.name for field in dataclasses.fields(now)]
    for name, value in changes.items():
        if name not in known:
            raise ControlError(f"There is no {word} {str(name)[:80]!r}: there are {', '.join(known)}.")
        if name == "extra_body":
            if not isinstance(value, Mapping):
                raise ControlError("The setting extra_body is an object.")
        elif value is not None or name in ("timeout", "steps"):
            _check_number(f"{label} {name}", name, value)
    return dict(changes)


def _check_number(label: str, name: str, value: Any) -> None:
    valid = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if valid and name in _WHOLE_NUMBERS:
        valid = isinstance(value, int)
    if not valid or value < 0 or (value == 0 and name in _ABOVE_ZERO):
        number = "a whole number" if name in _WHOLE_NUMBERS else "a number"
        least = "above" if name in _ABOVE_ZERO else "of at least"
        raise ControlError(f"The {label} is {number} {least} zero, not {value!r:.80}.")
