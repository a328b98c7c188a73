"""Alembic environments of somebody else, as their templates and cookbooks write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

INI = """\
[alembic]
script_location = %(here)s/migrations
sqlalchemy.url = {url}

[loggers]
keys = root,sqlalchemy,alembic
[handlers]
keys = console
[formatters]
keys = generic
[logger_root]
level = WARNING
handlers = console
qualname =
[logger_sqlalchemy]
level = WARNING
handlers =
qualname = sqlalchemy.engine
[logger_alembic]
level = INFO
handlers =
qualname = alembic
[handler_console]
class = StreamHandler
args = (sys.stderr,)
level = NOTSET
formatter = generic
[formatter_generic]
format = %(levelname)s %(message)s
"""

HEAD = """\
from logging.config import fileConfig
from alembic import context
from sqlalchemy import engine_from_config, pool

config = context.config
if config.config_file_name is not None:
    fileConfig(config.config_file_name)
OPTIONS = {options}

def offline():
    context.configure(url=config.get_main_option("sqlalchemy.url"), literal_binds=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()

def online(connection):
    context.configure(connection=connection, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()

def own():
    section = config.get_section(config.config_ini_section)
    made = engine_from_config(section, prefix="sqlalchemy.", poolclass=pool.NullPool)
    with made.connect() as connection:
        online(connection)

print("env.py prints this")
if context.is_offline_mode():
    offline()
"""

TAKES_IT = """\
elif (connection := config.attributes.get("connection")) is not None:
    online(connection)
else:
    own()
"""

OWN_ENGINE = """\
else:
    own()
"""

REVISION = '''\
"""{doc}"""
from alembic import op

revision = {name!r}
down_revision = {down!r}
branch_labels = {labels!r}
depends_on = None

def upgrade():
{up}

def downgrade():
{down_body}
'''


def environment(
    folder: Path, *, takes_it: bool = True, url: str = "postgresql://localhost/x", options: str = "{}"
) -> Path:
    """An environment without revisions in `folder`; returns its configuration file."""
    versions = folder / "migrations" / "versions"
    versions.mkdir(parents=True)
    ini = folder / "other.ini"
    ini.write_text(INI.format(url=url.replace("%", "%%")))
    env = HEAD.replace("{options}", options) + (TAKES_IT if takes_it else OWN_ENGINE)
    (folder / "migrations" / "env.py").write_text(env)
    return ini


def revision(
    ini: Path, name: str, down: str | None, up: str, back: str = "pass", labels: Mapping[str, str] | None = None
) -> None:
    """A revision file; `up` and `back` are the bodies of its functions."""
    text = REVISION.format(
        doc=f"does {name}",
        name=name,
        down=down,
        labels=tuple(labels) if labels else None,
        up="\n".join(f"    {line}" for line in up.splitlines()),
        down_body="\n".join(f"    {line}" for line in back.splitlines()),
    )
    (ini.parent / "migrations" / "versions" / f"{name}.py").write_text(text)
