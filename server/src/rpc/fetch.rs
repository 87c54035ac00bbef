//! Values that a request names and that cannot be loaded at once: READ first, then served as if
//! they had come in the message.

use onesided_fabric::{Buffer, RegionId, RemoteAddr};
use onesided_protocol::rpc::{Op, Payload};

use super::Call;
use super::value::STAGING;

/// A value to READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) remote: RemoteAddr,
    /// Above 0.
    pub(crate) len_bytes: usize,
}

impl Call<'_> {
    /// What must be READ before `op` can be executed. Descriptors that are wrong are left out:
    /// they are answered when it is executed.
    pub(super) fn to_fetch(&self, op: &Op<'_>) -> Vec<Span> {
        let mut room_bytes = self.peer.staging_bytes;
        let payloads = parts(op).iter().filter_map(payload);
        payloads.filter_map(|payload| self.span(payload, &mut room_bytes)).collect()
    }

    /// Puts the values of [`Self::to_fetch`] in place of their descriptors.
    pub(super) fn fill<'v>(&self, op: &mut Op<'v>, values: &'v [Buffer]) {
        let mut values = values.iter();
        let mut room_bytes = self.peer.staging_bytes;
        for payload in parts_mut(op).iter_mut().filter_map(payload_mut) {
            if self.span(payload, &mut room_bytes).is_some()
                && let Some(value) = values.next()
            {
                *payload = Payload::Inline(value);
            }
        }
    }

    /// Values of one request do not overlap, so that all together fit into the staging memory:
    /// one that repeats a descriptor makes the server READ no more than that.
    fn span(&self, payload: &Payload<'_>, room_bytes: &mut usize) -> Option<Span> {
        let len_bytes = payload.len_bytes();
        let (region, offset_bytes, checked) = match *payload {
            Payload::Inline(_) => return None,
            Payload::Staged { offset_bytes, .. } => {
                (STAGING, offset_bytes, self.check(offset_bytes, len_bytes))
            }
            // How long it is, only the fabric knows: a READ beyond its end ends the connection.
            Payload::Lent { number, .. } => {
                (RegionId(u32::from(number)), 0, self.within_limit(len_bytes))
            }
        };
        let wanted = len_bytes > 0 && checked.is_ok();
        *room_bytes = room_bytes.checked_sub(len_bytes).filter(|_| wanted)?;
        Some(Span { remote: RemoteAddr { region, offset_bytes }, len_bytes })
    }
}

fn parts<'o, 'v>(op: &'o Op<'v>) -> &'o [Op<'v>] {
    match op {
        Op::Batch(ops) => ops,
        one => std::slice::from_ref(one),
    }
}

fn parts_mut<'o, 'v>(op: &'o mut Op<'v>) -> &'o mut [Op<'v>] {
    match op {
        Op::Batch(ops) => ops,
        one => std::slice::from_mut(one),
    }
}

fn payload<'o, 'v>(op: &'o Op<'v>) -> Option<&'o Payload<'v>> {
    match op {
        Op::Put { value, .. } | Op::Append { value, .. } | Op::WriteAt { value, .. } => Some(value),
        _ => None,
    }
}

fn payload_mut<'o, 'v>(op: &'o mut Op<'v>) -> Option<&'o mut Payload<'v>> {
    match op {
        Op::Put { value, .. } | Op::Append { value, .. } | Op::WriteAt { value, .. } => Some(value),
        _ => None,
    }
}
