//! The error responses of the API.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::routes::json;
use crate::schema::{ErrorCode, Failure, FailureBody};

/// Seconds after which a client should repeat a request that failed with status 429 or 503.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("10");

/// The error of a failed request.
#[derive(Debug)]
pub(super) struct ApiError(Failure);

impl ApiError {
    fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Failure { code, message: message.into(), field: None })
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::NotFound, message)
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Conflict, message)
    }

    pub(super) fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::MethodNotAllowed, message)
    }

    /// Returns the error of an invalid request, with the wrong field, if there is one.
    pub(super) fn invalid(field: Option<&str>, message: impl Into<String>) -> Self {
        let field = field.map(str::to_owned);
        Self(Failure { code: ErrorCode::Invalid, message: message.into(), field })
    }

    /// Returns the error of a change that expects another revision.
    pub(super) fn revision_conflict(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::RevisionConflict, message)
    }

    /// Returns the error of a change that would delete objects in use.
    pub(super) fn in_use(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InUse, message)
    }

    /// Returns the error of a change that would delete objects to which others refer.
    pub(super) fn referred(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Referred, message)
    }

    /// Returns the error of a request that names an unusable file, device, port or secret.
    pub(super) fn unable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unable, message)
    }

    pub(super) fn no_state(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::NoState, message)
    }

    pub(super) fn state_unwritable(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::StateUnwritable, message)
    }

    /// Returns the error of a client that has not authenticated.
    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unauthorized, message)
    }

    /// Returns the error of a client that has sent too many wrong tokens.
    pub(super) fn too_many_attempts(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TooManyAttempts, message)
    }

    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Forbidden, message)
    }

    /// Returns the error of a field that the client may not set.
    pub(super) fn forbidden_field(field: &str, message: impl Into<String>) -> Self {
        let field = Some(field.to_owned());
        Self(Failure { code: ErrorCode::Forbidden, message: message.into(), field })
    }

    /// Returns the error of a body that is too long, or lists too many objects.
    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::TooLarge, message)
    }

    /// Returns the error of a request for which the server has no capacity now.
    pub(super) fn busy(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Busy, message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Internal, message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match self.0.code {
            ErrorCode::Invalid => StatusCode::BAD_REQUEST,
            ErrorCode::NotFound => StatusCode::NOT_FOUND,
            ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            ErrorCode::Conflict
            | ErrorCode::RevisionConflict
            | ErrorCode::InUse
            | ErrorCode::Referred
            | ErrorCode::NoState => StatusCode::CONFLICT,
            ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
            ErrorCode::Forbidden => StatusCode::FORBIDDEN,
            ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorCode::TooManyAttempts => StatusCode::TOO_MANY_REQUESTS,
            ErrorCode::Busy => StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Unable => StatusCode::UNPROCESSABLE_ENTITY,
            ErrorCode::StateUnwritable => StatusCode::INSUFFICIENT_STORAGE,
            ErrorCode::Internal | ErrorCode::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = (status, json(&FailureBody { error: self.0 })).into_response();
        let headers = response.headers_mut();
        match status {
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(header::RETRY_AFTER, RETRY_AFTER);
                // The server also closes the connection, to free its slot.
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            // RFC 9110 §11.6.1: the header tells the client how to authenticate.
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
