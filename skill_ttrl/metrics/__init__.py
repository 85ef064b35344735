"""Registry of the metrics that a run logs: plain data, one `Metric` each, in a file a section.

To add a metric, add its `Metric` to the section's file and run `python docs/generate_metrics.py`. The tests fail where a run
logs a metric that is not here.
"""

from skill_ttrl.metrics.metric import Metric, Section, contains
from skill_ttrl.metrics.registry import METRICS, SECTIONS, UnhealthyMetric, find, find_tracked, unhealthy, unregistered

__all__ = [
    "METRICS",
    "SECTIONS",
    "Metric",
    "Section",
    "UnhealthyMetric",
    "contains",
    "find",
    "find_tracked",
    "unhealthy",
    "unregistered",
]
