"""Intel's NPU compiler: whether it accepts our programs, and how long it says they take. No device is needed.

Takes scheduled programs. Gives what the compiler answers: a blob, a simulated schedule, or its first diagnostic told
in terms of the user's model. Promises: every time is "simulated by Intel's NPU compiler" and says so; a kernel that the
compiler's cost model does not know is counted as unknown, never as free; nothing is downloaded except by
:func:`forge_eq.npu.setup.install`. Not here: running on a device; which programs are made (``extract``, ``schedule``).
"""
