"""The documents say what the program does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockctl import errors
from lockctl.cli.reference import markdown

TOP = Path(__file__).parents[2]


def test_the_reference_of_commands_is_what_help_says() -> None:
    assert (TOP / "docs/commands.md").read_text(encoding="utf-8") == markdown(), "run `make docs`"


@pytest.mark.parametrize("error", errors.ALL, ids=lambda error: error.word)
def test_the_readme_has_every_exit_code(error: type[errors.LockctlError]) -> None:
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {error.code} \| {error.word} \|", readme, re.MULTILINE)


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(TOP)) for p in (TOP / "docs").rglob("*.md"))]
)
def test_every_link_between_documents_leads_somewhere(page: str) -> None:
    text = (TOP / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (TOP / page).parent.joinpath(target).exists(), f"{page} links to {target}"
