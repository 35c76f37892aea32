"""Every error selfdraft raises on purpose. Each message says what, with which value, and what to do.

SelfdraftError
|-- OptionError          an option, name or value that does not exist or is out of range   (also ValueError)
|-- PromptError          a prompt that cannot be decoded: empty, or longer than the context (also ValueError)
|-- ModelError           a model that cannot be loaded or attached
|   |-- UnsupportedModelError   no family row, or an attention implementation we cannot drive
|   `-- SelfTestError           attached, but the decoder's logits differ from the model's own
|-- DownloadError        weights that could not be fetched, are incomplete or do not match their checksum
|-- ProfileError         a profile that is damaged, made for something else, or cannot be kept
`-- MissingExtraError    an optional dependency that this command needs                     (also ImportError)
"""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable


class SelfdraftError(Exception):
    """Base of all of them: `except SelfdraftError` catches what a user can cause."""


class OptionError(SelfdraftError, ValueError):
    pass


class PromptError(SelfdraftError, ValueError):
    pass


class ModelError(SelfdraftError):
    pass


class UnsupportedModelError(ModelError):
    pass


class SelfTestError(ModelError):
    pass


class DownloadError(SelfdraftError):
    pass


class ProfileError(SelfdraftError):
    pass


class MissingExtraError(SelfdraftError, ImportError):
    pass


def unknown_name(what: str, name: object, known: Iterable[str]) -> OptionError:
    """The error for a name that is not in a list: the value, the nearest name, the list."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1) or [known for known in names if known.startswith(str(name))]
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return OptionError(f"unknown {what} {str(name)!r}.{hint} Known: {', '.join(names)}")


def warn_caller(message: str) -> None:
    """The line that is shown is the one that called us."""
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals["__name__"].partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
