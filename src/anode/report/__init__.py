"""The report of ``anode reproduce``: one self-contained HTML page."""

from anode.report.page import write_report

__all__ = ["write_report"]
