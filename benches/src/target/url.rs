//! From a URL to a target.

use anyhow::{Result, bail};

use super::null::Null;
use super::{Options, Target};

/// Opens the target of a URL: connects and fails at once if nobody is there.
pub fn open(url: &str, options: &Options) -> Result<Box<dyn Target>> {
    match url.split_once("://") {
        Some(("null", _)) => Ok(Box::new(Null::new(options.record_bytes))),
        _ => bail!("{url}: no such target; there is null://"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Operation, Outcome};

    #[test]
    fn null_answers_everything() {
        let target = open("null://", &Options::default()).expect("it opens");
        let mut session = target.session(0).expect("a session");
        let batch = [Operation::Read { key: b"k" }, Operation::Delete { key: b"k" }];
        let mut lens = vec![];
        let answered = session.execute(&batch, &mut |place, outcome| match outcome {
            Outcome::Found(value) => lens.push((place, value.len())),
            outcome => lens.push((place, usize::from(outcome == Outcome::Done))),
        });
        answered.expect("it answers");
        assert_eq!(lens, [(0, 1000), (1, 1)]);
        assert!(open("nothing://", &Options::default()).is_err());
    }
}
