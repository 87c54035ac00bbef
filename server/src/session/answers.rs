//! The last answers of a session's mutations, so that a retry is applied once.

use onesided_protocol::limits::MUTATIONS_IN_FLIGHT_MAX;

const KEPT: u64 = MUTATIONS_IN_FLIGHT_MAX as u64;
/// Bytes of answers that one session keeps; the oldest go first.
pub(crate) const KEPT_MAX_BYTES: usize = 1 << 20;
/// Longest answer that is kept as it is.
pub(crate) const ANSWER_KEPT_MAX_BYTES: usize = KEPT_MAX_BYTES / MUTATIONS_IN_FLIGHT_MAX;

#[derive(Debug, Default)]
struct Kept {
    /// 0: never used.
    sequence: u64,
    /// Empty: it was applied, but its answer had to go.
    answer: Vec<u8>,
}

/// Answers by sequence number: place `n % 64` has the answer of the newest such `n`.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    kept: Vec<Kept>,
    highest: u64,
    bytes: usize,
    /// The session is over; nothing may be applied any more, since a retry would not be noticed.
    ended: bool,
}

/// What is known about a sequence number.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Seen<'a> {
    /// Apply it.
    New,
    /// It was applied; this was the answer.
    Again(&'a [u8]),
    /// Whether it was applied is no longer known.
    TooOld,
    /// The session is over.
    Ended,
}

impl Answers {
    /// Highest sequence number applied.
    pub(crate) fn highest(&self) -> u64 {
        self.highest
    }

    pub(crate) fn look_up(&self, sequence: u64) -> Seen<'_> {
        if self.ended {
            return Seen::Ended;
        }
        if self.highest.saturating_sub(sequence) >= KEPT {
            return Seen::TooOld;
        }
        match self.kept.get((sequence % KEPT) as usize) {
            Some(kept) if kept.sequence == sequence && kept.answer.is_empty() => Seen::TooOld,
            Some(kept) if kept.sequence == sequence => Seen::Again(&kept.answer),
            Some(kept) if kept.sequence > sequence => Seen::TooOld,
            _ => Seen::New,
        }
    }

    /// Remembers the answer of a mutation that was applied.
    pub(crate) fn keep(&mut self, sequence: u64, answer: &[u8]) {
        if self.kept.is_empty() {
            self.kept.resize_with(MUTATIONS_IN_FLIGHT_MAX, Kept::default);
        }
        self.highest = self.highest.max(sequence);
        let kept = &mut self.kept[(sequence % KEPT) as usize];
        self.bytes = self.bytes - kept.answer.len() + answer.len();
        kept.sequence = sequence;
        kept.answer.clear();
        if kept.answer.capacity() > ANSWER_KEPT_MAX_BYTES {
            kept.answer = Vec::new();
        }
        kept.answer.extend_from_slice(answer);
        self.shrink(sequence);
    }

    fn shrink(&mut self, newest: u64) {
        while self.bytes > KEPT_MAX_BYTES {
            let oldest = self
                .kept
                .iter_mut()
                .filter(|kept| !kept.answer.is_empty() && kept.sequence != newest)
                .min_by_key(|kept| kept.sequence);
            let Some(oldest) = oldest else { return };
            self.bytes -= oldest.answer.len();
            oldest.answer = Vec::new();
        }
    }

    /// The session is over: frees everything, and lets nothing be applied from now on.
    pub(crate) fn end(&mut self) {
        *self = Self { highest: self.highest, ended: true, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_64_are_known() {
        let mut answers = Answers::default();
        for sequence in 1..=100u64 {
            assert_eq!(answers.look_up(sequence), Seen::New);
            answers.keep(sequence, &sequence.to_le_bytes());
        }
        for sequence in 37..=100u64 {
            assert_eq!(answers.look_up(sequence), Seen::Again(&sequence.to_le_bytes()));
        }
        assert_eq!(answers.look_up(36), Seen::TooOld);
        assert_eq!(answers.look_up(1), Seen::TooOld);
        assert_eq!(answers.look_up(101), Seen::New);
    }

    #[test]
    fn out_of_order_within_the_window() {
        let mut answers = Answers::default();
        answers.keep(64, b"x");
        assert_eq!(answers.look_up(1), Seen::New);
        answers.keep(65, b"y");
        assert_eq!(answers.look_up(1), Seen::TooOld);
        assert_eq!(answers.look_up(2), Seen::New);
        answers.keep(2, b"z");
        assert_eq!(answers.look_up(2), Seen::Again(b"z"));
        assert_eq!(answers.highest(), 65);
    }

    #[test]
    fn far_ahead_and_the_end_of_the_numbers() {
        let mut answers = Answers::default();
        answers.keep(u64::MAX, b"x");
        assert_eq!(answers.look_up(u64::MAX), Seen::Again(b"x"));
        assert_eq!(answers.look_up(5), Seen::TooOld);
    }

    #[test]
    fn bytes_are_bounded() {
        let mut answers = Answers::default();
        let big = vec![7; KEPT_MAX_BYTES / 4];
        for sequence in 1..=10 {
            answers.keep(sequence, &big);
            assert!(answers.bytes <= KEPT_MAX_BYTES);
        }
        assert_eq!(answers.look_up(1), Seen::TooOld);
        assert_eq!(answers.look_up(10), Seen::Again(&big));
        answers.end();
        assert_eq!(answers.look_up(11), Seen::Ended);
    }
}
