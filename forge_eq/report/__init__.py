"""What happened, in plain text: for people, never for programs.

Takes a finished Job. Gives text that fits a width. Promises: nothing is measured here and nothing is rounded up;
a figure that a stage did not give is left out. Not here: colours and tables of the terminal (``cli``).

Reading order: ``match`` (which chosen node is which captured value), ``beside`` (before and after), ``why``
(which rules were needed), ``explain`` (all of it), ``tables`` (stages, storage), ``tuning``.
"""

from forge_eq.report.explain import changes, explain, op_counts, program_report, rule_counts, summary
from forge_eq.report.tables import allocation_table, plural, stage_table, table
from forge_eq.report.tuning import tuning_text
from forge_eq.report.why import Because, because

__all__ = [
    "Because",
    "allocation_table",
    "because",
    "changes",
    "explain",
    "op_counts",
    "plural",
    "program_report",
    "rule_counts",
    "stage_table",
    "summary",
    "table",
    "tuning_text",
]
