//! A target that does nothing: what is measured against it is the generator.

use anyhow::Result;

use super::{Counters, Description, Operation, Outcome, Session, Target, Usage};

/// `null://`.
pub(super) struct Null {
    record: Vec<u8>,
}

impl Null {
    /// Answers reads with a record of this length.
    pub(super) fn new(record_bytes: usize) -> Self {
        Self { record: vec![0; record_bytes] }
    }
}

impl Target for Null {
    fn name(&self) -> String {
        "null".to_owned()
    }

    fn describe(&self) -> Result<Description> {
        let notes = vec!["does nothing: measures the generator".to_owned()];
        Ok(Description { transport: "none".to_owned(), notes, ..Description::default() })
    }

    fn session(&self, _client: usize) -> Result<Box<dyn Session>> {
        Ok(Box::new(NullSession { record: self.record.clone() }))
    }

    fn usage(&self) -> Result<Option<Usage>> {
        Ok(None)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }

    fn clear(&self) -> Result<()> {
        Ok(())
    }
}

struct NullSession {
    record: Vec<u8>,
}

impl Session for NullSession {
    fn execute(
        &mut self,
        batch: &[Operation<'_>],
        answer: &mut dyn FnMut(usize, Outcome<'_>),
    ) -> Result<()> {
        for (place, operation) in batch.iter().enumerate() {
            let outcome = match operation {
                Operation::Read { .. } => Outcome::Found(&self.record),
                Operation::Scan { limit, .. } => Outcome::Scanned(*limit),
                _ => Outcome::Done,
            };
            answer(place, outcome);
        }
        Ok(())
    }
}
