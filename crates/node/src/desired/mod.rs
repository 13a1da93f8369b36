//! One truth: what the server is to be. It is kept in a [`Store`], changed by [`Edit`]s that are planned, checked,
//! prepared, kept and then made live, in this order, so that a change is whole or is not at all. [`document`] is
//! how it is written.

mod cascade;
mod compile;
pub mod document;
mod edit;
mod fit;
mod object;
mod plan;
mod references;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use sarsen_io::time;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as AsyncMutex;
use tracing::{info, warn};
use utoipa::ToSchema;

use self::compile::Compiler;
pub use self::compile::Invalid;
pub use self::document::Document;
pub use self::edit::Edit;
pub use self::fit::{Misfit, from_json};
use self::object::differences;
pub use self::object::{Key, Kind, Object, Objects};
use self::plan::summary;
pub use self::plan::{Action, FieldChange, Step, plan};
use self::references::referred;
use self::store::History;
pub(crate) use self::store::VOLUMES;
pub use self::store::{Revision, StateError, Store};
use crate::config::{Config, ConfigError};
use crate::engine::{self, Cause, ChangeError, Engine, Force, Made, Managed};
use crate::events::Occurrence;

/// A change that somebody wants.
#[derive(Clone, Debug)]
pub struct Change {
    /// What is to be done, in this order; all of it or nothing.
    pub edits: Vec<Edit>,
    /// The revision that who wants it has seen; another one by now is a conflict.
    pub expected: Option<u64>,
    /// Who wants it, as he says.
    pub author: String,
    /// What is in use may be taken away: its clients are logged out first.
    pub force: bool,
    /// How long they have for that.
    pub grace: Duration,
    /// Only the plan is wanted.
    pub dry_run: bool,
}

/// What became of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// The state's revision now.
    pub revision: u64,
    /// What was done, or, of a dry run, would be done.
    pub steps: Vec<Step>,
    /// What of it clients notice: they use what is taken away.
    pub interrupts: Vec<Interruption>,
    /// How many sessions are, or would be, logged out for that.
    #[serde(default)]
    pub interrupted_sessions: usize,
    /// What of it takes effect with the next start.
    pub needs_restart: Vec<String>,
    /// Sessions that were ended since they are not let in any more.
    pub sessions_ended: usize,
    /// What of it is kept and has not come about, such as a growth that the disk did not allow: the next change
    /// tries it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Nothing was done, as it was asked.
    pub dry_run: bool,
}

/// Something that is used, and would be taken away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interruption {
    /// What: `volume data`.
    pub object: String,
    /// The initiators that use it.
    pub initiators: Vec<String>,
}

impl Interruption {
    fn of(interruption: &engine::Interruption) -> Self {
        let sessions = interruption.sessions.iter();
        let initiators: BTreeSet<_> = sessions.map(|session| session.initiator.clone()).collect();
        Self {
            object: interruption.object.to_string(),
            initiators: initiators.into_iter().collect(),
        }
    }
}

/// Why a change was not made. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum ChangeRefused {
    /// It makes no sense.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// What it names does not exist.
    #[error("there is no {} {}{}", .0.kind.word(), .0.name, .1)]
    NotFound(Key, String),
    /// The name is taken.
    #[error("there is {} {} already", article(.0.kind), .0.name)]
    Exists(Key),
    /// Others, which stay, speak of what it takes away.
    #[error("{} {} is {}: {}", .key.kind.word(), .key.name, .by.join(", "), remedy(.key, *.is_left_out))]
    Referred {
        /// What would go.
        key: Key,
        /// How others speak of it: `LUN 1 of iqn…`.
        by: Vec<String>,
        /// It would go since a document does not list it.
        is_left_out: bool,
    },
    /// Somebody else has changed the state meanwhile.
    #[error(
        "the state is at revision {current}, and this change was made for {expected}: look again, and \
         repeat it if it still fits"
    )]
    Conflict {
        /// What the change was made for.
        expected: u64,
        /// What is there.
        current: u64,
    },
    /// Clients use what it takes away.
    #[error("{}: give --force to log them out first", told(.0))]
    InUse(Vec<Interruption>),
    /// A store, a portal or a secret does not allow it.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// It could not be kept.
    #[error(transparent)]
    State(#[from] StateError),
}

/// `a volume`, `an account`.
fn article(kind: Kind) -> String {
    let article = if kind == Kind::Account { "an" } else { "a" };
    format!("{article} {}", kind.word())
}

/// What to do about a thing that others speak of.
fn remedy(key: &Key, is_left_out: bool) -> &'static str {
    match (is_left_out, key.kind) {
        (true, _) => "the document leaves it out: list it, or change that, too",
        (false, Kind::Volume) => "detach it first, or give --cascade",
        // Of a host, and where it is the last, it is not taken out by itself.
        (false, Kind::Account) => "take it out of there first",
        (false, _) => "take it out of there first, or give --cascade",
    }
}

fn told(interruptions: &[Interruption]) -> String {
    let one = |interruption: &Interruption| {
        format!("{} is used by {}", interruption.object, interruption.initiators.join(", "))
    };
    interruptions.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The state of a server that runs.
pub struct Desired {
    folder: PathBuf,
    /// What changes left.
    kept: History,
    /// One change at a time.
    changing: AsyncMutex<Changing>,
    /// What holds now.
    current: Mutex<Current>,
}

/// What a change works with.
struct Changing {
    store: Store,
    compiler: Compiler,
    engine: Option<Arc<Engine>>,
    /// How long files are that are to become longer and may not have yet, by the serial numbers of their volumes, as it
    /// is kept.
    owed: BTreeMap<String, u64>,
}

impl Changing {
    /// Keeps what files are short of no more. Where that is not possible they may be short once more, which is no loss.
    fn settle(&mut self) {
        let Some(engine) = &self.engine else { return };
        let owed = engine.owed();
        if owed == self.owed {
            return;
        }
        match self.store.keep_owed(&owed) {
            Ok(()) => self.owed = owed,
            Err(error) => warn!(%error, "which files are whole is not kept"),
        }
    }
}

/// What holds.
#[derive(Clone, Debug, Default)]
pub struct Current {
    /// Its number.
    pub revision: u64,
    /// What there is.
    pub objects: Arc<Objects>,
}

impl Desired {
    /// The state in `folder`, and the configuration that it comes to for a server with these settings of
    /// its own.
    pub fn open(folder: &Path, base: Config) -> Result<(Self, Config), OpenError> {
        // Paths under it are kept, and hold wherever the server is started the next time.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let store = Store::open(folder)?;
        let (objects, revision) = store.load()?;
        let owed = store.owed()?;
        let mut compiler = Compiler::new(base);
        let config = compiler.compile(&objects)?;
        let current = Current { revision, objects: Arc::new(objects) };
        let desired = Self {
            folder: folder.to_owned(),
            kept: store.reader(),
            changing: AsyncMutex::new(Changing { store, compiler, engine: None, owed }),
            current: Mutex::new(current),
        };
        Ok((desired, config))
    }

    /// How much of the configuration that it comes to is of the state.
    pub(crate) fn managed(&mut self) -> Managed {
        let objects = self.current().objects;
        let count = |kind| objects.keys().filter(|key| key.kind == kind).count();
        let owed = self.changing.get_mut().owed.clone();
        Managed { portals: count(Kind::Portal), accounts: count(Kind::Account), owed }
    }

    /// From now on, changes are made to what this engine runs.
    pub(crate) fn drive(&mut self, engine: Arc<Engine>) {
        let changing = self.changing.get_mut();
        changing.engine = Some(engine);
        changing.settle();
    }

    fn current_mut(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What holds now.
    pub fn current(&self) -> Current {
        self.current_mut().clone()
    }

    /// Where it is kept.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The changes before the one of that number, the last of them first.
    /// Blocks the thread for a moment, but waits for no change.
    pub fn history(&self, before: u64, limit: usize) -> Result<Vec<Revision>, StateError> {
        self.kept.history(before, limit)
    }

    /// Ends when no change is under way. Those that wait are made, or refused, first.
    pub(crate) async fn settle(&self) {
        drop(self.changing.lock().await);
    }

    /// Takes over other settings of the server's own, and reads secrets again, as far as it can be done while
    /// it runs. Blocks the thread.
    pub(crate) async fn rebase(&self, base: Config) -> Result<Made, ChangeError> {
        let mut changing = self.changing.lock().await;
        let mut compiler = Compiler::new(base);
        let config = compiler.compile(&self.current().objects).map_err(|invalid| {
            ConfigError::new(invalid.field.unwrap_or_else(|| "the state".into()), invalid.message)
        })?;
        let engine = changing.engine.as_ref().expect("a server that answers has an engine");
        let made = engine.prepare(config, Cause::Reload)?.clear_by(Force::Revoked).await?.make();
        changing.compiler = compiler;
        changing.settle();
        Ok(made)
    }

    /// Tries what the server does without. Blocks the thread.
    pub(crate) async fn retry(&self) {
        let mut changing = self.changing.lock().await;
        let Changing { compiler, engine, .. } = &mut *changing;
        let Some(engine) = engine.as_ref().filter(|engine| !engine.problems().is_empty()) else {
            return;
        };
        let Ok(config) = compiler.compile(&self.current().objects) else { return };
        let prepared = engine.prepare(config, Cause::Edit);
        let Some(prepared) = prepared.ok().filter(|prepared| !prepared.is_idle()) else { return };
        if let Ok(ready) = prepared.clear_by(Force::Nobody).await {
            ready.make();
            changing.settle();
        }
    }

    /// Makes a change, whole, or does not make it. When this returns it is kept, and holds.
    pub async fn change(&self, change: Change) -> Result<Changed, ChangeRefused> {
        let mut changing = self.changing.lock().await;
        let before = self.current();
        if let Some(expected) = change.expected.filter(|expected| *expected != before.revision) {
            return Err(ChangeRefused::Conflict { expected, current: before.revision });
        }
        let mut objects = (*before.objects).clone();
        let is_left_out = change.edits.iter().any(|edit| matches!(edit, Edit::Replace(_)));
        for edit in change.edits {
            edit.carry_out(&mut objects, &self.folder)?;
        }
        let steps = plan(&before.objects, &objects);
        let gone = steps.iter().filter(|step| step.action == Action::Remove);
        let gone: BTreeSet<Key> = gone.map(|step| Key::new(step.kind, &step.name)).collect();
        if let Some((key, by)) = referred(&objects, &gone) {
            return Err(ChangeRefused::Referred { key, by, is_left_out });
        }
        let mut changed = Changed {
            revision: before.revision,
            steps,
            dry_run: change.dry_run,
            ..Changed::default()
        };
        let config = changing.compiler.compile(&objects)?;
        if changed.steps.is_empty() {
            return Ok(changed);
        }
        let Changing { store, engine, owed, .. } = &mut *changing;
        let engine = engine.as_ref().expect("a server that answers has an engine");
        let prepared = engine.prepare(config, Cause::Edit)?;
        let interrupts = prepared.interrupts();
        changed.interrupts = interrupts.iter().map(Interruption::of).collect();
        let sessions = interrupts.iter().flat_map(|interruption| &interruption.sessions);
        changed.interrupted_sessions =
            sessions.map(|session| session.tsih).collect::<BTreeSet<_>>().len();
        if change.dry_run {
            return Ok(changed);
        }
        if !changed.interrupts.is_empty() && !change.force {
            return Err(ChangeRefused::InUse(changed.interrupts));
        }
        let ready = prepared.clear(change.force.then_some(change.grace)).await?;
        let revision = Revision {
            revision: before.revision + 1,
            at_unix_seconds: unix_seconds(),
            author: change.author,
            summary: summary(&changed.steps),
        };
        let different = differences(&*before.objects, &objects);
        let writes: Vec<store::Write<'_>> =
            different.map(|one| (one.key, one.after.map(|object| &**object))).collect();
        let short: BTreeMap<String, u64> = owed.clone().into_iter().chain(ready.owes()).collect();
        store.commit(&revision, &writes, &objects, &short)?;
        *owed = short;
        let made = ready.make();
        changed.needs_restart = made.needs_restart.into_iter().map(str::to_owned).collect();
        changed.sessions_ended = made.sessions_ended;
        changed.problems = made.problems;
        changed.revision = revision.revision;
        info!(
            revision = revision.revision,
            author = revision.author,
            steps = changed.steps.len(),
            "the state was changed"
        );
        engine.front.access.events.tell(&Occurrence::ConfigurationChanged {
            revision: Some(revision.revision),
            author: revision.author,
            what: revision.summary.join("; "),
            names: names(&changed.steps),
        });
        *self.current_mut() = Current { revision: revision.revision, objects: Arc::new(objects) };
        changing.settle();
        Ok(changed)
    }
}

/// Why a state could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file.
    #[error(transparent)]
    State(#[from] StateError),
    /// What it says does not go with the server's own settings.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// What is not the same, by its names before and after.
fn names(steps: &[Step]) -> Vec<String> {
    let names = steps.iter().flat_map(|step| [Some(&step.name), step.new_name.as_ref()]);
    names.flatten().filter(|name| !name.is_empty()).cloned().collect()
}

fn unix_seconds() -> u64 {
    time::wall_clock().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
