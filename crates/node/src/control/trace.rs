//! `GET /v1/sessions/{tsih}/trace` and `GET /v1/trace?initiator=NAME`: the traffic of connections, as a pcap file that
//! continues until its reader disconnects.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde::Deserialize;
use tracing::warn;
use utoipa::IntoParams;

use super::Api;
use super::error::ApiError;
use super::openapi::Failures;
use crate::mailbox::ConnectionRequest;
use crate::protocol::Protocol;
use crate::trace::{Reader, TRACES};

const CONTENT_TYPE: &str = "application/vnd.tcpdump.pcap";

/// A trace contains the data of all reads and writes, even if it hides authentication values.
const SHOWS_DATA: bool = true;

/// The query of a request for a trace of an initiator.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TraceQuery {
    /// The initiator's name.
    initiator: String,
    /// Include authentication values.
    #[serde(default)]
    secrets: bool,
}

/// Returns the traffic of a session from now on, as a pcap file that ends when its reader disconnects.
#[utoipa::path(get, tag = "server", path = "/v1/sessions/{tsih}/trace", params(("tsih" = u16, Path)), responses((status = 200, content_type = CONTENT_TYPE, body = Vec<u8>), Failures))]
pub(super) async fn of_session(
    State(api): State<Api>,
    Path(tsih): Path<String>,
) -> Result<Response, ApiError> {
    api.check_secrets(SHOWS_DATA)?;
    let front = api.front;
    let number: Option<u16> = tsih.parse().ok();
    let session = front.sessions.session_infos().into_iter().find(|info| Some(info.tsih) == number);
    let session = session.ok_or_else(|| {
        ApiError::not_found(format!("there is no session {tsih}: `sarsen session list` has them"))
    })?;
    if session.protocol != Protocol::Iscsi {
        let message = format!("session {tsih} is not an iSCSI session; only these can be traced");
        return Err(ApiError::conflict(message));
    }
    let (writer, reader) = front.traces.begin().ok_or_else(too_many)?;
    for mailbox in &session.mailboxes {
        // A closed connection has no traffic.
        let _ = mailbox.send(ConnectionRequest::Trace { writer: writer.clone() });
    }
    warn!(tsih, initiator = session.client.name, "the PDUs of this session are traced");
    Ok(answer(reader))
}

/// Returns the traffic of an initiator from its next login on, as a pcap file that ends when its reader disconnects.
#[utoipa::path(get, tag = "server", path = "/v1/trace", params(TraceQuery), responses((status = 200, content_type = CONTENT_TYPE, body = Vec<u8>), Failures))]
pub(super) async fn of_initiator(
    State(api): State<Api>,
    query: Result<Query<TraceQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(TraceQuery { initiator, secrets }) =
        query.map_err(|error| ApiError::invalid(None, error.body_text()))?;
    api.check_secrets(SHOWS_DATA)?;
    let front = api.front;
    let reader = front.traces.expect(&initiator, secrets).ok_or_else(too_many)?;
    warn!(initiator, secrets, "the PDUs of this initiator are traced from its next login");
    Ok(answer(reader))
}

fn too_many() -> ApiError {
    ApiError::conflict(format!(
        "{TRACES} traces are in progress, which is the maximum; stop one `sarsen session trace` command (or close its API request) first"
    ))
}

fn answer(reader: Reader) -> Response {
    let pieces = unfold(reader, |mut reader| async move {
        let piece = reader.next().await?;
        Some((Ok::<Bytes, Infallible>(piece.into()), reader))
    });
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], Body::from_stream(pieces)).into_response()
}
