//! The handlers of the API's requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use sarsen_block::Geometry;
use sarsen_scsi::{LogicalUnit, Lun};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::info;

use super::capacity::Received;
use super::error::ApiError;
use super::openapi::{self, Failures};
use super::{
    Api, VERSION, config, events, initiator_lines, lab, pool_devices, pools, statistics, trace,
    volumes,
};
use crate::config::{Portal, Redirect, parse_redirect_address};
use crate::drain::{AlreadyDraining, Outcome, Service, send_away};
use crate::engine::{Export, Usage};
use crate::events::Occurrence;
use crate::fronts::Front;
use crate::mailbox::Mailbox;
use crate::metrics;
use crate::model::Object;
use crate::schema::{
    self, Authentication, Connection, DrainSession, DrainTarget, Drained, PortalList, ProblemList,
    ServedPortal, ServedVolume, Session, SessionKind, SessionList, TargetList, TargetLun,
    TargetPortal, TargetState, Undrained, VolumeList, unix_seconds,
};
use crate::sessions::{ConnectionInfo, SessionInfo};
use crate::targets::Target;

/// The default path of scrapers.
pub(super) const METRICS: &str = "/metrics";
/// Default number of seconds that initiators have to log out.
const GRACE: u16 = 30;

pub(super) type Answer<T> = Result<Json<T>, ApiError>;

/// A response as JSON.
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        json(&self.0)
    }
}

pub(super) fn json(body: &impl Serialize) -> Response {
    let text = serde_json::to_string(body).expect("our own types have string keys");
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

pub(super) fn router(api: Api) -> Router {
    let v1 = Router::new()
        .route("/openapi.json", get(openapi::openapi))
        .route("/metrics", get(metrics))
        .route("/statistics", get(statistics::statistics))
        .route("/events", get(events::events))
        .route("/live", get(events::live))
        .route("/trace", get(trace::of_initiator))
        .route("/sessions/{tsih}/trace", get(trace::of_session))
        .route("/sessions", get(sessions))
        .route("/sessions/{tsih}/drain", post(drain_session))
        .route("/volumes", get(volumes))
        .route("/lab/runs", get(lab::runs))
        .route("/lab/runs/{id}/report", get(lab::report))
        .route("/problems", get(problems))
        .route("/portals", get(portals))
        .route("/targets", get(targets))
        .route("/targets/{name}/lines", get(initiator_lines::lines))
        .route("/targets/{name}/drain", post(drain_target))
        .route("/targets/{name}/undrain", post(undrain_target))
        .merge(volumes::router())
        .merge(pools::router())
        .merge(pool_devices::router())
        .merge(config::router());
    Router::new()
        .nest(VERSION, v1)
        .route(METRICS, get(scraped_metrics))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(api)
}

async fn no_such_path(uri: Uri) -> ApiError {
    ApiError::not_found(format!("there is no {}", uri.path()))
}

async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    ApiError::method_not_allowed(format!("{} does not take {method}", uri.path()))
}

/// Returns the metrics as OpenMetrics text.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/metrics",
    responses((status = 200, content_type = "application/openmetrics-text", body = String), Failures)
)]
pub(super) async fn metrics(State(api): State<Api>) -> Response {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], api.engine.metrics()).into_response()
}

/// Returns the metrics at the default path of scrapers: as OpenMetrics if the scraper accepts it, otherwise in the text
/// format of Prometheus.
async fn scraped_metrics(State(api): State<Api>, headers: HeaderMap) -> Response {
    let mut accepted =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    if accepted.any(|accepted| accepted.contains("application/openmetrics-text")) {
        return metrics(State(api)).await;
    }
    let text = metrics::text::of_open_metrics(&api.engine.metrics());
    ([(header::CONTENT_TYPE, metrics::text::CONTENT_TYPE)], text).into_response()
}

/// Returns the open sessions.
#[utoipa::path(get, tag = "server", path = "/v1/sessions", responses((status = 200, body = SessionList), Failures))]
pub(super) async fn sessions(State(front): State<Arc<Front>>) -> Json<SessionList> {
    let session = |info: SessionInfo| Session {
        tsih: info.tsih,
        protocol: info.protocol,
        kind: if info.is_discovery() { SessionKind::Discovery } else { SessionKind::Normal },
        initiator: info.client.name,
        isid: info.end.map(|end| end.isid.to_string()),
        volume: info.target.as_deref().zip(info.only).and_then(|(target, lun)| {
            let luns = front.targets.find(target)?.device.luns();
            Some(luns.get(&lun)?.volume().name().to_string())
        }),
        target: info.target,
        account: info.client.account,
        since_unix_seconds: unix_seconds(info.since),
        connections: info.connections.iter().map(connection).collect(),
    };
    Json(SessionList {
        sessions: front.sessions.session_infos().into_iter().map(session).collect(),
    })
}

fn connection(info: &ConnectionInfo) -> Connection {
    Connection {
        cid: info.cid,
        peer: info.peer.to_string(),
        portal: info.local.to_string(),
        portal_group: info.portal_group,
        since_unix_seconds: unix_seconds(info.since),
        keys: info.parameters.as_ref().map(Into::into),
    }
}

/// Asks a session's initiator to log out, and terminates the session if it does not do so in time.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/sessions/{tsih}/drain",
    params(("tsih" = u16, Path, description = "The session's handle")),
    request_body = DrainSession,
    responses((status = 200, body = Drained), Failures)
)]
pub(super) async fn drain_session(
    State(front): State<Arc<Front>>,
    Path(tsih): Path<String>,
    body: Received,
) -> Answer<Drained> {
    let request: DrainSession = parse(body.bytes())?;
    let number: Option<u16> = tsih.parse().ok();
    let session = front.sessions.session_infos().into_iter().find(|info| Some(info.tsih) == number);
    let session = session.ok_or_else(|| {
        ApiError::not_found(format!("there is no session {tsih}: `sarsen session list` has them"))
    })?;
    let (grace, mailboxes) = (grace(request.grace_seconds), [session.mailboxes]);
    info!(tsih, initiator = session.client.name, "a session is asked to log out");
    to_the_end(async move { send_away(&mailboxes, grace, std::future::pending()).await }).await
}

/// Returns the open volumes, with their targets and URLs.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/volumes",
    responses((status = 200, body = VolumeList), Failures)
)]
pub(super) async fn volumes(State(api): State<Api>) -> Json<VolumeList> {
    let exports = api.engine.exports().into_iter();
    let usage: BTreeMap<String, Usage> = api.engine.volume_usage().into_iter().collect();
    let mut exports: BTreeMap<String, Export> =
        exports.map(|export| (export.volume.clone(), export)).collect();
    let config = api.engine.config();
    let mut pools: BTreeMap<String, String> =
        config.volumes.into_iter().filter_map(|volume| Some((volume.name, volume.pool?))).collect();
    let volume = |(name, geometry): (String, Geometry)| {
        let export = exports.remove(&name);
        let (target, lun, urls) = match export {
            Some(Export { target, lun, urls, .. }) => (Some(target), Some(lun), urls),
            None => (None, None, Vec::new()),
        };
        let block_size = geometry.block_size.bytes() as u32;
        let usage = usage.get(&name);
        ServedVolume {
            size_bytes: geometry.byte_count(),
            block_size,
            target,
            lun,
            pool: pools.remove(&name),
            urls,
            allocated_bytes: usage.and_then(|usage| usage.allocated),
            free_bytes: usage.and_then(|usage| usage.free),
            filling: usage.and_then(|usage| usage.filling.clone()),
            name,
        }
    };
    Json(VolumeList { volumes: api.engine.volumes().into_iter().map(volume).collect() })
}

/// Returns the problems: the objects that are not in their desired state.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/problems",
    responses((status = 200, body = ProblemList), Failures)
)]
pub(super) async fn problems(State(api): State<Api>) -> Json<ProblemList> {
    let problems = api.engine.problems().iter().map(schema::Problem::from).collect();
    Json(ProblemList { problems, warnings: api.engine.overcommitments() })
}

/// Returns the addresses at which the server listens, from any source of configuration.
#[utoipa::path(get, tag = "server", path = "/v1/portals", responses((status = 200, body = PortalList), Failures))]
pub(super) async fn portals(State(api): State<Api>) -> Json<PortalList> {
    let objects = api.desired.as_ref().map(|desired| desired.current().objects);
    let objects = objects.iter().flat_map(|objects| objects.values());
    let objects = objects.filter_map(|object| match &**object {
        Object::Portal(portal) => Some(portal.address()),
        _ => None,
    });
    let served = api.front.portals.configs();
    let of_objects = served_for(objects.collect(), &served);
    let portals = served.iter().enumerate().map(|(index, portal)| {
        let TargetPortal { address, protocol, group, tls } = target_portal(portal);
        let is_object = of_objects.contains(&index);
        ServedPortal { address, protocol, group, tls, is_object }
    });
    Json(PortalList { portals: portals.collect() })
}

/// Returns the indices of the served portals that are objects with these addresses. Each object has one portal.
fn served_for(mut objects: Vec<SocketAddr>, served: &[Portal]) -> BTreeSet<usize> {
    // Port 0 selects any free port, so other addresses are found first.
    objects.sort_by_key(|address| address.port() == 0);
    let mut found = BTreeSet::new();
    for object in objects {
        // Portals of the server's own settings come first.
        let portal = served.iter().enumerate().rev().find(|(index, portal)| {
            let is_port = [0, portal.address().port()].contains(&object.port());
            is_port && object.ip() == portal.address().ip() && !found.contains(index)
        });
        found.extend(portal.map(|(index, _)| index));
    }
    found
}

/// Returns the targets and their portals.
#[utoipa::path(get, tag = "server", path = "/v1/targets", responses((status = 200, body = TargetList), Failures))]
pub(super) async fn targets(State(front): State<Arc<Front>>) -> Json<TargetList> {
    let (sessions, portals) = (front.sessions.session_infos(), front.portals.configs());
    let target = |target: Target| {
        let name = target.device.name();
        let (service, redirect) = front.drains.service(name);
        let own = sessions.iter().filter(|info| info.target.as_deref() == Some(name));
        let portals = portals.iter().filter(|portal| target.is_reached_through(portal.group()));
        let portals = portals.map(target_portal).collect();
        schema::Target {
            name: name.to_owned(),
            alias: target.alias.clone(),
            state: state(service),
            redirect: redirect
                .or(target.redirect)
                .map(|Redirect { address, permanent }| schema::Redirect { address, permanent }),
            portals,
            luns: target.device.luns().iter().map(target_lun).collect(),
            authentication: if front.access.requires_authentication(name) {
                Authentication::Chap
            } else {
                Authentication::None
            },
            account: front.access.only_account(name),
            portal_groups: target.groups.map(|groups| groups.into_iter().collect()),
            session_count: own.count(),
        }
    };
    Json(TargetList { targets: front.targets.all().into_iter().map(target).collect() })
}

fn target_lun((lun, unit): (&Lun, &Arc<LogicalUnit>)) -> TargetLun {
    TargetLun { lun: lun.0, volume: unit.volume().name().to_string() }
}

fn target_portal(portal: &Portal) -> TargetPortal {
    TargetPortal {
        address: portal.address().to_string(),
        protocol: portal.protocol(),
        group: portal.group(),
        tls: portal.tls.is_some(),
    }
}

fn state(service: Service) -> TargetState {
    match service {
        Service::In => TargetState::InService,
        Service::Draining => TargetState::Draining,
        Service::Out => TargetState::Drained,
    }
}

/// Takes a target out of service. Its initiators are asked to log out. Sessions that do not end in time are terminated.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/targets/{name}/drain",
    params(("name" = String, Path, description = "iSCSI name")),
    request_body = DrainTarget,
    responses((status = 200, body = Drained), Failures)
)]
pub(super) async fn drain_target(
    State(front): State<Arc<Front>>,
    Path(name): Path<String>,
    body: Received,
) -> Answer<Drained> {
    let request: DrainTarget = parse(body.bytes())?;
    known(&front, &name)?;
    let redirect = request.redirect.map(|schema::Redirect { address, permanent }| {
        let address = parse_redirect_address(&address)
            .map_err(|message| ApiError::invalid(Some("redirect.address"), message))?;
        Ok::<_, ApiError>(Redirect { address, permanent })
    });
    let draining = front.drains.begin(&name, redirect.transpose()?).map_err(|AlreadyDraining| {
        ApiError::conflict(format!("target {name} is being drained already"))
    })?;
    // The server rejects sessions that begin after this.
    let mailboxes: Vec<Vec<Mailbox>> = front
        .sessions
        .session_infos()
        .into_iter()
        .filter(|info| !info.is_discovery() && info.target.as_deref() == Some(name.as_str()))
        .map(|info| info.mailboxes)
        .collect();
    info!(target = name, sessions = mailboxes.len(), "a target is drained");
    let grace = grace(request.grace_seconds);
    to_the_end(async move {
        let outcome = draining.run(mailboxes, grace).await;
        let Outcome { asked, dropped, .. } = outcome;
        front.access.events.tell(&Occurrence::TargetDrained { target: name, asked, dropped });
        outcome
    })
    .await
}

/// Puts a target back into service.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/targets/{name}/undrain",
    params(("name" = String, Path, description = "iSCSI name")),
    responses((status = 200, body = Undrained), Failures)
)]
pub(super) async fn undrain_target(
    State(front): State<Arc<Front>>,
    Path(name): Path<String>,
) -> Answer<Undrained> {
    known(&front, &name)?;
    if !front.drains.end(&name) {
        return Err(ApiError::conflict(format!("target {name} is in service")));
    }
    info!(target = name, "a target is in service again");
    front.access.events.tell(&Occurrence::TargetInService { target: name });
    Ok(Json(Undrained { state: TargetState::InService }))
}

fn known(front: &Front, name: &str) -> Result<(), ApiError> {
    let target = front.targets.find(name).map(drop);
    target.ok_or_else(|| {
        ApiError::not_found(format!("there is no target {name}: `sarsen target list` has them"))
    })
}

fn grace(seconds: Option<u16>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(GRACE).into())
}

/// Completes a drain, even if its client disconnects meanwhile.
async fn to_the_end(drain: impl Future<Output = Outcome> + Send + 'static) -> Answer<Drained> {
    let task = tokio::spawn(async move {
        let outcome = drain.await;
        let Outcome { asked, logged_out, dropped, ending, is_called_off } = outcome;
        info!(asked, logged_out, dropped, ending, called_off = is_called_off, "drained");
        Drained { asked, logged_out, dropped, ending, called_off: is_called_off }
    });
    let drained = task.await;
    drained.map(Json).map_err(|_| ApiError::internal("the drain was cut off; see the log"))
}

/// Parses the body of a request. An empty body has no fields.
pub(super) fn parse<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, ApiError> {
    if body.is_empty() {
        return Ok(T::default());
    }
    let parsed = serde_json::from_slice(body);
    parsed.map_err(|error| ApiError::invalid(None, format!("the body: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_with_port_0_does_not_hide_a_portal_of_the_flags() {
        let portals = ["127.0.0.1:4001", "127.0.0.1:4002", "127.0.0.1:4003", "[::1]:4004"]
            .map(|address| crate::config::parse_portal(address).expect("a portal"));
        let objects = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|address| address.parse().expect("an address"));
            served_for(addresses.collect(), &portals).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(objects(&[]), [] as [usize; 0]);
        assert_eq!(objects(&["127.0.0.1:0"]), [2]);
        assert_eq!(objects(&["127.0.0.1:0", "127.0.0.1:4003"]), [1, 2]);
        assert_eq!(objects(&["[::1]:0", "127.0.0.1:3260"]), [3]);
    }
}
