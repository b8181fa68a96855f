"""One thing that was looked at, how it is, and what to do; and all of them, as a report."""

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
    """One thing that was looked at, how it is, and what to do about it."""

    check: str
    verdict: Verdict
    detail: str
    remedy: str | None = None
    """What to do; ``None`` when it is well."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", without_passwords(self.detail))
        if self.remedy is not None:
            object.__setattr__(self, "remedy", without_passwords(self.remedy))


@dataclass(frozen=True)
class Diagnoses:
    """What a look at everything found. True when nothing is a problem."""

    findings: tuple[Diagnosis, ...]
    frame: Callable[[pa.Table], Any] | None = field(default=None, repr=False, compare=False)
    """Turns a table into a DataFrame; given by the session."""

    def __getstate__(self) -> dict[str, Any]:
        """Without the session, which does not travel."""
        return {**self.__dict__, "frame": None}

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is a problem; there may be warnings."""
        return self.verdict != "problem"

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return max((f.verdict for f in self.findings), key=get_args(Verdict).index, default="ok")

    def __bool__(self) -> bool:
        return self.is_healthy

    @property
    def remedies(self) -> Sequence[str]:
        """What to do, one for each finding that needs something done."""
        return [f"{f.check}: {f.remedy}" for f in self.findings if f.remedy]

    def to_arrow(self) -> pa.Table:
        """The findings as an Arrow table: no Spark."""
        return pa.Table.from_pylist([asdict(each) for each in self.findings], schema=FINDINGS)

    def to_df(self) -> Any:
        """The findings as a Spark DataFrame."""
        assert self.frame is not None, "made without a session"
        return self.frame(self.to_arrow())

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "healthy": self.is_healthy,
            "verdict": self.verdict,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        """For people: the findings that are not well, or that all is."""
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
