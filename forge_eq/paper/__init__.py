"""Every table of the Forge-UGC paper with a column of this machine beside the paper's.

Takes models and the names of tables. Gives a sheet. Promises: each measurement is a fresh process and is kept, so that
a run goes on where it stopped; one that fails is a row with its reason; what this machine cannot measure is said in
words. The paper's figures are of other hardware and were not reproduced here: compare ratios. Not here: the comparison
with peers itself (``peers``), measurements that the paper has no table for (``bench/`` of the repository).

Reading order: ``data`` (the paper's tables), ``plan`` (what is measured), ``graphs`` and ``programs`` (measurements
without and with weights), ``child`` (their process), ``gather`` (running and keeping), ``tables`` (the sheet).
"""
