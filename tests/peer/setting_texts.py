"""Texts of topic settings, and what Kafka 4.2 shows for each: the same value, or None if it refuses the text.

`tests/unit/config/test_setting.py` parses them, and `tests/e2e/test_kafka_configs_beside_the_peer.py` sends them to
both brokers.
"""

from __future__ import annotations

from typing import NamedTuple

NO_BREAK_SPACE = "\u00a0"
ARABIC_FIVE = "\u0665"


class SettingText(NamedTuple):
    """A text of a setting, and its normal form; None if it is refused."""

    name: str
    text: str
    shown: str | None


def _of(name: str, shown_by_text: dict[str, str | None]) -> list[SettingText]:
    return [SettingText(name, text, shown) for text, shown in shown_by_text.items()]


INTEGERS: dict[str, str | None] = {
    "5000": "5000",
    " 5000 ": "5000",
    "\t5000\n": "5000",
    "5000\x00": "5000",
    "+5000": "5000",
    "005000": "5000",
    "-0": "0",
    ARABIC_FIVE: "5",
    "5_000": None,
    "0x10": None,
    "1e3": None,
    "5000.0": None,
    "5000L": None,
    "5 000": None,
    NO_BREAK_SPACE + "5000": None,
    "+-5000": None,
    "+": None,
    "": None,
    " ": None,
    "9" * 20: None,
    "9" * 5000: None,
}
DECIMALS: dict[str, str | None] = {
    "0.50": "0.5",
    " .5 ": "0.5",
    "5e-1": "0.5",
    "0.5d": "0.5",
    "0.5F": "0.5",
    "1.": "1.0",
    "1": "1.0",
    "0": "0.0",
    "1e-400": "0.0",
    "0.001": "0.001",
    "0.0001": "1.0E-4",
    "12.5e-6": "1.25E-5",
    "0.1000000000000000055511151231257827": "0.1",
    "0_1.0": None,
    "1_0e-2": None,
    "Infinity": None,
    "inf": None,
    ".": None,
    "": None,
    ARABIC_FIVE + "e-1": None,
    "1.5": None,
}
BOOLEANS: dict[str, str | None] = {
    "TRUE": "true",
    " tRuE ": "true",
    "False": "false",
    NO_BREAK_SPACE + "true": None,
    "yes": None,
    "1": None,
    "": None,
}
LISTS: dict[str, str | None] = {
    "compact,compact": "compact",
    "delete,compact,delete": "delete,compact",
    " delete ": "delete",
    "compact , delete": "compact,delete",
    "delete\t,\tcompact": "delete,compact",
    "": "",
    " ": "",
    "compact,": None,
    ",delete": None,
    "compact,,delete": None,
    ",": None,
    "DELETE": None,
    NO_BREAK_SPACE + "delete": None,
}
WORDS: dict[str, str | None] = {" lz4 ": "lz4", "LZ4": None, "": None, "lz4,": None, NO_BREAK_SPACE + "lz4": None}
REPLICAS: dict[str, str | None] = {" 0:1 , 1:1 ": "0:1,1:1", " * ": "*", "": "", " ": "", "none": None}
TEXTS = [
    *_of("retention.ms", INTEGERS),
    *_of("max.message.bytes", INTEGERS | {"2147483648": None, "-1": None}),
    *_of("min.cleanable.dirty.ratio", DECIMALS),
    *_of("unclean.leader.election.enable", BOOLEANS),
    *_of("preallocate", BOOLEANS),
    *_of("cleanup.policy", LISTS),
    *_of("compression.type", WORDS),
    *_of("message.timestamp.type", {" LogAppendTime ": "LogAppendTime", "logappendtime": None}),
    *_of("leader.replication.throttled.replicas", REPLICAS),
    *_of("retention.bytes", {"-2": "-2", " -1": "-1"}),
    *_of("segment.bytes", {"1048576": "1048576", "1048575": None}),
    *_of("segment.index.bytes", {"4": "4", "3": None}),
    *_of("remote.log.copy.disable", {"True": "true"}),
    *_of("remote.log.delete.on.disable", {"true": "true"}),
]
"""The texts that both brokers read alike."""
OURS = [
    *_of("min.cleanable.dirty.ratio", {"NaN": None, "0x1p-1": None}),
    *_of("leader.replication.throttled.replicas", {"0:1,": "0:1", "0:1,0:1": "0:1", "*,*": "*"}),
    *_of("compression.gzip.level", {"0": "0"}),
]
"""The texts that ours reads otherwise than Kafka, with the value of ours."""
