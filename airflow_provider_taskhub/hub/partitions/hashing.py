"""Compute the partition of an instance: FNV-1a of the instance id, as every DurableTask client computes it."""

from __future__ import annotations

_BASIS = 0x811C9DC5
_PRIME = 0x01000193
_MASK = 0xFFFFFFFF


def fnv1a32(text: str) -> int:
    """Return the 32-bit FNV-1a hash of a text's UTF-8 bytes. The text is not normalised, and its case is kept."""
    value = _BASIS
    for byte in text.encode():
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def partition_of(instance_id: str, partitions: int) -> int:
    """Return the number of the partition (the control queue) of an instance.

    :param instance_id: the instance id, not escaped.
    :param partitions: how many partitions the hub has, at least 1.
    """
    return fnv1a32(instance_id) % partitions
