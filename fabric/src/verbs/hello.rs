//! What both sides say in the connection manager's messages.
//!
//! | message | bytes |
//! |---|---|
//! | request | `1S`, version, 0, receive buffer (4), longest message (4), ticket (32) |
//! | answer | `1S`, version, 0, receive buffer (4), longest message (4) |
//! | rejection | `1S`, version, reason, text in UTF-8 up to the first 0 |
//!
//! Numbers are little-endian. InfiniBand pads with zeros, so what follows is not looked at.

const MARK: [u8; 2] = *b"1S";
pub(super) const VERSION: u8 = 1;
/// What InfiniBand and RoCE carry with a request.
const REQUEST_MAX_BYTES: usize = 56;
/// What they carry with a rejection.
const REJECTION_MAX_BYTES: usize = 148;
/// Longest message, and longest receive buffer, of any side.
const MAX_MESSAGE_BYTES: u32 = 1 << 20;
const HELLO_BYTES: usize = 12;
const TICKET_BYTES: usize = 32;

const _: () = assert!(HELLO_BYTES + TICKET_BYTES <= REQUEST_MAX_BYTES);

/// What a side says about its receiving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// Length of its receive buffers: a longer message travels in pieces.
    pub(super) receive_bytes: u32,
    /// Longest message that it takes.
    pub(super) max_message_bytes: u32,
}

/// Why the peer's words are of no use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Unclear {
    /// Not of this protocol at all.
    Foreign,
    /// Of this version, which this side does not speak.
    Version(u8),
    /// Of this version, and still wrong.
    Malformed,
}

impl std::fmt::Display for Unclear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Foreign => f.write_str("the peer does not speak this protocol"),
            Self::Version(theirs) => write!(
                f,
                "the peer speaks version {theirs} of the verbs set-up, this side version \
                 {VERSION}: update the older one"
            ),
            Self::Malformed => f.write_str("the peer's set-up data is malformed"),
        }
    }
}

impl Hello {
    /// Whether a side can be like that.
    pub(super) fn is_sensible(self) -> bool {
        (256..=MAX_MESSAGE_BYTES).contains(&self.receive_bytes)
            && (8..=MAX_MESSAGE_BYTES).contains(&self.max_message_bytes)
    }

    pub(super) fn answer(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..2].copy_from_slice(&MARK);
        bytes[2] = VERSION;
        bytes[4..8].copy_from_slice(&self.receive_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.max_message_bytes.to_le_bytes());
        bytes
    }

    pub(super) fn request(self, ticket: &[u8; 32]) -> [u8; HELLO_BYTES + TICKET_BYTES] {
        let mut bytes = [0; HELLO_BYTES + TICKET_BYTES];
        bytes[..HELLO_BYTES].copy_from_slice(&self.answer());
        bytes[HELLO_BYTES..].copy_from_slice(ticket);
        bytes
    }

    pub(super) fn decode_answer(bytes: &[u8]) -> Result<Self, Unclear> {
        let body = body(bytes)?;
        let (receive, rest) = body.split_first_chunk().ok_or(Unclear::Malformed)?;
        let (longest, _) = rest.split_first_chunk().ok_or(Unclear::Malformed)?;
        let hello = Self {
            receive_bytes: u32::from_le_bytes(*receive),
            max_message_bytes: u32::from_le_bytes(*longest),
        };
        if hello.is_sensible() { Ok(hello) } else { Err(Unclear::Malformed) }
    }

    pub(super) fn decode_request(bytes: &[u8]) -> Result<(Self, [u8; 32]), Unclear> {
        let hello = Self::decode_answer(bytes)?;
        let ticket = bytes.get(HELLO_BYTES..).and_then(<[u8]>::first_chunk);
        Ok((hello, *ticket.ok_or(Unclear::Malformed)?))
    }
}

/// What follows mark, version and the byte after it.
fn body(bytes: &[u8]) -> Result<&[u8], Unclear> {
    match bytes {
        [a, b, version, _, body @ ..] if [*a, *b] == MARK => {
            if *version == VERSION {
                Ok(body)
            } else {
                Err(Unclear::Version(*version))
            }
        }
        _ => Err(Unclear::Foreign),
    }
}

/// Why a listener says no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// The ticket is not good, or its owner is not let in.
    Refused = 1,
    /// It came through a device that this listener does not use: another address may do.
    OtherDevice = 2,
    /// No room now.
    Full = 3,
    /// The request cannot be understood.
    Unclear = 4,
    /// Something failed on the listener's side.
    Failed = 5,
}

/// A listener's no.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rejection {
    pub(super) reason: Reason,
    pub(super) text: String,
}

impl Rejection {
    pub(super) fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![MARK[0], MARK[1], VERSION, self.reason as u8];
        let mut end = self.text.len().min(REJECTION_MAX_BYTES - bytes.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        bytes.extend_from_slice(&self.text.as_bytes()[..end]);
        bytes
    }

    /// `None` when it is not of this protocol's listener. Version and reason of a later one are
    /// no obstacle: the text still tells.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let [a, b, _version, reason, text @ ..] = bytes else { return None };
        if [*a, *b] != MARK {
            return None;
        }
        let reason = match reason {
            2 => Reason::OtherDevice,
            3 => Reason::Full,
            4 => Reason::Unclear,
            5 => Reason::Failed,
            _ => Reason::Refused,
        };
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        let text: String =
            String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).collect();
        Some(Self { reason, text })
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const HELLO: Hello = Hello { receive_bytes: 4352, max_message_bytes: 70 << 10 };

    #[test]
    fn requests_and_answers_survive_padding() {
        let ticket = [7; 32];
        let mut request = HELLO.request(&ticket).to_vec();
        assert!(request.len() <= REQUEST_MAX_BYTES);
        request.resize(REQUEST_MAX_BYTES, 0);
        assert_eq!(Hello::decode_request(&request), Ok((HELLO, ticket)));
        let mut answer = HELLO.answer().to_vec();
        answer.resize(196, 0);
        assert_eq!(Hello::decode_answer(&answer), Ok(HELLO));
    }

    #[test]
    fn each_way_of_being_wrong_has_its_name() {
        let good = HELLO.request(&[7; 32]);
        assert_eq!(Hello::decode_request(&[]), Err(Unclear::Foreign));
        assert_eq!(Hello::decode_request(b"GET / HTTP/1.1"), Err(Unclear::Foreign));
        let mut other = good;
        other[2] = 9;
        let unclear = Hello::decode_request(&other).expect_err("another version");
        assert_eq!(unclear, Unclear::Version(9));
        assert!(unclear.to_string().contains("version 9"), "{unclear}");
        for len in 4..good.len() {
            assert_eq!(Hello::decode_request(&good[..len]), Err(Unclear::Malformed), "{len}");
        }
        for zero in [4..8, 8..12] {
            let mut bytes = good;
            bytes[zero].fill(0);
            assert_eq!(Hello::decode_request(&bytes), Err(Unclear::Malformed));
        }
    }

    #[test]
    fn a_rejection_tells_why_and_is_cut_at_a_character() {
        let no = Rejection::new(Reason::Full, "no room: try again later");
        let mut bytes = no.encode();
        bytes.resize(REJECTION_MAX_BYTES, 0);
        assert_eq!(Rejection::decode(&bytes), Some(no));
        let long = Rejection::new(Reason::Refused, "ß".repeat(200));
        let bytes = long.encode();
        assert!(bytes.len() <= REJECTION_MAX_BYTES);
        let told = Rejection::decode(&bytes).expect("ours").text;
        assert!(told.chars().all(|c| c == 'ß') && told.len() == 144, "{told}");
        assert_eq!(Rejection::decode(b"no"), None);
        assert_eq!(Rejection::decode(&[0; 148]), None);
        let hostile = Rejection::decode(b"1S\x09\xffa\x1b[31mb\xff").expect("marked");
        assert_eq!(hostile.text, "a[31mb\u{fffd}");
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = StdRng::seed_from_u64(3);
        for _ in 0..10_000 {
            let mut bytes = vec![0; random.random_range(0..60)];
            random.fill(&mut bytes[..]);
            if bytes.len() > 3 && random.random() {
                bytes[..3].copy_from_slice(&[MARK[0], MARK[1], VERSION]);
            }
            let request = Hello::decode_request(&bytes);
            assert!(request.is_err() || bytes.len() >= HELLO_BYTES + TICKET_BYTES);
            let _text = Rejection::decode(&bytes);
        }
    }
}
