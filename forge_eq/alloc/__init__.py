"""Virtual registers -> byte offsets in one arena per device.

Reading order: ``plan`` (the form), ``liveness``, ``linear_scan``, ``text``, ``checker``.
"""
