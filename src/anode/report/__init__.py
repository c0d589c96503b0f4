"""The report: what ``anode reproduce`` found, as one HTML page that needs nothing but a browser."""

from anode.report.page import write_report

__all__ = ["write_report"]
