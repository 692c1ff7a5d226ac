"""What all events share."""

from __future__ import annotations

import time
import uuid

from pydantic import BaseModel, ConfigDict, Field


def new_id() -> str:
    """A fresh event id, unique over all runs."""
    return uuid.uuid4().hex[:16]


class Model(BaseModel):
    """A part of an event. Fields that this version does not know are kept."""

    model_config = ConfigDict(extra="allow", ser_json_bytes="base64", val_json_bytes="base64")


class Event(Model):
    """What every event has."""

    id: str = Field(default_factory=new_id)
    parent: str | None = None
    time: float = Field(default_factory=time.time)


class Blob(Model):
    """Bytes kept outside the journal, in `blobs/<sha256>` beside it, because they are many or not UTF-8."""

    sha256: str
    size: int
    preview: str = ""


Text = str | Blob
