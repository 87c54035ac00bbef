//! What a write of a part makes of a record, for stores that can only write all of it.

use anyhow::{Result, bail, ensure};

use super::Operation;
use crate::workload::record::replace_field;

/// Writes into `into` what `operation`, which changes a part of a record, makes of `record`.
pub(super) fn patch(operation: &Operation<'_>, record: &[u8], into: &mut Vec<u8>) -> Result<()> {
    into.clear();
    match *operation {
        Operation::Update { offset, bytes, .. } => {
            into.extend_from_slice(record);
            write_at(into, offset, bytes);
            Ok(())
        }
        Operation::Replace { field, bytes, .. } => {
            ensure!(replace_field(record, field, bytes, into), "it has no field {field}");
            Ok(())
        }
        _ => bail!("no write of a part"),
    }
}

/// Writes over a part of a record, which grows if it has to; a gap is zeros.
pub(super) fn write_at(record: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if record.len() < end {
        record.resize(end, 0);
    }
    record[offset..end].copy_from_slice(bytes);
}
