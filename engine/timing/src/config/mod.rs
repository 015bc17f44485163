//! What is simulated, as files say it: machines and schemes, their keys, and what makes them valid.

pub mod machine;
