"""Computes ids: identities of actions, execution ids after ``continue_as_new``, replay-safe GUIDs.

All functions are pure, because an episode that runs again after a crash must compute the same ids. No function may use
random values or a clock. The page docs/decisions/identity-of-actions.md has the reasons.
"""

from __future__ import annotations

import json
from hashlib import sha256
from uuid import UUID, uuid5

from airflow_provider_taskhub.codec import Timestamp
from airflow_provider_taskhub.engine.events import OrchestrationInstance
from airflow_provider_taskhub.errors import InputError

NAMESPACE = UUID("9e952958-5e33-4daf-827f-2fa12937b875")
"""The UUID namespace that DurableTask uses for replay-safe GUIDs."""
HALF = 16
"""Number of hex digits at the start of an execution id that stay the same at ``continue_as_new``. They name the run:
one start of an instance with all that follows."""
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
    """Return the identity of an action. A replay of a decision gives the same identity; no other decision has it.

    :param instance: the instance that made the decision, with its execution id at that time.
    :param number: number of the action; ``continue_as_new`` begins again with 0.
    :param kind: role of the action, e.g. ``activity``.
    :param name: name of the activity, the child's orchestrator or the event; "" for a timer.
    :param version: version of the activity or of the child's orchestrator.
    :param input: input as JSON text, or the time of a timer as text; its SHA-256 enters the identity. None: no input.
    :param rewinds: number of rewinds in the history so far.
    :returns: a UUIDv5 in its usual text form.
    """
    digest = None if input is None else sha256(input.encode("utf-8", "surrogatepass")).hexdigest()
    parts = [instance.instance_id, instance.execution_id, number, kind, name, version or "", digest, rewinds]
    return str(uuid5(NAMESPACE, json.dumps(parts)))


def child_execution_id(action: str) -> str:
    """Return the execution id of a child: the identity of the action that starts it, as 32 hex digits.

    :param action: identity of the action.
    """
    return UUID(action).hex


def next_execution_id(execution_id: str) -> str:
    """Return the execution id of an instance after ``continue_as_new``. The same argument always gives the same result.

    The first half stays the same, so that a duplicate of the first start message is always recognised. The second half
    counts the calls of ``continue_as_new``, so that a reader knows which of two ids is newer.

    :param execution_id: the execution id before ``continue_as_new``.
    """
    return later_execution_id(execution_id, generation_of(execution_id) + 1)


def later_execution_id(execution_id: str, generation: int) -> str:
    """Return the execution id of a generation of a run. The ids of a run are in the order of its generations.

    :param execution_id: the execution id of any generation of the run.
    :param generation: number of the generation: 1 or more.
    """
    return f"{execution_id[:HALF]:0<{HALF}}{_LATER}{generation:08x}"


def generation_of(execution_id: str) -> int:
    """Return how many calls of ``continue_as_new`` this execution id counts; 0 for an id that .NET made.

    :param execution_id: an execution id of the instance.
    """
    return int(execution_id[24:], 16) if len(execution_id) == 32 and execution_id[16:24] == _LATER else 0


def run_name(execution_id: str) -> str:
    """Return the first half of an execution id, which names the run: one start of an instance with all that follows.

    :param execution_id: any execution id of the run; each ``continue_as_new`` of the run changes only the second half.
    """
    return execution_id.replace("-", "")[:HALF].lower()


def same_start(one: str | None, other: str | None) -> bool:
    """Return whether two execution ids (or identities of actions) belong to one run. False if one of them is None."""
    return one is not None and other is not None and run_name(one) == run_name(other)


def guid(instance: OrchestrationInstance, time: Timestamp, count: int) -> UUID:
    """Return a replay-safe GUID for user code. Like DurableTask's GUIDs it is a UUIDv5 of the arguments.

    :param instance: the instance, with its current execution id.
    :param time: the orchestrator's time.
    :param count: how many GUIDs the code has made since the last ``continue_as_new``, this one included.
    """
    return uuid5(NAMESPACE, json.dumps([instance.instance_id, instance.execution_id, time.text(trim=False), count]))


def check_instance_id(instance_id: str) -> str:
    """Return the instance id if it is valid.

    :param instance_id: the id to check.
    :raises InputError: the id is empty, is not a string, has more than 256 UTF-16 units after escaping, or has unpaired
        surrogates.
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
    """Return the id of a new instance if it is valid.

    For an instance that already exists, call :func:`check_instance_id`: perhaps another client has made the instance,
    and its id must stay usable.

    :param instance_id: the id to check.
    :raises InputError: as :func:`check_instance_id`, or the id contains U+FFFE or U+FFFF. XML has neither, so Azure
        Storage could not list the blobs of the instance, and the instance could not be purged.
    """
    for char in "\ufffe\uffff":
        if char in check_instance_id(instance_id):
            raise InputError(
                f"instance id {instance_id!r} holds U+{ord(char):X}, which Azure Storage cannot list: omit it"
            )
    return instance_id
