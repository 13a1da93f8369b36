//! The console: the page for browsers, and the files that it loads. `cargo xtask console` builds it from `console/`. It
//! is a part of the program.

use axum::extract::Request;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rust_embed::{EmbeddedFile, RustEmbed};

use super::VERSION;
use super::error::ApiError;

/// The files that Vite has written.
#[derive(RustEmbed)]
#[folder = "../../console/dist"]
struct Files;

const PAGE: &str = "index.html";
/// The folder of files whose names change with their content.
const ASSETS: &str = "assets/";
/// The first parts of the console's own paths: its screens.
const SCREENS: [&str; 9] =
    ["", "volumes", "pools", "access", "sessions", "events", "history", "lab", "create"];
/// Screens that show one object. The rest of the path is its name.
const SCREENS_OF_ONE: [&str; 3] = ["volumes", "pools", "lab"];
/// The page loads only its own files and connects only to its own server. No page may show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A response of the API is not a page.
const NO_PAGE: &str = "default-src 'none'; frame-ancestors 'none'";

/// Returns whether a path is a screen of the console.
fn is_screen(path: &str) -> bool {
    match path.split_once('/') {
        None => SCREENS.contains(&path),
        Some((screen, name)) => SCREENS_OF_ONE.contains(&screen) && !name.contains('/'),
    }
}

/// Serves the paths outside the API: the files of the console, and its page at the paths of its screens.
pub(super) async fn file(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path();
    let is_api =
        path == VERSION || path.strip_prefix(VERSION).is_some_and(|rest| rest.starts_with('/'));
    if is_api {
        return ApiError::not_found(format!("there is no {path}")).into_response();
    }
    if !method.is_safe() {
        let message = format!("{path} does not take {method}");
        return ApiError::method_not_allowed(message).into_response();
    }
    let path = path.trim_start_matches('/');
    match Files::get(path) {
        Some(found) if path != PAGE => answer(&found, path, &headers),
        found if found.is_some() || is_screen(path) => {
            let page = Files::get(PAGE).expect("the console has been built");
            answer(&page, PAGE, &headers)
        }
        _ if accepts_pages(&headers) => {
            let page = Files::get(PAGE).expect("the console has been built");
            (StatusCode::NOT_FOUND, answer(&page, PAGE, &HeaderMap::new())).into_response()
        }
        _ => ApiError::not_found(format!("there is no {}", uri.path())).into_response(),
    }
}

/// Returns whether the client is a browser that follows a link. The page itself then reports that the path is unknown.
fn accepts_pages(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT).and_then(|types| types.to_str().ok());
    accepted.is_some_and(|types| types.contains("text/html"))
}

fn answer(file: &EmbeddedFile, path: &str, headers: &HeaderMap) -> Response {
    let hash = file.metadata.sha256_hash();
    let tag: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    let caching =
        if path.starts_with(ASSETS) { "public, max-age=31536000, immutable" } else { "no-cache" };
    let known = headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let is_known = known.is_some_and(|tags| tags.split(',').any(|known| known.trim() == tag));
    // A browser that has the file replaces the stored headers with these.
    let described =
        [(ETAG, tag.as_str()), (CACHE_CONTROL, caching), (CONTENT_SECURITY_POLICY, POLICY)];
    if is_known {
        (StatusCode::NOT_MODIFIED, described).into_response()
    } else {
        (described, [(CONTENT_TYPE, kind(path))], file.data.clone()).into_response()
    }
}

/// Returns the content type of a file, by its name.
fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Adds headers to a response that restrict its use by browsers.
pub(super) async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Responses expire at once, and may be for the server's owner only.
    for (name, value) in [(CACHE_CONTROL, "no-store"), (CONTENT_SECURITY_POLICY, NO_PAGE)] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ask(method: Method, path: &str, headers: HeaderMap) -> Response {
        use futures_util::FutureExt as _;
        let uri = path.parse().expect("a path");
        file(method, uri, headers).now_or_never().expect("it waits for nothing")
    }

    fn header<'a>(response: &'a Response, name: &str) -> &'a str {
        response.headers().get(name).map_or("", |value| value.to_str().expect("text"))
    }

    #[test]
    fn the_consoles_paths_are_its_page_and_others_are_none() {
        for path in ["/", "/volumes", "/volumes/a.js", "/lab/7", "/create", "/index.html"] {
            let response = ask(Method::GET, path, HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(header(&response, "content-type"), "text/html; charset=utf-8");
            assert_eq!(header(&response, "cache-control"), "no-cache");
            assert!(header(&response, "content-security-policy").contains("script-src 'self'"));
        }
        for (method, path, status) in [
            (Method::GET, "/v1", StatusCode::NOT_FOUND),
            (Method::GET, "/v1/nothing", StatusCode::NOT_FOUND),
            (Method::GET, "/v1x", StatusCode::NOT_FOUND),
            (Method::GET, "/api/v1/volumes", StatusCode::NOT_FOUND),
            (Method::GET, "/metric", StatusCode::NOT_FOUND),
            (Method::GET, "/volumes/a/b", StatusCode::NOT_FOUND),
            (Method::GET, "/assets/nothing.js", StatusCode::NOT_FOUND),
            (Method::GET, "/assets/../index.html", StatusCode::NOT_FOUND),
            (Method::POST, "/", StatusCode::METHOD_NOT_ALLOWED),
        ] {
            assert_eq!(ask(method, path, HeaderMap::new()).status(), status, "{path}");
        }
        let browser =
            HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("text/html,*/*;q=0.8"))]);
        let response = ask(Method::GET, "/nowhere", browser);
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        assert_eq!(header(&response, "content-type"), "text/html; charset=utf-8");
    }

    #[test]
    fn the_screens_are_those_that_the_console_has() {
        let source = include_str!("../../../../console/src/app.tsx");
        let after = |mark: &'static str| {
            let found = source.split(mark).skip(1);
            found.filter_map(|rest| rest.split_once('"').map(|(word, _)| word))
        };
        let named: BTreeSet<&str> =
            after("where === \"").chain(after("case \"")).chain([""]).collect();
        assert_eq!(named, BTreeSet::from(SCREENS));
    }

    #[test]
    fn files_of_page_exist_and_are_cached() {
        let page = Files::get(PAGE).expect("built");
        let page = String::from_utf8(page.data.into_owned()).expect("text");
        let loaded: Vec<_> = page.split('"').filter(|word| word.starts_with("/assets/")).collect();
        assert_eq!(loaded.len(), 3, "a script, a style sheet and an icon: {page}");
        for path in loaded {
            let response = ask(Method::GET, path, HeaderMap::new());
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_ne!(header(&response, "content-type"), "application/octet-stream");
            assert!(header(&response, "cache-control").contains("immutable"));
        }
        assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
    }

    #[test]
    fn unchanged_page_is_not_sent_again() {
        let tag = header(&ask(Method::GET, "/", HeaderMap::new()), "etag").to_owned();
        let headers =
            |tag: &str| HeaderMap::from_iter([(IF_NONE_MATCH, tag.parse().expect("a tag"))]);
        for (known, status) in [
            (tag.as_str(), StatusCode::NOT_MODIFIED),
            (&format!("\"other\", {tag}"), StatusCode::NOT_MODIFIED),
            ("\"other\"", StatusCode::OK),
        ] {
            let response = ask(Method::GET, "/", headers(known));
            assert_eq!(response.status(), status, "{known}");
            assert_eq!(header(&response, "content-security-policy"), POLICY, "it stays its policy");
        }
    }
}
