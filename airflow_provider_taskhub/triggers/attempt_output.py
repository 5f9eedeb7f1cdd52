"""Turns what the running attempts of an instance write into lines for the log of the task that waits for it.

A reader (:mod:`.output_reader`) finds out how far the logs have grown and reads the parts that this module asks for.
This module decides which parts, bounds them, and makes lines of them. No I/O.
"""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_taskhub.hub.formats.keys import parts_of_log

if TYPE_CHECKING:
    from airflow_provider_taskhub.hub.log_hints import LogHint

AT_ONCE = 16
"""The largest number of logs of one task that one reading reads."""
LEAST = 1024
"""The smallest number of bytes that one reading reads of a log, if the log has grown so far."""
MOST_LINES = 200
"""About how many lines one reading adds for one task at most. Each log gets an equal share, but at least ten lines."""
REMEMBERED = 256
"""The largest number of logs of one task whose offsets are remembered. An instance can run many attempts."""
LONGEST_LINE = 4000
"""Characters of the longest line. A longer line is shown as several lines."""
PATIENCE = 2
"""Readings without growth after which the unfinished last line of a log is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a log that the reader should read.

    :param log: name of the log.
    :param offset: number of the first byte.
    :param length: number of bytes.
    :param left_out: number of bytes before ``offset`` that are not shown, because there are too many.
    :param lines: the largest number of lines to show: the newest ones.
    """

    log: str
    offset: int
    length: int
    left_out: int = 0
    lines: int = MOST_LINES


class AttemptOutput:
    """What was read of the log of one attempt.

    :param title: names the attempt; it stands before each line.
    :param whole: says where the whole log is.
    """

    def __init__(self, title: str, whole: str) -> None:
        self.title, self._whole = title, whole
        self.size = 0
        self.offset = 0
        self.read_last = 0
        self._hinted = 0
        self._idle = 0
        self._unfinished = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def grown(self, size: int) -> Iterator[str]:
        """Note the newest size of the log. Yield a line if the log has become smaller, so that it is read anew.

        An unchanged size is ignored: if the log was found to be shorter, it must not be read again and again.
        """
        if size == self._hinted:
            return
        if size < self._hinted:
            yield from self.rest()
            yield f"{self.title}: its log was deleted and begins again"
            self.offset, self._idle = 0, 0
            self._decoder.reset()
        self.size = self._hinted = size

    def part(self, name: str, most: int, lines: int) -> Part | None:
        """Return the next part to read: the newest bytes, if there are more than ``most``. None: nothing is new."""
        new = self.size - self.offset
        if new <= 0:
            return None
        left_out = max(0, new - most)
        return Part(log=name, offset=self.offset + left_out, length=new - left_out, left_out=left_out, lines=lines)

    def lines(self, part: Part, data: bytes | None) -> Iterator[str]:
        """Yield the lines of a part that was read.

        :param data: the bytes; None: the log does not exist any more.
        """
        self._idle = 0
        if data is None:
            self.offset = self.size
            yield from self.rest()
            yield f"{self.title}: its log is not in the hub any more"
            return
        self.offset = part.offset + len(data)
        if len(data) < part.length:
            self.size = self.offset  # the log is shorter than its worker has said: it was deleted meanwhile
        if part.left_out:
            yield from self.rest()
            data, dropped = _from_next_line(data)
            self._decoder.reset()
            yield f"{self.title}: … {part.left_out + dropped} bytes left out; {self._whole}"
        *finished, last = (self._unfinished + self._decoder.decode(data)).split("\n")
        if (too_many := len(finished) - part.lines) > 0:
            yield f"{self.title}: … {too_many} lines left out; {self._whole}"
        for line in finished[-part.lines :]:
            yield from self._shown(line)
        last = _overwritten(last)
        whole = len(last) - len(last) % LONGEST_LINE
        yield from self._shown(last[:whole])
        self._unfinished = last[whole:]

    def idle(self) -> Iterator[str]:
        """Note a reading without growth. Yield the unfinished line when the log has not grown for some readings."""
        self._idle += 1
        if self._idle >= PATIENCE:
            yield from self.rest()

    def rest(self) -> Iterator[str]:
        """Yield the unfinished last line, if there is one."""
        unfinished, self._unfinished = self._unfinished, ""
        yield from self._shown(unfinished)

    def missing(self) -> Iterator[str]:
        """Yield what is left when the wait ends: the unfinished line, and how many bytes were never read."""
        yield from self.rest()
        if self.size > self.offset:
            yield f"{self.title}: … {self.size - self.offset} bytes left out; {self._whole}"

    def _shown(self, line: str) -> Iterator[str]:
        text = _overwritten(line).rstrip("\r")
        for start in range(0, len(text), LONGEST_LINE):
            yield f"{self.title} | {text[start : start + LONGEST_LINE]}"


class TaskOutput:
    """The lines that the running attempts of one instance add to the log of the task that waits for it.

    :param instance_id: id of the instance.
    :param most: bytes that one reading reads at most, of all logs of the instance together. With many growing logs it
        can be more: each of them gets :data:`LEAST`.
    :ivar lines: the lines that :meth:`take` has not returned yet.
    """

    def __init__(self, instance_id: str, *, most: int) -> None:
        self._instance_id, self._most = instance_id, most
        self._logs: dict[str, AttemptOutput] = {}
        self._readings = 0
        self._trouble = ""
        self._crowded = False
        self.lines: list[str] = []

    @property
    def read_last(self) -> int:
        """The number of the last reading that read a part, to let the tasks take turns."""
        return max((log.read_last for log in self._logs.values()), default=0)

    def hinted(self, hints: Iterable[LogHint]) -> None:
        """Note how far the logs of the instance have grown. :param hints: the instance's log hints."""
        found = {hint.log: hint for hint in hints}
        past = [name for name in self._logs if name not in found]
        for name, hint in found.items():
            if name not in self._logs and len(self._logs) >= REMEMBERED:
                if not past:
                    self._say_crowded()
                    continue
                self.lines += self._logs.pop(past.pop(0)).missing()
            if name not in self._logs:
                self._logs[name] = AttemptOutput(_title(hint), self._whole(hint))
            self.lines += self._logs[name].grown(hint.size)

    def _say_crowded(self) -> None:
        if not self._crowded:
            self._crowded = True
            self.lines.append(
                f"more than {REMEMBERED} activities write output at the same time: some of it is left out"
            )

    def parts(self, reading: int) -> list[Part]:
        """Return which parts to read now: at most :data:`AT_ONCE`, the longest unread logs first.

        Nothing is read before :meth:`take` has returned the lines of the last reading. That bounds the lines in memory.

        :param reading: the number of this reading.
        """
        if self.lines:
            return []
        behind = []
        for name, log in self._logs.items():
            if log.size > log.offset:
                behind.append(name)
            else:
                self.lines += log.idle()
        behind = sorted(behind, key=lambda name: self._logs[name].read_last)[:AT_ONCE]
        self._readings = reading
        share, lines = max(LEAST, self._most // (len(behind) or 1)), max(10, MOST_LINES // (len(behind) or 1))
        return [part for name in behind if (part := self._logs[name].part(name, share, lines)) is not None]

    def read(self, part: Part, data: bytes | None) -> None:
        """Add the lines of a part that was read. :param data: the bytes; None: the log does not exist any more."""
        log = self._logs[part.log]
        log.read_last = self._readings
        self.lines += log.lines(part, data)
        self._trouble = ""

    def failed(self, error: Exception) -> None:
        """Add a line about a reading that failed. The same error in a row is said once."""
        text = f"{type(error).__name__}: {error}"
        if text != self._trouble:
            self._trouble = text
            self.lines.append(f"the output of running activities cannot be read now, trying again: {text}")

    def take(self, *, ended: bool) -> list[str]:
        """Return the new lines, and forget them.

        :param ended: True: the instance has ended, so return also unfinished lines, and what was left out.
        """
        if ended:
            for log in self._logs.values():
                self.lines += log.missing()
            self._logs.clear()
        lines, self.lines = self.lines, []
        return lines

    def _whole(self, hint: LogHint) -> str:
        command = ["taskhub", "instances", "logs", self._instance_id, "--activity", hint.activity]
        return f"the whole log: {shlex.join(command)}"


def _title(hint: LogHint) -> str:
    _, task_id, attempt = parts_of_log(hint.log)
    return f"{hint.activity} #{task_id}, attempt {attempt}"


def _from_next_line(data: bytes) -> tuple[bytes, int]:
    """Drop the first line, which may have lost its beginning. Return the rest, and how many bytes were dropped.

    If the rest would be empty, only the bytes of a character that has lost its beginning are dropped.
    """
    begin = data.find(b"\n") + 1
    if not 0 < begin < len(data):
        begin = 0
        while begin < min(3, len(data)) and data[begin] & 0xC0 == 0x80:
            begin += 1
    return data[begin:], begin


def _overwritten(line: str) -> str:
    """Return what a terminal would show of a line: a carriage return (progress bars) overwrites what stands before."""
    text = line.rstrip("\r")
    return text[text.rfind("\r") + 1 :] + line[len(text) :]
