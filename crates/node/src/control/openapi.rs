//! The OpenAPI document, of the routes and types themselves. `docs/openapi.json` is what it says, and only grows.

use axum::response::{IntoResponse, Response};
use utoipa::openapi::schema::{AnyOf, OneOf};
use utoipa::openapi::{OpenApi as OpenApiDocument, RefOr, Schema};
use utoipa::{IntoResponses, Modify, OpenApi};

use super::schema::FailureBody;

/// What any request may be answered with.
#[derive(IntoResponses)]
#[allow(dead_code)] // it is only described
pub(super) enum Failures {
    /// The request is wrong.
    #[response(status = 400)]
    Invalid(FailureBody),
    /// The token was not shown.
    #[response(status = 401)]
    Unauthorized(FailureBody),
    /// It comes from another page, or names what is for the server's owner.
    #[response(status = 403)]
    Forbidden(FailureBody),
    /// What it names does not exist.
    #[response(status = 404)]
    NotFound(FailureBody),
    /// The path takes other methods.
    #[response(status = 405)]
    MethodNotAllowed(FailureBody),
    /// Something else is there, is in use, or was there first.
    #[response(status = 409)]
    Conflict(FailureBody),
    /// The body is too long.
    #[response(status = 413)]
    TooLarge(FailureBody),
    /// A file, a device, a port or a secret that it names cannot be used.
    #[response(status = 422)]
    Unable(FailureBody),
    /// The server's own fault.
    #[response(status = 500)]
    Internal(FailureBody),
    /// The state's disk takes nothing.
    #[response(status = 507)]
    StateUnwritable(FailureBody),
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "sarsen",
        description = "What a server is to be (`/v1/config`), what it is, and what it does.",
        license(name = "Apache-2.0 OR MIT", identifier = "Apache-2.0 OR MIT")
    ),
    modifiers(&AnyKind),
    components(schemas(FailureBody, super::config::Only, crate::desired::document::Scalar)),
    paths(
        openapi,
        super::routes::metrics,
        super::routes::sessions,
        super::routes::drain_session,
        super::routes::volumes,
        super::routes::targets,
        super::routes::problems,
        super::ways::lines,
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

/// A thing is of the kind that was asked for, and may look as if it were of another one, too.
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

/// This document.
#[utoipa::path(get, tag = "server", path = "/v1/openapi.json", responses((status = 200, body = Object), Failures))]
pub(super) async fn openapi() -> Response {
    super::routes::json(&Document::openapi()).into_response()
}

/// As it is committed.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_document_is_what_the_routes_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let said = Document::openapi().to_pretty_json().expect("JSON") + "\n";
        if std::env::var_os("SARSEN_WRITE").is_some() {
            std::fs::write(path, &said).expect("written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(said == committed, "run it with SARSEN_WRITE=1 and look at what has changed");
    }
}
