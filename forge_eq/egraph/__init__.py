"""E-graph: every program equal to the captured one. The only package that imports egglog.

Takes a Graph and a RuleSet. Gives an EGraphView. Promises: see ``engine``.
"""
