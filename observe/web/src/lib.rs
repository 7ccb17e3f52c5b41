//! The dashboard: a page in the browser that shows a daemon's store, live.
//!
//! Its files are embedded in the program. They contain no data, so anybody may fetch them. The page requests its data
//! from the HTTP interface with the user's token. It loads nothing from other hosts, and no other page may frame it.

#![forbid(unsafe_code)]

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// What the page may load and do: only its own files and its own daemon. A form without JavaScript is not submitted, so
/// that a token never appears in an address.
const POLICY: &str = "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// A file of the page.
#[derive(Clone, Copy, Debug)]
struct File {
    path: &'static str,
    media_type: &'static str,
    text: &'static str,
}

macro_rules! file {
    ($path:literal, $name:literal, $media_type:literal) => {
        File {
            path: $path,
            media_type: $media_type,
            text: include_str!(concat!("../static/", $name)),
        }
    };
}

const FILES: [File; 18] = [
    file!("/", "index.html", "text/html; charset=utf-8"),
    file!("/style.css", "style.css", "text/css; charset=utf-8"),
    file!("/icon.svg", "icon.svg", "image/svg+xml"),
    file!("/api.js", "api.js", "text/javascript; charset=utf-8"),
    file!("/app.js", "app.js", "text/javascript; charset=utf-8"),
    file!("/board.js", "board.js", "text/javascript; charset=utf-8"),
    file!("/chart.js", "chart.js", "text/javascript; charset=utf-8"),
    file!("/disks.js", "disks.js", "text/javascript; charset=utf-8"),
    file!("/format.js", "format.js", "text/javascript; charset=utf-8"),
    file!("/guests.js", "guests.js", "text/javascript; charset=utf-8"),
    file!("/legend.js", "legend.js", "text/javascript; charset=utf-8"),
    file!("/lending.js", "lending.js", "text/javascript; charset=utf-8"),
    file!("/policy.js", "policy.js", "text/javascript; charset=utf-8"),
    file!("/programs.js", "programs.js", "text/javascript; charset=utf-8"),
    file!("/series.js", "series.js", "text/javascript; charset=utf-8"),
    file!("/tables.js", "tables.js", "text/javascript; charset=utf-8"),
    file!("/title.js", "title.js", "text/javascript; charset=utf-8"),
    file!("/troubles.js", "troubles.js", "text/javascript; charset=utf-8"),
];

impl File {
    /// The entity tag of this version of the file.
    fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.text.hash(&mut hasher);
        format!("\"{:016x}\"", hasher.finish())
    }

    fn answer(&self, asked: &HeaderMap) -> Response {
        let tag = self.tag();
        let known = asked.get(header::IF_NONE_MATCH).is_some_and(|known| known == tag.as_str());
        let headers = [
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-cache"),
            (header::ETAG, &tag),
        ];
        if known {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, [(header::CONTENT_TYPE, self.media_type)], self.text).into_response()
    }
}

/// Serves the page at `/` and its files, to anybody.
pub fn router() -> Router {
    FILES.into_iter().fold(Router::new(), |router, file| {
        router.route(file.path, get(move |asked: HeaderMap| async move { file.answer(&asked) }))
    })
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    async fn ask(path: &str, known: Option<&str>) -> Response {
        let mut request = Request::builder().uri(path);
        if let Some(known) = known {
            request = request.header(header::IF_NONE_MATCH, known);
        }
        router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn every_file_forbids_what_the_page_does_not_need() {
        for file in FILES {
            let answer = ask(file.path, None).await;
            assert_eq!(answer.status(), StatusCode::OK, "{}", file.path);
            let header = |name| answer.headers()[name].to_str().unwrap();
            assert_eq!(header(header::CONTENT_SECURITY_POLICY), POLICY);
            assert_eq!(header(header::X_CONTENT_TYPE_OPTIONS), "nosniff");
            assert_eq!(header(header::REFERRER_POLICY), "no-referrer");
            assert_eq!(header(header::CACHE_CONTROL), "no-cache");
            assert_eq!(header(header::CONTENT_TYPE), file.media_type);
            let tag = header(header::ETAG);
            assert_eq!(ask(file.path, Some(tag)).await.status(), StatusCode::NOT_MODIFIED);
            assert_eq!(ask(file.path, Some("\"other\"")).await.status(), StatusCode::OK);
        }
        assert_eq!(ask("/index.html", None).await.status(), StatusCode::NOT_FOUND);
    }

    /// The browser's policy would block them too; this test finds them earlier.
    #[test]
    fn nothing_is_inline_or_from_elsewhere() {
        for file in FILES {
            // XML namespaces are addresses that are never opened.
            let text = file.text.replace("http://www.w3.org/", "");
            for word in ["http:", "https:", " style=", " onclick=", "innerHTML", "eval("] {
                assert!(!text.contains(word), "{} has {word}", file.path);
            }
            for part in text.split("<script").skip(1) {
                let (attributes, rest) = part.split_once('>').unwrap();
                assert!(attributes.contains("src=") && rest.starts_with("</script>"));
            }
        }
    }

    #[test]
    fn every_module_that_is_imported_is_there() {
        for file in FILES {
            for part in file.text.split("from \"./").skip(1) {
                let name = part.split('"').next().unwrap();
                let known = FILES.iter().any(|file| file.path.strip_prefix('/') == Some(name));
                assert!(known, "{} imports {name}", file.path);
            }
        }
    }
}
