//! flatwalk-paging.
