"""SWIFT (arXiv:2410.06916): a skip set that is searched for while the text is generated."""

from __future__ import annotations

from ..recipe import Recipe
from .figures import FIGURES

RECIPE = Recipe("swift", FIGURES)
