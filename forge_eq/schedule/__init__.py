"""Devices, transfers and the order of instructions.

Reading order: ``affinity`` (device per instruction), ``transfer`` (copies made explicit), ``order`` (list
scheduling), ``plan`` (the form and the entry point ``schedule``), ``text``, ``check``.
"""
