"""Which partition an instance belongs to: FNV-1a of its id, as every DurableTask client routes."""

from __future__ import annotations

_BASIS = 0x811C9DC5
_PRIME = 0x01000193
_MASK = 0xFFFFFFFF


def fnv1a32(text: str) -> int:
    """32-bit FNV-1a over the UTF-8 bytes of a text, not normalised, case kept."""
    value = _BASIS
    for byte in text.encode():
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def partition_of(instance_id: str, partitions: int) -> int:
    """Number of the partition (control queue) of an instance.

    :param instance_id: raw, not escaped. :param partitions: of the hub, from 1.
    """
    return fnv1a32(instance_id) % partitions
