"""Sessions of boto3 that cost little: they share the descriptions of the API, which take most of a client's start.

A session reads the environment and the files of AWS anew. The descriptions are 13 MB of objects from JSON. botocore's
own loader also looks into the folders of all services before it loads one, and decodes five times slower.
"""

from __future__ import annotations

import gzip
import os
from functools import cache
from typing import Any

import boto3.session
import botocore.session
import orjson
from botocore.loaders import JSONFileLoader, Loader

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def open_session() -> Any:
    """Returns a new session of boto3. Raises botocore's errors for settings that it cannot use.

    `AWS_REGION` goes before `AWS_DEFAULT_REGION` and the files, as in the command line and the other libraries of AWS.
    botocore itself does not know it.
    """
    session = botocore.session.get_session()
    if region := os.environ.get("AWS_REGION"):
        session.set_config_variable("region", region)
    session.register_component("data_loader", _shared_loader(session.get_config_variable("data_path")))
    return boto3.session.Session(botocore_session=session)


def find_endpoint(session: Any) -> str:
    """Returns the endpoint of S3 that was set, in botocore's order: the variables, the `services` section of the
    profile in the config file, the profile. "" means that of AWS."""
    core = session._session
    if str(core.get_config_variable("ignore_configured_endpoint_urls")).lower() == "true":
        return ""
    for name in ENDPOINT_VARIABLES:
        if endpoint := os.environ.get(name):
            return endpoint
    profile = core.get_scoped_config()
    services = core.full_config.get("services", {}).get(profile.get("services"), {})
    of_s3 = services.get("s3", {}) if isinstance(services, dict) else {}
    return str((of_s3.get("endpoint_url") if isinstance(of_s3, dict) else "") or profile.get("endpoint_url") or "")


class _Files(JSONFileLoader):  # type: ignore[misc]
    """Decodes the files of a service."""

    def load_file(self, file_path: str) -> Any:
        for ending, open_file in ((".json", open), (".json.gz", gzip.open)):
            if os.path.isfile(file_path + ending):
                with open_file(file_path + ending, "rb") as file:
                    return orjson.loads(file.read())
        return None


class _ApiLoader(Loader):  # type: ignore[misc]
    """Takes every folder for a service. botocore's error for an unknown one comes a step later."""

    FILE_LOADER_CLASS = _Files

    @property
    def search_paths(self) -> list[str]:
        """Returns a copy: each session of boto3 appends its own folder, which has no description of S3."""
        return list(self._search_paths)

    def list_available_services(self, type_name: str) -> list[str]:
        return [name for path in self.search_paths if os.path.isdir(path) for name in os.listdir(path)]


@cache
def _shared_loader(data_path: str | None) -> _ApiLoader:
    """`data_path` are further folders of descriptions, as AWS_DATA_PATH names them."""
    further = [os.path.expanduser(os.path.expandvars(path)) for path in (data_path or "").split(os.pathsep) if path]
    return _ApiLoader(extra_search_paths=further)
