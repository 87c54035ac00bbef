//! Bytes of the control messages.

use super::*;

impl ToServer {
    /// Appends the message, without the frame's length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                out.u8(HELLO);
                out.u16(hello.wire_min);
                out.u16(hello.wire_max);
                out.u16(hello.layout);
                out.bytes(hello.token.as_bytes());
                out.u64(hello.resume.0);
                out.u64(hello.resume.1);
            }
            Self::Heartbeat(beat) => {
                out.u8(2);
                out.u64(beat.epoch);
            }
            Self::Ticket => out.u8(3),
            Self::OpenTable { name } => {
                out.u8(4);
                out.bytes(name.as_bytes());
            }
            Self::CreateTable { name, options } => {
                out.u8(5);
                out.bytes(name.as_bytes());
                options.encode(out);
            }
            Self::AlterTable { name, options } => {
                out.u8(6);
                out.bytes(name.as_bytes());
                options.encode(out);
            }
            Self::DropTable { name } => {
                out.u8(7);
                out.bytes(name.as_bytes());
            }
            Self::ListTables => out.u8(8),
            Self::Stats => out.u8(9),
            Self::Goodbye => out.u8(10),
            Self::Accessed { table, hashes } => {
                out.u8(11);
                out.u32(*table);
                out.u32(hashes.len() as u32);
                hashes.iter().for_each(|hash| out.u64(*hash));
            }
            Self::Counted { table, counts } => {
                out.u8(12);
                out.u32(*table);
                let mut counts = **counts;
                counts.all_mut().for_each(|count| out.u64(*count));
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When the bytes are not exactly one message within the limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        let message = match r.u8("message")? {
            HELLO => Self::Hello(Hello {
                wire_min: r.u16("wire min")?,
                wire_max: r.u16("wire max")?,
                layout: r.u16("layout")?,
                token: r.text("token", TOKEN_MAX_BYTES)?.to_owned(),
                resume: (r.u64("resume session")?, r.u64("resume key")?),
            }),
            2 => Self::Heartbeat(Heartbeat { epoch: r.u64("epoch")? }),
            3 => Self::Ticket,
            4 => Self::OpenTable { name: table_name(r)? },
            5 => Self::CreateTable { name: table_name(r)?, options: TableOptions::decode(r)? },
            6 => Self::AlterTable { name: table_name(r)?, options: TableOptions::decode(r)? },
            7 => Self::DropTable { name: table_name(r)? },
            8 => Self::ListTables,
            9 => Self::Stats,
            10 => Self::Goodbye,
            11 => {
                let table = r.u32("table id")?;
                let count = bounded(r.u32("access count")?, "accesses", ACCESSES_MAX as u32)?;
                let hashes = (0..count).map(|_| r.u64("key hash")).collect::<Result<_, _>>()?;
                Self::Accessed { table, hashes }
            }
            12 => {
                let table = r.u32("table id")?;
                let mut counts = Box::<TableCounts>::default();
                for count in counts.all_mut() {
                    *count = r.u64("count")?;
                }
                Self::Counted { table, counts }
            }
            kind => return Err(DecodeError::Unknown { field: "message", value: u64::from(kind) }),
        };
        reader.end()?;
        Ok(message)
    }
}

fn table_name(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    Ok(reader.text("table name", TABLE_NAME_MAX_BYTES)?.to_owned())
}

impl TableOptions {
    fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.default_ttl_s);
        out.u64(self.quota_bytes);
        out.u64(self.floor_bytes);
        out.u8(self.evict.into());
        out.u8(self.ordered.into());
        out.u8(self.update as u8);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let default_ttl_s = reader.u32("default ttl")?;
        let quota_bytes = reader.u64("quota")?;
        let floor_bytes = reader.u64("floor")?;
        let evict = reader.bool("evict")?;
        let ordered = reader.bool("ordered")?;
        let update = match reader.u8("update mode")? {
            0 => UpdateMode::Rpc,
            1 => UpdateMode::Cas,
            mode => {
                return Err(DecodeError::Unknown { field: "update mode", value: u64::from(mode) });
            }
        };
        Ok(Self { default_ttl_s, quota_bytes, floor_bytes, evict, ordered, update })
    }
}

impl ToClient {
    /// Appends the message, without the frame's length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Welcome(welcome) => {
                out.u8(1);
                welcome.encode(out);
            }
            Self::Alive { clock_ns, catalog_epoch, epoch, retired } => {
                out.u8(2);
                out.u64(*clock_ns);
                out.u64(*catalog_epoch);
                out.u64(*epoch);
                out.u32(retired.len() as u32);
                retired.iter().for_each(|retired| retired.encode(out));
            }
            Self::Ticket(ticket) => {
                out.u8(3);
                out.raw(ticket);
            }
            Self::Table(info) => {
                out.u8(4);
                info.encode(out);
            }
            Self::Tables(tables) => {
                out.u8(5);
                out.u32(tables.len() as u32);
                tables.iter().for_each(|table| table.encode(out));
            }
            Self::Stats(stats) => {
                out.u8(6);
                out.u32(stats.len() as u32);
                for (name, value) in stats {
                    out.bytes(name.as_bytes());
                    out.u64(*value);
                }
            }
            Self::Done => out.u8(7),
            Self::Failed(error) => {
                out.u8(8);
                error.encode(out);
            }
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// When the bytes are not exactly one message within the limits.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        let message = match r.u8("message")? {
            1 => Self::Welcome(Box::new(Welcome::decode(r)?)),
            2 => Self::Alive {
                clock_ns: r.u64("clock")?,
                catalog_epoch: r.u64("catalog epoch")?,
                epoch: r.u64("epoch")?,
                retired: {
                    let count = bounded(r.u32("retired count")?, "retired", RETIRED_MAX as u32)?;
                    (0..count).map(|_| Retired::decode(r)).collect::<Result<_, _>>()?
                },
            },
            3 => Self::Ticket(r.array("ticket")?),
            4 => Self::Table(TableInfo::decode(r)?),
            5 => {
                let count = bounded(r.u32("table count")?, "tables", TABLES_MAX as u32)?;
                Self::Tables((0..count).map(|_| TableStatus::decode(r)).collect::<Result<_, _>>()?)
            }
            6 => {
                let count = bounded(r.u32("stat count")?, "stats", STATS_MAX as u32)?;
                let stat = |_| {
                    let name = r.text("stat name", STAT_NAME_MAX_BYTES)?.to_owned();
                    Ok((name, r.u64("stat")?))
                };
                Self::Stats((0..count).map(stat).collect::<Result<_, _>>()?)
            }
            7 => Self::Done,
            8 => Self::Failed(RpcError::decode(r)?),
            kind => return Err(DecodeError::Unknown { field: "message", value: u64::from(kind) }),
        };
        reader.end()?;
        Ok(message)
    }
}

fn bounded(count: u32, field: &'static str, max: u32) -> Result<u32, DecodeError> {
    if count <= max {
        return Ok(count);
    }
    Err(DecodeError::TooLong { field, len_bytes: u64::from(count), max_bytes: max as usize })
}

impl Welcome {
    fn encode(&self, out: &mut Vec<u8>) {
        out.u16(self.wire);
        out.u64(self.session);
        out.u64(self.resume_key);
        out.u8(u8::from(self.resumed));
        out.u64(self.applied_sequence);
        out.u64(self.incarnation);
        out.u64(self.clock_ns);
        out.u64(self.catalog_epoch);
        out.u32(self.lease_ms);
        out.u32(self.heartbeat_ms);
        out.u32(self.credits);
        out.u32(self.value_max_bytes);
        out.raw(&self.ticket);
        out.u8(self.fabrics.len() as u8);
        for offer in &self.fabrics {
            out.u8(offer.kind as u8);
            out.bytes(&offer.blob);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            wire: r.u16("wire")?,
            session: r.u64("session")?,
            resume_key: r.u64("resume key")?,
            resumed: r.bool("resumed")?,
            applied_sequence: r.u64("applied sequence")?,
            incarnation: r.u64("incarnation")?,
            clock_ns: r.u64("clock")?,
            catalog_epoch: r.u64("epoch")?,
            lease_ms: r.u32("lease")?,
            heartbeat_ms: r.u32("heartbeat")?,
            credits: r.u32("credits")?,
            value_max_bytes: r.u32("value max")?,
            ticket: r.array("ticket")?,
            fabrics: {
                let count = r.u8("fabric count")?;
                let count = bounded(u32::from(count), "fabrics", FABRICS_MAX as u32)?;
                (0..count).map(|_| FabricOffer::decode(r)).collect::<Result<_, _>>()?
            },
        })
    }
}

impl Retired {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, id) = match *self {
            Self::Table(id) => (1, id),
            Self::Region(id) => (2, id),
            Self::Cells(id) => (3, id),
        };
        out.u8(kind);
        out.u32(id);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = r.u8("kind of what is retired")?;
        let id = r.u32("id of what is retired")?;
        match kind {
            1 => Ok(Self::Table(id)),
            2 => Ok(Self::Region(id)),
            3 => Ok(Self::Cells(id)),
            kind => {
                let value = u64::from(kind);
                Err(DecodeError::Unknown { field: "kind of what is retired", value })
            }
        }
    }
}

impl FabricName {
    fn from_wire(kind: u8, field: &'static str) -> Result<Self, DecodeError> {
        match kind {
            1 => Ok(Self::Shm),
            2 => Ok(Self::Verbs),
            3 => Ok(Self::Tcp),
            kind => Err(DecodeError::Unknown { field, value: u64::from(kind) }),
        }
    }
}

impl FabricOffer {
    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let kind = FabricName::from_wire(r.u8("fabric kind")?, "fabric kind")?;
        Ok(Self { kind, blob: r.bytes("fabric blob", FABRIC_BLOB_MAX_BYTES)?.to_owned() })
    }
}

impl TableInfo {
    fn encode(&self, out: &mut Vec<u8>) {
        out.u32(self.id);
        out.u32(self.slot);
        out.u64(self.hash_seed);
        out.u64(self.secret);
        out.u64(self.directory.0);
        self.options.encode(out);
        out.u8(self.updates_over.map_or(0, |fabric| fabric as u8));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: r.u32("table id")?,
            slot: r.u32("table slot")?,
            hash_seed: r.u64("hash seed")?,
            secret: r.u64("secret")?,
            directory: DirectoryWord(r.u64("directory")?),
            options: TableOptions::decode(r)?,
            updates_over: match r.u8("fabric of updates")? {
                0 => None,
                kind => Some(FabricName::from_wire(kind, "fabric of updates")?),
            },
        })
    }
}

impl TableStatus {
    fn encode(&self, out: &mut Vec<u8>) {
        out.bytes(self.name.as_bytes());
        out.u32(self.id);
        self.options.encode(out);
        let numbers = [
            self.keys,
            self.live_bytes,
            self.log_bytes,
            self.index_bytes,
            self.splits,
            self.dead_bytes,
            self.free_bytes,
            self.written_bytes,
            self.moved_bytes,
            self.expired_entries,
            self.evicted_entries,
            self.expiry_backlog,
            self.payload_bytes,
            self.padding_bytes,
            self.evicted_for_quota,
        ];
        numbers.into_iter().for_each(|number| out.u64(number));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: table_name(r)?,
            id: r.u32("table id")?,
            options: TableOptions::decode(r)?,
            keys: r.u64("keys")?,
            live_bytes: r.u64("live bytes")?,
            log_bytes: r.u64("log bytes")?,
            index_bytes: r.u64("index bytes")?,
            splits: r.u64("splits")?,
            dead_bytes: r.u64("dead bytes")?,
            free_bytes: r.u64("free bytes")?,
            written_bytes: r.u64("written bytes")?,
            moved_bytes: r.u64("moved bytes")?,
            expired_entries: r.u64("expired entries")?,
            evicted_entries: r.u64("evicted entries")?,
            expiry_backlog: r.u64("expiry backlog")?,
            payload_bytes: r.u64("payload bytes")?,
            padding_bytes: r.u64("padding bytes")?,
            evicted_for_quota: r.u64("evicted for quota")?,
        })
    }
}
