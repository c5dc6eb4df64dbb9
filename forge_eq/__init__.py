"""forge_eq: an e-graph superoptimizer and compiler for PyTorch graphs."""
