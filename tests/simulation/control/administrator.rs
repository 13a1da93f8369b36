//! Carries out the steps of a seed: starts the server, changes the desired state, ends the server and starts it again.
//! After each step it checks the state, and some login attempts check at once that it is in force.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use sarsen_block::Rng;
use sarsen_io::time;
use sarsen_node::config::Discovery;
use sarsen_node::desired::{Change, ChangeRefused, Changed, Edit};
use sarsen_node::model::{Document, Key, Object};
use sarsen_node::{ChangeError, Config};

use super::client::Client;
use super::document::{altered, broken, draw};
use super::rules::Rules;
use super::server::StartMode;
use super::{Mutation, World};

/// The administrator (see the module).
pub(super) struct Administrator {
    world: Rc<World>,
    rng: Rng,
    auditor: Client,
    /// The desired configuration: the content of the state, or of the file or flags.
    desired: Document,
    revision: u64,
}

/// Returns the objects of a document by their keys.
fn objects(document: &Document) -> BTreeMap<Key, Object> {
    document.clone().into_objects().map(|object| (object.key(), object)).collect()
}

/// Returns edits that change one document to the other.
fn edits(rng: &mut Rng, before: &Document, after: &Document) -> Vec<Edit> {
    if rng.chance(50) {
        return vec![Edit::Replace(after.clone())];
    }
    let (before, after) = (objects(before), objects(after));
    let puts = after.iter().filter(|(key, object)| before.get(key) != Some(object));
    let puts = puts.map(|(_, object)| Edit::Put(object.clone()));
    let removes = before.keys().filter(|key| !after.contains_key(key));
    puts.chain(removes.map(|key| Edit::Remove(key.clone()))).collect()
}

impl Administrator {
    pub(super) fn new(world: Rc<World>, mut rng: Rng) -> Self {
        let auditor = Client::new(world.clone(), "audit".into(), Rng::new(rng.bits()));
        let desired = world.server.possible(draw(&mut rng));
        Self { world, rng, auditor, desired, revision: 0 }
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        self.world.note("administrator", what);
    }

    async fn pause(&mut self, limit_ms: u64) {
        let pause = Duration::from_millis(self.rng.below(limit_ms));
        time::sleep_until(time::now() + pause).await;
    }

    /// Starts the server for the first time. An empty state then gets the document by apply.
    pub(super) async fn begin(&mut self) {
        let way = self.world.server.way;
        self.note(format_args!("starts by {way:?}: {:?}", self.desired));
        self.world.count(&format!("starts by {way:?}"));
        self.world.history.enforce(Rules::new(self.desired.clone()));
        self.world.server.start(&self.desired);
        if way == StartMode::State {
            let apply = vec![Edit::Apply(self.desired.clone())];
            let applied = self.change(self.change_of(apply)).await;
            applied.unwrap_or_else(|error| panic!("a drawn document is refused: {error}"));
            self.revision += 1;
        }
        self.mutate_start();
        self.check_state();
    }

    /// Carries out all other steps.
    pub(super) async fn run(&mut self) {
        for _ in 0..6 + self.rng.below(8) {
            self.pause(400).await;
            let is_state = self.world.server.way == StartMode::State;
            match self.rng.below(100) {
                ..40 if is_state => self.alter().await,
                ..50 if is_state => self.preview().await,
                ..62 if is_state => self.refuse().await,
                ..68 if is_state => self.reload(self.desired.clone()).await,
                ..60 if !is_state => {
                    let altered = altered(&mut self.rng, &self.desired);
                    self.reload(self.world.server.possible(altered)).await;
                }
                ..85 => self.kill().await,
                _ => self.end().await,
            }
            self.check_state();
            for _ in 0..2 + self.rng.below(3) {
                self.auditor.try_once(2).await;
            }
        }
    }

    fn change_of(&self, edits: Vec<Edit>) -> Change {
        Change {
            edits,
            expected: None,
            author: "the simulation".into(),
            force: false,
            grace: Duration::ZERO,
            dry_run: false,
            erase: false,
        }
    }

    async fn change(&self, change: Change) -> Result<Changed, ChangeRefused> {
        let control = self.world.server.control();
        let desired = control.desired().expect("it has a state");
        desired.change(|_| Ok::<_, ChangeRefused>(change.clone())).await
    }

    /// Checks that the state contains exactly the desired objects.
    fn check_state(&self) {
        if self.world.server.way != StartMode::State {
            return;
        }
        let current = self.world.server.control().desired().expect("it has a state").current();
        let shown: BTreeMap<Key, Object> =
            current.objects.iter().map(|(key, object)| (key.clone(), (**object).clone())).collect();
        let expected = objects(&self.desired);
        let differs = |key: &&Key| shown.get(*key) != expected.get(*key);
        let different: Vec<&Key> = shown.keys().chain(expected.keys()).filter(differs).collect();
        assert!(different.is_empty(), "the state does not show what is desired of {different:?}");
        assert_eq!(current.revision, self.revision, "the number of the revision");
    }

    /// Records that another document is now in force.
    fn enforce(&mut self, document: Document) {
        self.desired = document;
        self.world.history.enforce(Rules::new(self.desired.clone()));
    }

    /// Changes the state, with or without force.
    async fn alter(&mut self) {
        let next = altered(&mut self.rng, &self.desired);
        let is_same = objects(&next) == objects(&self.desired);
        let rules = Rules::new(next.clone());
        let edits = edits(&mut self.rng, &self.desired, &next);
        let force = self.rng.chance(50);
        let grace = Duration::from_millis(self.rng.below(3_000));
        let change = Change { force, grace, ..self.change_of(edits) };
        self.note(format_args!("changes, with force: {force}: {next:?}"));
        let before = self.world.server.control().config();
        if !force {
            let loser = self.world.history.certain_loser(&rules);
            let may_be_in_use = self.world.history.may_be_in_use(&rules);
            match self.change(change).await {
                Ok(_) => {
                    assert_eq!(loser, None, "a session that no rule permits was not in the way")
                }
                Err(ChangeRefused::InUse(interrupted)) => {
                    assert!(may_be_in_use, "refused, though nothing is in use: {interrupted:?}");
                    self.world.count("changes refused as in use");
                    return;
                }
                Err(error) => panic!("a drawn document is refused: {error}"),
            }
        } else {
            self.world.history.begin_upheaval();
            self.world.history.begin_change(Rules::new(next.clone()));
            let is_killed = self.rng.chance(15);
            let moment = if is_killed {
                Duration::from_millis(self.rng.below(2_000))
            } else {
                Duration::from_secs(120)
            };
            let deadline = time::now() + moment;
            let changed = tokio::select! {
                biased;
                changed = self.change(change) => Some(changed),
                () = time::sleep_until(deadline) => None,
            };
            let Some(changed) = changed else {
                assert!(is_killed, "a change with force does not come to an end");
                self.note(format_args!("is killed during the change"));
                self.world.count("changes that were broken off by SIGKILL");
                return self.start_again(true, (!is_same).then_some(next)).await;
            };
            self.world.history.end_upheaval();
            self.world.history.end_change();
            let changed =
                changed.unwrap_or_else(|error| panic!("a drawn document is refused: {error}"));
            if changed.interrupted_sessions + changed.sessions_ended > 0 {
                self.world.count("changes that terminated sessions");
            }
        }
        self.world.count("changes");
        if !is_same {
            self.revision += 1;
            self.enforce(next);
            self.mutate_change(&before);
        }
    }

    /// Previews a change, which changes nothing.
    async fn preview(&mut self) {
        let next = altered(&mut self.rng, &self.desired);
        let edits = edits(&mut self.rng, &self.desired, &next);
        self.note(format_args!("previews {next:?}"));
        let change = Change { dry_run: true, force: self.rng.chance(50), ..self.change_of(edits) };
        let changed = self.change(change).await;
        let changed = changed.unwrap_or_else(|error| panic!("a preview is refused: {error}"));
        assert!(changed.dry_run && changed.revision == self.revision, "a preview changes nothing");
        self.world.count("previews");
    }

    /// Sends a change that the server refuses without any effect.
    async fn refuse(&mut self) {
        let is_conflict = self.rng.chance(25);
        let (next, why) = if is_conflict {
            (altered(&mut self.rng, &self.desired), "another revision")
        } else {
            broken(&mut self.rng, &self.desired)
        };
        self.note(format_args!("is refused: {why}"));
        let expected = is_conflict.then_some(self.revision + 1);
        let force = self.rng.chance(50);
        let change = Change { expected, force, ..self.change_of(vec![Edit::Replace(next)]) };
        match self.change(change).await {
            Err(ChangeRefused::Conflict { .. }) if is_conflict => self.world.count("conflicts"),
            Err(ChangeRefused::Conflict { .. } | ChangeRefused::InUse(_)) => panic!("{why}"),
            Err(_) if !is_conflict => self.world.count("changes that were refused"),
            other => panic!("{why}: {other:?}"),
        }
    }

    /// Writes the file and the secrets again and reloads them, as SIGHUP does.
    async fn reload(&mut self, next: Document) {
        self.note(format_args!("reloads: {next:?}"));
        let before = self.world.server.control().config();
        let rules = Rules::new(next.clone());
        let may_be_in_use = self.world.history.may_be_in_use(&rules);
        // Clients may see the new rules before the reload has returned.
        self.world.history.begin_change(Rules::new(next.clone()));
        let reloaded = self.world.server.reload(&next).await;
        self.world.history.end_change();
        match reloaded {
            Ok(_) => {
                self.world.count("reloads");
                let is_new = objects(&next) != objects(self.world.history.current().document());
                self.desired = next;
                if is_new {
                    self.enforce(self.desired.clone());
                    self.mutate_change(&before);
                }
            }
            Err(ChangeError::InUse(interrupted)) => {
                assert!(may_be_in_use, "refused, though nothing is in use: {interrupted:?}");
                self.world.count("reloads refused as in use");
                // The new file remains, and the next start reads it.
                self.desired = next;
            }
            Err(error) => panic!("a drawn file is refused: {error}"),
        }
    }

    async fn kill(&mut self) {
        self.world.history.begin_upheaval();
        self.start_again(true, None).await;
    }

    async fn end(&mut self) {
        self.world.history.begin_upheaval();
        self.start_again(false, None).await;
    }

    /// Ends the server and starts it again. If a change was in progress, the state has it or not.
    async fn start_again(&mut self, by_kill: bool, under_way: Option<Document>) {
        self.note(format_args!("ends the server, by SIGKILL: {by_kill}"));
        if by_kill {
            self.world.count("ends by SIGKILL");
            self.world.server.kill();
        } else {
            self.world.count("ends in good order");
            let grace = Duration::from_millis(self.rng.below(2_000));
            self.world.server.end(grace).await;
        }
        self.world.history.end_change();
        self.pause(500).await;
        self.world.history.forget_sessions();
        self.world.server.start(&self.desired);
        if let Some(next) = under_way
            && self.world.server.control().desired().expect("a state").current().revision
                == self.revision + 1
        {
            self.world.count("changes that were stored before SIGKILL");
            self.revision += 1;
            self.desired = next;
        }
        let desired = self.desired.clone();
        if objects(self.world.history.current().document()) != objects(&desired) {
            self.enforce(desired);
        }
        self.world.history.end_upheaval();
        self.mutate_start();
        self.note(format_args!("has started the server"));
    }

    fn misapply(&self, config: &Config) {
        let misapplied = self.world.server.control().misapply(config);
        misapplied.expect("the rules of a server that runs");
    }

    /// Applies a mutation that affects starts.
    fn mutate_start(&self) {
        let mut config = self.world.server.control().config();
        match self.world.mutation {
            Some(Mutation::TakesDiscoveryForInForce) => config.discovery = Discovery::default(),
            Some(Mutation::TakesTargetsForInForce) => {
                for target in &mut config.targets {
                    target.chap.clear();
                    target.own_account = None;
                    target.algorithms.clear();
                    target.allow.clear();
                }
            }
            _ => return self.mutate_always(),
        }
        self.misapply(&config);
    }

    /// Applies a mutation that affects changes.
    fn mutate_change(&self, before: &Config) {
        let mut config = self.world.server.control().config();
        match self.world.mutation {
            Some(Mutation::KeepsOldRules) => config.clone_from(before),
            Some(Mutation::KeepsOldSecrets) => config.accounts.clone_from(&before.accounts),
            _ => return self.mutate_always(),
        }
        self.misapply(&config);
    }

    /// Applies a mutation that affects starts and changes.
    fn mutate_always(&self) {
        let mut config = self.world.server.control().config();
        let rules = config.targets.iter_mut().flat_map(|target| &mut target.allow);
        match self.world.mutation {
            Some(Mutation::ForgetsViews) => rules.for_each(|rule| rule.luns = None),
            Some(Mutation::ForgetsReadOnly) => rules.for_each(|rule| rule.read_only = false),
            _ => return,
        }
        self.misapply(&config);
    }
}
