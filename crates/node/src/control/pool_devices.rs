//! Requests for the devices of pools, and for their scrubs.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::post;
use sarsen_io::threads;
use sarsen_pool::{DeviceState, Tier, TierUse};

use super::Api;
use super::capacity::Received;
use super::config::author_of;
use super::error::ApiError;
use super::openapi::Failures;
use super::pools::{contents_of, find_pool};
use super::routes::{Answer, Json, parse};
use crate::config::PoolConfig;
use crate::desired::{Change, ChangeRefused, Desired};
use crate::model::{Objects, Textual as _, is_device_path};
use crate::schema::pools::{
    AddPoolDevice, ChangePoolDevice, PoolContents, PoolDevice, PoolScrub, PoolTier, RecoverPool,
    ScrubResult,
};
use crate::stores::{self, OpenPool, StoreError};

pub(super) fn router() -> Router<Api> {
    Router::new()
        .route("/pools/{name}/devices", post(add).patch(change))
        .route("/pools/{name}/recover", post(recover))
        .route("/pools/{name}/scrub", post(scrub).delete(stop_scrub))
}

/// Returns the devices of a pool as they are now.
pub(super) fn devices(config: &PoolConfig, open: Option<&Arc<OpenPool>>) -> Vec<PoolDevice> {
    let Some(open) = open else {
        let closed = |path: &PathBuf| PoolDevice {
            path: path.display().to_string(),
            size_bytes: None,
            is_online: false,
            is_leaving: false,
            is_fast: config.fast_devices.contains(path),
            used_bytes: 0,
            stale_bytes: 0,
            checksum_errors: 0,
            problem: None,
        };
        return config.devices.iter().map(closed).collect();
    };
    let device = |one: crate::stores::ReportedDevice| {
        let info = one.info.as_ref();
        PoolDevice {
            path: match (&one.path, info) {
                (Some(path), _) => path.display().to_string(),
                (None, info) => info.map_or(0, |info| info.number).to_string(),
            },
            size_bytes: one.size,
            is_online: info.is_some_and(|info| info.state == DeviceState::Online),
            is_leaving: info.is_some_and(|info| info.is_leaving),
            is_fast: one.path.as_ref().is_some_and(|path| config.fast_devices.contains(path)),
            used_bytes: info.map_or(0, |info| info.used_bytes),
            stale_bytes: info.map_or(0, |info| info.stale_bytes),
            checksum_errors: info.map_or(0, |info| info.checksum_errors),
            problem: one.problem,
        }
    };
    open.reported_devices().into_iter().map(device).collect()
}

/// Returns the fast and the slow devices of a pool, if it has both.
pub(super) fn tiers_of(open: Option<&Arc<OpenPool>>) -> Vec<PoolTier> {
    let tiers = open.and_then(|open| stores::tier_use_of(&open.pool)).into_iter().flatten();
    let tier = |(tier, used): (Tier, TierUse)| PoolTier {
        tier: tier.render(),
        size_bytes: used.size_bytes,
        used_bytes: used.used_bytes,
        requests: used.requests,
        moved_bytes: used.moved_bytes,
    };
    tiers.map(tier).collect()
}

/// Returns the scrub of a pool.
pub(super) fn scrub_of(open: Option<&Arc<OpenPool>>) -> PoolScrub {
    let Some(open) = open else { return PoolScrub::default() };
    let scrub = open.scrub.lock();
    let (done, all) = scrub.done;
    let (last, problem) = match &scrub.last {
        Some(Ok((scrubbed, ended))) => {
            let ended = ended.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let last = ScrubResult {
                ended_unix_seconds: ended,
                read_bytes: scrubbed.read_bytes,
                repaired_bytes: scrubbed.repaired_bytes,
                differing_bytes: scrubbed.differing_bytes,
                lost_bytes: scrubbed.lost_bytes,
                summed_bytes: scrubbed.summed_bytes,
            };
            (Some(last), None)
        }
        Some(Err(problem)) => (None, Some(problem.clone())),
        None => (None, None),
    };
    let percent = (done * 100).checked_div(all).unwrap_or(0) as u8;
    PoolScrub { is_running: scrub.is_running(), percent, last, problem }
}

/// Returns an open pool, for a client that may change its devices.
fn open_pool(api: &Api, name: &str) -> Result<(PoolConfig, Arc<OpenPool>), ApiError> {
    let config = find_pool(api, name)?;
    api.check_trusted("pool: a change of its devices")?;
    let open = api.engine.pools.get(name).ok_or_else(|| {
        let why = api.engine.pools.reason_not_open(name).unwrap_or_else(|| "it is not open".into());
        ApiError::unable(format!("pool {name}: {why}"))
    })?;
    Ok((config, open))
}

/// Adds a device, and lets another one leave if it replaces that.
#[utoipa::path(
    post,
    tag = "state",
    path = "/v1/pools/{name}/devices",
    params(
        ("name" = String, Path, description = "The name of the pool"),
        ("sarsen-author" = Option<String>, Header, description = "The author of the change"),
    ),
    request_body = AddPoolDevice,
    responses((status = 200, body = PoolContents), Failures)
)]
pub(super) async fn add(
    State(api): State<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Received,
) -> Answer<PoolContents> {
    let AddPoolDevice { path, size, is_fast, replaces, force, author } =
        super::config::json(body.bytes())?;
    drop(body);
    let (config, open) = open_pool(&api, &name)?;
    let author = author_of(author.as_deref(), &headers)?;
    let path = PathBuf::from(path);
    if !is_device_path(&path) {
        let message = format!("path: {}: write an absolute path, or a URL", path.display());
        return Err(ApiError::invalid(Some("path"), message));
    }
    let is_listed = config.devices.contains(&path);
    if api.desired.is_none() && !is_listed {
        let message = format!(
            "path: the server runs by a configuration file or flags: write {} there into devices of pool {name}, and repeat \
             this after a restart",
            path.display()
        );
        return Err(ApiError::invalid(Some("path"), message));
    }
    // The new device may have the path of the old one.
    let replaces = replaces.map(PathBuf::from);
    let replaces = match replaces {
        Some(old) => Some((open.find_device(&old)?, old)),
        None => None,
    };
    // What takes the place of a fast device is fast.
    let is_fast =
        is_fast || replaces.as_ref().is_some_and(|(_, old)| config.fast_devices.contains(old));
    let (engine, desired, pool) = (api.engine.clone(), api.desired.clone(), name.clone());
    // It ends even if its client disconnects meanwhile.
    let adding = threads::aside(async move {
        open.expect_device(&path);
        // The state names the path first: if the server stops in between, it reports a path that is no device. In the other
        // order, it would not find a device of the pool.
        // If it does so already, this changes nothing, unless the path is being taken out as that of no device.
        if let Some(desired) = desired.as_ref() {
            let add = |pool: &mut PoolConfig| pool.add_device(&path, is_fast);
            let change = |objects: &Objects| {
                Ok::<_, ChangeRefused>(Change::of_pool_devices(objects, &pool, add, &author))
            };
            desired.change(change).await?;
        }
        let (adding, new) = (open.clone(), path.clone());
        let add = move || adding.add_device(&new, size.map(|size| size.get()), force);
        let added = engine.run_on_pool(&pool, add).await.map_err(ChangeRefused::from)?;
        if let Err(error) = added {
            if let Some(desired) = desired.as_ref().filter(|_| !is_listed) {
                forget(desired, &pool, &path, &author).await?;
            }
            return Err(ApiError::from(error));
        }
        if let Some((number, old)) = replaces {
            let leave = move || open.remove_device(number, &old);
            let left = engine.run_on_pool(&pool, leave).await.map_err(ChangeRefused::from)?;
            left.map_err(|error| {
                let path = path.display();
                ApiError::conflict(format!("{path} was added, and the other device stays: {error}"))
            })?;
        }
        Ok(())
    });
    adding.await.map_err(|_| aborted("addition"))??;
    Ok(Json(contents_of(&api, &name)?))
}

fn aborted(what: &str) -> ApiError {
    ApiError::internal(format!("the device: its {what} was aborted; see the log"))
}

/// Removes a path from the devices of a pool in the state.
async fn forget(
    desired: &Desired,
    pool: &str,
    path: &FilePath,
    author: &str,
) -> Result<(), ChangeRefused> {
    let forget = |pool: &mut PoolConfig| pool.remove_devices(&[path.to_owned()]);
    let change = |objects: &Objects| Ok(Change::of_pool_devices(objects, pool, forget, author));
    desired.change::<ChangeRefused>(change).await.map(drop)
}

/// Lets a device leave, or keeps it.
#[utoipa::path(
    patch,
    tag = "server",
    path = "/v1/pools/{name}/devices",
    params(
        ("name" = String, Path, description = "The name of the pool"),
        ("sarsen-author" = Option<String>, Header, description = "The author of the change"),
    ),
    request_body = ChangePoolDevice,
    responses((status = 200, body = PoolContents), Failures)
)]
pub(super) async fn change(
    State(api): State<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Received,
) -> Answer<PoolContents> {
    let ChangePoolDevice { path, is_leaving } = parse(body.bytes())?;
    drop(body);
    let (_, open) = open_pool(&api, &name)?;
    let author = author_of(None, &headers)?;
    let path = PathBuf::from(path);
    if let Some(desired) = api.desired.clone().filter(|_| is_leaving)
        && open.is_stray(&path)
    {
        let pool = name.clone();
        // It ends even if its client disconnects meanwhile.
        let removal = threads::aside(async move { forget(&desired, &pool, &path, &author).await });
        removal.await.map_err(|_| aborted("removal"))??;
        return Ok(Json(contents_of(&api, &name)?));
    }
    let change = move || -> Result<(), StoreError> {
        let number = open.find_device(&path)?;
        if is_leaving { open.remove_device(number, &path) } else { open.keep_device(number) }
    };
    api.engine.run_on_pool(&name, change).await.map_err(ChangeRefused::from)??;
    Ok(Json(contents_of(&api, &name)?))
}

/// Begins a scrub, which reads everything in a pool and repairs copies, unless one is under way.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/pools/{name}/scrub",
    params(("name" = String, Path, description = "The name of the pool")),
    responses((status = 200, body = PoolContents), Failures)
)]
pub(super) async fn scrub(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Answer<PoolContents> {
    open_pool(&api, &name)?.1.begin_scrub(&api.front.access.events);
    Ok(Json(contents_of(&api, &name)?))
}

/// Opens a pool that cannot be opened without a loss.
#[utoipa::path(
    post,
    tag = "server",
    path = "/v1/pools/{name}/recover",
    request_body = RecoverPool,
    params(("name" = String, Path, description = "The name of the pool")),
    responses((status = 200, body = PoolContents), Failures)
)]
pub(super) async fn recover(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: Received,
) -> Answer<PoolContents> {
    let RecoverPool { lose, dry_run } = parse(body.bytes())?;
    drop(body);
    let config = find_pool(&api, &name)?;
    api.check_trusted("pool: its recovery")?;
    if api.engine.pools.get(&name).is_some() {
        return Err(ApiError::conflict(format!("pool {name} is open: nothing is to be recovered")));
    }
    let pools = api.engine.pools.clone();
    let access = api.engine.remote_access(&api.engine.desired().accounts);
    if dry_run {
        let preview = move || pools.preview_recovery(&config, &access, &lose);
        let contents =
            api.engine.run_on_pool(&name, preview).await.map_err(ChangeRefused::from)??;
        return Ok(Json(PoolContents { contents, ..contents_of(&api, &name)? }));
    }
    let recover = move || pools.recover(&config, &access, &lose);
    api.engine.run_on_pool(&name, recover).await.map_err(ChangeRefused::from)??;
    Ok(Json(contents_of(&api, &name)?))
}

/// Ends a scrub early.
#[utoipa::path(
    delete,
    tag = "server",
    path = "/v1/pools/{name}/scrub",
    params(("name" = String, Path, description = "The name of the pool")),
    responses((status = 200, body = PoolContents), Failures)
)]
pub(super) async fn stop_scrub(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Answer<PoolContents> {
    open_pool(&api, &name)?.1.stop_scrub();
    Ok(Json(contents_of(&api, &name)?))
}
