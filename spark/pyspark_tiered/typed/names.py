"""Names of columns for names in JSON. Pure.

Delta's readers take names that differ only by case for one, and plain Delta tables refuse some characters. Each field
gets the name that it has in JSON if it is free, and else a changed one; the schema keeps both.
"""

from __future__ import annotations

import re
from collections.abc import Collection

NAME_BYTES_MAX = 255
COLUMN_MAX = 120
"""Characters of a column's name that are kept from the name in JSON."""
RECORD_COLUMNS = ("_partition", "_offset", "_timestamp", "_key", "_headers")
"""Columns of the record in a typed table. A field of the value with such a name gets another column."""

KEY_COLUMN = "_typed_key"
"""Column of the key, if keys are typed."""
KEY = "\0key"
"""Stands for the name in JSON of the key, which is no field of the value."""
VALUE_COLUMN = "value"
"""Column of the whole value, for values of the kind variant."""
VALUE = "\0value"
"""Stands for the name in JSON of the whole value."""
RESERVED = (KEY, VALUE)
"""A value with a field of such a name does not fit: its column would be taken for that of the key or the value."""

_REFUSED = re.compile(r"[^\w$@:+#/-]")


def choose_column(json_name: str, taken: Collection[str]) -> str:
    """Returns the name of a new column. `taken` are the names around it, folded by `fold`."""
    plain = _REFUSED.sub("_", json_name)[:COLUMN_MAX] or "_"
    name, number = plain, 1
    while fold(name) in taken:
        number += 1
        name = f"{plain}_{number}"
    return name


def fold(name: str) -> str:
    """Returns one form for all names that a reader of Delta may take for one.

    Spark compares the fields of a struct by the upper case of each character. To it the long s (U+017F) is an s, and
    the dotless i (U+0131) an i.
    """
    return name.replace("\u0130", "i").replace("\u0131", "i").casefold()
