"""Settings: one frozen object, validated at construction, each default with its source.

Values come, in this order, from arguments, the environment (``TASKHUB_HUB``, ``TASKHUB_CONNECTION`` …) and the file
``$TASKHUB_CONFIG`` (else ``~/.taskhub/config.toml``). Nested values use two underscores: ``TASKHUB_LEASE__TAKE=PT40S``.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from airflow_provider_taskhub.errors import ConfigurationError

__all__ = ["LeaseTimes", "Settings", "SparkSettings", "home", "load_settings"]

PREFIX = "TASKHUB_"
_BESIDE = ("HOME", "CONFIG", "DEMO_RUN")
"""Variables that are no settings: see :func:`home` and :func:`_file`; the last is the mark of a demo's processes."""
_NESTED = ("lease", "spark")
_KUBERNETES = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""What Kubernetes puts into each container's environment for a service whose name begins with ``taskhub``."""
_HUB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{2,44}", re.ASCII)
MAX_RESULT = 64 * 1024 * 1024
"""Bytes: every replay of an orchestration reads the results of its activities again."""
LEASE_MARGIN = timedelta(milliseconds=500)
"""Least distance between renew, give up and take: scheduling noise of a loaded machine."""
LEASE_DRIFT = 0.003
"""Of take, the least distance of give up from it: two clocks that are 0.1 % wrong each, one fast, one slow, and a half
more."""


_ZERO = timedelta(0)


def home() -> Path:
    """``$TASKHUB_HOME``, else ``~/.taskhub``: the embedded hub, its logs and the lock files of incarnations."""
    return Path(os.environ.get("TASKHUB_HOME") or Path.home() / ".taskhub").expanduser().absolute()


def _file() -> Path:
    return Path(os.environ.get("TASKHUB_CONFIG") or home() / "config.toml")


def hub_name(value: str) -> str:
    """A hub name that can be part of the names of Azure's queues, tables and containers.

    It has 3 to 45 letters and digits, a letter first.

    :raises ValueError: naming the value and the rule.
    """
    if not _HUB_NAME.fullmatch(value):
        raise ValueError(
            f"hub name {value!r} cannot name Azure queues and tables: use 3 to 45 letters and digits, a letter first"
        )
    return value


class LeaseTimes(BaseModel):
    """Times of partition leases. Each worker measures them on its own monotonic clock.

    All workers of a hub should have the same times: one slowly renewing worker delays failover for all.

    :param renew: between two renewals of a lease.
    :param give_up: a worker that has not renewed its lease for so long stops to serve the partition.
    :param take: a worker that has seen a lease unchanged for so long takes the partition.
    :param scan: between two looks at all leases.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    renew: timedelta = Field(default=timedelta(seconds=10), gt=_ZERO)
    give_up: timedelta = Field(default=timedelta(seconds=20), gt=_ZERO)
    take: timedelta = Field(default=timedelta(seconds=30), gt=_ZERO)
    scan: timedelta = Field(default=timedelta(seconds=10), gt=_ZERO)
    visibility: timedelta = Field(default=timedelta(seconds=30), gt=_ZERO, le=timedelta(days=7))
    """How long a received message stays invisible unless renewed; Azure hides a message for 7 days at most."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        least = max(LEASE_MARGIN, self.take * LEASE_DRIFT)
        if not (self.renew + LEASE_MARGIN <= self.give_up and self.give_up + least <= self.take):
            raise ValueError(
                "lease times must be renew < give_up < take with at least 0.5 s between them, and 0.3 % of take "
                "between give_up and take because clocks drift; they are "
                f"renew {self.renew.total_seconds():g} s, give_up {self.give_up.total_seconds():g} s, "
                f"take {self.take.total_seconds():g} s"
            )
        return self


AZURE_LEASE = LeaseTimes()
EMBEDDED_LEASE = LeaseTimes(
    renew=timedelta(seconds=1),
    give_up=timedelta(seconds=2),
    take=timedelta(seconds=4),
    scan=timedelta(seconds=0.5),
    visibility=timedelta(seconds=4),
)


class SparkSettings(BaseModel):
    """The Spark that a worker's executors use.

    :param master: a Spark master (``local[*]``, ``spark://…``), or ``sc://…`` for Spark Connect.
    :param conf: Spark's configuration, such as ``spark.executor.memory``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    master: str = "local[*]"
    conf: dict[str, str] = Field(default_factory=dict)


class Settings(BaseSettings):
    """Everything a process of TaskHub can be told. Immutable; secrets are masked in its repr."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True
    )

    hub: str = "TaskHub"
    """Name of the hub: 3 to 45 letters and digits, a letter first."""
    connection: SecretStr | None = None
    """``sqlite:///absolute/path.db``, an Azure Storage connection string, or an account's address
    (``https://NAME.blob.core.windows.net``, with ``DefaultAzureCredential``). None: the hub under :func:`home`."""
    partitions: int = Field(default=4, ge=1, le=1024)
    """Partitions of a new hub, from 1 to 1,024. They are fixed for the life of the hub."""
    lease_store: Literal["table", "blob"] | None = None
    """Where a new hub keeps its leases: rows of a table (the default) or leased blobs. An existing hub keeps its
    kind, and refuses a worker with another kind."""
    lease: LeaseTimes | None = None
    """Times of leases. The default depends on the storage: renew, give_up and take are 10, 20 and 30 s on Azure, and
    1, 2 and 4 s embedded. A part that is not given has this default, too."""
    app_name: str = ""
    """AppName of DurableTask's app lease. All workers that serve a hub at the same time have the same name."""
    weight: int = Field(default=1, ge=1, le=100)
    """Share of this worker in the partitions: a worker of weight 2 gets twice as many as a worker of weight 1."""
    activities: int = Field(default=4, ge=1, le=1000)
    """Activities that run at the same time in a worker."""
    orchestrations: int = Field(default=100, ge=1, le=10_000)
    """Episodes that run at the same time in a worker."""
    buffer: int = Field(default=64, ge=1, le=10_000)
    """Messages prefetched for each partition. Only ``buffer_bytes`` bounds responses that a worker keeps in memory."""
    buffer_bytes: int = Field(default=16 * 1024 * 1024, ge=65_536)
    """Bytes of prefetched messages and responses in memory, for each partition."""
    session_idle: timedelta = Field(default=timedelta(seconds=30), ge=_ZERO)
    """How long an idle orchestrator stays in memory (DurableTask's ExtendedSessionIdleTimeout). Later only its history
    is kept, and the next episode replays it. 0: it is closed after each episode (ExtendedSessionsEnabled off)."""
    max_polling: timedelta = Field(default=timedelta(seconds=30), gt=_ZERO)
    """Longest pause between two polls of an empty queue (DurableTask's MaxQueuePollingInterval)."""
    request_timeout: timedelta = Field(default=timedelta(seconds=30), gt=_ZERO)
    """Deadline of one storage call."""
    drain_timeout: timedelta = Field(default=timedelta(seconds=30), ge=_ZERO)
    """How long a stopping worker waits until its activities have ended and its partitions are handed over (a duration
    such as PT30S). Activities that still run after that are given back and run again on another worker. 0: no wait."""
    max_result: int = Field(default=MAX_RESULT, ge=1024, le=128 * 1024 * 1024)
    """Largest result of an activity, in bytes of JSON. A larger result fails the activity without a retry."""
    no_worker_timeout: timedelta = Field(default=timedelta(minutes=10), gt=_ZERO)
    """An instance fails when it has waited this long for an orchestrator or an activity that no live worker has. Its
    Airflow task may be retried."""
    executor_timeout: timedelta = Field(default=timedelta(minutes=5), gt=_ZERO)
    """How long an activity waits for an executor that does not start, for example because Spark finds no Java. After
    this time the activity fails. Until then, the worker repeats the start."""
    withheld: str = ""
    """Environment variables of the worker that activities do not get: names separated by commas, where ``*`` stands for
    any characters (``DB_PASSWORD,AWS_*``). Activities never get TaskHub's own variables and those that open the hub."""
    spark: SparkSettings = SparkSettings()
    """Spark's master and configuration."""

    @field_validator("hub")
    @classmethod
    def _hub(cls, value: str) -> str:
        return hub_name(value)

    @field_validator("lease", mode="before")
    @classmethod
    def _lease(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        return {**dict(EMBEDDED_LEASE if _embedded(info.data.get("connection")) else AZURE_LEASE), **value}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=_file())

    @property
    def withheld_names(self) -> tuple[str, ...]:
        """The names and patterns of ``withheld``."""
        return tuple(name.strip() for name in self.withheld.split(",") if name.strip())

    @property
    def embedded(self) -> bool:
        """Whether the hub lives in an SQLite file."""
        return _embedded(self.connection)

    @property
    def asked_partitions(self) -> int | None:
        """The partition count that somebody asked for by name; None where it is only our default."""
        return self.partitions if "partitions" in self.model_fields_set else None

    @property
    def lease_times(self) -> LeaseTimes:
        """The times of leases: those that were given, else those of the hub's kind of storage."""
        return self.lease or (EMBEDDED_LEASE if self.embedded else AZURE_LEASE)


def _embedded(connection: SecretStr | None) -> bool:
    return connection is None or connection.get_secret_value().startswith("sqlite:")


def load_settings(**arguments: object) -> Settings:
    """Settings from arguments, environment and file, in this order.

    :param arguments: settings by name, as :class:`Settings` has them; None counts as not given.
    :raises ConfigurationError: naming each wrong value, and each variable or key that no setting has; never the value
        of a secret.
    """
    check_environment(os.environ)
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic validates
    except ValidationError as error:
        raise ConfigurationError("; ".join(_told(item, given) for item in error.errors())) from None
    except SettingsError as error:
        raise ConfigurationError(_not_json(os.environ) or f"environment: {error}: {error.__cause__}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{_file()} is not TOML: {error}") from None


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse variables with TaskHub's prefix that are no setting.

    :raises ConfigurationError: naming each, with the nearest name that there is.
    """
    misspelt = unread(environment)
    if misspelt:
        told = "; ".join(f"{name}: there is no such setting{_nearest_variable(name)}" for name in misspelt)
        raise ConfigurationError(f"environment: {told}. Correct or unset {'it' if len(misspelt) == 1 else 'them'}")


def unread(environment: Mapping[str, str]) -> list[str]:
    """Variables of the environment that look like TaskHub's and that nothing reads: misspelt ones."""
    known = {name.upper() for name in Settings.model_fields} | set(_BESIDE)
    found = []
    for name, value in environment.items():
        rest = name.upper().removeprefix(PREFIX)
        setting, inner, _ = rest.partition("__")
        if not name.upper().startswith(PREFIX) or _is_kubernetes(rest, value):
            continue
        if setting not in known or (inner and setting.lower() not in _NESTED):
            found.append(name)
    return sorted(found)


def nearest(name: str, known: Iterable[str], *, before: str = "") -> str:
    """A hint for an error: the known name that is most like a misspelt one; empty if none is.

    :param before: stands before every name when it is shown.
    """
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {before}{found[0]}?)" if found else ""


def _nearest_variable(name: str) -> str:
    known = [*(name.replace(".", "__").upper() for name in _names()), *_BESIDE]
    return nearest(name.upper().removeprefix(PREFIX), known, before=PREFIX)


def _names() -> list[str]:
    """All settings, as the file has them, with a dot for nested ones."""
    lease = [f"lease.{name}" for name in LeaseTimes.model_fields]
    return [*Settings.model_fields, *lease, *(f"spark.{name}" for name in SparkSettings.model_fields)]


def _is_kubernetes(rest: str, value: str) -> bool:
    address = rest == "PORT" or rest.endswith("_PORT")
    return _KUBERNETES.fullmatch(rest) is not None or (address and "://" in value)


_LEASE_PARTS = ", ".join(f"{PREFIX}LEASE__{name.upper()}" for name in LeaseTimes.model_fields)
_PARTS = {
    "lease": f"it has parts, each a duration such as PT30S: set {_LEASE_PARTS}, or [lease] in the file",
    "spark": f"it has parts: set {PREFIX}SPARK__MASTER and {PREFIX}SPARK__CONF, or [spark] in the file",
    "spark.conf": """give names with values as JSON, such as {"spark.executor.memory": "2g"}""",
}
"""What to give for a setting that is no single value."""
_MAY_BE_ZERO = ("drain_timeout", "session_idle")


def _bound(name: str, value: object) -> str:
    """What else is wrong with a bare number that was given for a duration."""
    try:
        number = float(str(value))
    except ValueError:
        return ""
    if name in _MAY_BE_ZERO:
        return "; it must not be below 0" if number < 0 else ", or PT0S" if number == 0 else ""
    return "; it must be above 0" if number <= 0 else ""


def _not_json(environment: Mapping[str, str]) -> str:
    """Each variable of several values that is not JSON, but for its value, which may be a secret; "" if there is none.

    The library that reads them names only the setting.
    """
    told = []
    for name, value in sorted(environment.items()):
        setting = name.upper().removeprefix(PREFIX).lower().replace("__", ".")
        if not name.upper().startswith(PREFIX) or setting not in _PARTS or not value:
            continue
        try:
            json.loads(value)
        except ValueError as error:
            told.append(f"{name} is not JSON ({error}): {_PARTS[setting]}")
    return "; ".join(told)


def _told(item: Any, arguments: Iterable[str]) -> str:
    """One of pydantic's errors: which setting, its value, what it may be."""
    path = [str(part) for part in item["loc"]]
    variable = PREFIX + "__".join(path).upper()
    path_name = ".".join(path) or "settings"
    name, place = path_name, ""
    if path and path[0] not in arguments:
        wanted = f"{variable}__"
        given = [f"{one.upper()}__" for one in os.environ if one.upper().startswith(PREFIX)]
        if any(one.startswith(wanted) or wanted.startswith(one) for one in given):
            name = variable
        else:
            place = f" (in {_file()})"
    if item["type"] == "extra_forbidden":
        meant = nearest(name, _names()) if name == path_name else _nearest_variable(name)
        return f"{name}: there is no such setting{meant}{place}"
    text = item["msg"].removeprefix("Value error, ")
    wrong = item["input"]
    if item["type"].startswith("time_delta"):
        text = f"give a duration such as PT30S{_bound(path_name, wrong)}"
    if item["type"] in ("model_type", "dict_type") and path_name in _PARTS:
        text = _PARTS[path_name]
    # of Spark's configuration only the names are known to be no secrets
    shown = isinstance(wrong, str | int | float | timedelta) and path[:1] not in (["connection"], ["spark"])
    value = repr(wrong)
    if isinstance(wrong, timedelta):  # a duration, and out of its bounds
        value, text = f"{wrong.total_seconds():g} s", f"{text}; give a duration such as PT30S"
    elif value in text:
        shown = False
    return f"{name}{f' is {value}' if shown else ''}: {text}{place}"
