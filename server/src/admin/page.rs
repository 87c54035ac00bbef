//! The dashboard: one page with all that it needs, so that nothing else is ever loaded. It asks for
//! `/metrics` and the API itself, with the token that whoever looks at it types in.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

/// Without the nonce.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    include_str!("page/page.html")
        .replace("{{style}}", include_str!("page/page.css"))
        .replace("{{script}}", SCRIPT)
});
const SCRIPT: &str = concat!(
    include_str!("page/read.js"),
    include_str!("page/chart.js"),
    include_str!("page/page.js")
);

/// The page. Only what carries this answer's nonce runs, so that nothing that came to be in it
/// could.
pub(super) async fn page() -> Response {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let page = PAGE.replace("{{nonce}}", &nonce);
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(page)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_loads_nothing() {
        for part in [PAGE.as_str(), SCRIPT] {
            for foreign in ["http://", "https://", "@import", "url(", "innerHTML", " style=\""] {
                let there = part.replace("http://www.w3.org/2000/svg", "");
                assert!(!there.contains(foreign), "{foreign}");
            }
        }
        assert_eq!(PAGE.matches("{{").count(), 2, "the nonce, of style and of script");
        assert_eq!(PAGE.matches("<script").count(), 1);
    }
}
