//! libibverbs and librdmacm made safe, one file per object. Each handle keeps what it was made of
//! alive. All unsafe code of the verbs fabric is in this directory.

pub(crate) mod addr;
pub(crate) mod cm;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod farewell;
pub(crate) mod flight;
pub(crate) mod keys;
pub(crate) mod path;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod sys;
