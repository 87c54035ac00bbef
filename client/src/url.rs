//! `onesided://HOST[:PORT][?fabric=NAME&rdma=POLICY&...]`: what can be said is in [`Said`].

use onesided_protocol::limits::DEFAULT_PORT;

use crate::error::Error;
use crate::said::Said;

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Url {
    /// Name or address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) said: Said,
}

impl Url {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        parse(url).map_err(|reason| Error::BadUrl { url: url.to_owned(), reason })
    }

    /// Host and port, as people write them.
    pub(crate) fn address(&self) -> String {
        if self.host.contains(':') {
            return format!("[{}]:{}", self.host, self.port);
        }
        format!("{}:{}", self.host, self.port)
    }
}

fn parse(url: &str) -> Result<Url, String> {
    let rest = url.strip_prefix("onesided://").ok_or("it does not begin with onesided://")?;
    let (authority, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    if authority.contains('@') {
        return Err("servers know no users and passwords; a token is given beside the URL".into());
    }
    if let Some((_, path)) = authority.split_once('/') {
        return Err(format!("`/{path}` is too much; a table is named beside the URL"));
    }
    let (host, port) = split_port(authority)?;
    if host.is_empty() {
        return Err("the host is missing".to_owned());
    }
    if host.contains([' ', '#']) {
        return Err(format!("`{host}` is no host"));
    }
    let mut said = Said::default();
    query.split('&').filter(|pair| !pair.is_empty()).try_for_each(|pair| said.take(pair))?;
    let port = port.map_or(Ok(DEFAULT_PORT), |port| {
        port.parse::<u16>().ok().filter(|&port| port != 0).ok_or(format!("`{port}` is no port"))
    })?;
    Ok(Url { host: host.to_owned(), port, said })
}

fn split_port(authority: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or("`]` is missing")?;
        return match after.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if after.is_empty() => Ok((host, None)),
            None => Err(format!("`{after}` follows the address")),
        };
    }
    match authority.rsplit_once(':') {
        Some((host, _)) if host.contains(':') => {
            Err("an IPv6 address needs brackets: [::1]".to_owned())
        }
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((authority, None)),
    }
}

#[cfg(test)]
mod tests {
    use onesided_fabric::Rdma;

    use super::*;
    use crate::options::FabricChoice;

    fn parts(url: &str) -> (String, u16, Option<FabricChoice>) {
        let url = Url::parse(url).unwrap();
        (url.host, url.port, url.said.fabric)
    }

    #[test]
    fn good_urls() {
        assert_eq!(parts("onesided://127.0.0.1:9"), ("127.0.0.1".into(), 9, None));
        assert_eq!(parts("onesided://db.example/"), ("db.example".into(), DEFAULT_PORT, None));
        assert_eq!(parts("onesided://[::1]"), ("::1".into(), DEFAULT_PORT, None));
        let with_fabric = parts("onesided://[fe80::1]:80?fabric=tcp");
        assert_eq!(with_fabric, ("fe80::1".into(), 80, Some(FabricChoice::Tcp)));
        let both = Url::parse("onesided://x?rdma=never&fabric=shm").unwrap().said;
        assert_eq!((both.rdma, both.fabric), (Some(Rdma::Never), Some(FabricChoice::Shm)));
        let copies = Url::parse("onesided://x?zero_copy_bytes=65536").unwrap().said;
        assert_eq!(copies.zero_copy_bytes, Some(65_536));
        assert_eq!(Url::parse("onesided://[::1]:5").unwrap().address(), "[::1]:5");
    }

    #[test]
    fn bad_urls_say_what_is_wrong() {
        for (url, reason) in [
            ("redis://x", "begin with onesided://"),
            ("onesided://", "host is missing"),
            ("onesided://:7411", "host is missing"),
            ("onesided://x:0", "no port"),
            ("onesided://x:70000", "no port"),
            ("onesided://x:", "no port"),
            ("onesided://::1", "needs brackets"),
            ("onesided://[::1", "is missing"),
            ("onesided://[::1]x", "follows the address"),
            ("onesided://x?fabric=ib", "ib"),
            ("onesided://x?rdma=maybe", "require, prefer, never"),
            ("onesided://x?colour=red", "colour"),
            ("onesided://x?zero_copy_bytes=-1", "no number"),
            ("onesided://a b", "no host"),
            ("onesided://a/b", "`/b` is too much"),
            ("onesided://127.0.0.1:23000/x", "`/x` is too much"),
            ("onesided://u:p@127.0.0.1:23000", "no users"),
        ] {
            let text = Url::parse(url).unwrap_err().to_string();
            assert!(text.contains(reason), "{url}: {text}");
        }
    }
}
