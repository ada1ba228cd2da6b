"""The mapping of a dataset's labels to the model's classes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import InputError
from ..targets.seed import class_index

GENERIC = re.compile(r"LABEL_\d+", re.IGNORECASE)  # HuggingFace's default class names


class ClassMapping:
    """The mapping of a dataset's labels to the model's class indices.

    Args:
        names: the model's classes.
        count: the number of classes.
        dataset: the dataset's classes in their order, if it names them.
        given: the user's mapping: label -> class.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        count: int,
        dataset: Sequence[str] | None = None,
        given: Mapping[str, str | int] | None = None,
    ) -> None:
        named = names and not all(GENERIC.fullmatch(name) for name in names.values())
        self.names = dict(names) if named else dict(enumerate(dataset or ()))
        self.count = count
        self.given = {str(k).lower(): v for k, v in (given or {}).items()}
        if not named and dataset and len(dataset) != count:
            raise InputError(f"The dataset has {len(dataset)} classes ({', '.join(dataset)}), the model {count}.")

    def of(self, label: str | int | None) -> int | None:
        """Return the class index of a label; a label that the model does not have is an error."""
        if label is None:
            return None
        wanted = self.given.get(str(label).lower(), label)
        if isinstance(wanted, str) and wanted.lower() not in {name.lower() for name in self.names.values()}:
            known = ", ".join(list(self.names.values())[:10]) or f"{self.count} classes without names"
            raise InputError(
                f"The dataset's label '{label}' is none of the model's classes ({known}). Say which class it is, for "
                f"example labels={{'{label}': 0}}, or --label '{label}=0' on the command line."
            )
        if isinstance(wanted, int) and not 0 <= wanted < self.count:
            raise InputError(f"The dataset's label {wanted} is out of range: the model has {self.count} classes.")
        return class_index(wanted, self.count, self.names)
