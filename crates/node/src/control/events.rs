//! `GET /v1/events`, which lists events, and `GET /v1/live`, a stream of server-sent events with the names `event` and
//! `statistics`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, sse};
use futures_util::stream::unfold;
use sarsen_io::time;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use utoipa::IntoParams;

use super::Api;
use super::connections::ConnectionSlot;
use super::error::ApiError;
use super::openapi::Failures;
use super::routes::Json;
use super::statistics::collect;
use crate::events::{Filter, Found, KINDS};
use crate::fronts::Front;
use crate::schema::events::{Event, EventList, Severity};

/// Default and maximum number of events in a response.
const LIMIT: usize = 1000;
/// Maximum time in seconds since 1970: in milliseconds, a later time does not fit an `i64`.
pub(super) const LAST_SECOND: u64 = i64::MAX as u64 / 1000;
/// Time between two frames of statistics.
const FRAME_INTERVAL: Duration = Duration::from_secs(1);

/// The query of a request for events. All given conditions must match.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// Only events after the event with this number; if there are more than the limit, the oldest of them.
    after: Option<u64>,
    /// Only events from this time on, in seconds since 1970.
    since: Option<u64>,
    /// Only events of this kind, such as `login_refused`.
    kind: Option<String>,
    /// Only events of this initiator, target, volume, account, peer or changed object.
    subject: Option<String>,
    /// The minimum severity.
    severity: Option<Severity>,
    /// The maximum number of events, up to 1000. Default: 1000.
    limit: Option<usize>,
}

impl EventQuery {
    fn filter(self) -> Result<(Filter, usize), ApiError> {
        if let Some(kind) = self.kind.as_deref().filter(|kind| !KINDS.contains(kind)) {
            let message =
                format!("kind: there is no kind {kind}; the kinds are {}", KINDS.join(", "));
            return Err(ApiError::invalid(Some("kind"), message));
        }
        let since = self.since.unwrap_or(0);
        if since > LAST_SECOND {
            let message = format!("since: seconds since 1970 are numbers up to {LAST_SECOND}");
            return Err(ApiError::invalid(Some("since"), message));
        }
        let filter = Filter {
            after: self.after.unwrap_or(0),
            since_unix_ms: since * 1000,
            kind: self.kind,
            subject: self.subject,
            severity: self.severity,
        };
        Ok((filter, self.limit.unwrap_or(LIMIT).min(LIMIT)))
    }
}

fn asked(query: Result<Query<EventQuery>, QueryRejection>) -> Result<(Filter, usize), ApiError> {
    let Query(asked) = query.map_err(|error| ApiError::invalid(None, error.body_text()))?;
    asked.filter()
}

/// Returns the matching events.
#[utoipa::path(get, tag = "server", path = "/v1/events", params(EventQuery), responses((status = 200, body = EventList), Failures))]
pub(super) async fn events(
    State(front): State<Arc<Front>>,
    query: Result<Query<EventQuery>, QueryRejection>,
) -> Result<Json<EventList>, ApiError> {
    let (filter, limit) = asked(query)?;
    let Found { events, .. } = query_aside(front, filter, limit).await;
    Ok(Json(EventList { events: events.into_iter().map(Arc::unwrap_or_clone).collect() }))
}

/// Queries events on a thread for blocking work, because the query may read the file.
async fn query_aside(front: Arc<Front>, filter: Filter, limit: usize) -> Found {
    let query = move || front.access.events.query(&filter, limit);
    // A panic of the query is already reported.
    tokio::task::spawn_blocking(query).await.unwrap_or_default()
}

/// A client of the stream, and the events that it has not received yet.
struct Listener {
    front: Arc<Front>,
    filter: Filter,
    changes: watch::Receiver<u64>,
    due: VecDeque<Event>,
    next_frame: Instant,
    _place: OwnedSemaphorePermit,
}

/// Streams new events as server-sent events: `event`, whose data is an [`Event`], and each second `statistics`.
#[utoipa::path(get, tag = "server", path = "/v1/live", params(EventQuery), responses((status = 200, content_type = "text/event-stream", body = String), Failures))]
pub(super) async fn live(
    State(Api { front, capacity, .. }): State<Api>,
    connection: Option<Extension<ConnectionSlot>>,
    query: Result<Query<EventQuery>, QueryRejection>,
) -> Result<impl IntoResponse, ApiError> {
    let is_from_now = query.as_ref().is_ok_and(|asked| asked.after.is_none());
    let (mut filter, _) = asked(query)?;
    let place = capacity.stream()?;
    if let Some(Extension(connection)) = connection {
        connection.leave();
    }
    let changes = front.access.events.changes();
    if is_from_now {
        filter.after = *changes.borrow();
    }
    let due = VecDeque::new();
    let listener = Listener { front, filter, changes, due, next_frame: time::now(), _place: place };
    let stream = sse::Sse::new(unfold(listener, |mut listener| async move {
        Some((Ok::<_, Infallible>(listener.next().await), listener))
    }));
    // The connection has no slot any more, so no further request may follow on it.
    Ok(([(header::CONNECTION, "close")], stream))
}

impl Listener {
    async fn next(&mut self) -> sse::Event {
        loop {
            if let Some(event) = self.due.pop_front() {
                let reported = sse::Event::default().event("event").id(event.id.to_string());
                return reported.data(text(&event));
            }
            self.changes.mark_unchanged();
            if self.filter.after == 0 || *self.changes.borrow() > self.filter.after {
                let Found { events, seen } =
                    query_aside(self.front.clone(), self.filter.clone(), LIMIT).await;
                self.filter.after = self.filter.after.max(seen);
                self.due.extend(events.into_iter().map(Arc::unwrap_or_clone));
                if !self.due.is_empty() {
                    continue;
                }
            }
            tokio::select! {
                changed = self.changes.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                () = time::sleep_until(self.next_frame) => {
                    self.next_frame = time::now() + FRAME_INTERVAL;
                    let statistics = text(&collect(&self.front));
                    return sse::Event::default().event("statistics").data(statistics);
                }
            }
        }
    }
}

fn text(reported: &impl serde::Serialize) -> String {
    serde_json::to_string(reported).expect("our own types have string keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_there_is_not_is_no_empty_list() {
        let asked =
            |kind: &str| EventQuery { kind: Some(kind.into()), ..EventQuery::default() }.filter();
        assert_eq!(asked("login_refused").expect("known").0.kind.as_deref(), Some("login_refused"));
        let refused = format!("{:?}", asked("nonsense").err());
        assert!(refused.contains("login_refused") && refused.contains("field"), "{refused}");
    }

    #[test]
    fn a_moment_that_no_event_can_have_is_refused() {
        let asked = |since| EventQuery { since: Some(since), ..EventQuery::default() }.filter();
        assert_eq!(asked(LAST_SECOND).expect("a moment").0.since_unix_ms, LAST_SECOND * 1000);
        let refused = format!("{:?}", asked(LAST_SECOND + 1).err());
        assert!(refused.contains("field: Some(\"since\")"), "{refused}");
    }
}
