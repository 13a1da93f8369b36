//! Requests for pools and snapshots.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use sarsen_io::threads;
use sarsen_pool::{Change, StreamProblem, VolumeId, VolumeInfo, VolumeKind};
use serde::Deserialize;
use tracing::warn;

use super::Api;
use super::capacity::{Received, ReceivedPart};
use super::config::{GRACE, LONGEST_GRACE, author_of, desired, parse_query};
use super::error::ApiError;
use super::openapi::Failures;
use super::pool_devices;
use super::routes::{Answer, Json, parse};
use crate::config::PoolConfig;
use crate::desired::{Change as ConfigChange, ChangeRefused, Changed, Edit, reattach};
use crate::engine::SnapshotError;
use crate::events::Occurrence;
use crate::model::{CacheMode, Object, SnapshotName, Textual as _};
use crate::schema::pools::{
    ChangeSnapshot, ChangedRange, CreatePool, CreateSnapshots, NewPoolDevice, PoolContents,
    PoolList, PoolStatus, ReceivedSnapshot, RollBack, RolledBack, Snapshot, SnapshotChanges,
    SnapshotList,
};
use crate::stores::pool::{self, names_of, stored_volumes};
use crate::stores::{OpenPool, PlannedDevice, PoolPlan, RollBackEnd, StoreError};

/// Maximum number of snapshots that a request creates.
const SNAPSHOTS_AT_ONCE: usize = 1024;

pub(super) fn router() -> Router<Api> {
    Router::new()
        .route("/pools", get(pools).post(create))
        .route("/pools/{name}", get(contents))
        .route("/snapshots", get(snapshots).post(create_snapshots))
        .route("/snapshots/{name}", get(snapshot).patch(change_snapshot).delete(delete_snapshot))
        .route("/snapshots/{name}/changes", get(changes))
        .route("/snapshots/{name}/rollback", post(roll_back))
        .route("/snapshots/{name}/stream", get(send).post(receive))
}

fn status(api: &Api, config: &PoolConfig) -> PoolStatus {
    let open = api.engine.pools.get(&config.name);
    let space = open.as_ref().map(|open| open.pool.space());
    let objects = open.as_ref().map_or_else(Vec::new, |open| open.pool.volumes());
    let (size_bytes, free_bytes) =
        space.map_or((0, 0), |space| (space.size_bytes, space.free_bytes));
    let volumes = || objects.iter().filter(|one| one.kind == VolumeKind::Volume);
    PoolStatus {
        name: config.name.clone(),
        is_open: open.is_some(),
        problem: api.engine.pools.problem_of(&config.name),
        devices: pool_devices::devices(config, open.as_ref()),
        tiers: pool_devices::tiers_of(open.as_ref()),
        scrub: pool_devices::scrub_of(open.as_ref()),
        chunk_bytes: open.as_ref().map_or(0, |open| open.pool.chunk_size()),
        size_bytes,
        used_bytes: size_bytes.saturating_sub(free_bytes),
        free_bytes,
        lost_bytes: space.map_or(0, |space| space.lost_bytes),
        is_freeing: space.is_some_and(|space| space.is_deleting),
        provisioned_bytes: volumes().map(|one| one.size).sum(),
        volume_count: volumes().count(),
        snapshot_count: objects.len() - volumes().count(),
    }
}

/// Returns the pools, with their space and their problems.
#[utoipa::path(get, tag = "server", path = "/v1/pools", responses((status = 200, body = PoolList), Failures))]
pub(super) async fn pools(State(api): State<Api>) -> Json<PoolList> {
    let desired = api.engine.desired();
    Json(PoolList { pools: desired.pools.iter().map(|config| status(&api, config)).collect() })
}

pub(super) fn find_pool(api: &Api, name: &str) -> Result<PoolConfig, ApiError> {
    let desired = api.engine.desired();
    let found = desired.pools.iter().find(|pool| pool.name == name).cloned();
    found.ok_or_else(|| {
        ApiError::not_found(format!("pool {name} does not exist; see `sarsen pool list`"))
    })
}

/// Returns a pool, and the volumes and snapshots in it.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/pools/{name}",
    params(
        ("name" = String, Path, description = "Its name"),
        ("reclaimable" = Option<bool>, Query, description = "Count the bytes that each of them holds alone, which reads maps"),
    ),
    responses((status = 200, body = PoolContents), Failures)
)]
pub(super) async fn contents(
    State(api): State<Api>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<PoolContents> {
    let Counted { reclaimable } = parse_query(query)?;
    let (mut found, ids) = contents_with_ids(&api, &name)?;
    if reclaimable && let Some(open) = api.engine.pools.get(&name) {
        let counted = open.reclaimable_bytes(ids.clone()).await?;
        let lost = open.lost_bytes(ids).await?;
        for (stored, (counted, lost)) in
            found.contents.iter_mut().zip(counted.into_iter().zip(lost))
        {
            (stored.reclaimable_bytes, stored.lost_bytes) = (counted, lost);
        }
    }
    Ok(Json(found))
}

/// Returns a pool as it is now, and what is in it.
pub(super) fn contents_of(api: &Api, name: &str) -> Result<PoolContents, ApiError> {
    contents_with_ids(api, name).map(|(contents, _)| contents)
}

/// Returns a pool as it is now, what is in it, and the numbers of that in the same order.
fn contents_with_ids(api: &Api, name: &str) -> Result<(PoolContents, Vec<VolumeId>), ApiError> {
    let config = find_pool(api, name)?;
    let open = api.engine.pools.get(name);
    let objects = open.as_ref().map_or_else(Vec::new, |open| open.pool.volumes());
    let own = open.as_ref().map(|open| api.engine.names_in_pool(open)).unwrap_or_default();
    let contents = stored_volumes(&objects, &own);
    let ids = objects.iter().map(|one| one.id).collect();
    Ok((PoolContents { pool: status(api, &config), contents }, ids))
}

/// Creates a pool on devices, or adds the pool that they have.
#[utoipa::path(
    post,
    tag = "state",
    path = "/v1/pools",
    params(("sarsen-author" = Option<String>, Header, description = "The author of the change")),
    request_body = CreatePool,
    responses((status = 200, body = Changed), Failures)
)]
pub(super) async fn create(
    State(api): State<Api>,
    headers: HeaderMap,
    body: Received,
) -> Answer<Changed> {
    let CreatePool { name, devices, chunk_size, cache, import, force, author } =
        super::config::json(body.bytes())?;
    drop(body);
    let desired = desired(&api)?;
    api.check_trusted("pool: its creation")?;
    let author = author_of(author.as_deref(), &headers)?;
    let cache = cache.as_deref().map(CacheMode::parse).transpose();
    let cache =
        cache.map_err(|message| ApiError::invalid(Some("cache"), format!("cache: {message}")))?;
    let planned = |device: NewPoolDevice| {
        let NewPoolDevice { path, size, is_fast } = device;
        PlannedDevice { path: path.into(), size, is_fast }
    };
    let devices: Vec<_> = devices.into_iter().map(planned).collect();
    let plan = PoolPlan::new(&name, &devices, chunk_size, cache).map_err(ChangeRefused::from)?;
    if import && (force || plan.creates_files()) {
        let message =
            "import: a pool that exists has its devices already; leave out force and size";
        return Err(ApiError::invalid(Some("import"), message));
    }
    let config = plan.config.clone();
    let engine = api.engine.clone();
    // It ends even if its client disconnects meanwhile.
    let creating = threads::aside(async move {
        let change = || ConfigChange {
            edits: vec![Edit::Add(Object::Pool(config.clone()))],
            expected: None,
            author: author.clone(),
            force: false,
            grace: Duration::ZERO,
            dry_run: false,
            erase: false,
        };
        if import {
            return desired.change(|_| Ok::<_, ApiError>(change())).await;
        }
        // The document is checked before a device is overwritten.
        desired.check(change()).await?;
        let access = engine.remote_access(&engine.desired().accounts);
        let format = move || pool::format(&access, &plan, force);
        let formatted =
            engine.run_on_pool(&config.name, format).await.map_err(ChangeRefused::from)??;
        let changed = desired.change(|_| Ok::<_, ApiError>(change())).await;
        if changed.is_err() {
            let undo = move || formatted.undo();
            engine.run_on_pool(&config.name, undo).await.map_err(ChangeRefused::from)?;
        }
        changed
    });
    let changed = creating.await;
    let aborted = |_| ApiError::internal("the pool: its creation was aborted; see the log");
    changed.map_err(aborted)?.map(Json)
}

/// Returns the snapshots in a pool, with their identities.
fn snapshots_in(api: &Api, open: &OpenPool) -> Vec<(VolumeInfo, Snapshot)> {
    let objects = open.pool.volumes();
    let (own, pool) = (api.engine.names_in_pool(open), open.config().name);
    let names = names_of(&objects, &own);
    let mut clones: HashMap<VolumeId, Vec<String>> = HashMap::new();
    for one in objects.iter().filter(|one| one.kind == VolumeKind::Volume) {
        if let (Some(origin), Some(name)) = (one.origin, names.get(&one.id)) {
            clones.entry(origin).or_default().push(name.clone());
        }
    }
    let snapshot = |one: &VolumeInfo| Snapshot {
        name: names.get(&one.id).cloned().unwrap_or_default(),
        pool: pool.clone(),
        volume: one.origin.and_then(|origin| own.get(&origin).cloned()),
        size_bytes: one.size,
        referenced_bytes: one.referenced_bytes,
        reclaimable_bytes: None,
        copies: one.copies,
        created_unix_seconds: one.label.created,
        is_protected: one.is_protected,
        clones: clones.get(&one.id).cloned().unwrap_or_default(),
        identifier: format!("{:032x}", u128::from_be_bytes(one.label.identifier)),
        received_bytes: one.received,
    };
    let snapshots = objects.iter().filter(|one| one.kind == VolumeKind::Snapshot);
    snapshots.map(|one| (one.clone(), snapshot(one))).collect()
}

/// What a request wants to have counted.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Counted {
    reclaimable: bool,
}

/// Counts the bytes that each of some snapshots of a pool holds alone.
async fn count_reclaimable(
    open: &Arc<OpenPool>,
    snapshots: &mut [(VolumeInfo, Snapshot)],
) -> Result<(), StoreError> {
    let ids = snapshots.iter().map(|(one, _)| one.id).collect();
    let counted = open.reclaimable_bytes(ids).await?;
    for ((_, snapshot), counted) in snapshots.iter_mut().zip(counted) {
        snapshot.reclaimable_bytes = counted;
    }
    Ok(())
}

/// Returns the snapshots, of all volumes or of one.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/snapshots",
    params(
        ("volume" = Option<String>, Query, description = "Only those of this volume"),
        ("reclaimable" = Option<bool>, Query, description = "Count the bytes that each of them holds alone, which reads maps"),
    ),
    responses((status = 200, body = SnapshotList), Failures)
)]
pub(super) async fn snapshots(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Answer<SnapshotList> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Wanted {
        volume: Option<String>,
        reclaimable: bool,
    }
    let Wanted { volume, reclaimable } = parse_query(query)?;
    // An error says why the snapshots of a volume are not known, such as that its pool is not open.
    let of_volume = volume.map(|name| api.engine.volume_in_pool(&name)).transpose()?;
    let pools = match &of_volume {
        Some((open, _)) => vec![open.clone()],
        None => api.engine.pools.open_pools(),
    };
    let mut snapshots = Vec::new();
    for open in pools {
        let mut found = snapshots_in(&api, &open);
        if let Some((_, volume)) = &of_volume {
            found.retain(|(one, _)| one.origin == Some(volume.id));
        }
        if reclaimable {
            count_reclaimable(&open, &mut found).await?;
        }
        snapshots.extend(found.into_iter().map(|(_, snapshot)| snapshot));
    }
    Ok(Json(SnapshotList { snapshots }))
}

fn parse_name(name: &str) -> Result<SnapshotName, ApiError> {
    name.parse().map_err(|message| ApiError::invalid(Some("name"), message))
}

/// Returns a snapshot, with its pool and its identity.
fn found(
    api: &Api,
    name: &SnapshotName,
) -> Result<(Arc<OpenPool>, (VolumeInfo, Snapshot)), ApiError> {
    let (open, found) = api.engine.find_snapshot(name)?;
    let shown = snapshots_in(api, &open).into_iter().find(|(one, _)| one.id == found.id);
    let shown = shown.map(|shown| (open, shown));
    shown.ok_or_else(|| ApiError::not_found(format!("snapshot {name} was deleted")))
}

fn shown(api: &Api, name: &SnapshotName) -> Answer<Snapshot> {
    found(api, name).map(|(_, (_, snapshot))| Json(snapshot))
}

/// Returns a snapshot.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/snapshots/{name}",
    params(
        ("name" = String, Path, description = "Its name: VOLUME@NAME"),
        ("reclaimable" = Option<bool>, Query, description = "Count the bytes that it holds alone, which reads its map"),
    ),
    responses((status = 200, body = Snapshot), Failures)
)]
pub(super) async fn snapshot(
    State(api): State<Api>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<Snapshot> {
    let Counted { reclaimable } = parse_query(query)?;
    let (open, mut shown) = found(&api, &parse_name(&name)?)?;
    if reclaimable {
        count_reclaimable(&open, std::slice::from_mut(&mut shown)).await?;
    }
    Ok(Json(shown.1))
}

/// Creates snapshots of volumes. Those of one request are of the same moment.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/snapshots",
    request_body = CreateSnapshots,
    responses((status = 200, body = SnapshotList), Failures)
)]
pub(super) async fn create_snapshots(
    State(api): State<Api>,
    body: Received,
) -> Answer<SnapshotList> {
    let CreateSnapshots { snapshots, protect } = parse(body.bytes())?;
    drop(body);
    if snapshots.is_empty() || snapshots.len() > SNAPSHOTS_AT_ONCE {
        let message = format!("snapshots: name 1 to {SNAPSHOTS_AT_ONCE} of them");
        return Err(ApiError::invalid(Some("snapshots"), message));
    }
    let names: Vec<SnapshotName> =
        snapshots.iter().map(|name| parse_name(name)).collect::<Result<_, _>>()?;
    api.engine.create_snapshots(names.clone(), protect).await?;
    api.front.access.events.tell(&Occurrence::SnapshotsCreated { names: snapshots });
    // All of them are in one pool.
    let (open, _) = api.engine.volume_in_pool(&names[0].volume)?;
    let wanted: HashSet<String> = names.iter().map(ToString::to_string).collect();
    let mut created = snapshots_in(&api, &open);
    created.retain(|(_, snapshot)| wanted.contains(&snapshot.name));
    Ok(Json(SnapshotList { snapshots: created.into_iter().map(|(_, one)| one).collect() }))
}

/// Protects a snapshot from deletion, or ends that.
#[utoipa::path(
    patch,
    tag = "server",
    path = "/v1/snapshots/{name}",
    params(("name" = String, Path, description = "Its name: VOLUME@NAME")),
    request_body = ChangeSnapshot,
    responses((status = 200, body = Snapshot), Failures)
)]
pub(super) async fn change_snapshot(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: Received,
) -> Answer<Snapshot> {
    let name = parse_name(&name)?;
    let body: ChangeSnapshot = serde_json::from_slice(body.bytes())
        .map_err(|error| ApiError::invalid(None, format!("the body: {error}")))?;
    api.engine.protect_snapshot(&name, body.is_protected).await?;
    shown(&api, &name)
}

/// Deletes a snapshot. The space that only it used becomes free.
#[utoipa::path(
    delete,
    tag = "server",
    path = "/v1/snapshots/{name}",
    params(
        ("name" = String, Path, description = "Its name: VOLUME@NAME"),
        ("reclaimable" = Option<bool>, Query, description = "First count the bytes that its deletion gives back"),
    ),
    responses((status = 200, body = Snapshot), Failures)
)]
pub(super) async fn delete_snapshot(
    State(api): State<Api>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<Snapshot> {
    let Counted { reclaimable } = parse_query(query)?;
    let name = parse_name(&name)?;
    api.check_trusted("snapshot: its deletion")?;
    let (open, mut deleted) = found(&api, &name)?;
    if reclaimable
        && let Err(error) = count_reclaimable(&open, std::slice::from_mut(&mut deleted)).await
    {
        // What cannot be counted may be just what is to be deleted.
        warn!(snapshot = %name, %error, "the bytes that only the snapshot holds could not be counted");
    }
    api.engine.delete_snapshot(&name).await?;
    let (_, deleted) = deleted;
    api.front.access.events.tell(&Occurrence::SnapshotDeleted {
        name: name.to_string(),
        reclaimed_bytes: deleted.reclaimable_bytes.map(|bytes| bytes * u64::from(deleted.copies)),
    });
    Ok(Json(deleted))
}

/// Parses the name of a snapshot, and a query with an older one and an offset.
fn parse_comparison(
    name: &str,
    query: Option<String>,
) -> Result<(SnapshotName, Option<SnapshotName>, u64), ApiError> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Wanted {
        since_snapshot: Option<String>,
        offset: u64,
    }
    let Wanted { since_snapshot, offset } = parse_query(query)?;
    let since = since_snapshot.as_deref().map(|name| {
        name.parse().map_err(|message| ApiError::invalid(Some("since_snapshot"), message))
    });
    Ok((parse_name(name)?, since.transpose()?, offset))
}

/// Returns where a snapshot may differ from an older one, or from an empty volume.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/snapshots/{name}/changes",
    params(
        ("name" = String, Path, description = "Its name: VOLUME@NAME"),
        ("since_snapshot" = Option<String>, Query, description = "The older snapshot: VOLUME@NAME"),
        ("offset" = Option<u64>, Query, description = "The first byte to compare"),
    ),
    responses((status = 200, body = SnapshotChanges), Failures)
)]
pub(super) async fn changes(
    State(api): State<Api>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<SnapshotChanges> {
    let (name, since, offset) = parse_comparison(&name, query)?;
    let (size_bytes, found) = api.engine.changes(&name, since.as_ref(), offset).await?;
    let range = |change: Change| ChangedRange {
        offset: change.offset,
        length: change.length,
        is_hole: change.is_hole,
    };
    Ok(Json(SnapshotChanges {
        snapshot: name.to_string(),
        since: since.map(|since| since.to_string()),
        size_bytes,
        changes: found.changes.into_iter().map(range).collect(),
        next_offset: found.next,
    }))
}

/// Returns a part of the stream of a snapshot: what differs from an older one, or all of its data, from a byte on.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/snapshots/{name}/stream",
    params(
        ("name" = String, Path, description = "Its name: VOLUME@NAME"),
        ("since_snapshot" = Option<String>, Query, description = "The older snapshot: VOLUME@NAME"),
        ("offset" = Option<u64>, Query, description = "The first byte of the part"),
    ),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>), Failures)
)]
pub(super) async fn send(
    State(api): State<Api>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let (name, since, offset) = parse_comparison(&name, query)?;
    api.check_trusted("snapshot: the transfer of its data")?;
    let part = api.engine.send_snapshot(&name, since.as_ref(), offset).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], part).into_response())
}

/// Puts a part of a stream into a new snapshot, which can be used when it is complete.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/snapshots/{name}/stream",
    params(("name" = String, Path, description = "Its name: VOLUME@NAME")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = ReceivedSnapshot), Failures)
)]
pub(super) async fn receive(
    State(api): State<Api>,
    Path(name): Path<String>,
    ReceivedPart(body): ReceivedPart,
) -> Answer<ReceivedSnapshot> {
    let name = parse_name(&name)?;
    api.check_trusted("snapshot: the transfer of its data")?;
    let (info, received) = api.engine.receive_snapshot(&name, body).await?;
    if received.is_complete && !received.was_complete {
        let names = vec![name.to_string()];
        api.front.access.events.tell(&Occurrence::SnapshotsCreated { names });
    }
    Ok(Json(ReceivedSnapshot {
        name: name.to_string(),
        size_bytes: info.size,
        received_bytes: received.bytes,
        is_complete: received.is_complete,
        was_complete: received.was_complete,
    }))
}

/// Gives a volume the contents of one of its snapshots. What was written since then is lost.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/snapshots/{name}/rollback",
    params(("name" = String, Path, description = "Its name: VOLUME@NAME")),
    request_body = RollBack,
    responses((status = 200, body = RolledBack), Failures)
)]
pub(super) async fn roll_back(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: Received,
) -> Answer<RolledBack> {
    let name = parse_name(&name)?;
    let RollBack { force, grace_seconds } = parse(body.bytes())?;
    drop(body);
    api.check_trusted("snapshot: its roll-back")?;
    let grace = grace_seconds.unwrap_or(GRACE);
    if grace > LONGEST_GRACE {
        let message = format!("grace_seconds: the maximum is {LONGEST_GRACE}");
        return Err(ApiError::invalid(Some("grace_seconds"), message));
    }
    let grace = force.then_some(Duration::from_secs(grace.into()));
    let pending = api.engine.begin_roll_back(&name)?;
    let Api { engine, desired, .. } = api;
    let (reattaching, rolled_back) = (engine.clone(), name.clone());
    // It ends even if its client disconnects meanwhile.
    let done = threads::aside(async move {
        let reattached = reattach(reattaching, desired, rolled_back.volume.clone(), grace).await;
        match pending.end() {
            RollBackEnd::Done(result) => {
                result?;
                engine.report_roll_back(&rolled_back);
                reattached.map(drop).map_err(ApiError::from)
            }
            RollBackEnd::UnderWay => {
                let message = format!(
                    "volume {} is still being rolled back, because the disk of its pool does not respond; the log has the \
                     result",
                    rolled_back.volume
                );
                Err(ApiError::unable(message))
            }
            RollBackEnd::NotBegun => {
                reattached?;
                let message = format!(
                    "volume {} was not rolled back: another change closed or opened it meanwhile; try again",
                    rolled_back.volume
                );
                Err(ApiError::conflict(message))
            }
        }
    });
    let aborted = |_| ApiError::internal("the roll-back was aborted; see the log");
    done.await.map_err(aborted)??;
    Ok(Json(RolledBack { volume: name.volume.clone(), snapshot: name.to_string() }))
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        let message = error.to_string();
        match error {
            SnapshotError::NotFound(_) => Self::not_found(message),
            SnapshotError::Unfit(_) => Self::invalid(None, message),
            SnapshotError::Pool(error) => error.into(),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        if let StoreError::SnapshotStream { problem, .. } = error {
            return match problem {
                StreamProblem::NoPart | StreamProblem::Version(_) | StreamProblem::Damaged => {
                    Self::invalid(None, message)
                }
                StreamProblem::Gap(_)
                | StreamProblem::NoBase
                | StreamProblem::NameInUse
                | StreamProblem::OtherStream
                | StreamProblem::BlockSize => Self::conflict(message),
            };
        }
        match (error.is_in_use(), error.is_not_found()) {
            (true, _) => Self::conflict(message),
            (_, true) => Self::not_found(message),
            _ => Self::unable(message),
        }
    }
}
