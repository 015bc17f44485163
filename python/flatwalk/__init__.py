"""flatwalk: what another page-table organisation would do to a program's speed."""
