//! Who may ask, and what every answer says to browsers.
//!
//! Without a token only this host can reach the port. Its browsers can be made to: a page of
//! anybody's may give its own name an address of this host (DNS rebinding), and then read answers.
//! Such a request names that page in its `Host`, which is refused.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

use crate::server::Core;

/// Asked for by load balancers and supervisors, which have no token, and the page, which asks for
/// one; they tell nothing.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/"];

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Puts the guard before all routes.
pub(super) fn guarded(routes: Router, core: &Arc<Core>) -> Router {
    routes.layer(middleware::from_fn_with_state(Arc::clone(core), guard))
}

async fn guard(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&core, request.uri(), request.headers()) {
        Some(refused) => refused,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        // A page may need more than nothing.
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

fn refusal(core: &Core, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
    if OPEN.contains(&uri.path()) {
        return None;
    }
    let token = core.admin_token.load();
    let Some(token) = token.as_deref() else {
        return (!is_of_this_host(host(uri, headers), core)).then(|| foreign(core));
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    let given = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    // Compared in any case, so that the time does not tell.
    let right = token.is(given.map_or("", |(_, token)| token.trim()));
    (!right).then(|| unauthorized(core))
}

fn foreign(core: &Core) -> Response {
    core.stats.admin_of_foreign_name.add(1);
    let text = "this port answers requests to localhost, 127.0.0.1, [::1] or the host that --admin \
                names; to reach it by another name set --admin-token-file\n";
    (StatusCode::FORBIDDEN, text).into_response()
}

fn unauthorized(core: &Core) -> Response {
    core.stats.admin_without_token.add(1);
    let text = "send the token: `Authorization: Bearer TOKEN`, with what the file of \
                --admin-token-file holds\n";
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], text).into_response()
}

/// Whom the request believes to speak to; empty if it does not say, or says it twice.
fn host<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> &'r str {
    let mut all = headers.get_all(header::HOST).iter();
    let named = all.next().filter(|_| all.next().is_none());
    let named = named.map(|host| host.to_str().unwrap_or_default());
    uri.authority().map(|authority| authority.as_str()).or(named).unwrap_or_default()
}

fn is_of_this_host(host: &str, core: &Core) -> bool {
    let name = without_port(host);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let listen = core.config.admin.as_deref().map(without_port);
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || listen.is_some_and(|listen| name.eq_ignore_ascii_case(listen))
}

/// `host:port` or `[v6]:port` without the port.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => match name {
            // Colons of an address without brackets.
            _ if name.contains(':') && !name.ends_with(']') => host,
            _ => name,
        },
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_cut_off() {
        for (host, name) in [
            ("localhost:7412", "localhost"),
            ("localhost", "localhost"),
            ("[::1]:7412", "[::1]"),
            ("[::1]", "[::1]"),
            ("::1", "::1"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("evil.example:x", "evil.example:x"),
            ("", ""),
        ] {
            assert_eq!(without_port(host), name);
        }
    }
}
