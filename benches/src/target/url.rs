//! From a URL to a target.

use anyhow::{Context, Result, bail};

use super::lmdb::Lmdb;
use super::map::Map;
use super::memcached::{self, Memcached};
use super::null::Null;
use super::onesided::Onesided;
use super::redis::Redis;
use super::wire::Address;
use super::{Options, Target};

const REDIS_PORT: u16 = 6379;
const MEMCACHED_PORT: u16 = 11211;

/// What can be measured, for texts.
pub const URLS: &str = "onesided://HOST[:PORT], redis://HOST[:PORT], redis+unix:///PATH, \
                        memcached://HOST[:PORT], memcached+unix:///PATH, map://, \
                        map://?kind=dashmap, lmdb://PATH, null://";

/// Opens the target of a URL: connects and fails at once if nobody is there.
///
/// # Errors
/// When the URL is none, or nobody is there; says what to start.
pub fn open(url: &str, options: &Options) -> Result<Box<dyn Target>> {
    open_plain(url, options).with_context(|| format!("--target {url}"))
}

/// Whether the target of a URL takes a key.
///
/// # Errors
/// It does not; says why.
pub fn check_key(url: &str, key: &[u8]) -> Result<()> {
    if url.starts_with("memcached") { memcached::check_key(key) } else { Ok(()) }
}

fn open_plain(url: &str, options: &Options) -> Result<Box<dyn Target>> {
    let Some((scheme, rest)) = url.split_once("://") else {
        bail!("no target; there are {URLS}");
    };
    Ok(match scheme {
        "onesided" => Box::new(Onesided::open(url, options)?),
        "redis" => Box::new(Redis::open(Address::tcp(rest, REDIS_PORT)?, options.verify)?),
        "redis+unix" => Box::new(Redis::open(Address::unix(rest)?, options.verify)?),
        "memcached" => {
            Box::new(Memcached::open(Address::tcp(rest, MEMCACHED_PORT)?, options.server_pid)?)
        }
        "memcached+unix" => Box::new(Memcached::open(Address::unix(rest)?, options.server_pid)?),
        "map" => Box::new(Map::open(rest)?),
        "lmdb" => Box::new(Lmdb::open(rest, options.records, options.record_bytes)?),
        "null" if rest.is_empty() => Box::new(Null::new(options.record_bytes)),
        _ => bail!("no target; there are {URLS}"),
    })
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
    }

    #[test]
    fn keys_that_a_target_does_not_take_are_named() {
        let check = |url, key: &[u8]| check_key(url, key).map_err(|error| error.to_string());
        for url in ["memcached://h", "memcached+unix:///p"] {
            assert_eq!(check(url, &[b'k'; 250]), Ok(()));
            let error = check(url, &[b'k'; 251]).expect_err("too long");
            assert!(error.contains("251") && error.contains("250") && error.contains("kkk"));
            assert!(check(url, b"a key").expect_err("a space").contains("a key"));
            assert!(check(url, b"a\nkey").is_err() && check(url, b"").is_err());
        }
        assert_eq!(check("redis://h", &[b' '; 251]), Ok(()));
    }

    /// The whole text of why it does not open.
    fn error(url: &str) -> String {
        match open(url, &Options::default()) {
            Ok(_) => panic!("{url} opens"),
            Err(error) => crate::one_line(&error),
        }
    }

    #[test]
    fn wrong_urls_are_told_with_the_right_ones() {
        for url in ["nothing://", "localhost", "http://x", "null://x"] {
            let text = error(url);
            assert!(text.contains(url) && text.contains("redis+unix:///PATH"), "{text}");
        }
        assert!(error("map://?kind=list").contains("map://?kind=dashmap"));
        assert!(error("lmdb://").contains("PATH"));
        assert!(error("lmdb:///tmp?speed=9").contains("`map_bytes`"));
        assert!(error("redis://").contains("HOST"));
        let unknown = error("onesided://h?speed=9");
        assert!(unknown.contains("`speed=9`") && unknown.contains("rdma_mtu"), "{unknown}");
    }

    #[test]
    fn servers_that_are_not_there_are_told_with_what_to_start() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        for (scheme, program) in [
            ("onesided", "onesided-server"),
            ("redis", "redis-server"),
            ("memcached", "memcached -m"),
        ] {
            let text = error(&format!("{scheme}://127.0.0.1:{port}"));
            assert!(text.contains(program), "{text}");
            assert_eq!(text.matches("os error").count(), 1, "{text}");
        }
        assert!(error("redis+unix:///nowhere/socket").contains("redis-server"));
    }
}
