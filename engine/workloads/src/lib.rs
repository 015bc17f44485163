//! flatwalk-workloads.
