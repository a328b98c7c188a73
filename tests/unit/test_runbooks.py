"""Every command in a runbook is one that there is, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lockctl.cli.app import build

PAGES = sorted((Path(__file__).parents[2] / "docs" / "runbooks").glob("*.md"))
COMMAND = re.compile(r"^(?:\$ |[^`\n]*\bservice=prod )(lockctl [^\n|]*)|`(lockctl [a-z][^`\n]*)`", re.MULTILINE)


def commands(page: Path) -> list[str]:
    found = COMMAND.findall(page.read_text(encoding="utf-8"))
    return [first or second for first, second in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_runbook_is_there_with_its_options(page: Path) -> None:
    assert commands(page)
    for line in commands(page):
        node: Any = build()
        words = shlex.split(line)[1:]
        for word in words:
            inner = getattr(node, "commands", {})
            if word in inner:
                node = inner[word]
                continue
            if word == "--":
                break
            assert not inner, f"{line!r}: there is no command {word!r}"
            if word.startswith("-"):
                options = {option for param in node.params for option in param.opts}
                assert word.partition("=")[0] in options, f"{line!r}: no option {word!r}"
