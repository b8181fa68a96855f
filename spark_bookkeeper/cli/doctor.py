"""``spark-bookkeeper doctor``: examine the setup, and suggest remedies."""

from __future__ import annotations

from collections.abc import Sequence

import click

from spark_bookkeeper.cli.shell.cluster_options import Access, access_options, connected
from spark_bookkeeper.cli.shell.settings import (
    EXIT_DONE,
    EXIT_LEFT_UNDONE,
    EXIT_NOTHING_CHANGED,
    Settings,
)
from spark_bookkeeper.doctor.diagnosis import Diagnoses, Diagnosis
from spark_bookkeeper.doctor.examination import cluster_diagnoses
from spark_bookkeeper.doctor.machine import machine_diagnoses
from spark_bookkeeper.errors import MetadataError, MetadataFormatError, NoClusterError


@click.command(
    name="doctor", epilog="Example: spark-bookkeeper --metadata-uri zk://zk1:2181/ledgers doctor"
)
@access_options
@click.pass_obj
def doctor(settings: Settings, access: Access) -> int:
    """Look at this machine, the cluster, its bookies and ledgers; say what to do.

    Changes nothing; a small file is written to every bookie and removed again. Exit code 0: no
    problem was found, at most what is to be kept in mind; 1: something is a problem; 2: the
    cluster cannot be reached.
    """
    findings = list(machine_diagnoses())
    code = EXIT_DONE
    if settings.metadata_uri is None:
        findings.append(
            Diagnosis(
                "cluster",
                "warning",
                "none was named, so only this machine was looked at",
                "give --metadata-uri zk://HOST:2181/ledgers, or make a cluster to try: "
                "spark-bookkeeper local start",
            )
        )
    else:
        try:
            with connected(settings, access) as bk, settings.output.progress("looking at bookies"):
                findings += cluster_diagnoses(bk.context)
        except MetadataError as error:
            findings.append(_unreachable(error, settings.metadata_uri))
            code = EXIT_NOTHING_CHANGED
    if code == EXIT_DONE and any(finding.verdict == "problem" for finding in findings):
        code = EXIT_LEFT_UNDONE
    settings.output.result(
        {**Diagnoses(tuple(findings)).to_dict(), "healthy": code == EXIT_DONE},
        lambda: _show(settings, findings),
    )
    return code


def _show(settings: Settings, findings: Sequence[Diagnosis]) -> None:
    settings.output.table(
        ["check", "verdict", "what was found"], [[f.check, f.verdict, f.detail] for f in findings]
    )
    todo = [finding for finding in findings if finding.remedy]
    for finding in todo:
        settings.output.say(f"- {finding.check}: {finding.remedy}")
    if not todo:
        settings.output.say("everything is well")


def _unreachable(error: MetadataError, uri: str) -> Diagnosis:
    remedy = "is the URI right, is ZooKeeper running, does a firewall stand between?"
    if "127.0.0.1" in uri or "localhost" in uri:
        remedy = (
            "if it was a cluster of `local start`: spark-bookkeeper local start --directory DIR "
            "starts it again, with everything in it; else start ZooKeeper, or correct the URI"
        )
    if isinstance(error, NoClusterError):
        remedy = "if the URI is right and the cluster is to be new: spark-bookkeeper cluster init"
    elif isinstance(error, MetadataFormatError):
        remedy = "what is at this place is not a BookKeeper cluster that this version can read"
    elif type(error) is MetadataError:  # a refusal
        remedy = "correct ZooKeeper's options: --zk-option, or [zk] in the file of --conf"
    return Diagnosis("zookeeper", "problem", error.message, remedy)
