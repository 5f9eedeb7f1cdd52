"""Which parts of growing logs are read, and which lines they become: bounded, whole characters, nothing twice."""

from __future__ import annotations

import pytest

from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.hub.formats.keys import log_name
from airflow_provider_taskhub.hub.log_hints import LogHint
from airflow_provider_taskhub.triggers.attempt_output import (
    AT_ONCE,
    LEAST,
    LONGEST_LINE,
    MOST_LINES,
    REMEMBERED,
    TaskOutput,
)

TITLE = "load #0, attempt 1"
WHOLE = "the whole log: taskhub instances logs i --activity load"


class Logs:
    """The logs of one instance, and what a reader does with them."""

    def __init__(self, most: int = 16 * 1024) -> None:
        self.output = TaskOutput("i", most=most)
        self.texts: dict[str, bytes] = {}
        self.hints: dict[str, LogHint] = {}
        self.read_bytes = 0
        self.reads = 0
        self._reading = 0

    def write(self, data: bytes | str, *, task_id: int = 0, attempt: int = 1, execution: str = "e") -> None:
        name = log_name(OrchestrationInstance(instance_id="i", execution_id=execution), task_id, attempt)
        self.texts[name] = self.texts.get(name, b"") + (data if isinstance(data, bytes) else data.encode())
        self.announce(name, len(self.texts[name]))

    def announce(self, name: str, size: int) -> None:
        self.hints[name] = LogHint(instance_id="i", log=name, activity="load", size=size)

    def read(self, *, ended: bool = False) -> list[str]:
        """One reading, and the lines of it."""
        self._reading += 1
        self.output.hinted(self.hints.values())
        for part in self.output.parts(self._reading):
            self.reads += 1
            data = self.texts.get(part.log)
            data = None if data is None else data[part.offset : part.offset + part.length]
            self.read_bytes += len(data or b"")
            self.output.read(part, data)
        return self.output.take(ended=ended)


def lines(*texts: str, title: str = TITLE) -> list[str]:
    return [f"{title} | {text}" for text in texts]


def test_each_line_comes_once_with_its_activity_and_attempt() -> None:
    logs = Logs()
    logs.write("one\ntwo\n")
    assert logs.read() == lines("one", "two")
    assert logs.read() == []
    logs.write("three\n")
    assert logs.read() == lines("three")
    assert logs.read_bytes == len("one\ntwo\nthree\n")


def test_a_log_that_does_not_grow_is_not_read() -> None:
    logs = Logs()
    logs.write("one\n")
    for _ in range(10):
        logs.read()
    assert logs.reads == 1


@pytest.mark.parametrize("cut", range(1, len("zwölf €🦆\nx\n".encode())))
def test_a_character_that_is_cut_by_the_end_of_a_part_is_whole_in_the_log(cut: int) -> None:
    data = "zwölf €🦆\nx\n".encode()
    logs = Logs()
    logs.write(data[:cut])
    first = logs.read()
    logs.write(data[cut:])
    assert first + logs.read() == lines("zwölf €🦆", "x")


def test_bytes_that_are_no_text_are_shown_as_far_as_they_are() -> None:
    logs = Logs()
    logs.write(b"a\xffb\n")
    assert logs.read() == lines("a\ufffdb")


def test_of_more_than_the_bound_the_newest_lines_are_shown_and_the_rest_is_said() -> None:
    logs = Logs(most=2048)
    logs.write("".join(f"{number:019}\n" for number in range(1_000)))
    head, *shown = logs.read()
    assert shown == lines(*(f"{number:019}" for number in range(898, 1_000)))
    assert head == f"{TITLE}: … {898 * 20} bytes left out; {WHOLE}"
    assert logs.read_bytes == 2048
    logs.write("next\n")
    assert logs.read() == lines("next")


def test_of_too_many_lines_the_newest_are_shown_and_the_others_counted() -> None:
    logs = Logs(most=1 << 20)
    logs.write("".join(f"{number}\n" for number in range(MOST_LINES + 7)))
    head, *shown = logs.read()
    assert head == f"{TITLE}: … 7 lines left out; {WHOLE}"
    assert shown == lines(*map(str, range(7, MOST_LINES + 7)))
    for task_id in range(2):
        logs.write("x\n" * MOST_LINES, task_id=task_id)
    assert sum(" | x" in line for line in logs.read()) == MOST_LINES, "two logs share the bound"


def test_a_long_line_whose_beginning_is_left_out_begins_with_a_whole_character() -> None:
    logs = Logs(most=LEAST)
    logs.write("ä" * 1_000 + "x")  # 2,001 bytes: the last 1,024 begin in the middle of a character
    assert logs.read() == [f"{TITLE}: … {2_001 - LEAST + 1} bytes left out; {WHOLE}"]
    assert logs.read(ended=True) == lines("ä" * 511 + "x")


def test_the_unfinished_line_before_bytes_that_are_left_out_is_not_lost() -> None:
    logs = Logs(most=LEAST)
    logs.write("begin")
    assert logs.read() == []
    logs.write(" of a line\n" + "x" * 2_000 + "\nend\n")
    first, said, last = logs.read()
    assert first == lines("begin")[0]
    assert "bytes left out" in said
    assert last == lines("end")[0]


def test_the_bytes_that_are_shown_and_left_out_are_all_bytes() -> None:
    logs = Logs(most=LEAST)
    logs.write("x" * 99 + "\n")
    logs.write(("y" * 99 + "\n") * 100)
    said, *shown = logs.read()
    left_out = int(said.split("… ")[1].split(" ")[0])
    assert left_out + len(shown) * 100 == 101 * 100


def test_an_unfinished_line_is_shown_when_the_log_stays_as_it_is() -> None:
    logs = Logs()
    logs.write("Loading …")
    assert [logs.read(), logs.read(), logs.read(), logs.read()] == [[], [], lines("Loading …"), []]
    logs.write(" done\n")
    assert logs.read() == lines(" done")


def test_an_unfinished_line_is_shown_when_the_instance_ends() -> None:
    logs = Logs()
    logs.write("no line break")
    assert logs.read(ended=True) == lines("no line break")


def test_what_was_never_read_is_said_when_the_instance_ends() -> None:
    logs = Logs()
    logs.write("one\n")
    logs.output.hinted(logs.hints.values())
    assert logs.output.take(ended=True) == [f"{TITLE}: … 4 bytes left out; {WHOLE}"]


def test_a_line_without_end_is_cut() -> None:
    logs = Logs()
    logs.write("x" * (2 * LONGEST_LINE + 5))
    assert logs.read() == lines("x" * LONGEST_LINE, "x" * LONGEST_LINE)
    assert logs.read(ended=True) == lines("xxxxx")
    logs.write("y" * (LONGEST_LINE + 1) + "\n", attempt=2)
    assert logs.read()[-2:] == lines("y" * LONGEST_LINE, "y", title="load #0, attempt 2")


def test_of_a_progress_bar_the_newest_state_is_shown() -> None:
    logs = Logs()
    logs.write("10 %\r20 %\r")
    assert logs.read() == []
    logs.write("30 %\r40 %\r")
    assert [logs.read(), logs.read(), logs.read()] == [[], [], lines("40 %")]
    logs.write("50 %\r100 %\r\nnext\r\n")
    assert logs.read() == lines("100 %", "next")


def test_a_new_attempt_begins_at_its_first_byte_and_is_named() -> None:
    logs = Logs()
    logs.write("one\ntwo\n")
    logs.read()
    logs.write("one\n", attempt=2)
    assert logs.read() == lines("one", title="load #0, attempt 2")


def test_the_same_numbers_in_a_new_generation_are_another_log() -> None:
    logs = Logs()
    logs.write("one\ntwo\n", execution="e:1")
    logs.read()
    logs.write("one\n", execution="e:2")
    assert logs.read() == lines("one")


def test_a_log_that_begins_again_is_read_from_its_first_byte_and_that_is_said() -> None:
    logs = Logs()
    logs.write("one\ntwo\nthree")
    logs.read()
    logs.texts.clear()
    logs.write("one\n")
    assert logs.read() == [*lines("three"), f"{TITLE}: its log was deleted and begins again"]
    assert logs.read() == lines("one")


def test_a_log_that_was_deleted_is_said_once_and_not_asked_for_again() -> None:
    logs = Logs()
    logs.write("one\n")
    logs.texts.clear()
    assert [logs.read(), logs.read(), logs.read()] == [[f"{TITLE}: its log is not in the hub any more"], [], []]
    assert logs.reads == 1


def test_a_log_that_is_shorter_than_its_hint_is_not_read_again_and_again() -> None:
    logs = Logs()
    logs.write("one\n")
    (name,) = logs.texts
    logs.announce(name, 1_000)
    assert [logs.read(), logs.read(), logs.read()] == [lines("one"), [], []]
    assert logs.reads == 1


def test_several_logs_share_the_bound_and_each_gets_a_little() -> None:
    logs = Logs(most=8 * 1024)
    for task_id in range(4):
        logs.write(("x" * 99 + "\n") * 1_000, task_id=task_id)
    logs.read()
    assert (logs.reads, logs.read_bytes) == (4, 8 * 1024)
    logs = Logs(most=8 * 1024)
    for task_id in range(100):
        logs.write(("x" * 99 + "\n") * 1_000, task_id=task_id)
    logs.read()
    assert (logs.reads, logs.read_bytes) == (AT_ONCE, AT_ONCE * LEAST)


def test_logs_take_turns() -> None:
    logs = Logs()
    count = AT_ONCE * 3
    seen: set[str] = set()
    for _ in range(3):
        for task_id in range(count):
            logs.write("x\n", task_id=task_id)
        seen.update(logs.read())
    assert len(seen) == count


def test_nothing_is_read_while_lines_wait_to_be_taken() -> None:
    logs = Logs()
    logs.write("one\n")
    logs.output.failed(RuntimeError("no"))
    logs.output.hinted(logs.hints.values())
    assert logs.output.parts(1) == []
    assert logs.output.take(ended=False) == [
        "the output of running activities cannot be read now, trying again: RuntimeError: no"
    ]
    assert logs.read() == lines("one")


def test_the_same_error_in_a_row_is_said_once() -> None:
    logs = Logs()
    for _ in range(5):
        logs.output.failed(RuntimeError("no"))
    assert len(logs.output.take(ended=False)) == 1
    logs.write("one\n")
    logs.read()
    logs.output.failed(RuntimeError("no"))
    assert len(logs.output.take(ended=False)) == 1


def test_only_so_many_logs_are_remembered() -> None:
    logs = Logs()
    for task_id in range(REMEMBERED):
        logs.write("x\n", task_id=task_id)
    for _ in range(REMEMBERED // AT_ONCE):
        logs.read()
    assert logs.reads == REMEMBERED
    logs.write("x\n", task_id=REMEMBERED)
    assert logs.read() == [f"more than {REMEMBERED} activities write output at the same time: some of it is left out"]
    first = next(iter(logs.hints))
    del logs.hints[first]  # a quiet log makes room for a new one
    assert logs.read() == lines("x", title=f"load #{REMEMBERED}, attempt 1")


def test_the_command_for_the_whole_log_can_be_pasted() -> None:
    output = TaskOutput("a b;c", most=10)
    name = log_name(OrchestrationInstance(instance_id="a b;c", execution_id="e"), 0, 1)
    output.hinted([LogHint(instance_id="a b;c", log=name, activity="it's", size=5)])
    (line,) = output.take(ended=True)
    assert line.endswith("""taskhub instances logs 'a b;c' --activity 'it'"'"'s'""")
