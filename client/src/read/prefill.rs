//! Filling the bucket cache ahead: the index in large READs.

use onesided_protocol::layout::line::{
    BUCKET_BYTES, BUCKET_WORDS, BUCKETS, TAIL_OFFSET_BYTES, bucket_offset_bytes,
};

use super::io::Io;
use super::view::{Refreshed, TableView};
use crate::error::Error;

const _: () = assert!(TAIL_OFFSET_BYTES == BUCKETS * BUCKET_BYTES);

/// READs the buckets of every index segment into the cache, as far as it has room. Returns how
/// many were READ.
pub(crate) async fn prefill(io: &Io<'_>, view: &TableView) -> Result<usize, Error> {
    if view.refresh(io, view.hash(&[])).await? == Refreshed::TableGone {
        return Ok(0);
    }
    let Some(map) = view.map() else { return Ok(0) };
    let room = map.cache.len_bytes() / BUCKET_BYTES;
    let mut filled = 0;
    for directory_index in (0..map.len()).take(room / BUCKETS) {
        let Some(first) = map.place_of(directory_index, 0) else { continue };
        let Some(words) = io.read(first.addr, TAIL_OFFSET_BYTES).await? else { continue };
        for bucket in 0..BUCKETS {
            let from = bucket_offset_bytes(bucket) / 8;
            let Some(place) = map.place_of(directory_index, bucket) else { continue };
            let Some(image) = words.get(from..).and_then(|w| w.first_chunk::<BUCKET_WORDS>())
            else {
                continue;
            };
            map.cache.put(directory_index, bucket, place.addr, image);
            filled += 1;
        }
    }
    Ok(filled)
}
