"""The class ``BookKeeper``."""

from __future__ import annotations

from spark_bookkeeper.session.bookkeeper import BookKeeper

__all__ = ["BookKeeper"]
