//! How bytes reach the other side, for `onesided` and nothing else in particular.
//!
//! One contract, modelled on `ibv_post_send` and `ibv_poll_cq`, and a backend per way of
//! reaching a peer:
//!
//! | backend | READ, WRITE, CAS, FAA | SEND/RECV | used by |
//! |---|---|---|---|
//! | [`shm`] | loads and stores in a mapped memfd | rings with futex wake-ups | peers on one host |
//! | [`verbs`] | by the RDMA device | a shared receive queue | peers with RDMA |
//! | [`tcp`] | no: [`PostError::NotOneSided`] | length-prefixed frames | everybody else |
//! | [`sim`] | torn word by word, reordered, from a seed | a queue that delays | tests |
//!
//! Method order for a peer: make a [`CompletionQueue`], make or accept an [`Endpoint`] on it,
//! [`Endpoint::attach`] the regions that the other side names, then [`Endpoint::post`] chains of
//! [`WorkRequest`]s and [`CompletionQueue::poll`] their [`Completion`]s.
//!
//! This crate knows no requests, tables or keys. All unsafe code of what is shipped to users of the
//! store is in here, in [`mem`] and below `verbs/ffi`.

pub mod atomics;
pub mod buffer;
mod crowded;
pub mod endpoint;
pub mod loads;
pub mod mem;
pub mod policy;
mod process;
mod registrations;
pub mod shm;
pub mod sim;
pub mod tcp;
pub mod verbs;
pub mod work;

pub use atomics::{Atomics, AtomicsError, CpuAtomics, Word};
pub use buffer::{Buffer, BufferPool, Parking, ParkingUsage, PoolUsage};
pub use crowded::Crowded;
pub use endpoint::{
    Admission, AttachError, Awaited, Caps, CompletionQueue, Endpoint, FabricKind, LENT_MAX, Polled,
    Refused, Wait,
};
pub use loads::Loads;
pub use mem::{
    AccessError, Fold, HUGE_PAGE_BYTES, HugePageMaker, Line, Memory, Only, carryless_fold,
    high_halves_match,
};
pub use policy::Rdma;
pub use process::PeerProcess;
pub use registrations::Span;
pub use work::{
    Completion, Opcode, Outcome, PostError, RegionId, RemoteAddr, Rights, WorkError, WorkRequest,
};
