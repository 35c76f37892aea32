"""Figures of the SWIFT paper: a placeholder, until the file that measures them takes its place."""

from __future__ import annotations

from ..recipe import Experiment

FIGURES: list[Experiment] = []
