"""Refusals of the registry. Their codes and sentences are those of Confluent's API, because its clients read them."""

from __future__ import annotations

from tiered.errors import HttpRefused

SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403
SUBJECT_SOFT_DELETED = 40404
SUBJECT_NOT_SOFT_DELETED = 40405
VERSION_SOFT_DELETED = 40406
VERSION_NOT_SOFT_DELETED = 40407
NO_LEVEL_OF_SUBJECT = 40408
NO_MODE_OF_SUBJECT = 40409
INCOMPATIBLE = 409
INVALID_SCHEMA = 42201
INVALID_VERSION = 42202
INVALID_LEVEL = 42203
INVALID_MODE = 42204
NOT_PERMITTED = 42205
REFERENCE_EXISTS = 42206
INVALID_SUBJECT = 42208
SCHEMA_TOO_LARGE = 42209


class RegistryRefused(HttpRefused):
    """A refusal of the registry."""


def subject_not_found(subject: str) -> RegistryRefused:
    return RegistryRefused(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_not_found(version: object) -> RegistryRefused:
    return RegistryRefused(VERSION_NOT_FOUND, f"Version {version} not found.")


def invalid_schema(why: str) -> RegistryRefused:
    return RegistryRefused(INVALID_SCHEMA, f"Invalid schema: {why}")
