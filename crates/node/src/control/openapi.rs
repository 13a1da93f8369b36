//! The OpenAPI document, generated from the routes and types. `docs/openapi.json` is its copy. Later versions
//! only add to it.

mod exact;

use axum::response::Response;
use serde_json::Value;
use utoipa::openapi::schema::{AnyOf, OneOf};
use utoipa::openapi::{OpenApi as OpenApiDocument, RefOr, Schema};
use utoipa::{IntoResponses, Modify, OpenApi};

use crate::schema::FailureBody;

/// The error responses of every request.
#[derive(IntoResponses)]
#[allow(dead_code)] // only the OpenAPI document uses it
pub(super) enum Failures {
    /// The request is invalid.
    #[response(status = 400)]
    Invalid(FailureBody),
    /// The client has not authenticated.
    #[response(status = 401)]
    Unauthorized(FailureBody),
    /// The request comes from another page, or is permitted only to the server's owner.
    #[response(status = 403)]
    Forbidden(FailureBody),
    /// The named object, file or path does not exist.
    #[response(status = 404)]
    NotFound(FailureBody),
    /// The path does not support this method.
    #[response(status = 405)]
    MethodNotAllowed(FailureBody),
    /// An object exists already, is in use, or has changed; or another operation is in progress.
    #[response(status = 409)]
    Conflict(FailureBody),
    /// The body is too long, or lists too many objects.
    #[response(status = 413)]
    TooLarge(FailureBody),
    /// A file, a device, a port or a secret that the request names cannot be used.
    #[response(status = 422)]
    Unable(FailureBody),
    /// This address has sent too many wrong tokens: try again after the seconds of Retry-After.
    #[response(status = 429)]
    TooManyAttempts(FailureBody),
    /// An internal error of the server.
    #[response(status = 500)]
    Internal(FailureBody),
    /// The server has no capacity now: try again after the seconds of Retry-After.
    #[response(status = 503)]
    Busy(FailureBody),
    /// The state cannot be written to its disk.
    #[response(status = 507)]
    StateUnwritable(FailureBody),
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "sarsen",
        description = "The desired state of a server (`/v1/config`), its actual state and its activity.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT")
    ),
    modifiers(&AnyKind),
    components(schemas(FailureBody, super::config::Singleton)),
    paths(
        openapi,
        super::routes::metrics,
        super::routes::sessions,
        super::routes::drain_session,
        super::routes::volumes,
        super::routes::portals,
        super::volumes::reattach,
        super::volumes::usage,
        super::volumes::paths,
        super::volumes::orphans,
        super::volumes::remove_orphan,
        super::pools::pools,
        super::pools::create,
        super::pools::contents,
        super::pool_devices::add,
        super::pool_devices::change,
        super::pool_devices::recover,
        super::pool_devices::scrub,
        super::pool_devices::stop_scrub,
        super::pools::snapshots,
        super::pools::create_snapshots,
        super::pools::snapshot,
        super::pools::change_snapshot,
        super::pools::delete_snapshot,
        super::pools::changes,
        super::pools::roll_back,
        super::pools::send,
        super::pools::receive,
        super::routes::targets,
        super::routes::problems,
        super::initiator_lines::lines,
        super::lab::runs,
        super::lab::report,
        super::routes::drain_target,
        super::routes::undrain_target,
        super::statistics::statistics,
        super::events::events,
        super::events::live,
        super::trace::of_session,
        super::trace::of_initiator,
        super::config::state,
        super::config::apply,
        super::config::revisions,
        super::config::list,
        super::config::add,
        super::config::put_only,
        super::config::remove_only,
        super::config::show,
        super::config::put,
        super::config::patch,
        super::config::remove,
    )
)]
struct Document;

/// Changes `oneOf` to `anyOf` for objects: an object may also match the schema of another kind.
struct AnyKind;

impl Modify for AnyKind {
    fn modify(&self, document: &mut OpenApiDocument) {
        let Some(components) = &mut document.components else { return };
        if let Some(RefOr::T(schema)) = components.schemas.get_mut("ConfigBody")
            && let Schema::OneOf(OneOf { items, .. }) = schema
        {
            let items = std::mem::take(items);
            *schema = Schema::AnyOf(AnyOf { items, ..AnyOf::default() });
        }
    }
}

/// Returns this document.
#[utoipa::path(get, tag = "server", path = "/v1/openapi.json", responses((status = 200, body = Object), Failures))]
pub(super) async fn openapi() -> Response {
    super::routes::json(&document())
}

/// Returns the document of the routes and types, with exact schemas.
pub(crate) fn document() -> Value {
    let mut document = serde_json::to_value(Document::openapi()).expect("our own types are JSON");
    exact::tighten(&mut document);
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_openapi_document_matches_routes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let said = serde_json::to_string_pretty(&document()).expect("JSON") + "\n";
        if std::env::var_os("SARSEN_WRITE").is_some() {
            std::fs::write(path, &said).expect("written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(said == committed, "run it with SARSEN_WRITE=1 and look at what has changed");
    }

    /// Checks that every reference resolves, every operation has a unique name, and each kind of object its own body.
    #[test]
    fn each_kind_has_paths_and_a_body_of_its_own() {
        let document = document();
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let reference = reference.split('"').next().expect("an end");
            assert!(document.pointer(reference).is_some(), "there is no {reference}");
        }
        let mut ids: Vec<&str> = text
            .split("\"operationId\":\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{ids:?}");
        let body = |path: &str, method: &str| {
            let at = "requestBody/content/application~1json/schema/$ref";
            let path = path.replace('/', "~1");
            let found = document.pointer(&format!("/paths/{path}/{method}/{at}"));
            found.and_then(Value::as_str).map(|found| found.rsplit('/').next().expect("a name"))
        };
        for (path, method, schema) in [
            ("/v1/config/volume", "post", Some("Volume")),
            ("/v1/config/target/{name}", "put", Some("Target")),
            ("/v1/config/account/{name}", "patch", Some("AccountPatch")),
            ("/v1/config/limits", "put", Some("Limits")),
            ("/v1/config/volume", "put", None),
            ("/v1/config/{kind}", "post", None),
        ] {
            assert_eq!(body(path, method), schema, "{method} {path}");
        }
        let created = document.pointer("/paths/~1v1~1config~1discovery/put/responses/201");
        assert!(created.is_some(), "a singleton that was not there is created");
        let schema = |of: &str| document.pointer(&format!("/components/schemas/{of}"));
        let cache = schema("Volume/properties/cache/enum").expect("words");
        assert!(cache.as_array().is_some_and(|words| words.contains(&"writethrough".into())));
        assert!(cache.as_array().is_some_and(|words| words.contains(&Value::Null)), "{cache}");
        assert_eq!(schema("Account/properties/secret/minLength"), Some(&12.into()));
        assert_eq!(schema("VolumePatch/required"), None);
    }
}
