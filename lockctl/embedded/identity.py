"""As whom PostgreSQL runs: it refuses to run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lockctl.errors import UnreachableError

_NAMESPACE = ("unshare", "-U", "--map-user=1000", "--map-group=1000")
"""Uid 1000 in a user namespace of its own: the files stay root's, so nothing is chowned and no user is added."""

_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=INT"),
    *("--inh-caps=+dac_override", "--ambient-caps=+dac_override", "--securebits=+no_setuid_fixup"),
)
"""Nobody, who may still pass through root's folders: for where user namespaces are forbidden, as in most containers.

The secure bit is for access(2), by which initdb looks for postgres: without it a user who is not root has no
capability there.
"""

_NOBODY_UID = 65534


def unprivileged() -> tuple[str, ...]:
    """What goes in front of a program of PostgreSQL, PgBouncer or the like; nothing for an ordinary user.

    The program keeps its pid, its descriptors and its parent. Raises UnreachableError where root can't step down.
    """
    if os.geteuid() != 0:
        return ()
    for prefix in (_NAMESPACE, _NOBODY):
        if (
            shutil.which(prefix[0])
            and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
        ):
            return prefix
    raise UnreachableError(
        "PostgreSQL does not run as root, and neither a user namespace (unshare) nor setpriv is allowed here",
        hint="run lockctl as an ordinary user",
    )


def hand_over(folder: Path, prefix: tuple[str, ...]) -> None:
    """Give `folder` and all in it to the user that programs behind `prefix` are; postgres insists on that for its data.

    Only root can be two: it could make a namespace when the folder was made and can't now, or the other way round.
    """
    owner = _NOBODY_UID if prefix[:1] == _NOBODY[:1] else os.geteuid()
    if folder.stat().st_uid == owner or os.geteuid() != 0:
        return
    for path, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            os.lchown(Path(path, name), owner, owner)
