"""Full systems: a QEMU that walks flattened page tables and a Linux that uses them."""
