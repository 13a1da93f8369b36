//! What is answered when a request cannot be carried out.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::routes::json;
use super::schema::{ErrorCode, Failure, FailureBody};

/// A request that failed.
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

    /// The request itself is wrong, in this field if it is one's fault.
    pub(super) fn invalid(field: Option<&str>, message: impl Into<String>) -> Self {
        let field = field.map(str::to_owned);
        Self(Failure { code: ErrorCode::Invalid, message: message.into(), field })
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
            ErrorCode::Conflict => StatusCode::CONFLICT,
            ErrorCode::Internal | ErrorCode::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, json(&FailureBody { error: self.0 })).into_response()
    }
}
