"""Graph -> NPU IR: one instruction per operation, over virtual registers.

Reading order: ``npu`` (the form), ``select`` (how it is made), ``text``, ``check``.
"""
