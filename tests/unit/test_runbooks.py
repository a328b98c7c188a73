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
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")  # a command goes on behind a backslash
    found = COMMAND.findall(text)
    return [first or second for first, second in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_runbook_is_there_with_its_options(page: Path) -> None:
    assert commands(page)
    for line in commands(page):
        node: Any = build()
        words = iter(shlex.split(line)[1:])
        for word in words:
            inner = getattr(node, "commands", {})
            if word == "--":
                break
            if word.startswith("-"):
                name, given, _ = word.partition("=")
                (option,) = [param for param in node.params if name in param.opts] or [None]
                assert option is not None, f"{line!r}: no option {word!r}"
                if inner and not (given or option.is_flag or option.count):
                    next(words)
            elif inner:
                assert word in inner, f"{line!r}: there is no command {word!r}"
                node = inner[word]
