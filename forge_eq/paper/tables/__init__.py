"""The paper's tables, each from measurements and the paper's own rows.

Reading order: ``frame`` (a row beside the paper's), ``models``, ``timed``, ``gpt2``, ``whole`` (the tables by subject),
``sheet`` (their list, and all of them in one).
"""
