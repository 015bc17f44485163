"""Real programs of Debian as workloads: `flatwalk record --workload NAME`. See docs/recording.md."""
