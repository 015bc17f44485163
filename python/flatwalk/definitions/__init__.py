"""Machines, schemes, mixes and workloads as files and options have them, and what `--set` changes of them."""
