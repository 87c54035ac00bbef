//! Path records: the way that packets of a connection take, as the connection manager found it, and
//! as it is told to take it.

use super::cm::{Id, check};
use super::error::VerbsError;
use super::sys;

/// For both directions, of the connection itself: the only kind that the kernel takes.
const FLAGS: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;
/// Selects exactly the value that stands beside it.
const EXACTLY: u8 = 2 << 6;
/// The kernel's `ib_path_rec_data`: flags, nothing, and a path record as it travels.
const DATA_BYTES: usize = 8 + RECORD_BYTES;
const RECORD_BYTES: usize = 64;

/// The way to a peer.
pub(crate) struct Path(sys::ibv_sa_path_rec);

impl Path {
    /// Its MTU, as devices number them.
    pub(crate) fn mtu(&self) -> u8 {
        self.0.mtu
    }

    /// The same way with shorter packets.
    pub(crate) fn with_mtu(self, code: u8) -> Self {
        Self(sys::ibv_sa_path_rec { mtu: code, ..self.0 })
    }

    fn to_data(&self) -> [u8; DATA_BYTES] {
        let record = &self.0;
        let mut data = [0; DATA_BYTES];
        data[..4].copy_from_slice(&FLAGS.to_ne_bytes());
        // Fields that are big-endian in memory are copied as they are.
        let hops = u32::from_be(record.flow_label) << 8 | u32::from(record.hop_limit);
        let reversible = u8::from(record.reversible != 0) << 7 | (record.numb_path & 0x7f);
        // SAFETY: any bytes are a GID.
        let gid = |gid: &sys::ibv_gid| unsafe { gid.raw };
        let fields: [&[u8]; 15] = [
            // No service id.
            &[0; 8],
            &gid(&record.dgid),
            &gid(&record.sgid),
            &record.dlid.to_ne_bytes(),
            &record.slid.to_ne_bytes(),
            &hops.to_be_bytes(),
            &[record.traffic_class],
            &[reversible],
            &record.pkey.to_ne_bytes(),
            &u16::from(record.sl & 0xf).to_be_bytes(),
            &[EXACTLY | record.mtu & 0x3f],
            &[EXACTLY | record.rate & 0x3f],
            &[EXACTLY | record.packet_life_time & 0x3f],
            &[record.preference],
            &[0; 6],
        ];
        let mut at = DATA_BYTES - RECORD_BYTES;
        for field in fields {
            data[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        debug_assert_eq!(at, DATA_BYTES);
        data
    }
}

impl Id {
    /// The way that [`Id::resolve_route`] has found; `None` on transports that have none (iWARP).
    pub(crate) fn path(&self) -> Option<Path> {
        // SAFETY: the id is valid, and its route set before the event that was waited for.
        let route = unsafe { &(*self.as_ptr()).route };
        if route.path_rec.is_null() || route.num_paths < 1 {
            return None;
        }
        // SAFETY: the library keeps so many records there until the id is destroyed.
        Some(Path(unsafe { *route.path_rec }))
    }

    /// Takes this way, in place of [`Id::resolve_route`]; ends in the same event.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn set_path(&self, path: &Path) -> Result<(), VerbsError> {
        let mut data = path.to_data();
        let (level, name) = (sys::RDMA_OPTION_IB as i32, sys::RDMA_OPTION_IB_PATH as i32);
        let at = data.as_mut_ptr().cast();
        // SAFETY: the id is valid, and the option's value so many bytes, which are copied.
        let code = unsafe { self.cm().rdma_set_option(self.as_ptr(), level, name, at, data.len()) };
        check("rdma_set_option", code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_travels_as_the_specification_says() {
        // SAFETY: it is plain data, for which zero is a value.
        let mut record: sys::ibv_sa_path_rec = unsafe { std::mem::zeroed() };
        record.dgid = sys::ibv_gid { raw: [0xd1; 16] };
        record.sgid = sys::ibv_gid { raw: [0x51; 16] };
        record.dlid = 0x0102_u16.to_be();
        record.slid = 0x0304_u16.to_be();
        record.flow_label = 0x000a_bcde_u32.to_be();
        record.hop_limit = 64;
        record.traffic_class = 7;
        record.reversible = 1;
        record.numb_path = 1;
        record.pkey = 0xffff;
        record.sl = 3;
        record.rate = 6;
        record.packet_life_time = 18;
        let data = Path(record).with_mtu(2).to_data();
        assert_eq!(data[..8], [&0x2b_u32.to_ne_bytes()[..], &[0; 4]].concat());
        assert_eq!(data[16..32], [0xd1; 16]);
        assert_eq!(data[32..48], [0x51; 16]);
        assert_eq!(data[48..52], [1, 2, 3, 4]);
        assert_eq!(data[52..56], [0x0a, 0xbc, 0xde, 64]);
        assert_eq!(data[56..58], [7, 0x81]);
        assert_eq!(data[58..62], [0xff, 0xff, 0, 3]);
        assert_eq!(data[62..66], [0x82, 0x86, 0x92, 0]);
        assert_eq!(data[66..], [0; 6]);
    }
}
