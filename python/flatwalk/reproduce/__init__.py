"""`flatwalk reproduce`: the papers' claims, checked against our own numbers. See docs/reproducing.md."""
