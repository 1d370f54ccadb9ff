"""Reports of REST v3 produce: one JSON object for each record."""

from __future__ import annotations

import orjson

from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions.produce import RecordMetadata
from tiered_api.http.partitions.record_formats import ProducerRecord, format_timestamp
from tiered_api.http.partitions.schema_spec import SCHEMA_TYPES


class ProduceReports:
    """Formats the reports on the records of one topic. Built once for each request."""

    def __init__(self, cluster_id: str, topic: str) -> None:
        names = orjson.dumps({"cluster_id": cluster_id, "topic_name": topic})[1:-1]
        self._start = b'{"error_code":200,' + names + b',"partition_id":%d,"offset":%d,"timestamp":"%b"'

    def format_success(self, record: ProducerRecord, metadata: RecordMetadata) -> bytes:
        """Returns the report on a record that was appended."""
        report = self._start % (metadata.partition, metadata.offset, format_timestamp(metadata.timestamp).encode())
        for name, kind, data in (("key", record.kinds[0], record.key), ("value", record.kinds[1], record.value)):
            if data is not None:
                report += b',"%b":{"type":"%b","size":%d}' % (name.encode(), kind.encode(), len(data))
                if kind in SCHEMA_TYPES:
                    report = report[:-1] + b',"schema_id":%d}' % int.from_bytes(data[1:5], "big")
        return report + b"}"

    def format_failure(self, error: HttpError) -> bytes:
        """Returns the report on a record that was not appended."""
        return orjson.dumps({"error_code": error.error_code, "message": error.message})
