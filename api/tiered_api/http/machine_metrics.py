"""The metrics of all processes of a machine as one text: each sample gets the label `process`. Pure."""

from __future__ import annotations

from collections.abc import Mapping

UP = "tiered_machine_process_up"
_HELP = "1 if this process of the machine has reported its metrics, 0 if it did not in time."


def merge_metrics(texts: Mapping[int, str | None]) -> str:
    """Returns the metrics of processes, given the text of each by its number; None for one that did not report.

    All samples of a metric stand together, as the format asks for it.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for process, text in texts.items():
        label, name = f'process="{process}"', ""
        for line in (text or "").splitlines():
            if line.startswith("#"):
                name = line.split(" ", 3)[2]
                head = heads.setdefault(name, [])
                if line not in head:
                    head.append(line)
            elif line:
                samples.setdefault(name, []).append(_add_label(line, label))
    lines = [f"# HELP {UP} {_HELP}", f"# TYPE {UP} gauge"]
    lines += [f'{UP}{{process="{process}"}} {int(text is not None)}' for process, text in texts.items()]
    for name in sorted(heads):
        lines += heads[name]
        lines += samples.get(name, ())
    return "\n".join(lines) + "\n"


def _add_label(sample: str, label: str) -> str:
    name, separator, rest = sample.partition("{")
    if separator and " " not in name:
        return f"{name}{{{label},{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
