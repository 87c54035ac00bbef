//! Every bound of the protocol. A peer's input is compared with these before it is believed.

/// Default port of the server's control and tcp connections.
pub const DEFAULT_PORT: u16 = 7411;
/// Version of the memory layout: catalog, index, log. Another one is refused at hello.
pub const LAYOUT_VERSION: u16 = 2;
/// Oldest version of the messages that this build speaks.
pub const WIRE_VERSION_MIN: u16 = 1;
/// Newest version of the messages that this build speaks.
pub const WIRE_VERSION_MAX: u16 = 1;

/// Longest key.
pub const KEY_MAX_BYTES: usize = 65_535;
/// Longest value unless the server is configured otherwise.
pub const VALUE_MAX_DEFAULT_BYTES: usize = 32 << 20;
/// Longest value that can be configured: an entry must fit into one region.
pub const VALUE_MAX_BYTES: usize = 60 << 20;
/// Room in a session's staging memory beyond the longest value: server and client assume the same.
pub const STAGING_SPARE_BYTES: usize = 1 << 20;
/// Buffers that a client may lend to the server at once, beside its staging memory.
pub const LENT_BUFFERS_MAX: usize = 16;
/// Values above this are read in three steps and not covered by the checksum.
pub const LARGE_VALUE_BYTES: usize = 16 << 10;

/// Length of a full region; the last one may be shorter.
pub const REGION_BYTES: usize = 64 << 20;
/// Regions of one server life: 1 TiB of full regions.
pub const REGIONS_MAX: usize = 16_384;
/// Longest log segment; the server's begin shorter and grow to this.
pub const SEGMENT_BYTES: usize = 1 << 20;
/// Tables at one time, and in the catalog.
pub const TABLES_MAX: usize = 1_024;
/// Longest name of a table.
pub const TABLE_NAME_MAX_BYTES: usize = 64;
/// Deepest directory: 2^22 words are 32 MiB, the index of 20 thousand million keys.
pub const DEPTH_MAX: u8 = 22;

/// Rounds of a lookup before it asks by RPC.
pub const ROUNDS_MAX: u32 = 8;
/// Forwards that one round follows from a cached slot, which may be as old as can be.
pub const HOPS_MAX: u32 = 2;

/// Mutations of one session that may be in flight, and answers the server keeps for retries.
pub const MUTATIONS_IN_FLIGHT_MAX: usize = 64;
/// Requests in one batch.
pub const BATCH_MAX: usize = 1_024;
/// Keys in one answer to a scan.
pub const SCAN_KEYS_MAX: usize = 1_024;
/// Leases that one session may have of one table.
pub const LEASES_MAX: usize = 8;
/// Bytes of a request or answer that travel inside the message; more goes by descriptor, where
/// the fabric is one-sided.
pub const INLINE_MAX_BYTES: usize = 4_096;
/// Room for headers around what travels inline.
pub const MESSAGE_OVERHEAD_BYTES: usize = 256;

/// Longest message where values always travel inline (tcp), for the longest value that the
/// welcome names.
#[must_use]
pub const fn inline_message_max_bytes(value_max_bytes: usize) -> usize {
    value_max_bytes + KEY_MAX_BYTES + MESSAGE_OVERHEAD_BYTES
}

/// Longest control frame to the server: a hello with its token is the longest. Small, because a
/// peer that has not authenticated may send one.
pub const CONTROL_REQUEST_MAX_BYTES: usize = 512;
/// Key hashes in one report of accesses.
pub const ACCESSES_MAX: usize = 1_000;
/// Longest control frame to the server within a session: a report of accesses.
pub const SESSION_REQUEST_MAX_BYTES: usize = 16 + 8 * ACCESSES_MAX;
/// Longest control frame to a client: the status of every table, or every counter.
pub const CONTROL_FRAME_MAX_BYTES: usize = 256 << 10;
/// What one answer to a heartbeat may tell of as retired; the next one tells of more.
pub const RETIRED_MAX: usize = 4_096;
/// Longest name of a counter.
pub const STAT_NAME_MAX_BYTES: usize = 128;
/// Counters in one answer.
pub const STATS_MAX: usize = 1_024;
/// Longest token.
pub const TOKEN_MAX_BYTES: usize = 256;
/// Longest opaque description of a fabric in the welcome.
pub const FABRIC_BLOB_MAX_BYTES: usize = 512;
/// Fabrics that a welcome may offer.
pub const FABRICS_MAX: usize = 8;
/// Longest text of an error.
pub const ERROR_TEXT_MAX_BYTES: usize = 1_024;
/// Length of a ticket.
pub const TICKET_BYTES: usize = 32;
/// Longest result of `append` and `write_at`.
pub const APPEND_MAX_BYTES: usize = VALUE_MAX_BYTES;
