"""Tests Linux with flattened page tables: in every mode the same results as without, and no complaint."""
