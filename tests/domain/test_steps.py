"""Stored payloads of the first release still decode: running histories outlive an upgrade."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from domain import outcomes, steps

PAYLOADS = sorted((Path(__file__).parent / "payloads").glob("*.json"))
STEPS = {
    name: cls
    for name, cls in vars(steps).items()
    if isinstance(cls, type) and issubclass(cls, steps.Step) and cls is not steps.Step
}


def model_of(path: Path) -> type[BaseModel]:
    """The model that a payload's file is named after: ``Outcome.failed.json``."""
    name = path.name.split(".")[0]
    return STEPS.get(name) or getattr(outcomes, name)


def contains(whole: Any, part: Any) -> bool:
    """Everything stored is still there; fields that came later may be, too."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    return bool(whole == part)


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: path.stem)
def test_a_stored_payload_decodes(path: Path) -> None:
    """Every field that was written is read, and keeps its name and its value when written again."""
    stored = json.loads(path.read_text())
    again = json.loads(model_of(path).model_validate(stored).model_dump_json())
    assert contains(again, stored)


@pytest.mark.parametrize("name", STEPS)
def test_every_step_has_a_payload(name: str) -> None:
    """A step that is added gets a stored payload with its first release."""
    assert any(path.name.startswith(f"{name}.") for path in PAYLOADS)
