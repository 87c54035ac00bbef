//! Scans: an ordered table's keys by RPC, page by page, and their values by READs that prove
//! themselves as a GET's do.
//!
//! A page's slots are hints, as all slots: what does not prove itself there is looked up by its
//! key. So a value is one that was current during the call, and a key without one went meanwhile.

use onesided_protocol::layout::slot::Slot;
use onesided_protocol::limits::{KEY_MAX_BYTES, SCAN_KEYS_MAX};
use onesided_protocol::rpc::Op;

use super::{Io, TableView, batch, decide_value, fast};
use crate::core::Deadline;
use crate::error::Error;
use crate::range::KeyRange;
use crate::rpc;
use crate::stats::Counter;
use crate::table::TableHandle;
use crate::value::Value;

/// What one answer gave.
pub(crate) struct Page {
    pub(crate) keys: Vec<Vec<u8>>,
    /// Where their entries were.
    pub(crate) slots: Vec<Slot>,
    /// Others may follow.
    pub(crate) more: bool,
}

/// Where the next page begins.
struct Next {
    from: Vec<u8>,
    after: bool,
    prefix_len: u16,
}

impl Next {
    /// `None`: there can be no key in this range.
    fn first(range: &KeyRange) -> Result<Option<Self>, Error> {
        let KeyRange { prefix, from, after } = range;
        let (from, after) = match from {
            from if from.starts_with(prefix) => (from, *after),
            from if from < prefix => (prefix, false),
            _ => return Ok(None),
        };
        let prefix_len = u16::try_from(prefix.len()).map_err(|_| {
            let len = prefix.len();
            Error::TooLarge(format!("a prefix of {len} bytes; the limit is {KEY_MAX_BYTES}"))
        })?;
        Ok(Some(Self { from: from.clone(), after, prefix_len }))
    }

    fn op(&self, keys: usize) -> Op<'_> {
        let limit = keys.min(SCAN_KEYS_MAX) as u16;
        Op::Scan { from: &self.from, after: self.after, prefix_len: self.prefix_len, limit }
    }

    /// Goes behind a page.
    ///
    /// # Errors
    /// When its keys are not the next ones, in order: then the scan might never end.
    fn advance(&mut self, page: &Page) -> Result<(), Error> {
        let prefix = self.from[..self.prefix_len.into()].to_vec();
        for key in &page.keys {
            let is_next = *key > self.from || *key == self.from && !self.after;
            if !is_next || !key.starts_with(&prefix) {
                return Err(Error::BadAnswer("the keys of a scan are not the next ones in order"));
            }
            self.from.clone_from(key);
            self.after = true;
        }
        if page.more && page.keys.is_empty() {
            return Err(Error::BadAnswer("a scan says that there are more keys, and gives none"));
        }
        Ok(())
    }
}

/// The first keys of a range that have a value, at most `limit`, and their values.
pub(crate) async fn scan(
    table: &TableHandle,
    range: &KeyRange,
    limit: usize,
) -> Result<Vec<(Vec<u8>, Value)>, Error> {
    let mut found = Vec::new();
    let Some(mut next) = Next::first(range)? else { return Ok(found) };
    while found.len() < limit {
        table.count(Counter::RpcScans, 1);
        let op = next.op(limit - found.len());
        // However many pages there are: each is an operation.
        let by = table.deadline("scan");
        let (page, _) = rpc::call_until(table, by, None, &op, rpc::page).await?;
        next.advance(&page)?;
        let more = page.more;
        let values = values_of(table, &page, by).await?;
        let pairs = page.keys.into_iter().zip(values);
        found.extend(pairs.filter_map(|(key, value)| Some((key, value?))));
        if !more {
            break;
        }
    }
    Ok(found)
}

/// The values of a page's keys; `None`: it went meanwhile.
async fn values_of(
    table: &TableHandle,
    page: &Page,
    by: Deadline,
) -> Result<Vec<Option<Value>>, Error> {
    let open = table.open(by).await?;
    table.count(Counter::Gets, page.keys.len());
    if !open.connection.caps().one_sided {
        return rpc::get_many(table, &page.keys).await;
    }
    let mut values: Vec<Option<Value>> = page.keys.iter().map(|_| None).collect();
    let begun = table.begin();
    if open.is_usable() {
        // An error: the connection is lost. What was read counts, the others ask on the next.
        let _lost = read_at(table, &open.io_until(&by), &open.view, page, &mut values).await;
    }
    drop(begun);
    table.count(Counter::OneSidedHits, values.iter().flatten().count());
    for (value, key) in values.iter_mut().zip(&page.keys).filter(|(value, _)| value.is_none()) {
        (*value, _) = decide_value(table, key, by).await?;
    }
    Ok(values)
}

/// Fills in the values that prove themselves where the slots point.
async fn read_at(
    table: &TableHandle,
    io: &Io<'_>,
    view: &TableView,
    page: &Page,
    values: &mut [Option<Value>],
) -> Result<(), Error> {
    for addr in page.slots.iter().filter_map(|slot| slot.addr()) {
        if io.regions.len_bytes(addr.region()) == 0 {
            io.regions.learn(io, addr.region()).await?;
        }
    }
    let now = table
        .with_now(|open, _own| fast::entries_now(&open.io(), &open.view, &page.keys, &page.slots));
    match now {
        Some(now) => values.iter_mut().zip(now).for_each(|(value, now)| *value = now),
        None => batch::entries_posted(io, view, &page.keys, &page.slots, values).await?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(keys: &[&str], more: bool) -> Page {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        Page { slots: vec![Slot(0); keys.len()], keys, more }
    }

    fn first(range: &KeyRange) -> Option<(Vec<u8>, bool, u16)> {
        let next = Next::first(range).expect("short enough")?;
        Some((next.from, next.after, next.prefix_len))
    }

    #[test]
    fn a_prefix_says_where_a_scan_begins() {
        assert_eq!(first(&KeyRange::all().from("b")), Some((b"b".into(), false, 0)));
        assert_eq!(first(&KeyRange::prefix("b")), Some((b"b".into(), false, 1)));
        assert_eq!(first(&KeyRange::prefix("b").after("bc")), Some((b"bc".into(), true, 1)));
        assert_eq!(first(&KeyRange::prefix("b").after("a")), Some((b"b".into(), false, 1)));
        assert_eq!(first(&KeyRange::prefix("b").after("c")), None);
        assert!(Next::first(&KeyRange::prefix(vec![0; 65_536])).is_err());
    }

    #[test]
    fn pages_that_do_not_go_on_are_refused() {
        let advance = |range: &KeyRange, page: &Page| {
            let mut next = Next::first(range).expect("short enough").expect("not empty");
            next.advance(page).map(|()| (next.from, next.after))
        };
        let range = KeyRange::prefix("a").after("a2");
        assert_eq!(advance(&range, &page(&["a3", "a4"], true)).unwrap(), (b"a4".into(), true));
        assert_eq!(advance(&range, &page(&[], false)).unwrap(), (b"a2".into(), true));
        assert_eq!(advance(&KeyRange::all().from("a"), &page(&["a"], true)).unwrap().0, b"a");
        for wrong in [&["a2"][..], &["a1"], &["a3", "a3"], &["a4", "a3"], &["b"]] {
            assert!(advance(&range, &page(wrong, false)).is_err(), "{wrong:?}");
        }
        assert!(advance(&range, &page(&[], true)).is_err());
    }
}
