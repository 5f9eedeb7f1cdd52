"""Settings: what is said about a wrong one, and about one that nothing reads."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_taskhub import settings
from airflow_provider_taskhub.errors import ConfigurationError
from airflow_provider_taskhub.machine import memory_of_machine
from airflow_provider_taskhub.settings import load_settings, unread

SECRET = "AccountKey=c2VjcmV0"


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASKHUB_HOME", str(tmp_path))
    monkeypatch.delenv("TASKHUB_CONFIG", raising=False)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TASKHUB_PARTITIONS", "abc", "TASKHUB_PARTITIONS is 'abc': Input should be a valid integer"),
        ("TASKHUB_ACTIVITIES", "0", "TASKHUB_ACTIVITIES is '0': Input should be greater than or equal to 1"),
        ("TASKHUB_MAX_POLLING", "30", "TASKHUB_MAX_POLLING is '30': give a duration such as PT30S"),
        ("TASKHUB_LEASE__TAKE", "soon", "TASKHUB_LEASE__TAKE is 'soon': give a duration such as PT30S"),
        ("TASKHUB_LEASE__TAKE", "PT1S", "TASKHUB_LEASE: lease times must be renew < give_up < take"),
        ("TASKHUB_LEASE__TAKE", "0", "TASKHUB_LEASE__TAKE is '0': give a duration such as PT30S; it must be above 0"),
        ("TASKHUB_LEASE__TAKE", "-5", "TASKHUB_LEASE__TAKE is '-5': give a duration such as PT30S; it must be above 0"),
        ("TASKHUB_DRAIN_TIMEOUT", "0", "TASKHUB_DRAIN_TIMEOUT is '0': give a duration such as PT30S, or PT0S"),
        ("TASKHUB_DRAIN_TIMEOUT", "-5", "give a duration such as PT30S; it must not be below 0"),
        ("TASKHUB_LEASE", "abc", "TASKHUB_LEASE is 'abc': it has parts"),
        (
            "TASKHUB_LEASE",
            "PT5S",
            "each a duration such as PT30S: set TASKHUB_LEASE__RENEW, TASKHUB_LEASE__GIVE_UP, TASK",
        ),
        ("TASKHUB_LEASE", "5", "TASKHUB_LEASE is 5: it has parts"),
        ("TASKHUB_LEASE", '{"take": "soon"}', "TASKHUB_LEASE__TAKE is 'soon'"),
        ("TASKHUB_LEASE__TAKES", "PT1S", "TASKHUB_LEASE__TAKES: there is no such setting"),
        ("TASKHUB_POOLS", " , ", "TASKHUB_POOLS is ' , ': give at least one pool of workers, such as heavy,default"),
        (
            "TASKHUB_POOLS",
            "heavy,a b",
            "'a b' cannot name a pool of workers: use 1 to 50 letters, digits, dots",
        ),
        ("TASKHUB_HUB", "9lives", "TASKHUB_HUB: hub name '9lives' cannot name"),
        (
            "TASKHUB_SPARK",
            "local",
            "TASKHUB_SPARK is not JSON (Expecting value: line 1 column 1 (char 0)): it has parts",
        ),
        ("TASKHUB_SPARK", "5", "TASKHUB_SPARK: it has parts: set TASKHUB_SPARK__MASTER and TASKHUB_SPARK__CONF, or "),
        ("TASKHUB_SPARK__CONF", "{no", "TASKHUB_SPARK__CONF is not JSON (Expecting property name"),
        ("TASKHUB_SPARK__CONF", "{no", """give names with values as JSON, such as {"spark.executor.memory": "2g"}"""),
        ("taskhub_spark__conf", "{no", "taskhub_spark__conf is not JSON (Expecting property name"),
        ("TASKHUB_SPARK__CONF", "[1]", "TASKHUB_SPARK__CONF: give names with values as JSON, such as"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(hub=None, partitions=None, activities=None)
    assert says in str(caught.value)


@pytest.mark.parametrize("value", [timedelta(0), timedelta(seconds=-2)])
@pytest.mark.parametrize(
    "name",
    [
        *("lease.renew", "lease.give_up", "lease.take", "lease.scan", "lease.visibility"),
        *("max_polling", "request_timeout", "no_worker_timeout", "drain_timeout", "session_idle", "executor_timeout"),
    ],
)
def test_a_time_that_cannot_be_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: timedelta
) -> None:
    variable = f"TASKHUB_{name.upper().replace('.', '__')}"
    monkeypatch.setenv(variable, f"{'-' if value else ''}PT{abs(value.total_seconds()):g}S")
    if name in ("drain_timeout", "session_idle") and not value:
        assert getattr(load_settings(), name) == value, "0 has a meaning"
        return
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert f"{variable} is {value.total_seconds():g} s: Input should be greater than" in str(caught.value)
    assert "give a duration such as PT30S" in str(caught.value)


@pytest.mark.rows("D17")
@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["orchestrations", "activities", "spark_activities"])
def test_a_worker_that_does_nothing_at_once_is_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is {value}: Input should be greater than or equal to 1"):
        load_settings(**{name: value})


@pytest.mark.parametrize(
    ("cores", "given", "slots"),
    [
        (2, {"memory": "64g"}, (4, 4)),
        (16, {"memory": "64g"}, (16, 16)),
        (16, {"memory": "9g"}, (16, 4)),
        (2, {"memory": "1g"}, (4, 1)),
        (16, {"memory": "9g", "activities": 12}, (12, 12)),
        (16, {"memory": "9g", "spark_activities": 7}, (16, 7)),
    ],
)
def test_slots_come_from_the_cores_and_the_memory_unless_they_are_given(
    monkeypatch: pytest.MonkeyPatch, cores: int, given: dict[str, Any], slots: tuple[int, int]
) -> None:
    monkeypatch.setattr(settings, "cores_of_machine", lambda: cores)
    found = load_settings(**given)
    assert (found.slots, found.spark_slots) == slots


@pytest.mark.parametrize("value", ["0g", "-1g", "16", "much", "2000t"])
def test_memory_is_an_amount(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert load_settings().worker_memory == memory_of_machine()
    monkeypatch.setenv("TASKHUB_MEMORY", "16G")
    assert load_settings().worker_memory == 16 * 1024**3
    assert load_settings(memory="1t").worker_memory == 1024**4
    monkeypatch.setenv("TASKHUB_MEMORY", value)
    with pytest.raises(ConfigurationError, match=f"TASKHUB_MEMORY is '{value}': give a number with k, m, g or t"):
        load_settings()


def test_a_message_cannot_be_hidden_for_longer_than_azure_hides_it() -> None:
    with pytest.raises(ConfigurationError, match=r"lease\.visibility is 604801 s: .* less than or equal to 7 days"):
        load_settings(lease={"visibility": timedelta(days=7, seconds=1)})


@pytest.mark.parametrize(
    ("connection", "seconds"),
    [(None, (1, 2, 4, 1.5)), ("sqlite:///x.db", (1, 2, 4, 1.5)), ("UseDevelopmentStorage=true", (10, 20, 30, 1.5))],
)
def test_lease_times_that_are_not_given_are_those_of_the_store(
    monkeypatch: pytest.MonkeyPatch, connection: str | None, seconds: tuple[float, ...]
) -> None:
    """One given brought Azure's others to an embedded hub, whose workers then took partitions from this one."""
    monkeypatch.setenv("TASKHUB_LEASE__SCAN", "PT1.5S")
    times = load_settings(connection=connection).lease_times
    assert tuple(span.total_seconds() for span in (times.renew, times.give_up, times.take, times.scan)) == seconds


def test_a_wrong_value_of_the_file_or_of_an_argument_is_named_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^partitions is 0: Input should be greater"):
        load_settings(partitions=0)
    (tmp_path / "config.toml").write_text("[lease]\ntake = 'soon'\n")
    with pytest.raises(ConfigurationError, match=r"^lease\.take is 'soon': .*config\.toml"):
        load_settings()
    (tmp_path / "config.toml").write_text("partitions 3\n")
    with pytest.raises(ConfigurationError, match=r"config\.toml"):
        load_settings()


@pytest.mark.parametrize(
    "file",
    [
        f"conection = '{SECRET}'",
        f"[connection]\nkey = '{SECRET}'",
        f"[spark.conf]\nkey = ['{SECRET}']",
        f"[spark]\nkey = '{SECRET}'",
        f"spark = '{SECRET}'",
    ],
)
def test_no_error_tells_a_secret(tmp_path: Path, file: str) -> None:
    (tmp_path / "config.toml").write_text(file)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["TASKHUB_SPARK", "TASKHUB_SPARK__CONF"])
def test_no_error_tells_a_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, f'{{"spark.key": "{SECRET}"')
    with pytest.raises(ConfigurationError, match=f"{name} is not JSON") as caught:
        load_settings()
    assert SECRET not in str(caught.value)


def test_variables_that_nothing_reads() -> None:
    read = ("HUB", "CONNECTION", "HOME", "CONFIG", "LEASE", "LEASE__TAKE", "SPARK__CONF", "MAX_POLLING", "DEMO_RUN")
    assert unread({f"TASKHUB_{name}": "1" for name in read} | {"taskhub_hub": "x", "HUB": "x"}) == []
    kubernetes = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_80_TCP", "PORT_80_TCP_ADDR")
    injected = {f"TASKHUB_{name}": "10.0.0.1" for name in kubernetes} | {"TASKHUB_WORKER_SERVICE_HOST": "10.0.0.1"}
    assert unread(injected | {"TASKHUB_PORT": "tcp://10.0.0.1:80"}) == []
    assert unread({"TASKHUB_PORT": "8080", "TASKHUB_HEALTH_PORT": "80"}) == ["TASKHUB_HEALTH_PORT", "TASKHUB_PORT"]
    bogus = {"TASKHUB_BOGUS": "1", "TASKHUB_CONNECTION_STRING": SECRET, "TASKHUB_HUB__X": "1"}
    assert unread(bogus) == sorted(bogus)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("TASKHUB_LEASE_TAKE", "TASKHUB_LEASE_TAKE: there is no such setting (did you mean TASKHUB_LEASE__TAKE?)"),
        ("TASKHUB_PARTITION", "(did you mean TASKHUB_PARTITIONS?)"),
        ("taskhub_partition", "taskhub_partition: there is no such setting (did you mean TASKHUB_PARTITIONS?)"),
        ("TASKHUB_CONNECTION_STRING", "(did you mean TASKHUB_CONNECTION?)"),
        ("TASKHUB_LEASE__TAKES", "TASKHUB_LEASE__TAKES: there is no such setting (did you mean TASKHUB_LEASE__TAKE?)"),
        ("TASKHUB_XYZZY", "TASKHUB_XYZZY: there is no such setting. Correct or unset it"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setenv(name, SECRET)
    with pytest.raises(ConfigurationError) as caught:
        load_settings(hub="Flights")
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("partition = 3", "partition: there is no such setting (did you mean partitions?)"),
        ("[lease]\ntakes = 'PT1S'", "lease.takes: there is no such setting (did you mean lease.take?)"),
        ("xyzzy = 3", "xyzzy: there is no such setting (in "),
    ],
)
def test_a_misspelt_key_of_the_file_is_refused_with_the_nearest_name(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "config.toml").write_text(line)
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert says in str(caught.value)
    assert "config.toml" in str(caught.value)


def test_the_secret_is_the_text_of_the_connection_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TASKHUB_CONNECTION", raising=False)
    assert load_settings().secret is None
    settings = load_settings(connection=SECRET)
    assert settings.secret == SECRET
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.model_dump())):
        assert SECRET not in shown
