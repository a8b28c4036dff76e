"""The tables as they are now; ``migrations.py`` makes them, step by step.

assay_runs ──< assay_points >── assay_series        one point for each series that a run has measured
"""

from __future__ import annotations

from sqlalchemy import Column, Double, Index, Integer, MetaData, Table, Text

METADATA = MetaData()


def _text(name: str, *, null: bool = False, unique: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null, unique=unique)


VERSION = Table("assay_schema_version", METADATA, Column("version", Integer, nullable=False))

RUNS = Table(
    "assay_runs",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    _text("id", unique=True),
    _text("experiment"),
    Column("started_s", Double, nullable=False),
    _text("host"),
    _text("hostname", null=True),
    _text("host_class"),
    _text("driver", null=True),
    _text("git_commit", null=True),
    Column("git_dirty", Integer),
    _text("versions"),
    _text("options_digest"),
    _text("origin"),
    _text("folder"),
    _text("headline"),
    Column("trials", Integer, nullable=False),
    Column("failed", Integer, nullable=False),
    Column("lines", Integer, nullable=False),
    _text("state"),
)

SERIES = Table(
    "assay_series",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    _text("key", unique=True),
    _text("workload"),
    _text("impl"),
    _text("params"),
    _text("params_digest"),
    _text("config", null=True),
    _text("project", null=True),
    _text("place"),
    _text("gpu", null=True),
    _text("device", null=True),
    _text("device_kind"),
    _text("conditions"),
    _text("quantity"),
    _text("unit"),
    Column("method", Text, nullable=False, server_default=""),
)

POINTS = Table(
    "assay_points",
    METADATA,
    Column("series", Integer, primary_key=True, autoincrement=False),
    Column("run", Integer, primary_key=True, autoincrement=False),
    Column("value", Double),
    Column("low", Double),
    Column("high", Double),
    Column("n", Integer, nullable=False),
    _text("scope", null=True),
    _text("status"),
    _text("reason", null=True),
    Column("disturbed", Integer, nullable=False, server_default="0"),
    Index("assay_points_by_run", "run"),
)
