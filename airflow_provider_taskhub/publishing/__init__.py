"""Output that appears once: an attempt writes into a place of its own, and one small file makes the data visible.

Activities use :func:`airflow_provider_taskhub.activity.publish`. Readers use :func:`published` and
:func:`read_published`. A target is a folder::

    TARGET/_taskhub/commits/00000000000000000007.json               a commit: which folders the target consists of
    TARGET/_taskhub/data/taskhub_commit=KEY-ATTEMPT/month=3/…       what one attempt has written

The file of a commit is created only if it does not exist. So exactly one of several attempts creates it, and a reader
that opens the newest commit sees all folders of that commit or none.
"""

from __future__ import annotations

from airflow_provider_taskhub.publishing.reading import Published, published, read_published, remove_unpublished

__all__ = ["Published", "published", "read_published", "remove_unpublished"]
