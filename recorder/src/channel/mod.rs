//! The shared memory through which a recorded process hands its execution to the collector.
//!
//! There is one [`region::Region`] per recorded process. Each vCPU appends 8-byte words ([`word`]) to a
//! buffer of its own through its [`region::Slot`], with no lock. Full buffers are submitted through a
//! ring and come back through another ([`buffers`]). Definitions of code and events travel through a
//! third, the control ring ([`control`]).
//!
//! The process needs no descriptor for it (the guest program shares its descriptor table and may
//! close or reuse any), and nothing has to happen at its end: whatever it wrote before it exited,
//! crashed or was killed is in the region, and the collector takes it from there.
//!
//! Producers are serialised by locks in the process's private memory, so that a process that dies
//! inside one cannot block the collector. The collector trusts nothing it reads here: the guest
//! could have overwritten it.

pub mod buffers;
pub mod control;
pub mod hello;
pub mod region;
pub mod sample;
pub mod word;
