"""A diagnosis: one check, its verdict, and what to do; and a report of all diagnoses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from spark_bookkeeper.secrecy import without_passwords

Verdict = Literal["ok", "warning", "problem"]

FINDINGS: Final = pa.schema(
    [
        pa.field("check", pa.string(), nullable=False),
        pa.field("verdict", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("remedy", pa.string()),
    ]
)


@dataclass(frozen=True)
class Diagnosis:
    """One check, its verdict, and what to do about it."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str | None = None
    """The remedy; ``None`` if none is needed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", without_passwords(self.detail))
        if self.remedy is not None:
            object.__setattr__(self, "remedy", without_passwords(self.remedy))


@dataclass(frozen=True)
class Diagnoses:
    """The findings of a whole examination. True when nothing is a problem."""

    findings: tuple[Diagnosis, ...]
    frame: Callable[[pa.Table], Any] | None = field(default=None, repr=False, compare=False)
    """Turns a table into a DataFrame; set by the session."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the session, which cannot be pickled."""
        return {**self.__dict__, "frame": None}

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is a problem; there may be warnings."""
        return self.verdict != "problem"

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return max((f.verdict for f in self.findings), key=get_args(Verdict).index, default="ok")

    def __bool__(self) -> bool:
        return self.is_healthy

    @property
    def remedies(self) -> Sequence[str]:
        """The remedies: one text for each finding that has one."""
        return [f"{f.check}: {f.remedy}" for f in self.findings if f.remedy]

    def to_arrow(self) -> pa.Table:
        """Return the findings as an Arrow table, without Spark."""
        return pa.Table.from_pylist([asdict(each) for each in self.findings], schema=FINDINGS)

    def to_df(self) -> Any:
        """Return the findings as a Spark DataFrame."""
        assert self.frame is not None, "made without a session"
        return self.frame(self.to_arrow())

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as a dict, for programs."""
        return {
            "healthy": self.is_healthy,
            "verdict": self.verdict,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        """Return a text for people: the findings that need care, or that everything is well."""
        todo = [f for f in self.findings if f.verdict != "ok" or f.remedy]
        if not todo:
            return f"{len(self.findings)} things were looked at; everything is well"
        lines = [
            f"{f.verdict}: {f.check}: {f.detail}" + (f"\n  to do: {f.remedy}" if f.remedy else "")
            for f in todo
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{name}</th>" for name in FINDINGS.names)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell or str())}</td>' for cell in row.values())}</tr>"
            for row in self.to_arrow().to_pylist()
        )
        said = "healthy" if self.is_healthy else "needs care"
        return f"<p><b>{said}</b></p><table><tr>{heads}</tr>{body}</table>"
