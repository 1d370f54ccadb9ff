"""A look at a warehouse before Java starts, which takes most of a minute: a wrong URL is told at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_tiered.delta.folder_url import FORMS, bucket_prefix, spark_url
from pyspark_tiered.delta.log_folder import refuse_place
from tiered.errors import Code, Refused
from tiered.object_store.url import open_store
from tiered.system.clock import SystemClock, SystemRng


def check_warehouse(place: str) -> None:
    """Raises `Refused` or `Unavailable` if no table can be written in this folder. The folder itself may be absent."""
    url = spark_url(place)
    scheme = urlsplit(url).scheme
    if scheme == "file":
        path = Path(url.removeprefix("file:"))
        if path.exists() and not path.is_dir():
            raise Refused(Code.INVALID_REQUEST, f"{place!r} is no directory: {FORMS}")
    elif scheme == "s3a":
        asyncio.run(_list_once(*bucket_prefix(url)))
    else:
        raise refuse_place(url)


async def _list_once(bucket: str, prefix: str) -> None:
    store = open_store(f"s3a://{bucket}", SystemClock(), SystemRng())
    try:
        await store.list(prefix, limit=1)
    finally:
        await store.close()
