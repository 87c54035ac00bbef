//! Any message comes back as it was, and no prefix of it, nor it with a byte more, is a message.

use onesided_protocol::DecodeError;
use onesided_protocol::control::{
    FabricName, FabricOffer, Heartbeat, Hello, Retired, TableCounts, TableInfo, TableOptions,
    TableStatus, ToClient, ToServer, UpdateMode, Welcome,
};
use onesided_protocol::layout::catalog::DirectoryWord;
use onesided_protocol::rpc::{
    Answer, CounterAction, ErrorCode, Expect, Found, KeyAt, Landing, Op, Payload, Reply, Request,
    RpcError, Ttl,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// A request that owns its bytes.
#[derive(Clone, Debug)]
struct Owned {
    kind: u8,
    key: Vec<u8>,
    value: Vec<u8>,
    landing: Option<(u64, u32)>,
    expect: Expect,
    ttl: Ttl,
    number: u64,
}

impl Owned {
    fn payload(&self) -> Payload<'_> {
        match self.landing {
            None => Payload::Inline(&self.value),
            Some((offset, len_bytes)) if self.key.len() % 2 == 1 => {
                Payload::Lent { number: 1 + (offset % 16) as u16, len_bytes }
            }
            Some((offset_bytes, len_bytes)) => Payload::Staged { offset_bytes, len_bytes },
        }
    }

    fn action(&self) -> CounterAction {
        let (a, b) = (self.number as i64, self.number.rotate_left(7) as i64);
        match self.number % 4 {
            0 => CounterAction::Find,
            1 => CounterAction::Add { by: a },
            2 => CounterAction::CompareSwap { expected: a, new: b },
            _ => CounterAction::Set { to: a },
        }
    }

    fn op(&self) -> Op<'_> {
        let key = &self.key[..];
        let landing =
            self.landing.map(|(offset_bytes, len_bytes)| Landing { offset_bytes, len_bytes });
        match self.kind {
            0 => Op::Ping,
            1 => Op::Get { key, landing },
            2 => Op::Put {
                key,
                value: self.payload(),
                expect: self.expect,
                ttl: self.ttl,
                user_flags: self.number as u32,
            },
            3 => Op::Delete { key, expect: self.expect },
            4 => Op::Append { key, value: self.payload() },
            5 => Op::Increment { key, by: self.number as i64 },
            6 => Op::Touch { key, ttl: self.ttl },
            7 => Op::WriteAt { key, offset_bytes: self.number, value: self.payload() },
            8 => Op::Lease { len_bytes: self.number as u32 },
            9 => Op::Seal { addr: self.number },
            10 => Op::Linked { key, addr: self.number },
            11 => Op::Counter { key, action: self.action() },
            _ => Op::Scan {
                from: key,
                after: self.number % 2 == 1,
                prefix_len: (self.number >> 8) as u16 % (key.len() as u16 + 1),
                limit: (self.number >> 32) as u16 % 1_024 + 1,
            },
        }
    }

    fn reply(&self) -> Result<Reply<'_>, RpcError> {
        Ok(match self.kind {
            0 => {
                let text = String::from_utf8_lossy(&self.key);
                let code = ErrorCode::ALL[self.number as usize % ErrorCode::ALL.len()];
                return Err(RpcError::new(code, text));
            }
            1 => Reply::Pong,
            2 => Reply::Found(Found {
                version: self.number,
                expiry_s: self.number as u32,
                user_flags: (self.number >> 32) as u32,
                value: self.payload(),
            }),
            3 => Reply::Absent,
            4 => Reply::Done { version: self.number },
            5 => Reply::Deleted,
            6 => Reply::Number { value: self.number as i64, version: !self.number },
            8 => Reply::Leased { addr: self.number, len_bytes: self.number as u32 },
            9 => Reply::Sealed,
            10 => Reply::Linked { linked: self.number % 2 == 1 },
            7 => Reply::Counter {
                cell: self.number,
                number: self.number.rotate_left(9) as i64,
                version: !self.number,
            },
            _ => Reply::Keys {
                keys: [&self.key, &self.value].map(|key| KeyAt { key, slot: self.number }).to_vec(),
                more: self.number % 2 == 1,
            },
        })
    }
}

fn an_owned() -> impl Strategy<Value = Owned> {
    let expect = prop_oneof![
        Just(Expect::Any),
        Just(Expect::Absent),
        Just(Expect::Present),
        any::<u64>().prop_map(Expect::Version),
    ];
    let ttl =
        prop_oneof![Just(Ttl::TableDefault), Just(Ttl::Never), any::<u32>().prop_map(Ttl::Seconds)];
    let landing = proptest::option::of((any::<u64>(), 1..=u32::MAX));
    let bytes = || vec(any::<u8>(), 0..60);
    (0..13_u8, bytes(), bytes(), landing, expect, ttl, any::<u64>()).prop_map(
        |(kind, key, value, landing, expect, ttl, number)| Owned {
            kind,
            key,
            value,
            landing,
            expect,
            ttl,
            number,
        },
    )
}

fn options() -> impl Strategy<Value = TableOptions> {
    let update = select(vec![UpdateMode::Rpc, UpdateMode::Cas]);
    (any::<(u32, [u64; 2], bool, bool)>(), update).prop_map(
        |((default_ttl_s, [quota_bytes, floor_bytes], evict, ordered), update)| TableOptions {
            default_ttl_s,
            quota_bytes,
            floor_bytes,
            evict,
            ordered,
            update,
        },
    )
}

fn to_server() -> impl Strategy<Value = ToServer> {
    let hello = (any::<[u16; 3]>(), "\\PC{0,40}", any::<(u64, u64)>()).prop_map(
        |([wire_min, wire_max, layout], token, resume)| {
            ToServer::Hello(Hello { wire_min, wire_max, layout, token, resume })
        },
    );
    let numbers = TableCounts::default().all_mut().count();
    let counted = (any::<u32>(), vec(any::<u64>(), numbers)).prop_map(|(table, numbers)| {
        let mut counts = Box::<TableCounts>::default();
        counts.all_mut().zip(numbers).for_each(|(count, number)| *count = number);
        ToServer::Counted { table, counts }
    });
    let plain = select(vec![
        ToServer::Heartbeat(Heartbeat { epoch: 0x0102_0304_0506_0708 }),
        ToServer::Ticket,
        ToServer::ListTables,
        ToServer::Stats,
        ToServer::Goodbye,
    ]);
    let table = (0..4, "\\PC{0,16}", options()).prop_map(|(kind, name, options)| match kind {
        0 => ToServer::OpenTable { name },
        1 => ToServer::CreateTable { name, options },
        2 => ToServer::AlterTable { name, options },
        _ => ToServer::DropTable { name },
    });
    let accessed = (any::<u32>(), vec(any::<u64>(), 0..20))
        .prop_map(|(table, hashes)| ToServer::Accessed { table, hashes });
    prop_oneof![hello, counted, plain, table, accessed]
}

fn welcome() -> impl Strategy<Value = ToClient> {
    let kind = select(vec![FabricName::Shm, FabricName::Verbs, FabricName::Tcp]);
    let offer = (kind, vec(any::<u8>(), 0..40)).prop_map(|(kind, blob)| FabricOffer { kind, blob });
    (
        any::<(u16, bool)>(),
        any::<[u64; 6]>(),
        any::<[u32; 4]>(),
        any::<[u8; 32]>(),
        vec(offer, 0..4),
    )
        .prop_map(|((wire, resumed), words, halves, ticket, fabrics)| {
            let [session, resume_key, applied_sequence, incarnation, clock_ns, catalog_epoch] =
                words;
            let [lease_ms, heartbeat_ms, credits, value_max_bytes] = halves;
            ToClient::Welcome(Box::new(Welcome {
                wire,
                session,
                resume_key,
                resumed,
                applied_sequence,
                incarnation,
                clock_ns,
                catalog_epoch,
                lease_ms,
                heartbeat_ms,
                credits,
                value_max_bytes,
                ticket,
                fabrics,
            }))
        })
}

fn table_messages() -> impl Strategy<Value = ToClient> {
    let fabric = select(vec![FabricName::Shm, FabricName::Verbs, FabricName::Tcp]);
    let fabric = proptest::option::of(fabric);
    let info = (any::<(u32, u32)>(), any::<[u64; 3]>(), options(), fabric).prop_map(
        |((id, slot), [hash_seed, secret, directory], options, updates_over)| {
            let directory = DirectoryWord(directory);
            ToClient::Table(TableInfo {
                id,
                slot,
                hash_seed,
                secret,
                directory,
                options,
                updates_over,
            })
        },
    );
    let status = ("\\PC{0,16}", any::<u32>(), options(), any::<[u64; 6]>()).prop_map(
        |(name, id, options, [keys, live_bytes, log_bytes, index_bytes, splits, more])| {
            TableStatus {
                name,
                id,
                options,
                keys,
                live_bytes,
                log_bytes,
                index_bytes,
                splits,
                dead_bytes: more,
                free_bytes: more ^ 1,
                written_bytes: more ^ 2,
                moved_bytes: more ^ 3,
                expired_entries: more ^ 4,
                evicted_entries: more ^ 5,
                expiry_backlog: more ^ 6,
                payload_bytes: more ^ 7,
                padding_bytes: more ^ 8,
                evicted_for_quota: more ^ 9,
            }
        },
    );
    prop_oneof![info, vec(status, 0..5).prop_map(ToClient::Tables)]
}

fn to_client() -> impl Strategy<Value = ToClient> {
    let retired = (0..3, any::<u32>()).prop_map(|(kind, id)| match kind {
        0 => Retired::Table(id),
        1 => Retired::Region(id),
        _ => Retired::Cells(id),
    });
    let alive = (any::<[u64; 3]>(), vec(retired, 0..5)).prop_map(|(numbers, retired)| {
        let [clock_ns, catalog_epoch, epoch] = numbers;
        ToClient::Alive { clock_ns, catalog_epoch, epoch, retired }
    });
    let failed = (select(ErrorCode::ALL.to_vec()), "\\PC{0,60}")
        .prop_map(|(code, text)| ToClient::Failed(RpcError::new(code, text)));
    prop_oneof![
        welcome(),
        alive,
        any::<[u8; 32]>().prop_map(ToClient::Ticket),
        table_messages(),
        vec(("\\PC{0,20}", any::<u64>()), 0..6).prop_map(ToClient::Stats),
        Just(ToClient::Done),
        failed,
    ]
}

/// `decode` gives whether the bytes are a message.
fn only_whole(mut bytes: Vec<u8>, decode: fn(&[u8]) -> Result<(), DecodeError>) {
    for len in 0..bytes.len() {
        assert!(matches!(decode(&bytes[..len]), Err(DecodeError::Short(_))), "cut at {len}");
    }
    bytes.push(0);
    assert_eq!(decode(&bytes), Err(DecodeError::Trailing(1)));
}

proptest! {
    #[test]
    fn requests(
        id in any::<u64>(), sequence in any::<u64>(), table in any::<u32>(),
        ops in vec(an_owned(), 1..8), as_batch in any::<bool>(),
    ) {
        // Neither scans nor what concerns leases are part of a batch.
        let alone = |op: &Op<'_>| {
            matches!(op, Op::Scan { .. } | Op::Lease { .. } | Op::Seal { .. } | Op::Linked { .. })
        };
        let parts = || ops.iter().map(Owned::op).filter(|op| !alone(op));
        let op = match as_batch {
            true => Op::Batch(parts().collect()),
            false => ops[0].op(),
        };
        let request = Request { id, sequence, table, op };
        let mut bytes = vec![];
        request.encode(&mut bytes);
        prop_assert_eq!(Request::decode(&bytes), Ok(request));
        only_whole(bytes, |bytes| Request::decode(bytes).map(drop));
    }

    #[test]
    fn answers(id in any::<u64>(), all in vec(an_owned(), 1..8), as_batch in any::<bool>()) {
        // Neither keys nor what concerns leases are part of a batch.
        let is_part = |reply: &Result<_, _>| {
            use Reply::{Keys, Leased, Linked, Sealed};
            !matches!(reply, Ok(Keys { .. } | Leased { .. } | Sealed | Linked { .. }))
        };
        let replies = || all.iter().map(Owned::reply).filter(is_part);
        let result = match as_batch {
            true => Ok(Reply::Batch(replies().collect())),
            false => all[0].reply(),
        };
        let answer = Answer { id, result };
        let mut bytes = vec![];
        answer.encode(&mut bytes);
        prop_assert_eq!(Answer::decode(&bytes), Ok(answer));
        only_whole(bytes, |bytes| Answer::decode(bytes).map(drop));
    }

    #[test]
    fn messages_to_the_server(message in to_server()) {
        let mut bytes = vec![];
        message.encode(&mut bytes);
        prop_assert_eq!(ToServer::decode(&bytes), Ok(message));
        only_whole(bytes, |bytes| ToServer::decode(bytes).map(drop));
    }

    #[test]
    fn messages_to_a_client(message in to_client()) {
        let mut bytes = vec![];
        message.encode(&mut bytes);
        prop_assert_eq!(ToClient::decode(&bytes), Ok(message));
        only_whole(bytes, |bytes| ToClient::decode(bytes).map(drop));
    }
}
