"""Operations: the activity of a host as metrics (`metrics.py`) and as pages (`Dashboard`)."""

from vmhost.operations.metrics import OPENMETRICS, PROMETHEUS, exposition
from vmhost.operations.otlp import OtlpExporter
from vmhost.operations.server import Dashboard

__all__ = ["OPENMETRICS", "PROMETHEUS", "Dashboard", "OtlpExporter", "exposition"]
