//! Whether the records of an earlier run are there.

use anyhow::{Result, bail};

use crate::target::{Operation, Outcome, Target};
use crate::workload::keys::Key;
use crate::workload::spec::{Proportions, Workload};

/// So many are looked for, spread over all of them.
const LOOKS: u64 = 64;

/// Refuses a run that finds none of its records: it would measure how fast they are missed.
pub(super) fn check(target: &dyn Target, workload: &Workload) -> Result<()> {
    let Proportions { read, update, scan, read_modify_write, .. } = workload.proportions;
    let updates = if workload.whole_updates { 0.0 } else { update };
    if read + updates + scan + read_modify_write == 0.0 {
        return Ok(());
    }
    let mut session = target.session(0)?;
    let mut key = Key::default();
    let looks = LOOKS.min(workload.insert_count);
    for look in 0..looks {
        let number = workload.insert_start + workload.insert_count / looks * look;
        key.name(number, workload.naming);
        let mut is_absent = true;
        let read = [Operation::Read { key: key.as_bytes() }];
        session.execute(&read, &mut |_, outcome| is_absent &= outcome == Outcome::Absent)?;
        // The measurement tells of what fails.
        if !is_absent {
            return Ok(());
        }
    }
    bail!(
        "--no-fill: of {looks} records that were looked for none is there; leave --no-fill out, \
         or store them first with `load`"
    )
}
