"""Names made from values: identities of actions, execution ids of later generations, replay-safe GUIDs.

Everything here is a pure function, so that an episode which is run again after a crash decides the very same names.
The page docs/decisions/identity-of-actions.md says why. Nothing here is random, and nothing may become so.
"""

from __future__ import annotations

import json
from hashlib import sha256
from uuid import UUID, uuid5

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import InputError

NAMESPACE = UUID("9e952958-5e33-4daf-827f-2fa12937b875")
"""DurableTask's own namespace for replay-safe GUIDs."""
HALF = 16
"""Hex digits of an execution id that all generations of one start share."""
MAX_INSTANCE_ID = 256
_LATER = "00000000"


def action_id(
    instance: OrchestrationInstance,
    number: int,
    kind: str,
    name: str,
    *,
    version: str | None = "",
    input: str | None = None,
    rewinds: int = 0,
) -> str:
    """The identity of an action: the same decision has the same one, another decision another one.

    :param number: the action's number. :param kind: what it is, e.g. ``activity``.
    :param input: JSON text; enters by its SHA-256. :param rewinds: rewinds of the instance so far.
    :returns: a UUIDv5 in its usual text form.
    """
    digest = None if input is None else sha256(input.encode("utf-8", "surrogatepass")).hexdigest()
    parts = [instance.instance_id, instance.execution_id, number, kind, name, version or "", digest, rewinds]
    return str(uuid5(NAMESPACE, json.dumps(parts)))


def child_execution_id(action: str) -> str:
    """Execution id of a child orchestration: its action's identity, in the form of execution ids (32 hex)."""
    return UUID(action).hex


def next_execution_id(execution_id: str) -> str:
    """Execution id of the generation after ``execution_id``; a re-run gives the same.

    The first half stays, so that a duplicate of the first start is known after any number of generations; the second
    counts, so that of two generations the newer is known.
    """
    return f"{execution_id[:HALF]:0<{HALF}}{_LATER}{generation_of(execution_id) + 1:08x}"


def generation_of(execution_id: str) -> int:
    """How many times the start behind this execution id has continued as new; 0 for ids that others made."""
    return int(execution_id[24:], 16) if len(execution_id) == 32 and execution_id[16:24] == _LATER else 0


def run_name(execution_id: str) -> str:
    """What the execution ids of all generations of one start have in common: it names the run."""
    return execution_id.replace("-", "")[:HALF].lower()


def same_start(one: str | None, other: str | None) -> bool:
    """Whether two execution ids (or identities) are generations of one start."""
    return one is not None and other is not None and run_name(one) == run_name(other)


def guid(instance: OrchestrationInstance, time: Timestamp, count: int) -> UUID:
    """A GUID for user code, made as DurableTask makes them, the generation included."""
    return uuid5(NAMESPACE, json.dumps([instance.instance_id, instance.execution_id, time.text(trim=False), count]))


def check_instance_id(instance_id: str) -> str:
    """An id that can name a child or be the target of an event.

    :raises InputError: empty, not a string, longer than 256 UTF-16 units once escaped, or with unpaired surrogates.
    """
    if not isinstance(instance_id, str) or not instance_id:
        raise InputError(f"instance id {instance_id!r}: give a text of 1 to {MAX_INSTANCE_ID} characters")
    try:
        units = len(instance_id.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        raise InputError(
            f"instance id {instance_id!r} contains an unpaired surrogate, which no key can store"
        ) from None
    units += sum(1 for c in instance_id if c in "^/\\#?" or ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F)
    if units > MAX_INSTANCE_ID:
        raise InputError(
            f"instance id {instance_id[:40]!r}… is {units} characters once escaped: at most {MAX_INSTANCE_ID}"
        )
    return instance_id


def check_new_instance_id(instance_id: str) -> str:
    """An id for an instance that is to be made. One that is there already, of another client, goes by the wider rule.

    :raises InputError: as :func:`check_instance_id`, or with U+FFFE or U+FFFF: XML knows neither, so a store could not
        list the instance's blobs, nor could it ever be purged.
    """
    for char in "\ufffe\uffff":
        if char in check_instance_id(instance_id):
            raise InputError(f"instance id {instance_id!r} holds U+{ord(char):X}, which a list of blobs cannot show")
    return instance_id
