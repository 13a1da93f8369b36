//! Actions on open volumes that do not change their configuration.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{delete, get, post};
use sarsen_io::threads;

use super::Api;
use super::capacity::Received;
use super::config::{GRACE, LONGEST_GRACE, desired};
use super::error::ApiError;
use super::openapi::Failures;
use super::routes::{Answer, Json, parse};
use crate::desired::{OrphanError, reattach as reattach_volume};
use crate::model::Orphan;
use crate::schema::pools::VolumeUsage;
use crate::schema::{OrphanList, Reattach, Reattached, VolumePaths};

pub(super) fn router() -> Router<Api> {
    Router::new()
        .route("/volumes/{name}/reattach", post(reattach))
        .route("/volumes/{name}/usage", get(usage))
        .route("/volumes/{name}/paths", get(paths))
        .route("/orphans", get(orphans))
        .route("/orphans/{name}", delete(remove_orphan))
}

/// Closes a volume and opens it again, for use after the repair of its disk.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/volumes/{name}/reattach",
    params(("name" = String, Path, description = "Its name")),
    request_body = Reattach,
    responses((status = 200, body = Reattached), Failures)
)]
pub(super) async fn reattach(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: Received,
) -> Answer<Reattached> {
    let Reattach { force, grace_seconds } = parse(body.bytes())?;
    drop(body);
    let grace = grace_seconds.unwrap_or(GRACE);
    if grace > LONGEST_GRACE {
        let message = format!("grace_seconds: the maximum is {LONGEST_GRACE}");
        return Err(ApiError::invalid(Some("grace_seconds"), message));
    }
    let is_known = api.engine.desired().volumes.iter().any(|one| one.name == name);
    if !is_known {
        let message = format!("volume {name} does not exist; see `sarsen volume list`");
        return Err(ApiError::not_found(message));
    }
    let grace = force.then_some(Duration::from_secs(grace.into()));
    let Api { engine, desired, .. } = api;
    let made = reattach_volume(engine, desired, name.clone(), grace).await?;
    Ok(Json(Reattached { volume: name, writes_may_be_lost: made.is_unflushed }))
}

/// Returns the paths of a remote volume.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/volumes/{name}/paths",
    params(("name" = String, Path, description = "The name of the volume")),
    responses((status = 200, body = VolumePaths), Failures)
)]
pub(super) async fn paths(State(api): State<Api>, Path(name): Path<String>) -> Answer<VolumePaths> {
    let known = api.engine.desired();
    if !known.volumes.iter().any(|volume| volume.name == name) {
        return Err(ApiError::not_found(format!("there is no volume {name}")));
    }
    match api.engine.volume_paths(&name) {
        Some(paths) => Ok(Json(paths)),
        None => Err(ApiError::conflict(format!(
            "volume {name} is no open remote volume: it has no paths"
        ))),
    }
}

/// Returns what a volume takes of its pool, and what the deletion of the volume alone gives back. This reads its map.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/volumes/{name}/usage",
    params(("name" = String, Path, description = "Its name")),
    responses((status = 200, body = VolumeUsage), Failures)
)]
pub(super) async fn usage(State(api): State<Api>, Path(name): Path<String>) -> Answer<VolumeUsage> {
    let (pool, found) = api.engine.volume_in_pool(&name)?;
    let counted = pool.reclaimable_bytes(vec![found.id]).await?;
    let reclaimable_bytes = counted
        .into_iter()
        .next()
        .flatten()
        .ok_or_else(|| ApiError::not_found(format!("volume {name} was deleted")))?;
    Ok(Json(VolumeUsage {
        pool: pool.config().name,
        size_bytes: found.size,
        referenced_bytes: found.referenced_bytes,
        reclaimable_bytes,
        snapshot_count: pool.snapshots_of(found.id).len(),
        volume: name,
    }))
}

/// Returns the files in the state's folder of volumes that belong to no volume.
#[utoipa::path(
    get,
    tag = "state",
    path = "/v1/orphans",
    responses((status = 200, body = OrphanList), Failures)
)]
pub(super) async fn orphans(State(api): State<Api>) -> Answer<OrphanList> {
    let desired = desired(&api)?;
    let found = threads::aside(async move { desired.orphans() }).await;
    let found =
        found.map_err(|_| ApiError::internal("orphans: they cannot be listed; see the log"))?;
    Ok(Json(OrphanList { orphans: found.map_err(not_removed)? }))
}

/// Deletes an orphan. Its data is lost.
#[utoipa::path(
    delete,
    tag = "state",
    path = "/v1/orphans/{name}",
    params(("name" = String, Path, description = "Its name in the list of orphans")),
    responses((status = 200, body = Orphan), Failures)
)]
pub(super) async fn remove_orphan(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Answer<Orphan> {
    let desired = desired(&api)?;
    api.check_trusted("orphan: its deletion")?;
    let removed = threads::aside(async move { desired.remove_orphan(&name).await }).await;
    let removed = removed
        .map_err(|_| ApiError::internal("orphan: its removal was interrupted; see the log"))?;
    removed.map(Json).map_err(not_removed)
}

fn not_removed(error: OrphanError) -> ApiError {
    let message = error.to_string();
    match error {
        OrphanError::NotFound(_) => ApiError::not_found(message),
        OrphanError::InUse(_) | OrphanError::HasSnapshots(_) => ApiError::in_use(message),
        OrphanError::Pool(_)
        | OrphanError::HasOtherFiles(_)
        | OrphanError::OtherFile { .. }
        | OrphanError::System { .. } => ApiError::unable(message),
    }
}
