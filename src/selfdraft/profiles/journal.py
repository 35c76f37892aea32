"""The partial results of one fit, so that an interrupted calibration goes on where it stopped.

    journal = store.journal(key, "knn", {"prompts": digest, "seed": 0})
    for step in steps:
        if step not in journal.done:
            journal.record(step, Artefact(...))
    store.update(key, "knn", artefact)
    journal.finish()

It belongs to a question: another question starts again. A damaged journal, or one that another version wrote, is
worth nothing and is started again, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .document import Document, packed_artefacts
from .key import as_file_name
from .profile import SCHEMA, Artefact, as_json

_DIGEST_LENGTH = 16


class Journal:
    """`writing()` is held around every change: one writer at a time, errors in the user's words."""

    def __init__(
        self,
        folder: Path,
        name: str,
        question: Mapping[str, Any],
        version: str,
        writing: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.question = as_json(question)
        self._head = {"selfdraft_journal": SCHEMA, "version": version, "name": name, "question": self.question}
        digest = hashlib.sha256(json.dumps(self._head, sort_keys=True).encode()).hexdigest()[:_DIGEST_LENGTH]
        self._prefix = f"journal-{as_file_name(name)}-"
        self._document = Document(folder / f"{self._prefix}{digest}.json")
        self._writing = writing
        self.done: dict[str, Artefact] = self._read_all()

    def record(self, step: str, result: Artefact) -> None:
        """Keep the result of `step`, beside what another process that asks the same may have kept meanwhile."""
        self.done[step] = result
        with self._writing():
            kept = self._read()  # another process may have finished, and dropped it
            self._document.write(kept or {**self._head, "artefacts": {}}, {step: result} if kept else self.done)

    def finish(self) -> None:
        """The fit is complete: drop what is kept of it."""
        with self._writing():
            self._document.remove()
        self.done = {}

    def drop_all(self) -> None:
        """Start again, whatever was asked."""
        with self._writing():
            for path in self._document.path.parent.glob(f"{self._prefix}{'?' * _DIGEST_LENGTH}.json"):
                Document(path).remove()
        self.done = {}

    def _read_all(self) -> dict[str, Artefact]:
        try:
            content = self._read()
            return {} if content is None else self._document.artefacts(content)
        except (ValueError, OSError):
            return {}

    def _read(self) -> dict[str, Any] | None:
        """What is kept, if it answers our question. An OSError does not answer: what it hides must not be lost."""
        try:
            content = self._document.read()
            if content is None or {**content, **self._head} != content:
                return None
            packed_artefacts(content)
        except ValueError:
            return None
        return content
