"""The reference of commands, made from the program: `python -m lockctl.cli.reference > docs/commands.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockctl.cli.app import build
from lockctl.cli.options import Shared


def markdown() -> str:
    """The help of every command, as a page. A test holds docs/commands.md to it."""
    lines = [
        "# Commands",
        "",
        "Made from the program by `make docs`; a test holds it to what `--help` says.",
    ]
    for path, text in _helps(build(), "lockctl", None):
        lines += ["", f"## `{path}`", "", "```text", text.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _helps(command: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
    with command.make_context(
        path.split()[-1],
        [],
        parent=parent,
        resilient_parsing=True,
        obj=Shared(),
        max_content_width=100,
        terminal_width=100,
    ) as ctx:
        ctx.info_name = path.split()[-1] if parent is not None else path
        yield path, command.get_help(ctx)
        for name in getattr(command, "commands", {}):
            yield from _helps(command.commands[name], f"{path} {name}", ctx)


if __name__ == "__main__":
    print(markdown(), end="")
