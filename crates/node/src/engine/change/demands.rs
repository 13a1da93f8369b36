//! What a change needs from disks before it can be stored.

use std::collections::HashSet;
use std::sync::mpsc::channel;

use sarsen_io::threads;

use super::super::claims::{Claim, Mark, Stage, holdings, holdings_of_file};
use super::super::diff::{VolumeSteps, data_place};
use super::super::disk_threads::{Disk, DiskThread};
use super::super::pools::is_same_pool;
use super::super::volumes::{Growth, NewFiles, OpenPlan, Opening, Volume};
use super::super::{ChangeError, ResourceError, Running, not_opened};
use super::{OPEN_LIMIT, Prepared};
use crate::config::{PoolConfig, VolumeConfig};
use crate::model::{Key, ObjectKind};
use crate::stores::{self, OpenMode, StoreError};

/// What must be done before a change can be stored, and may block for a long time.
#[derive(Default)]
pub(super) struct Demands {
    opens: Vec<OpenPlan>,
    /// Checks, each with its volume.
    checks: Vec<(VolumeConfig, Check)>,
    /// Volumes that are opened later.
    late: Vec<OpenPlan>,
    /// Pools that are not open, and whether they may be unavailable.
    pools: Vec<(PoolConfig, bool)>,
}

type Check = Box<dyn FnOnce() -> Result<(), ChangeError> + Send>;

impl Prepared {
    /// Returns what must be done before the change can be stored.
    pub(super) fn demands(&self, running: &Running) -> Result<Demands, ChangeError> {
        let (_, volumes, opens, late) = self.volume_steps(running, &self.desired)?;
        let mut demands = Demands::default();
        for pool in &self.desired.pools {
            if let Some(open) = self.engine.pools.of(pool) {
                open.check_devices(pool).map_err(ResourceError::Pool)?;
            }
        }
        let pools = self.desired.pools.iter();
        let is_known =
            |pool: &PoolConfig| running.desired.pools.iter().any(|one| is_same_pool(one, pool));
        let missing = pools.filter(|pool| !self.engine.pools.is_open(pool));
        demands.pools = missing
            .map(|pool| (pool.clone(), self.may_be_missing(pool) || is_known(pool)))
            .collect();
        for stay in &volumes.stays {
            if let (Some(bytes), Some(volume)) = (stay.grows_to, running.volumes.get(&stay.running))
                && volume.growth == Growth::None
            {
                let (check, name) = (volume.growth_check(bytes), stay.desired.name.clone());
                let check = Box::new(move || Ok(check().map_err(not_opened(&name))?));
                demands.checks.push((stay.desired.clone(), check));
            }
        }
        for plan in late {
            let config = &plan.config;
            if self.is_undecided(config) {
                return Err(ChangeError::UnderWay);
            }
            if self.reattached.as_ref() == Some(&config.name) {
                let check = running.volumes.get(&config.name).map(Volume::reattachment_check);
                let check = check.map(|check| (config.clone(), Box::new(check) as Check));
                demands.checks.extend(check);
            } else if !running.absent.knows(config) {
                demands.late.push(plan);
            }
        }
        // The server tries missing volumes by itself.
        let is_tried = |plan: &OpenPlan| {
            !running.absent.knows(&plan.config) || Some(&plan.config) == self.again()
        };
        demands.opens = opens.into_iter().filter(is_tried).collect();
        for plan in demands.late.iter().chain(&demands.opens) {
            refuse_shared_writer(running, &volumes, &plan.config)?;
        }
        Ok(demands)
    }

    /// Opens volumes and checks others. A disk that hangs takes its thread, and no lock.
    pub(super) fn meet(&mut self, demands: Demands) -> Result<(), ChangeError> {
        let engine = self.engine.clone();
        let mut thread = DiskThread::new(&engine.disk_permits);
        for (pool, may_be_missing) in demands.pools {
            // The start and its volumes report a pool that is missing; later changes do not wait for it.
            if may_be_missing && !self.is_start {
                continue;
            }
            let hangs = || ChangeError::Hangs(Key::new(ObjectKind::Pool, &pool.name));
            let (pools, config) = (engine.pools.clone(), pool.clone());
            let access = engine.remote_access(&self.desired.accounts);
            let open = move || {
                pools.open(&config, &access).map_err(|error| ResourceError::Pool(error).into())
            };
            let opened = thread.run_on(&Disk::of_pool(&pool.name), OPEN_LIMIT, hangs, open);
            match opened {
                Ok(open) => self.pools.push(open),
                Err(error) if !may_be_missing => return Err(error),
                Err(_) => {}
            }
        }
        for (volume, check) in demands.checks {
            thread.run(&volume, OPEN_LIMIT, check)?;
        }
        for plan in demands.late {
            // If another volume has the path, the file exists.
            let path = plan.config.file().map(holdings_of_file);
            let claim = path.and_then(|path| engine.claims.try_claim(&plan.config.name, path));
            let volume = plan.config.clone();
            // A thread that hangs keeps the claim until it has removed its files.
            let created = thread.run(&plan.config, OPEN_LIMIT, move || {
                let error = not_opened(&volume.name);
                let files = NewFiles::create(&volume, plan.open_mode, claim.is_some());
                let files = files.map_err(&error)?;
                let length = stores::trial(&volume, plan.open_mode).map_err(&error)?;
                Ok((files, length, claim))
            });
            let (files, length, claim) = created?;
            let creates = !matches!(plan.open_mode, OpenMode::Existing { .. });
            self.late_lengths.extend(
                length.filter(|_| creates).map(|length| (plan.config.name.clone(), length)),
            );
            self.new_files.push((files, claim));
        }
        // A start does not wait for each volume of a disk that does not respond.
        let mut hung: HashSet<Disk> = HashSet::new();
        // Nor for one remote volume after the other.
        let mut remote = Vec::new();
        for plan in demands.opens {
            let config = plan.config.clone();
            let name = config.name.clone();
            let disk = Disk::of(&config);
            let claim = engine.claims.try_claim(&name, holdings(&config));
            let Some(claim) = claim else {
                let error = self.obstacle(&config);
                if !self.is_managed_start {
                    return Err(error);
                }
                self.failed.insert(name, error.to_string());
                continue;
            };
            if self.is_start && is_remote(&plan) {
                let (engine, (done, answer)) = (engine.clone(), channel());
                let open = move || drop(done.send(Opening::open(&engine, &plan, claim)));
                match threads::spawn("opening", open) {
                    Ok(_) => remote.push((name, answer)),
                    Err(error) => drop(self.failed.insert(name, error.to_string())),
                }
                continue;
            }
            let opening = if hung.contains(&disk) {
                Err(ChangeError::Hangs(Key::new(ObjectKind::Volume, &name)))
            } else if !disk.exists() {
                Opening::open(&engine, &plan, claim).map_err(ChangeError::from)
            } else {
                let engine = engine.clone();
                thread.run(&config, OPEN_LIMIT, move || Ok(Opening::open(&engine, &plan, claim)?))
            };
            match opening {
                Ok(opening) => drop(self.opened.insert(name, opening)),
                // One unavailable disk does not prevent the service of other volumes.
                Err(error) if self.is_managed_start => {
                    hung.extend(matches!(error, ChangeError::Hangs(_)).then_some(disk));
                    self.failed.insert(name, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        for (name, answer) in remote {
            let hangs = || ChangeError::Hangs(Key::new(ObjectKind::Volume, &name)).to_string();
            match answer.recv_timeout(OPEN_LIMIT) {
                Ok(Ok(opening)) => drop(self.opened.insert(name, opening)),
                Ok(Err(error)) => drop(self.failed.insert(name, error.to_string())),
                Err(_) => drop(self.failed.insert(name.clone(), hangs())),
            }
        }
        Ok(())
    }

    /// Returns whether the server starts without a pool if it cannot be opened.
    fn may_be_missing(&self, pool: &PoolConfig) -> bool {
        self.is_managed_start || self.is_start && !pool.remotes().is_empty()
    }

    /// Returns whether a volume needs a file or an identity of which another change or an erasure decides.
    pub(super) fn is_undecided(&self, config: &VolumeConfig) -> bool {
        let files = self.new_files.iter().filter_map(|(_, claim)| claim.as_ref());
        let own: Vec<u64> = files.map(Claim::number).collect();
        let stage = self.engine.claims.stage_of(&holdings(config), &own);
        stage == Some(Stage::Undecided)
    }

    /// Returns the error for a volume whose marks another claim holds.
    fn obstacle(&self, config: &VolumeConfig) -> ChangeError {
        let held = holdings(config);
        let excludes = |other: &Opening| {
            let others = holdings(&other.volume.config);
            others.iter().any(|other| held.iter().any(|held| held.excludes(other)))
        };
        match data_place(config).filter(|_| self.opened.values().any(excludes)) {
            // A volume of the same change has the file.
            Some(path) => {
                not_opened(&config.name)(StoreError::InUse { path: path.to_owned() }).into()
            }
            None => ChangeError::UnderWay,
        }
    }
}

/// Refuses a volume whose file another volume keeps open, if one of the two writes to it.
fn refuse_shared_writer(
    running: &Running,
    volumes: &VolumeSteps,
    config: &VolumeConfig,
) -> Result<(), ChangeError> {
    let Some(path) = data_place(config) else { return Ok(()) };
    let held = holdings(config);
    let excludes = |(name, other): (&String, &Volume)| {
        data_place(&other.config) == Some(path)
            && !volumes.closes.contains(name)
            && holdings(&other.config).iter().any(|other| {
                matches!(other.mark, Mark::Path(_)) && held.iter().any(|held| held.excludes(other))
            })
    };
    if running.volumes.iter().any(excludes) {
        let error = StoreError::InUse { path: path.to_owned() };
        return Err(not_opened(&config.name)(error).into());
    }
    Ok(())
}

/// Returns whether a volume needs another server.
fn is_remote(plan: &OpenPlan) -> bool {
    let pool = plan.pool.as_ref();
    plan.config.remote.is_some() || pool.is_some_and(|(pool, _)| !pool.remotes().is_empty())
}
