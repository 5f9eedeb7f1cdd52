"""The settings of a process of TaskHub: one immutable object, which is checked when it is made.

Values come from arguments, from the environment (``TASKHUB_HUB``, ``TASKHUB_CONNECTION`` …) and from the file
``$TASKHUB_CONFIG`` (default: ``~/.taskhub/config.toml``). An argument overrides the environment, and the environment
overrides the file. The name of a nested setting has two underscores: ``TASKHUB_LEASE__TAKE=PT40S``.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ByteSize,
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
from airflow_provider_taskhub.machine import cores_of_machine, memory_of_machine
from airflow_provider_taskhub.masking import MASK
from airflow_provider_taskhub.memory import memory_of
from airflow_provider_taskhub.near_names import near
from airflow_provider_taskhub.spark_connect import connect_server
from airflow_provider_taskhub.worker_pools import DEFAULT_POOL, pools_of

__all__ = ["LeaseTimes", "Settings", "SparkSettings", "home", "load_settings"]

PREFIX = "TASKHUB_"
_OTHER_VARIABLES = ("HOME", "CONFIG", "DEMO_RUN")
"""Names, without the prefix, of TaskHub's variables that are no settings. HOME and CONFIG name the folder and
the file of settings. DEMO_RUN marks the processes of a demo."""
_NESTED = ("lease", "spark")
_KUBERNETES = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
"""Names, without the prefix ``TASKHUB_``, of variables that Kubernetes adds to each container for a service whose name
begins with ``taskhub``. They must not be reported as misspelt settings."""
_HUB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{2,44}", re.ASCII)
MAX_RESULT = 64 * 1024 * 1024
"""Default of the largest result of an activity, in bytes. Each replay of an orchestration reads all results again."""
LEASE_MARGIN = timedelta(milliseconds=500)
"""Least time from ``renew`` to ``give_up``, and from ``give_up`` to ``take``. A busy machine may be late by so much."""
LEASE_DRIFT = 0.003
"""Least time from ``give_up`` to ``take``, as a fraction of ``take``. Two clocks that are wrong by 0.1 % each,
one fast and one slow, differ by 0.2 %. The value adds half of that as a reserve."""


_ZERO = timedelta(0)
LEAST_SLOTS = 4
"""Slots of a small machine: activities without Spark often only wait, for example for a database."""
SPARK_MEMORY = 2 * 1024**3
"""Bytes of a worker's memory for each slot of a Spark activity."""


def home() -> Path:
    """Return TaskHub's folder, for the embedded hub, logs and lock files: ``$TASKHUB_HOME``, or else ``~/.taskhub``."""
    return Path(os.environ.get("TASKHUB_HOME") or Path.home() / ".taskhub").expanduser().absolute()


def _file() -> Path:
    return Path(os.environ.get("TASKHUB_CONFIG") or home() / "config.toml")


def hub_name(value: str) -> str:
    """Check the name of a hub, and return it. The name must fit into names of Azure queues, tables and containers.

    :raises ValueError: if the name is not made of 3 to 45 letters and digits, a letter first.
    """
    if not _HUB_NAME.fullmatch(value):
        raise ValueError(
            f"hub name {value!r} cannot name Azure queues and tables: use 3 to 45 letters and digits, a letter first"
        )
    return value


class LeaseTimes(BaseModel):
    """Times of partition leases. Each worker measures them on its own monotonic clock.

    All workers of a hub should have the same times: one slowly renewing worker delays failover for all.

    :param renew: time between two renewals of a lease.
    :param give_up: a worker stops serving a partition if it could not renew the lease for this time.
    :param take: a worker takes a partition if it has seen no renewal of the lease for this time.
    :param scan: time between two reads of all leases.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    renew: timedelta = Field(default=timedelta(seconds=10), gt=_ZERO)
    give_up: timedelta = Field(default=timedelta(seconds=20), gt=_ZERO)
    take: timedelta = Field(default=timedelta(seconds=30), gt=_ZERO)
    scan: timedelta = Field(default=timedelta(seconds=10), gt=_ZERO)
    visibility: timedelta = Field(default=timedelta(seconds=30), gt=_ZERO, le=timedelta(days=7))
    """How long a received message stays hidden from other receivers unless the worker extends it; 7 days at most."""

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
    """The Spark settings of a worker's executor processes.

    :param master: a Spark master, such as ``local[*]`` or ``spark://…``, or the address of a Spark Connect server:
        ``sc://host:port/;name=value``. ``repr`` omits the parameters of an address, because a token is one of them.
    :param conf: Spark's configuration, such as ``spark.executor.memory``. With Spark Connect it is set in each session,
        so it may have only what a running session can change, such as ``spark.sql.shuffle.partitions``. ``repr`` masks
        the values, because one may be the key of a storage account.
    :param conn_id: id of an Airflow connection of the type Spark or Spark Connect, which gives ``master`` and some of
        ``conf``. The worker needs Airflow for it, and has the connection as the variable ``AIRFLOW_CONN_...``. None: no
        connection.
    """

    # An error of pydantic would otherwise show the address with its token.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    master: str = "local[*]"
    conf: dict[str, str] = Field(default_factory=dict)
    conn_id: str | None = None

    @model_validator(mode="after")
    def _check_conn_id(self) -> Self:
        if self.conn_id is not None and "master" in self.model_fields_set:
            raise ValueError(f"conn_id is {self.conn_id!r} and master is given too: remove one of the two")
        return self

    @field_validator("master")
    @classmethod
    def _check_master(cls, master: str) -> str:
        try:
            connect_server(master)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return master

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        server = connect_server(self.master)
        yield "master", server.address if server else self.master
        yield "conf", dict.fromkeys(self.conf, MASK)
        yield "conn_id", self.conn_id


class Settings(BaseSettings):
    """All settings of a process of TaskHub. The object is immutable, and its ``repr`` masks secrets."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True
    )

    hub: str = "TaskHub"
    """Name of the hub: 3 to 45 letters and digits, a letter first."""
    connection: SecretStr | None = None
    """``sqlite:///absolute/path.db``, an Azure Storage connection string, or an account's address
    (``https://NAME.blob.core.windows.net``, with ``DefaultAzureCredential``). None: the hub under :func:`home`."""
    partitions: int = Field(default=4, ge=1, le=1024)
    """Number of partitions of a new hub, from 1 to 1,024. It is fixed for the life of the hub."""
    lease_store: Literal["table", "blob"] | None = None
    """Where a new hub keeps its leases: rows of a table (the default) or leased blobs. An existing hub keeps its
    kind, and refuses a worker with another kind."""
    lease: LeaseTimes | None = None
    """Times of leases. The default depends on the storage: renew, give_up and take are 10, 20 and 30 s on Azure, and
    1, 2 and 4 s embedded. A part that is not given has this default, too."""
    app_name: str = ""
    """AppName of DurableTask's app lease. All workers that serve a hub at the same time must have the same name."""
    weight: int = Field(default=1, ge=1, le=100)
    """Share of this worker in the partitions: a worker of weight 2 gets twice as many as a worker of weight 1."""
    activities: int | None = Field(default=None, ge=1, le=1000)
    """Largest number of activities without Spark that run at the same time in a worker. None: one for each core, and at
    least 4."""
    spark_activities: int | None = Field(default=None, ge=1, le=1000)
    """Largest number of Spark activities that run at the same time in a worker, beside the others. None: the same
    number as ``activities``, or, if that is not given either, one for each core, at least 4, but at most one for each 2
    GiB of the worker's memory."""
    orchestrations: int = Field(default=100, ge=1, le=10_000)
    """Largest number of episodes (runs of an orchestrator over new events) at the same time in a worker."""
    buffer: int = Field(default=64, ge=1, le=10_000)
    """Largest number of messages that are prefetched for each partition. It does not limit local answers (answers of
    activities that a worker keeps in memory, without a message); only ``buffer_bytes`` limits them."""
    buffer_bytes: int = Field(default=16 * 1024 * 1024, ge=65_536)
    """Largest size in bytes of the prefetched messages and the local answers in memory, for each partition."""
    session_idle: timedelta = Field(default=timedelta(seconds=30), ge=_ZERO)
    """How long an idle orchestrator stays in memory (DurableTask's ExtendedSessionIdleTimeout). Later only its history
    is kept, and the next episode replays it. 0: it is closed after each episode (ExtendedSessionsEnabled off)."""
    max_polling: timedelta = Field(default=timedelta(seconds=30), gt=_ZERO)
    """Longest pause between two polls of an empty queue (DurableTask's MaxQueuePollingInterval)."""
    request_timeout: timedelta = Field(default=timedelta(seconds=30), gt=_ZERO)
    """Deadline of one storage call."""
    drain_timeout: timedelta = Field(default=timedelta(seconds=30), ge=_ZERO)
    """How long a stopping worker waits until its activities have ended and its partitions are handed over (a duration
    such as PT30S). Activities that still run after this time are given back and run again on another worker. 0: no
    wait."""
    max_result: int = Field(default=MAX_RESULT, ge=1024, le=128 * 1024 * 1024)
    """Largest result of an activity, in bytes of JSON. A larger result fails the activity without a retry, and is kept
    in a file (``kept_results``)."""
    kept_results: Path | None = None
    """The folder in which the workers of a user keep the last 20 results that were larger than ``max_result``, 5 GiB at
    most. The failure names the file. None: the folder ``results`` beside the embedded hub (``~/.taskhub/results``)."""
    kept_generations: int = Field(default=100, ge=0)
    """How many earlier generations of an instance that continues as new keep their activity records, logs and large
    results. Records of older ones are deleted ten minutes after their last change. 0: all generations keep them."""
    no_worker_timeout: timedelta = Field(default=timedelta(minutes=10), gt=_ZERO)
    """An instance fails when it has waited this long for an orchestrator or an activity that no live worker has.
    Airflow can then retry the task that waits for the instance."""
    executor_timeout: timedelta = Field(default=timedelta(minutes=5), gt=_ZERO)
    """How long an activity waits for an executor that does not start, for example because Spark finds no Java. After
    this time the activity fails. Until then, the worker repeats the start."""
    executor_max_activities: int = Field(default=0, ge=0)
    """After this many activities another executor takes the place of an executor, for example because a library loses
    memory. The new one is ready before. 0: executors are not replaced for this reason."""
    executor_max_memory: ByteSize | None = Field(default=None, ge=64 * 1024 * 1024)
    """Another executor takes the place of an executor whose processes have more resident memory than this, such as
    ``4GiB``. For a Spark executor, the memory of Java counts too. The worker looks every 2 s. None: any size."""
    spark_applications: int | None = Field(default=None, ge=1, le=100)
    """Largest number of Spark applications of a worker at the same time. Activities with settings that a running Spark
    cannot take need one of their own, such as ``@app.spark_activity(conf={"spark.jars": "a.jar"})``. If there are more
    such settings, the applications take turns. None: the worker's memory divided by 4 GiB, but at least 1 and at most
    4. If ``spark.driver.memory`` and 1 GiB are more than 4 GiB, the worker divides by that."""
    spark_idle_timeout: timedelta | None = Field(default=None, gt=_ZERO)
    """A Spark executor that has run nothing for this time is ended, and with it its application: memory, or cores of a
    cluster, are free for others. The next Spark activity waits until another one is started. None: it stays warm; one
    with settings that only some activities ask for ends after 10 minutes."""
    memory: int | None = None
    """How much memory a worker has for activities that say what they need (``@app.activity(memory="4g")``): a number
    with k, m, g or t, such as ``16g``. None: the memory of the machine, or less if its container has a limit."""
    pools: str = DEFAULT_POOL
    """The pools of workers to which a worker belongs: names separated by commas. It runs only activities of these pools
    (``@app.activity(pool="heavy")``). Activities without a pool belong to the pool ``default``."""
    withheld: str = ""
    """Environment variables of the worker that activities do not get: names separated by commas, where ``*`` stands for
    any characters (``DB_PASSWORD,AWS_*``). Activities never get TaskHub's own variables or those that open the hub."""
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

    @field_validator("memory", mode="before")
    @classmethod
    def _memory(cls, value: Any) -> int | None:
        return None if value is None else memory_of(value)

    @field_validator("pools")
    @classmethod
    def _pools(cls, value: str) -> str:
        return ",".join(pools_of(value))

    @property
    def pool_names(self) -> tuple[str, ...]:
        """The names of ``pools``."""
        return pools_of(self.pools)

    @property
    def slots(self) -> int:
        """How many activities without Spark run at the same time in a worker."""
        return self.activities or max(LEAST_SLOTS, cores_of_machine())

    @property
    def spark_slots(self) -> int:
        """How many Spark activities run at the same time in a worker."""
        by_memory = max(1, self.worker_memory // SPARK_MEMORY)
        return self.spark_activities or self.activities or min(self.slots, by_memory)

    @property
    def spark_executors(self) -> int:
        """How many Spark applications a worker has at the same time at most."""
        try:
            driver = memory_of(self.spark.conf.get("spark.driver.memory", "1g"))
        except ValueError:  # Spark knows more forms
            driver = 0
        each = max(2 * SPARK_MEMORY, driver + SPARK_MEMORY // 2)
        return self.spark_applications or min(4, max(1, self.worker_memory // each))

    @property
    def worker_memory(self) -> int:
        """How many bytes of memory a worker has for activities that say what they need."""
        return memory_of_machine() if self.memory is None else self.memory

    @property
    def withheld_names(self) -> tuple[str, ...]:
        """The names and patterns of ``withheld``."""
        return tuple(name.strip() for name in self.withheld.split(",") if name.strip())

    @property
    def secret(self) -> str | None:
        """The text of ``connection``, which may contain a secret: never show it. None if ``connection`` is not set."""
        return self.connection.get_secret_value() if self.connection else None

    @property
    def embedded(self) -> bool:
        """Whether the hub lives in an SQLite file."""
        return _embedded(self.connection)

    @property
    def asked_partitions(self) -> int | None:
        """The partition count that the user has set; None if the count is only the default."""
        return self.partitions if "partitions" in self.model_fields_set else None

    @property
    def lease_times(self) -> LeaseTimes:
        """The times of leases: the setting ``lease``, or else the default for the hub's storage."""
        return self.lease or (EMBEDDED_LEASE if self.embedded else AZURE_LEASE)


def _embedded(connection: SecretStr | None) -> bool:
    return connection is None or connection.get_secret_value().startswith("sqlite:")


def load_settings(**arguments: object) -> Settings:
    """Read the settings from arguments, the environment and the file, in this order of precedence.

    :param arguments: settings by name, as in :class:`Settings`; None counts as not given.
    :raises ConfigurationError: if a value is wrong, or a variable or key of the file is no setting. The text names each
        of them, and never has the value of a secret.
    """
    check_environment(os.environ)
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic validates
    except ValidationError as error:
        raise ConfigurationError("; ".join(_describe(item, given) for item in error.errors())) from None
    except SettingsError as error:
        raise ConfigurationError(_not_json(os.environ) or f"environment: {error}: {error.__cause__}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{_file()} is not TOML: {error}") from None


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise an error if the environment has variables with TaskHub's prefix that are no settings.

    :raises ConfigurationError: if there is such a variable. The text names each, with the most similar setting.
    """
    misspelt = unread(environment)
    if misspelt:
        wrong = "; ".join(f"{name}: there is no such setting{_nearest_variable(name)}" for name in misspelt)
        raise ConfigurationError(f"environment: {wrong}. Correct or unset {'it' if len(misspelt) == 1 else 'them'}")


def unread(environment: Mapping[str, str]) -> list[str]:
    """Return the variables with TaskHub's prefix that no code reads, because their names are misspelt."""
    known = {name.upper() for name in Settings.model_fields} | set(_OTHER_VARIABLES)
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
    """Return a hint for an error text: the known name that is most similar to a misspelt name.

    :param name: the misspelt name.
    :param known: all names that are right.
    :param before: a prefix for the name in the hint.
    :returns: the hint; "" if no known name is similar.
    """
    found = near(name, known, 1)
    return f" (did you mean {before}{found[0]}?)" if found else ""


def _nearest_variable(name: str) -> str:
    known = [*(name.replace(".", "__").upper() for name in _names()), *_OTHER_VARIABLES]
    return nearest(name.upper().removeprefix(PREFIX), known, before=PREFIX)


def _names() -> list[str]:
    """Return the names of all settings as in the file; the name of a nested setting has a dot."""
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
"""For each setting that has several values: the hint for an error text."""
_MAY_BE_ZERO = ("drain_timeout", "session_idle")


def _bound(name: str, value: object) -> str:
    """Return a hint for a number that was given for a duration, if the number is 0 or out of range; else ""."""
    try:
        number = float(str(value))
    except ValueError:
        return ""
    if name in _MAY_BE_ZERO:
        return "; it must not be below 0" if number < 0 else ", or PT0S" if number == 0 else ""
    return "; it must be above 0" if number <= 0 else ""


def _not_json(environment: Mapping[str, str]) -> str:
    """Return an error text about variables that must be JSON and are not; "" if there are none.

    The text has no values, because they may be secret. The library's own error does not name the variable.
    """
    found = []
    for name, value in sorted(environment.items()):
        setting = name.upper().removeprefix(PREFIX).lower().replace("__", ".")
        if not name.upper().startswith(PREFIX) or setting not in _PARTS or not value:
            continue
        try:
            json.loads(value)
        except ValueError as error:
            found.append(f"{name} is not JSON ({error}): {_PARTS[setting]}")
    return "; ".join(found)


def _describe(item: Any, arguments: Iterable[str]) -> str:
    """Describe one of pydantic's errors: the setting, its value unless it may be secret, and which values are right."""
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
    # Values of Spark's configuration may be secrets, so only their names are shown.
    shown = isinstance(wrong, str | int | float | timedelta) and path[:1] not in (["connection"], ["spark"])
    value = repr(wrong)
    if isinstance(wrong, timedelta):  # a duration that is out of its bounds
        value, text = f"{wrong.total_seconds():g} s", f"{text}; give a duration such as PT30S"
    elif value in text:
        shown = False
    return f"{name}{f' is {value}' if shown else ''}: {text}{place}"
