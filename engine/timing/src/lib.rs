//! flatwalk-timing.
