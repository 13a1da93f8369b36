//! Requests that the API's port refuses because the client has no permission. The server counts all of them. It also
//! reports wrong tokens: the first one of a source at once, the others together. Each wrong token makes its source wait
//! longer, so that a client cannot guess a token. A request with the right token does not wait.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sarsen_io::time;
use tracing::warn;

use super::error::ApiError;
use crate::access::source_of;
use crate::events::Occurrence;
use crate::fronts::Front;
use crate::refusal::ApiRefusal;

/// Delay before the response to a source's first wrong token. Each further one doubles it.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of wrong tokens of a source that wait for their responses. Above it, the server checks no request of
/// the source until it has answered one of them.
const WAITING: usize = 8;
/// Wrong tokens that a source sends within this time after the first are reported together. A source that sends none
/// for this time counts as new.
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of sources that are counted separately. Further ones count as one source.
const SOURCES: usize = 1024;
/// The name of all further sources together.
const OTHERS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// See the module.
pub(super) struct Attempts {
    front: Arc<Front>,
    sources: Arc<Mutex<Sources>>,
}

impl Attempts {
    pub(super) fn new(front: Arc<Front>) -> Self {
        Self { front, sources: Arc::default() }
    }

    /// Counts a refused request and returns the error.
    pub(super) fn refuse(&self, refusal: ApiRefusal, error: ApiError) -> ApiError {
        self.front.access.metrics.api_refused(refusal);
        error
    }

    /// Accepts a request with the right token. The token is checked only if its source may send one now.
    pub(super) async fn check(
        &self,
        peer: SocketAddr,
        is_right: impl FnOnce() -> bool,
    ) -> Result<(), ApiError> {
        let lock = || self.sources.lock();
        if lock().is_full(peer.ip(), time::now()) {
            let message = "this address has sent too many wrong tokens: try again later";
            let error = ApiError::too_many_attempts(message);
            return Err(self.refuse(ApiRefusal::TooManyWrongTokens, error));
        }
        if is_right() {
            return Ok(());
        }
        let noted = lock().note(peer.ip(), time::now());
        if let Some(source) = noted.first_of {
            self.report(peer, source);
        }
        let message = "this is not the token: it is in the server's state folder, in api.token";
        let error = self.refuse(ApiRefusal::WrongToken, ApiError::unauthorized(message));
        time::sleep_until(noted.answer_at).await;
        Err(error)
    }

    /// Reports the first wrong token of a source at once, and the following ones at the end of the reporting time.
    fn report(&self, peer: SocketAddr, source: IpAddr) {
        warn!(%peer, "the API refused a wrong token");
        self.front.access.events.tell(&Occurrence::ApiTokenRefused { peer });
        let (front, sources) = (self.front.clone(), self.sources.clone());
        tokio::spawn(async move {
            time::sleep_until(time::now() + WINDOW).await;
            let count = sources.lock().report(source);
            if count > 0 {
                warn!(%source, count, "the API refused more wrong tokens");
                front.access.events.tell(&Occurrence::ApiTokensRefused { source, count });
            }
        });
    }
}

/// Sources of wrong tokens.
#[derive(Default)]
struct Sources(HashMap<IpAddr, Source>);

struct Source {
    /// Number of wrong tokens since the last pause of at least [`WINDOW`].
    wrong: u32,
    last: Instant,
    /// The times at which waiting requests are answered. They stay here after their clients disconnect. Otherwise, a
    /// client would reconnect instead of waiting.
    answers: VecDeque<Instant>,
    /// Number of wrong tokens since the reported one. `None` if the next one must be reported.
    unreported: Option<u64>,
}

/// The handling of a wrong token.
struct AttemptAction {
    answer_at: Instant,
    /// The name of its source, if this wrong token must be reported.
    first_of: Option<IpAddr>,
}

impl Sources {
    /// Returns whether the maximum number of wrong tokens from this address is waiting.
    fn is_full(&mut self, address: IpAddr, now: Instant) -> bool {
        let name = self.name(address);
        let Some(source) = self.0.get_mut(&name) else { return false };
        source.answers.retain(|answer_at| *answer_at > now);
        source.answers.len() >= WAITING
    }

    fn note(&mut self, address: IpAddr, now: Instant) -> AttemptAction {
        if self.0.len() >= SOURCES {
            let is_kept = |source: &Source| {
                source.unreported.is_some() || now.duration_since(source.last) < WINDOW
            };
            self.0.retain(|_, source| is_kept(source));
        }
        let name = self.name(address);
        let new = Source { wrong: 0, last: now, answers: VecDeque::new(), unreported: None };
        let source = self.0.entry(name).or_insert(new);
        if now.duration_since(source.last) >= WINDOW {
            source.wrong = 0;
        }
        let delay = FIRST_DELAY * 2_u32.pow(source.wrong.min(16));
        let answer_at = now + delay.min(LONGEST_DELAY);
        source.wrong = source.wrong.saturating_add(1);
        source.last = now;
        source.answers.push_back(answer_at);
        let first_of = match &mut source.unreported {
            Some(unreported) => {
                *unreported += 1;
                None
            }
            unreported @ None => {
                *unreported = Some(0);
                Some(name)
            }
        };
        AttemptAction { answer_at, first_of }
    }

    /// Ends the reporting time of a source and returns the number of wrong tokens that are not reported yet.
    fn report(&mut self, name: IpAddr) -> u64 {
        self.0.get_mut(&name).and_then(|source| source.unreported.take()).unwrap_or(0)
    }

    fn name(&self, address: IpAddr) -> IpAddr {
        let name = source_of(address);
        if self.0.len() >= SOURCES && !self.0.contains_key(&name) { OTHERS } else { name }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + number).into())
    }

    #[test]
    fn each_wrong_token_of_a_source_waits_longer_than_the_one_before() {
        let (mut sources, begin) = (Sources::default(), time::now());
        let mut delay = |address| sources.note(address, begin).answer_at - begin;
        let delays = [(); 8].map(|()| delay(address(1)).as_millis());
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(delay(address(2)), FIRST_DELAY, "another address begins at the beginning");
        assert!(sources.is_full(address(1), begin) && !sources.is_full(address(2), begin));
        // The server answers requests one after the other, whether or not their clients stay connected.
        assert!(!sources.is_full(address(1), begin + FIRST_DELAY));
        let later = begin + WINDOW;
        assert_eq!(sources.note(address(1), later).answer_at - later, FIRST_DELAY);
    }

    #[test]
    fn the_first_wrong_token_of_a_source_is_reported_and_the_others_are_counted() {
        let (mut sources, begin) = (Sources::default(), time::now());
        assert_eq!(sources.note(address(1), begin).first_of, Some(address(1)));
        for _ in 0..5 {
            assert_eq!(sources.note(address(1), begin).first_of, None);
        }
        assert_eq!(sources.report(address(1)), 5);
        assert_eq!(sources.report(address(1)), 0);
        assert_eq!(sources.note(address(1), begin).first_of, Some(address(1)));
    }

    #[test]
    fn sources_without_number_take_little_memory() {
        let (mut sources, begin) = (Sources::default(), time::now());
        for number in 0..100_000 {
            sources.note(address(number), begin);
        }
        assert!(sources.0.len() <= SOURCES + 1);
        for number in 0..SOURCES as u32 {
            sources.report(address(number));
        }
        sources.note(address(200_000), begin + WINDOW);
        assert!(sources.0.len() < SOURCES, "what is over makes room");
        assert!(sources.0.values().all(|source| source.answers.len() < 100_000));
    }
}
