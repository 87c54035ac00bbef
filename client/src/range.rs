//! Which keys a scan is for.

/// Keys that lie side by side in the order of their bytes.
///
/// ```
/// use onesided::KeyRange;
/// let all = KeyRange::all();
/// let from_m_on = KeyRange::all().from("m");
/// let later_users = KeyRange::prefix("user:").after("user:1001");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyRange {
    pub(crate) prefix: Vec<u8>,
    pub(crate) from: Vec<u8>,
    /// Whether it begins behind `from`.
    pub(crate) after: bool,
}

impl KeyRange {
    /// All keys.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// The keys that begin so.
    #[must_use]
    pub fn prefix(prefix: impl AsRef<[u8]>) -> Self {
        Self { prefix: prefix.as_ref().to_vec(), ..Self::default() }
    }

    /// Of these keys this one, if it is there, and those behind it.
    #[must_use]
    pub fn from(self, key: impl AsRef<[u8]>) -> Self {
        Self { from: key.as_ref().to_vec(), after: false, ..self }
    }

    /// Of these keys those behind this one: how a scan goes on behind the last key of the one
    /// before.
    #[must_use]
    pub fn after(self, key: impl AsRef<[u8]>) -> Self {
        Self { from: key.as_ref().to_vec(), after: true, ..self }
    }
}
