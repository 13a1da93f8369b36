//! Requests that the API's port refuses for want of the right to be there: each is counted. Wrong tokens are
//! reported as well, a source's first one at once and the others together, and each makes its source wait longer: a
//! token cannot be found by trying. The right token is not made to wait.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sarsen_io::time;
use tracing::warn;

use super::error::ApiError;
use crate::access::source_of;
use crate::events::Occurrence;
use crate::fronts::iscsi::Front;

/// The first wrong token of a source is answered after so long, each further one after twice as long.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// Wrong tokens of a source that wait for their answers at once: until one has it, no request of the source is looked
/// at.
const WAITING: usize = 8;
/// Wrong tokens of a source that come within so long of the first are reported together. A source that has sent none
/// for so long begins anew.
const WINDOW: Duration = Duration::from_secs(60);
/// Sources that are told apart; further ones count as one.
const SOURCES: usize = 1024;
/// The name of those further ones.
const OTHERS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Why the API's port refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiRefusal {
    /// It shows another token.
    WrongToken,
    /// It shows none.
    NoToken,
    /// Its source has sent too many wrong tokens at once.
    TooManyWrongTokens,
    /// It asks for a host that is not this machine, at a port that has no token.
    Host,
    /// It comes from another page.
    Origin,
}

impl ApiRefusal {
    /// All of them.
    pub(crate) const ALL: [Self; 5] =
        [Self::WrongToken, Self::NoToken, Self::TooManyWrongTokens, Self::Host, Self::Origin];

    /// Its name in the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WrongToken => "wrong_token",
            Self::NoToken => "no_token",
            Self::TooManyWrongTokens => "too_many_wrong_tokens",
            Self::Host => "host",
            Self::Origin => "origin",
        }
    }
}

/// See the module.
pub(super) struct Attempts {
    front: Arc<Front>,
    sources: Arc<Mutex<Sources>>,
}

impl Attempts {
    pub(super) fn new(front: Arc<Front>) -> Self {
        Self { front, sources: Arc::default() }
    }

    /// Counts a request that is refused, and gives the refusal back.
    pub(super) fn refuse(&self, refusal: ApiRefusal, error: ApiError) -> ApiError {
        self.front.access.metrics.api_refused(refusal);
        error
    }

    /// Lets a request on that shows the right token; what it shows is looked at only where its source may show any.
    pub(super) async fn check(
        &self,
        peer: SocketAddr,
        is_right: impl FnOnce() -> bool,
    ) -> Result<(), ApiError> {
        let lock = || self.sources.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Reports a source's first wrong token now, and those that follow it when its time is over.
    fn report(&self, peer: SocketAddr, source: IpAddr) {
        warn!(%peer, "the API refused a wrong token");
        self.front.access.events.tell(&Occurrence::ApiTokenRefused { peer });
        let (front, sources) = (self.front.clone(), self.sources.clone());
        tokio::spawn(async move {
            time::sleep_until(time::now() + WINDOW).await;
            let count = sources.lock().unwrap_or_else(PoisonError::into_inner).report(source);
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
    /// Within the last while.
    wrong: u32,
    last: Instant,
    /// When those that wait are answered, also where their clients have gone: else they would go and come again
    /// instead of waiting.
    answers: VecDeque<Instant>,
    /// Wrong tokens since the one that was reported; none where the next one is.
    unreported: Option<u64>,
}

/// What is to become of a wrong token.
struct Noted {
    answer_at: Instant,
    /// The name of its source, where it is the first to be reported.
    first_of: Option<IpAddr>,
}

impl Sources {
    /// Whether as many wrong tokens of this address wait as may.
    fn is_full(&mut self, address: IpAddr, now: Instant) -> bool {
        let name = self.name(address);
        let Some(source) = self.0.get_mut(&name) else { return false };
        source.answers.retain(|answer_at| *answer_at > now);
        source.answers.len() >= WAITING
    }

    fn note(&mut self, address: IpAddr, now: Instant) -> Noted {
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
        Noted { answer_at, first_of }
    }

    /// The time of a source's report is over: how many wrong tokens it has not had.
    fn report(&mut self, name: IpAddr) -> u64 {
        self.0.get_mut(&name).and_then(|source| source.unreported.take()).unwrap_or(0)
    }

    fn name(&self, address: IpAddr) -> IpAddr {
        let name = source_of(address);
        match self.0.len() >= SOURCES && !self.0.contains_key(&name) {
            true => OTHERS,
            false => name,
        }
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
        // Whether their clients stay or not: they are answered, one after the other.
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
