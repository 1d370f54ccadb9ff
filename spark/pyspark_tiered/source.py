"""`spark.read.format("tiered")` and `readStream`: a topic as rows, with the columns of Spark's Kafka source.

Options: `store` (the cold segments, no broker needed) or `bootstrap` (HOST:PORT of a broker's HTTP: cold and hot, up to
the last committed record), `topic`, the bounds of `offsets.py`, `splitBytes`, `kafka.isolation.level`. By default
records of open and aborted transactions are left out. A schema given by the user selects columns: columns that it
leaves out are not decoded. With `bootstrap`, the options `kafka.*` of Kafka's clients or a file of them
(`commandConfig`) say how the broker is reached (`login.py`). A stream has no ending bounds, and has
`maxOffsetsPerTrigger`, `maxBytesPerTrigger` and `failOnDataLoss` besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_tiered.log.login import COMMAND_CONFIG, is_login_option, resolve_login_options
from pyspark_tiered.log.offsets import CUT, STRATEGIES, STRATEGY_NAME
from pyspark_tiered.reader import READ_COMMITTED, TieredReader
from pyspark_tiered.stream import TieredStreamReader
from tiered.errors import Code, Refused

COMMON_OPTIONS = (
    "store",
    "bootstrap",
    "topic",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    STRATEGY_NAME,
    "splitBytes",
    "kafka.isolation.level",
    COMMAND_CONFIG,
)
BATCH_OPTIONS = (*COMMON_OPTIONS, "endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp", CUT)
STREAM_OPTIONS = (*COMMON_OPTIONS, "maxOffsetsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")
KAFKA_HINTS = {
    "kafka.bootstrap.servers": "here it is `bootstrap`, HOST:PORT of a broker's HTTP",
    "subscribe": "here it is `topic`, the name of one topic",
    "subscribepattern": "name one `topic`, and union the frames of several",
    "assign": "name a `topic`; startingOffsets and endingOffsets leave partitions out",
    "minpartitions": "`splitBytes` makes more tasks",
    "maxrecordsperpartition": "`splitBytes` makes more tasks",
    "includeheaders": "`headers` is always a column",
    "kafka.group.id": "reads belong to no consumer group, leave it out",
    "groupidprefix": "reads belong to no consumer group, leave it out",
}
"""By option of Spark's Kafka source, in lower case: how it is said here."""
NUMBER_OPTIONS = {
    "splitBytes": "bytes",
    "maxOffsetsPerTrigger": "offsets",
    "maxBytesPerTrigger": "bytes",
}
ISOLATION_LEVELS = (READ_COMMITTED, "read_uncommitted")

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)


class DefaultSource(DataSource):
    """The data source `tiered`. PySpark finds it by this name in this package."""

    @classmethod
    def name(cls) -> str:
        return "tiered"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> TieredReader:
        return TieredReader(check_options(self.options), pick_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TieredStreamReader(check_options(self.options, STREAM_OPTIONS), pick_columns(schema))


def check_options(options: Mapping[str, str], names: Sequence[str] = BATCH_OPTIONS) -> dict[str, str]:
    """Returns the options under lower-case names. Raises `Refused` for a missing or unknown one."""
    known = {name.lower(): name for name in names}
    given = {name.lower(): value for name, value in options.items()}
    of_login = {name: value for name, value in given.items() if is_login_option(name)}
    if unknown := sorted(set(given) - set(known) - set(of_login)):
        raise Refused(Code.INVALID_REQUEST, _describe_unknown(unknown[0], names))
    if "topic" not in given:
        raise Refused(Code.INVALID_REQUEST, "the option 'topic' is missing")
    if ("store" in given) == ("bootstrap" in given):
        raise Refused(Code.INVALID_REQUEST, "one of the options 'store' and 'bootstrap' is needed, and only one")
    if of_login and "bootstrap" not in given:
        raise Refused(Code.INVALID_REQUEST, f"{next(iter(of_login))} has no effect without the option 'bootstrap'")
    for name, unit in NUMBER_OPTIONS.items():
        value = given.get(name.lower(), "1")
        if not value.isdecimal() or not int(value):
            raise Refused(Code.INVALID_REQUEST, f"{name} must be a number of {unit}, not {value!r}")
    if given.get("failondataloss", "true").lower() not in ("true", "false"):
        raise Refused(Code.INVALID_REQUEST, f"failOnDataLoss must be true or false, not {given['failondataloss']!r}")
    strategy = given.get(STRATEGY_NAME.lower(), STRATEGIES[0]).lower()
    if strategy not in STRATEGIES:
        raise Refused(Code.INVALID_REQUEST, f"{STRATEGY_NAME} must be {' or '.join(STRATEGIES)}, not {strategy!r}")
    isolation = given.get("kafka.isolation.level", ISOLATION_LEVELS[0])
    if isolation not in ISOLATION_LEVELS:
        raise Refused(
            Code.INVALID_REQUEST, f"kafka.isolation.level must be {' or '.join(ISOLATION_LEVELS)}, not {isolation!r}"
        )
    of_source = {name: value for name, value in given.items() if name not in of_login}
    return {**of_source, **resolve_login_options(of_login)}


def _describe_unknown(name: str, names: Sequence[str]) -> str:
    """Returns the error for an option that a source does not have: the way out for one of Spark's Kafka source."""
    if hint := KAFKA_HINTS.get(name):
        return f"unknown option {name!r}: {hint}"
    if name in {other.lower() for other in (*BATCH_OPTIONS, *STREAM_OPTIONS)}:
        return f"unknown option {name!r}: it is for {'batch queries' if 'ending' in name else 'streams'} only"
    shown = ", ".join(known for known in names if known != CUT)
    more = "kafka.* only for TLS, the login and kafka.isolation.level"
    return f"unknown option {name!r}; there are {shown}, and {more}"


def pick_columns(schema: StructType) -> tuple[str, ...]:
    """Returns the columns of a user's schema, in its order. Raises `Refused` for an unknown column or another type."""
    for field in schema.fields:
        if field.name not in SCHEMA.fieldNames() or field.dataType != SCHEMA[field.name].dataType:
            raise Refused(
                Code.INVALID_REQUEST,
                f"no column {field.name} {field.dataType.simpleString()}; there are {SCHEMA.simpleString()}",
            )
    return tuple(schema.fieldNames())
