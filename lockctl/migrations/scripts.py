"""The revisions: which components there are, what a TARGET means, and which steps lead there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lockctl.errors import AheadError, UsageError
from lockctl.migrations import location
from lockctl.migrations.bookkeeping import ordered
from lockctl.migrations.records import Revision
from lockctl.migrations.tables import Table

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.runtime.migration import RevisionStep
    from alembic.script import Script


def config() -> Config:
    """An alembic configuration for our own environment.

    Made without reading alembic.ini, which is for people at the top of a checkout: neither its logging nor its
    interpolation of `%` is wanted here.
    """
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(location.find().scripts).replace("%", "%%"))
    return made


class Scripts:
    """The revision files of an alembic environment."""

    def __init__(self, settings: Config) -> None:
        from alembic.script import ScriptDirectory

        self.config = settings
        self.directory = ScriptDirectory.from_config(settings)

    @property
    def components(self) -> tuple[str, ...]:
        """The branch labels, in order."""
        labels: set[str] = set()
        for base in self.directory.get_bases():
            labels |= self.script(base).branch_labels
        return ordered(labels)

    def script(self, revision: str) -> Script:
        """The file of a known revision."""
        found = self.directory.get_revision(revision)
        assert found is not None
        return found

    def knows(self, revision: str) -> bool:
        """Whether `revision` is the whole id of one of ours."""
        return any(script.revision == revision for script in self.directory.walk_revisions())

    def component(self, revision: str) -> str | None:
        """The component of a revision; for an unknown one, the component whose name its id begins with."""
        if self.knows(revision):
            return next(iter(ordered(self.script(revision).branch_labels)), None)
        name = revision.partition("_")[0]
        return name if name in self.components else None

    def doc(self, revision: str) -> str:
        """The first line of a revision's docstring."""
        return self.script(revision).doc or ""

    def tables(self, revision: str) -> tuple[Table, ...]:
        """The tables that a component has at `revision`, as the file declares them."""
        return tuple(getattr(self.script(revision).module, "TABLES", ()))

    def history(self, found: Sequence[str]) -> list[Revision]:
        """Every revision from the oldest of each component on, and unknown ones of `found` last."""
        heads = set(self.directory.get_heads())
        known = [
            Revision(
                component=self.component(script.revision),
                revision=script.revision,
                is_head=script.revision in heads,
                is_current=script.revision in found,
                doc=script.doc,
            )
            for script in reversed(list(self.directory.walk_revisions()))
        ]
        unknown = [
            Revision(self.component(name), name, is_head=False, is_current=True, doc=None)
            for name in found
            if not self.knows(name)
        ]
        return sorted(known, key=lambda row: row.component or "") + unknown

    # -- targets -------------------------------------------------------------------------------------------------

    def target(self, text: str) -> str:
        """A TARGET as alembic reads it: the bare name of a component means its head. Raises UsageError."""
        if text in self.components:
            return f"{text}@head"
        if text == "head":
            raise UsageError("`head` is ambiguous: there are several components", hint=self.choice())
        # Alembic takes the beginning of an id too, and reads much else into what is mistyped.
        parts = re.fullmatch(r"(?:(?P<component>\w+)@)?(?P<name>\w*)(?P<offset>[+-]\d+)?", text)
        if parts is None or (parts["component"] and parts["component"] not in self.components):
            raise self.unknown(text)
        named = parts["name"] in ("head", "heads", "base") or self.knows(parts["name"])
        if not named and (parts["name"] or not parts["offset"]):
            raise self.unknown(text)
        return text

    def resolve(self, target: str) -> tuple[str, ...]:
        """The revisions that `target` names. Raises UsageError, also for `base`, which is none."""
        if target.endswith("base"):
            raise UsageError(f"{target} names no revision", hint=self.choice())
        with self._plain(target):
            found = self.directory.get_revisions(target)
        return ordered(script.revision for script in found)

    def unknown(self, target: str) -> UsageError:
        """The error for a target that there is not."""
        return UsageError(f"there is no migration target {target!r}", hint=self.choice())

    def choice(self) -> str:
        """The targets that there are, as a hint."""
        return f"components: {', '.join(f'{name}@head' for name in self.components)}; all of them: heads"

    def upgrade(self, target: str, found: Sequence[str]) -> list[RevisionStep]:
        """The steps from the revisions `found` up to `target`. Raises UsageError or AheadError."""
        if target.endswith("base"):
            raise UsageError(f"{target} is a target to go down to", hint=self.choice())
        with self._plain(target):
            return self.directory._upgrade_revs(target, self._from(target, found))

    def downgrade(self, target: str, found: Sequence[str]) -> list[RevisionStep]:
        """The steps from the revisions `found` down to `target`. Raises UsageError or AheadError."""
        if target.endswith(("@head", "heads")):
            hint = "write COMPONENT@base, COMPONENT@-1, a revision, or base for all of them"
            raise UsageError(f"{target} is no target to go down to", hint=hint)
        with self._plain(target):
            return self.directory._downgrade_revs(target, self._from(target, found))

    def _from(self, target: str, found: Sequence[str]) -> Any:
        """What the database is at, without the unknown revisions of other components than the target's."""
        strangers = [name for name in found if not self.knows(name)]
        wanted = {name for name in self.components if target.partition("@")[0].partition("_")[0] == name}
        for name in strangers:
            if not wanted or self.component(name) in wanted or self.component(name) is None:
                raise AheadError(
                    f"the database is at revision {name}, which this lockctl does not know",
                    hint="a newer lockctl migrated it: use that one",
                )
        return tuple(name for name in found if name not in strangers)

    def ancestors(self, revision: str) -> set[str]:
        """The ids of a revision and of all before it."""
        return {script.revision for script in self.directory.iterate_revisions(revision, "base")}

    @contextmanager
    def _plain(self, target: str) -> Iterator[None]:
        """Alembic's refusals as one plain sentence."""
        from alembic.script.revision import RevisionError
        from alembic.util import CommandError

        try:
            yield
        except (CommandError, RevisionError) as error:
            cause = error.__cause__ or error
            if "locate" in str(error) or "No such revision" in str(cause):
                raise self.unknown(target) from None
            words = " ".join(str(error).split()).rstrip(".")
            raise UsageError(f"can't migrate to {target!r}: {words}", hint=self.choice()) from None
        except (ValueError, AssertionError, LookupError):
            raise self.unknown(target) from None
