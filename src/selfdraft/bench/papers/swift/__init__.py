"""SWIFT (arXiv:2410.06916): against Jacobi, Lookahead, early exit and Self-SD, its parts, and its search."""

from __future__ import annotations

from ..recipe import Recipe
from .figures import FIGURES
from .tables import TABLES

RECIPE = Recipe("swift", [*TABLES, *FIGURES])
