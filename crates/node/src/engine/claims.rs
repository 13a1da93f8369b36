//! Claims: the files and identities of stores that are open and not in force. A volume that is being opened, and one that was removed
//! and is not closed yet, holds its name, its identity and its paths. Another volume that needs one of them waits. So
//! a file is never open twice, and two disks never have one identity.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use sarsen_block::{BlockError, InvalidRequest, Store};
use sarsen_io::cores::Cores;
use sarsen_io::time;
use sarsen_scsi::{Designator, Naa};
use tokio::sync::{mpsc, watch};
use tracing::error;

use super::volumes::places;
use crate::config::VolumeConfig;
use crate::model::metadata_folder;

/// Stores by the names of their volumes.
pub(crate) type Stores = Vec<(String, Arc<dyn Store>)>;

/// A path or an identity of an open volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mark {
    Path(PathBuf),
    /// A logical unit of another server, at one portal.
    RemoteUnit(String),
    /// The identity of a volume that has none of the following: it is derived from the name.
    Name(String),
    Serial(String),
    Naa(Naa),
    Designator(Designator),
}

/// A mark of a volume, and its use of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holding {
    pub(super) mark: Mark,
    /// Another volume may have the same mark.
    pub(super) is_shared: bool,
}

impl Holding {
    fn exclusive(mark: Mark) -> Self {
        Self { mark, is_shared: false }
    }

    /// Returns whether two volumes with these marks must not be open at once.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        self.mark == other.mark && !(self.is_shared && other.is_shared)
    }
}

/// Returns the marks that a volume holds while it is open. Like [`crate::config`], it permits several volumes on one file that
/// none of them writes.
pub(super) fn holdings(config: &VolumeConfig) -> Vec<Holding> {
    let writes = config.file().is_some() && !config.is_read_only();
    let paths = places(config).into_iter().map(Mark::Path);
    let paths = paths.map(|mark| Holding { mark, is_shared: !writes });
    let VolumeConfig { serial, naa, designators, .. } = config;
    let own = || {
        let serial = serial.clone().map(Mark::Serial);
        naa.map(Mark::Naa).or(serial).unwrap_or_else(|| Mark::Name(config.name.clone()))
    };
    let given = designators.iter().cloned().map(Mark::Designator);
    let identity = if designators.is_empty() { vec![own()] } else { given.collect() };
    let remote = config.remote.iter().flat_map(|url| url.places()).map(Mark::RemoteUnit);
    paths.chain(identity.into_iter().chain(remote).map(Holding::exclusive)).collect()
}

/// Returns the marks of a writer of a file and of the folder of its records.
pub(super) fn holdings_of_file(path: &Path) -> Vec<Holding> {
    [path.to_owned(), metadata_folder(path)].map(|path| Holding::exclusive(Mark::Path(path))).into()
}

/// The stage of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A change that is not decided yet has it, or an erasure of which it is not known how it ends. A change that needs
    /// it does not wait for that.
    Undecided,
    /// It is being opened or closed.
    UnderWay,
    /// It cannot be closed, for this reason.
    Stuck(String),
}

struct Entry {
    volume: String,
    holdings: Vec<Holding>,
    stage: Stage,
    /// The store of a volume that is closing.
    store: Option<Arc<dyn Store>>,
}

#[derive(Default)]
struct State {
    last_number: u64,
    entries: BTreeMap<u64, Entry>,
    /// The claims of each mark.
    by_mark: HashMap<Mark, Vec<u64>>,
}

/// All claims.
#[derive(Default)]
pub(crate) struct Claims {
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

/// A claim, until this is dropped.
pub(super) struct Claim {
    claims: Arc<Claims>,
    number: u64,
}

impl Claims {
    fn add(self: &Arc<Self>, state: &mut State, entry: Entry) -> Claim {
        state.last_number += 1;
        let number = state.last_number;
        for holding in &entry.holdings {
            state.by_mark.entry(holding.mark.clone()).or_default().push(number);
        }
        state.entries.insert(number, entry);
        Claim { claims: self.clone(), number }
    }

    /// Claims these holdings for a change that is not decided yet, unless another claim overlaps.
    pub(super) fn try_claim(
        self: &Arc<Self>,
        volume: &str,
        holdings: Vec<Holding>,
    ) -> Option<Claim> {
        let mut state = self.state.lock();
        if obstacle(&state, &holdings, &[]).is_some() {
            return None;
        }
        let (volume, stage) = (volume.to_owned(), Stage::Undecided);
        Some(self.add(&mut state, Entry { volume, holdings, stage, store: None }))
    }

    /// Waits until no other claim overlaps, and claims these holdings. An error is the reason why that cannot happen.
    pub(super) async fn claim(
        self: &Arc<Self>,
        volume: &str,
        holdings: Vec<Holding>,
    ) -> Result<Claim, String> {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let mut state = self.state.lock();
                match obstacle(&state, &holdings, &[]).map(|other| other.stage.clone()) {
                    Some(Stage::Stuck(why)) => return Err(why),
                    Some(_) => {}
                    None => {
                        let (volume, stage) = (volume.to_owned(), Stage::UnderWay);
                        let entry = Entry { volume, holdings, stage, store: None };
                        return Ok(self.add(&mut state, entry));
                    }
                }
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    /// Claims the marks of a closing volume at once: it holds them already.
    pub(super) fn closing(
        self: &Arc<Self>,
        config: &VolumeConfig,
        store: Arc<dyn Store>,
        is_erased: bool,
    ) -> Claim {
        let entry = Entry {
            volume: config.name.clone(),
            holdings: holdings(config),
            stage: if is_erased { Stage::Undecided } else { Stage::UnderWay },
            store: Some(store),
        };
        self.add(&mut self.state.lock(), entry)
    }

    /// Claims files and folders that are to be erased, whatever other claims there are: the erasure waits until the claim
    /// is [exclusive](Self::wait_until_exclusive).
    pub(super) fn erasing(self: &Arc<Self>, volume: &str, paths: &[PathBuf]) -> Claim {
        let holdings = paths.iter().map(|path| Holding::exclusive(Mark::Path(path.clone())));
        let holdings = holdings.collect();
        let entry =
            Entry { volume: volume.to_owned(), holdings, stage: Stage::Undecided, store: None };
        self.add(&mut self.state.lock(), entry)
    }

    /// Waits until no other claim overlaps with this one. An error is the reason why that cannot happen.
    pub(super) async fn wait_until_exclusive(&self, claim: &Claim) -> Result<(), String> {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let state = self.state.lock();
                let own = state.entries.get(&claim.number);
                let held = own.map(|entry| entry.holdings.as_slice()).unwrap_or_default();
                match obstacle(&state, held, &[claim.number]).map(|other| &other.stage) {
                    None => return Ok(()),
                    Some(Stage::Stuck(why)) => return Err(why.clone()),
                    Some(Stage::Undecided | Stage::UnderWay) => {}
                }
            }
            // The sender lives as long as `self`.
            let _ = changes.changed().await;
        }
    }

    /// Returns the stage of the claims that overlap with these holdings, except for those of `own`: that of an undecided
    /// one, if there is one.
    pub(super) fn stage_of(&self, holdings: &[Holding], own: &[u64]) -> Option<Stage> {
        let state = self.state.lock();
        let stages = obstacles(&state, holdings, own).map(|entry| &entry.stage);
        stages.max_by_key(|stage| **stage == Stage::Undecided).cloned()
    }

    /// Returns the stores of closing volumes.
    pub(super) fn stores(&self) -> Stores {
        let state = self.state.lock();
        let closing = state.entries.values();
        closing.filter_map(|entry| Some((entry.volume.clone(), entry.store.clone()?))).collect()
    }
}

fn obstacle<'a>(state: &'a State, holdings: &'a [Holding], own: &'a [u64]) -> Option<&'a Entry> {
    obstacles(state, holdings, own).next()
}

fn obstacles<'a>(
    state: &'a State,
    holdings: &'a [Holding],
    own: &'a [u64],
) -> impl Iterator<Item = &'a Entry> {
    holdings.iter().flat_map(move |holding| {
        let claims = state.by_mark.get(&holding.mark).into_iter().flatten();
        let others = claims.filter(move |number| !own.contains(number));
        let others = others.filter_map(|number| state.entries.get(number));
        others.filter(move |entry| entry.holdings.iter().any(|held| held.excludes(holding)))
    })
}

impl Claim {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Keeps the claim of a change that is decided.
    pub(super) fn decide(&self) {
        self.enter(Stage::UnderWay);
    }

    /// Holds the claim and its store until the server exits. Volumes that need it report this reason.
    pub(super) fn hold_until_exit(self, why: String) {
        self.enter(Stage::Stuck(why));
        std::mem::forget(self);
    }

    fn enter(&self, stage: Stage) {
        if let Some(entry) = self.claims.state.lock().entries.get_mut(&self.number) {
            entry.stage = stage;
        }
        self.claims.changes.send_replace(());
    }

    /// Releases the store of a closing volume.
    pub(super) fn take_store(&self) -> Option<Arc<dyn Store>> {
        self.claims.state.lock().entries.get_mut(&self.number)?.store.take()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let entry = {
            let mut state = self.claims.state.lock();
            let entry = state.entries.remove(&self.number);
            for holding in entry.iter().flat_map(|entry| &entry.holdings) {
                if let Some(claims) = state.by_mark.get_mut(&holding.mark) {
                    claims.retain(|number| *number != self.number);
                    if claims.is_empty() {
                        state.by_mark.remove(&holding.mark);
                    }
                }
            }
            entry
        };
        // The store may take a while to close, so it is dropped outside of the lock.
        drop(entry);
        self.claims.changes.send_replace(());
    }
}

/// Flushes stores on the cores concurrently, and waits for them until the deadline, if there is one. Returns whether
/// all flushes succeeded; the log has the failures.
pub(crate) async fn flush(cores: &Weak<Cores>, stores: Stores, deadline: Option<Instant>) -> bool {
    let mut left: BTreeMap<usize, String> = BTreeMap::new();
    let (sender, mut answers) = mpsc::unbounded_channel();
    {
        let Some(cores) = cores.upgrade() else { return false };
        for (number, (volume, store)) in stores.into_iter().enumerate() {
            left.insert(number, volume);
            let sender = sender.clone();
            cores.spawn_on(number % cores.len(), move || async move {
                let _ = sender.send((number, store.flush().wait().await));
            });
        }
    }
    drop(sender);
    let mut all = true;
    loop {
        let over = async {
            match deadline {
                Some(deadline) => time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            answer = answers.recv() => answer,
            () = over => None,
        };
        let Some((number, flushed)) = answer else { break };
        let volume = left.remove(&number);
        match flushed {
            Ok(()) | Err(BlockError::Invalid(InvalidRequest::ReadOnly)) => {}
            Err(source) => {
                error!(volume, error = %source, "the last flush failed");
                all = false;
            }
        }
    }
    for volume in left.values() {
        error!(
            volume,
            "the disk has not ended the last flush in time: written data may not be on it"
        );
    }
    all && left.is_empty()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::config::parse_volume;

    fn held(text: &str) -> Vec<Holding> {
        holdings(&parse_volume(text).expect(text))
    }

    #[test]
    fn volumes_exclude_each_other_by_files_that_one_writes_and_by_identity() {
        for (first, second, excludes) in [
            ("a=file:/d,size=1MiB", "b=file:/d,size=1MiB", true),
            ("a=file:/d,size=1MiB", "b=file:/d,read-only", true),
            ("a=file:/d,read-only", "b=file:/d,read-only", false),
            ("a=file:/d,size=1MiB,serial=s", "b=file:/e,size=1MiB,serial=s", true),
            ("a=ram:1MiB,serial=s", "a=ram:1MiB,serial=t", false),
            ("a=ram:1MiB", "a=ram:1MiB", true),
            ("a=ram:1MiB,naa=3000000000000001", "b=null:1MiB,naa=3000000000000001", true),
        ] {
            let claims: Arc<Claims> = Arc::default();
            let claim = claims.try_claim("first", held(first)).expect("the first");
            let second = held(second);
            assert_eq!(
                claims.try_claim("second", second.clone()).is_none(),
                excludes,
                "{first} {second:?}"
            );
            assert_eq!(claims.stage_of(&second, &[claim.number()]), None, "its own");
            drop(claim);
            assert!(claims.try_claim("second", second).is_some(), "it is released");
        }
    }

    #[tokio::test]
    async fn a_claim_waits_for_the_end_of_another_but_not_of_a_stuck_one() {
        let claims: Arc<Claims> = Arc::default();
        let first = claims.claim("a", held("a=ram:1MiB")).await.expect("free");
        let mut second = Box::pin(claims.claim("a", held("a=ram:1MiB")));
        assert!(second.as_mut().now_or_never().is_none(), "it waits");
        drop(first);
        let second = second.await.expect("free");
        second.hold_until_exit("why".to_owned());
        assert_eq!(claims.claim("a", held("a=ram:1MiB")).await.err().as_deref(), Some("why"));
    }

    #[tokio::test]
    async fn an_erasure_waits_until_the_file_is_closed_and_excludes_other_volumes() {
        let claims: Arc<Claims> = Arc::default();
        let open = claims.claim("a", held("a=file:/d,size=1MiB")).await.expect("free");
        let erasure = claims.erasing("a", &["/d".into(), "/s".into()]);
        let mut exclusive = Box::pin(claims.wait_until_exclusive(&erasure));
        assert!(exclusive.as_mut().now_or_never().is_none(), "it is open");
        let next = held("b=file:/d,size=1MiB");
        assert!(claims.try_claim("b", next.clone()).is_none());
        drop(open);
        exclusive.await.expect("the file is closed");
        assert_eq!(claims.stage_of(&next, &[]), Some(Stage::Undecided), "no volume waits for it");
        drop(erasure);
        assert!(claims.try_claim("b", next).is_some());
    }
}
