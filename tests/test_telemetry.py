"""What logs say: secrets are masked and nothing else is; an outage is a line a minute."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from airflow_provider_taskhub.masking import masked, masked_json
from airflow_provider_taskhub.telemetry import Outage, _mask


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("AccountName=a;AccountKey=c2VjcmV0+/==;Endpoint=x", "AccountName=a;AccountKey=***;Endpoint=x"),
        ("SharedAccessSignature=sv=2020&sig=abc", "SharedAccessSignature=***&sig=***"),
        ("GET https://a/b?sv=1&sig=ab%2Bc%3D&se=2", "GET https://a/b?sv=1&sig=***&se=2"),
        ("GET https://b.s3/k?X-Amz-Signature=ab12&x=1", "GET https://b.s3/k?X-Amz-Signature=***&x=1"),
        ("password=hunter2, user=me", "password=***, user=me"),
        ("{'password': 'two words', 'user': 'me'}", "{'password': ***, 'user': 'me'}"),
        ('{"db_password": "a\\"b", "n": 1}', '{"db_password": ***, "n": 1}'),
        ("client_secret: abc", "client_secret: ***"),
        ("connection_string='AccountName=a;AccountKey=b' x", "connection_string=*** x"),
        ("Authorization: SharedKey acct:abc+/=", "Authorization: SharedKey acct:***"),
        ("Authorization: Bearer eyJ.a-b", "Authorization: Bearer ***"),
        ("postgres://me:hunter2@db/x", "postgres://me:***@db/x"),
        ("postgres://me:p@ss@db/x", "postgres://me:***@db/x"),
        ('{"url":"http://a:80","mail":"x@y"}', '{"url":"http://a:80","mail":"x@y"}'),
        ("token=abc, api_key: abc, db_pwd=abc", "token=***, api_key: ***, db_pwd=***"),
        ("passphrase='a b'", "passphrase=***"),
        ("Authorization: Basic dXNlcjpw", "Authorization: Basic ***"),
        (r'{"body": "{\"password\": \"a b\", \"n\": 1}"}', r'{"body": "{\"password\": ***, \"n\": 1}"}'),
        ("{'token': 'abc'}", "{'token': ***}"),
        ("the lease has 7 tokens: two; unexpected token: x", "the lease has 7 tokens: two; unexpected token: x"),
        ("the password is wrong: ask for another", "the password is wrong: ask for another"),
        ("https://host:8080/path is not there", "https://host:8080/path is not there"),
        ("nothing secret here", "nothing secret here"),
    ],
)
def test_the_value_of_a_secret_is_masked_and_what_is_said_of_it_stays(text: str, said: str) -> None:
    assert masked(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"year": 1, "password": {"value": "x"}}', '{"year": 1, "password": "***"}'),
        ('[{"API_KEY": ["a", "b"]}, "password=x"]', '[{"API_KEY": "***"}, "password=***"]'),
        ('{"body": "{\\"token\\": \\"a\\"}"}', '{"body": "{\\"token\\": \\"***\\"}"}'),
        ('{"year":1, "password": ""}', '{"year":1, "password": ""}'),
        ("password=x", "password=***"),
        ("7", "7"),
    ],
)
def test_in_json_all_that_stands_under_the_name_of_a_secret_is_masked(text: str, said: str) -> None:
    assert masked_json(text) == said


def test_a_traceback_that_speaks_of_a_password_stays() -> None:
    trace = """Traceback (most recent call last):
  File "app.py", line 3, in connect
    return open_database(user, password=config.password)
ValueError: the password of user 'me' has expired, password='hunter2'"""
    said = _mask(None, "error", {"event": "activity_failed", "exception": trace})["exception"]
    assert "hunter2" not in said
    assert said.startswith('Traceback (most recent call last):\n  File "app.py", line 3, in connect')
    assert "the password of user 'me' has expired" in said


def test_a_field_that_is_a_secret_by_its_name_is_masked_whole() -> None:
    event = {"event": "secret_rotated", "account_key": "abc", "password": "two words", "hub": "Main"}
    assert _mask(None, "info", event) == {
        "event": "secret_rotated",
        "account_key": "***",
        "password": "***",
        "hub": "Main",
    }


def test_an_outage_is_said_at_once_then_once_a_minute_and_at_its_end() -> None:
    now = 0.0
    with capture_logs() as logs:
        outage = Outage(structlog.get_logger().bind(queue="q"), "receive_failed", lambda: now)
        outage.over()
        for second in range(150):
            now = float(second)
            outage.failed(OSError("no answer"))
        outage.over()
        outage.over()
        outage.failed(OSError("once"))
        outage.over()
    assert [(entry["event"], entry.get("seconds")) for entry in logs] == [
        ("receive_failed", None),
        ("receive_failed", 60),
        ("receive_failed", 120),
        ("works_again", 149),
        ("receive_failed", None),
    ]
    assert {entry["queue"] for entry in logs} == {"q"}
