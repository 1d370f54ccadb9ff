"""The login of the command line: `-X security.protocol=SASL_PLAINTEXT` and the user, by librdkafka's names.

A variable of the environment, such as TIERED_SASL_PASSWORD, keeps the password out of the list of processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.config.settings import SASL_MECHANISMS
from tiered.errors import Code, Refused
from tiered.security.secret import Secret
from tiered_api.cli.client_properties import NO_PROPERTIES, TOKEN_LOGIN, find_option
from tiered_api.cli.encryption import PROTOCOL
from tiered_api.kafka.client.login import UserLogin

MECHANISM, USER, PASSWORD = "sasl.mechanism", "sasl.username", "sasl.password"
EXTRAS = (MECHANISM, USER, PASSWORD)
DEFAULT_MECHANISM = "SCRAM-SHA-512"


def find_login(extra: Mapping[str, str], properties: Mapping[str, str] = NO_PROPERTIES) -> UserLogin | None:
    """Returns the login that options, properties or environment ask for, None without a protocol of SASL.

    Raises `Refused` for an option that is wrong, or that has no effect.
    """
    options = {name: find_option(name, extra, properties) for name in (PROTOCOL, *EXTRAS)}
    if not options[PROTOCOL].upper().startswith("SASL_"):
        unused = next((name for name in EXTRAS if name in extra), None)
        if unused:
            raise Refused(
                Code.INVALID_REQUEST, f"-X {unused}: it has no effect without -X {PROTOCOL}=SASL_PLAINTEXT or SASL_SSL"
            )
        return None
    mechanism = options[MECHANISM].upper() or DEFAULT_MECHANISM
    if mechanism not in SASL_MECHANISMS:
        raise Refused(Code.INVALID_REQUEST, f"{MECHANISM}={mechanism}: it must be one of {', '.join(SASL_MECHANISMS)}")
    if not options[USER] or not options[PASSWORD]:
        raise Refused(Code.INVALID_REQUEST, f"a login needs both {USER} and {PASSWORD}")
    by_token = properties.get(TOKEN_LOGIN, "").lower() == "true" and USER not in extra
    return UserLogin(options[USER], Secret(options[PASSWORD]), mechanism, by_token)
