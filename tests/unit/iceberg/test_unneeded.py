"""Tests of the choice of metadata files that no kept version names."""

from __future__ import annotations

from pyspark_tiered.iceberg.unneeded import choose_unneeded


def test_files_before_the_oldest_kept_version_go_unless_it_names_them() -> None:
    names = ["m-1-0-ab.avro", "m-2-0-cd.avro", "m-7-0-ef.avro", "snap-1-aa.avro", "snap-7-bb.avro", "v1.metadata.json"]
    others = ["v7.metadata.json", "version-hint.text", "v1.metadata.json.crc", "x"]
    found = choose_unneeded([*names, *others], 7, {"m-2-0-cd.avro"})
    assert found == ["m-1-0-ab.avro", "snap-1-aa.avro", "v1.metadata.json"]
