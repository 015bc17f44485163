//! flatwalk-os.
