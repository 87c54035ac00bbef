//! The caches.

use anyhow::{Context, Result};
use onesided::FabricChoice;
use onesided::blocking::{Client, Table};

use crate::common::memcached::{Memcached, MemcachedServer};
use crate::common::process::{Serve, ServerProcess};
use crate::common::redis::{Redis, RedisServer};
use crate::stream::{Request, key};

/// What is asked and filled.
pub(crate) trait Cache {
    /// GETs all, PUTs those that were not there; says how many were.
    fn get_or_put(&mut self, requests: &[Request]) -> Result<usize>;
}

/// A cache by name.
pub(crate) struct Contestant {
    pub(crate) name: String,
    pub(crate) cache: Box<dyn Cache>,
}

/// Reports of one GET in so many; 0 = none.
const SAMPLES: [u32; 4] = [1, 8, 64, 0];
const REDIS_POLICIES: [&str; 2] = ["allkeys-lfu", "allkeys-lru"];

/// All of them, each started when its turn comes.
pub(crate) fn contestants(memory_mib: u64) -> impl Iterator<Item = Result<Contestant>> {
    let ours = SAMPLES.into_iter().map(move |every| onesided(memory_mib, every));
    let redis = REDIS_POLICIES.into_iter().map(move |policy| redis(memory_mib, policy));
    let memcached = std::iter::once_with(move || memcached(memory_mib));
    ours.chain(redis).chain(memcached)
}

/// What was not found is to be stored.
fn missing<'k>(
    requests: &[Request],
    keys: &'k [Vec<u8>],
    found: impl IntoIterator<Item = bool>,
) -> Vec<(&'k [u8], Vec<u8>)> {
    (requests.iter().zip(keys).zip(found))
        .filter(|(_, found)| !found)
        .map(|((request, key), _)| (&key[..], value(request)))
        .collect()
}

/// The value of a request.
fn value(request: &Request) -> Vec<u8> {
    vec![request.key as u8; request.value_bytes as usize]
}

struct Onesided {
    table: Table,
    _client: Client,
    _server: ServerProcess,
}

fn onesided(memory_mib: u64, every: u32) -> Result<Contestant> {
    let serve = Serve { memory_bytes: (memory_mib << 20) as usize, evict: true, metrics: true };
    let server = ServerProcess::start_with(&serve)?;
    let client = onesided::Client::builder()
        .url(&server.url)
        .fabric(FabricChoice::Shm)
        .access_sample_every(every)
        .connect_blocking()?;
    let table = client.table("default")?;
    let told = match every {
        0 => "told of no GETs".to_owned(),
        1 => "told of every GET".to_owned(),
        every => format!("told of one GET in {every}"),
    };
    let cache = Box::new(Onesided { table, _client: client, _server: server });
    Ok(Contestant { name: format!("onesided, {told}"), cache })
}

impl Cache for Onesided {
    fn get_or_put(&mut self, requests: &[Request]) -> Result<usize> {
        let keys: Vec<_> = requests.iter().map(|request| key(request.key)).collect();
        let values = self.table.get_many(&keys)?;
        let missing = missing(requests, &keys, values.iter().map(Option::is_some));
        for stored in self.table.put_many(&missing) {
            stored?;
        }
        Ok(requests.len() - missing.len())
    }
}

struct RedisCache {
    connection: Redis<std::os::unix::net::UnixStream>,
    _server: RedisServer,
}

fn redis(memory_mib: u64, policy: &'static str) -> Result<Contestant> {
    let limits = ["--maxmemory", &format!("{memory_mib}mb"), "--maxmemory-policy", policy];
    let server = RedisServer::start_with(&limits).context("redis-server")?;
    let cache = RedisCache { connection: server.unix()?, _server: server };
    Ok(Contestant { name: format!("Redis, {policy}"), cache: Box::new(cache) })
}

impl Cache for RedisCache {
    fn get_or_put(&mut self, requests: &[Request]) -> Result<usize> {
        let keys: Vec<_> = requests.iter().map(|request| key(request.key)).collect();
        let found = self.connection.get_many(&keys)?;
        let missing = missing(requests, &keys, found);
        let pairs: Vec<(&[u8], &[u8])> = missing.iter().map(|(k, v)| (*k, &v[..])).collect();
        self.connection.set_many(&pairs)?;
        Ok(requests.len() - missing.len())
    }
}

struct MemcachedCache {
    connection: Memcached,
    _server: MemcachedServer,
}

fn memcached(memory_mib: u64) -> Result<Contestant> {
    let server = MemcachedServer::start(memory_mib).context("memcached")?;
    let cache = MemcachedCache { connection: server.connect()?, _server: server };
    Ok(Contestant { name: "memcached".to_owned(), cache: Box::new(cache) })
}

impl Cache for MemcachedCache {
    fn get_or_put(&mut self, requests: &[Request]) -> Result<usize> {
        let keys: Vec<_> = requests.iter().map(|request| key(request.key)).collect();
        let found = self.connection.get_many(&keys)?;
        let missing = missing(requests, &keys, found);
        self.connection.set_many(missing.iter().map(|(k, v)| (*k, &v[..])))?;
        Ok(requests.len() - missing.len())
    }
}
