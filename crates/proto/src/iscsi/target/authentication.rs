//! CHAP at the target (RFC 7143 §6.3.2, §12.1.3): the keys of a login's security stage, in order. `login` checks the
//! stages: an initiator cannot leave the security stage before it has authenticated.

use sarsen_wire::iscsi::text::{self, MAX_VALUE_LENGTH, NONE};

use super::{Admission, AuthRequirement, Environment, Refusal, RefusalReason};
use crate::iscsi::chap::{self, Algorithm, CHALLENGE_LENGTH, Challenge, Secret};

/// The value of AuthMethod.
const CHAP: &str = "CHAP";

/// The authentication of a login.
#[derive(Default)]
pub(super) struct Authentication {
    state: ChapState,
    keys: Keys,
}

#[derive(Default)]
enum ChapState {
    /// The requirement is not known yet.
    #[default]
    Undecided,
    /// No authentication is required.
    Free,
    /// The target expects AuthMethod.
    Method(Vec<Algorithm>),
    /// The target expects CHAP_A.
    Algorithms(Vec<Algorithm>),
    /// The target expects CHAP_N and CHAP_R.
    Challenged(Algorithm, Challenge),
    /// The initiator has authenticated.
    Proven,
}

/// The values of the keys in one request.
#[derive(Default)]
struct Keys {
    method: Option<String>,
    algorithms: Option<String>,
    name: Option<String>,
    response: Option<String>,
    identifier: Option<String>,
    challenge: Option<String>,
}

/// The meaning of a request's keys together.
enum ChapKeys {
    Nothing,
    /// AuthMethod.
    Methods(String),
    /// CHAP_A.
    Algorithms(String),
    /// CHAP_N and CHAP_R.
    Proof(Proof),
}

struct Proof {
    name: String,
    response: Vec<u8>,
    /// CHAP_I and CHAP_C: the initiator authenticates the target, too.
    challenge: Option<Challenge>,
}

/// Keys to send, with their values.
type Answers = Vec<(&'static str, String)>;

impl Authentication {
    /// Stores a key of the security stage until the request is complete.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<(), RefusalReason> {
        let longest = match key {
            "CHAP_R" | "CHAP_C" => "0x".len() + 2 * chap::LENGTH_LIMIT,
            _ => MAX_VALUE_LENGTH,
        };
        let place = match key {
            "AuthMethod" => &mut self.keys.method,
            "CHAP_A" => &mut self.keys.algorithms,
            "CHAP_I" => &mut self.keys.identifier,
            "CHAP_C" => &mut self.keys.challenge,
            "CHAP_N" => &mut self.keys.name,
            "CHAP_R" => &mut self.keys.response,
            _ => return Err(RefusalReason::Malformed),
        };
        if value.is_empty() || value.len() > longest || place.is_some() {
            return Err(RefusalReason::Malformed);
        }
        *place = Some(value.to_owned());
        Ok(())
    }

    /// Begins the authentication of a known initiator with its requirement.
    pub(super) fn begin(
        &mut self,
        requirement: AuthRequirement,
        admission: &Admission,
        environment: &mut dyn Environment,
    ) -> Result<(), Refusal> {
        self.state = match requirement {
            AuthRequirement::Nothing => {
                environment.authorize(admission, None)?;
                ChapState::Free
            }
            AuthRequirement::Chap(algorithms) => ChapState::Method(algorithms),
        };
        Ok(())
    }

    /// Returns whether the required authentication is complete.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, ChapState::Free | ChapState::Proven)
    }

    /// Processes the keys of a complete request and returns the keys of the response. After the initiator has
    /// authenticated and its account is permitted, `admission` names the account.
    pub(super) fn advance(
        &mut self,
        admission: &mut Admission,
        environment: &mut dyn Environment,
    ) -> Result<Answers, Refusal> {
        let said = std::mem::take(&mut self.keys).said()?;
        let (state, answers) = match (std::mem::take(&mut self.state), said) {
            (state, ChapKeys::Nothing) => (state, Vec::new()),
            (ChapState::Free, ChapKeys::Methods(list)) => {
                let method = choose(&list, NONE, RefusalReason::ChapNotConfigured)?;
                (ChapState::Free, vec![("AuthMethod", method)])
            }
            (ChapState::Method(algorithms), ChapKeys::Methods(list)) => {
                let method = choose(&list, CHAP, RefusalReason::NoCommonMethod)?;
                (ChapState::Algorithms(algorithms), vec![("AuthMethod", method)])
            }
            (ChapState::Algorithms(acceptable), ChapKeys::Algorithms(list)) => {
                challenge(&acceptable, &list, environment)?
            }
            (ChapState::Challenged(algorithm, challenge), ChapKeys::Proof(proof)) => {
                let answers = proof.verify(algorithm, &challenge, admission, environment)?;
                (ChapState::Proven, answers)
            }
            // The initiator continues with CHAP although no authentication is required.
            (ChapState::Free, ChapKeys::Algorithms(_) | ChapKeys::Proof(_)) => {
                return Err(RefusalReason::ChapNotConfigured.into());
            }
            // A key out of order, or a key that does not apply to the requirement.
            _ => return Err(RefusalReason::Malformed.into()),
        };
        self.state = state;
        Ok(answers)
    }
}

/// Returns `wanted` if the initiator's list of methods (AuthMethod) contains it.
fn choose(list: &str, wanted: &str, refusal: RefusalReason) -> Result<String, RefusalReason> {
    if list.split(',').any(|method| method == wanted) {
        Ok(wanted.to_owned())
    } else {
        Err(refusal)
    }
}

/// Selects the first algorithm of the initiator's list that is acceptable, and creates a challenge that is used once.
fn challenge(
    acceptable: &[Algorithm],
    list: &str,
    environment: &mut dyn Environment,
) -> Result<(ChapState, Answers), RefusalReason> {
    let algorithm = list
        .split(',')
        .filter_map(Algorithm::parse)
        .find(|algorithm| acceptable.contains(algorithm))
        .ok_or(RefusalReason::NoCommonMethod)?;
    let mut random = [0; 1 + CHALLENGE_LENGTH];
    environment.fill_random(&mut random);
    let challenge = Challenge::new(random);
    let answers = vec![
        ("CHAP_A", algorithm.number().to_string()),
        ("CHAP_I", challenge.identifier.to_string()),
        ("CHAP_C", chap::encode(&challenge.bytes)),
    ];
    Ok((ChapState::Challenged(algorithm, challenge), answers))
}

impl Keys {
    /// Returns the meaning of the keys. A combination that no step of CHAP permits is malformed.
    fn said(self) -> Result<ChapKeys, RefusalReason> {
        let Self { method, algorithms, name, response, identifier, challenge } = self;
        let (name, response, challenge) =
            match (method, algorithms, name, response, identifier, challenge) {
                (None, None, None, None, None, None) => return Ok(ChapKeys::Nothing),
                (Some(list), None, None, None, None, None) => return Ok(ChapKeys::Methods(list)),
                (None, Some(list), None, None, None, None) => {
                    return Ok(ChapKeys::Algorithms(list));
                }
                (None, None, Some(name), Some(response), None, None) => (name, response, None),
                (None, None, Some(name), Some(response), Some(identifier), Some(bytes)) => {
                    (name, response, Some(parse_challenge(&identifier, &bytes)?))
                }
                _ => return Err(RefusalReason::Malformed),
            };
        let response = chap::decode(&response).ok_or(RefusalReason::Malformed)?;
        Ok(ChapKeys::Proof(Proof { name, response, challenge }))
    }
}

fn parse_challenge(identifier: &str, bytes: &str) -> Result<Challenge, RefusalReason> {
    let identifier = text::number(identifier).and_then(|number| u8::try_from(number).ok());
    match (identifier, chap::decode(bytes)) {
        (Some(identifier), Some(bytes)) => Ok(Challenge { identifier, bytes }),
        _ => Err(RefusalReason::Malformed),
    }
}

impl Proof {
    fn verify(
        self,
        algorithm: Algorithm,
        challenge: &Challenge,
        admission: &mut Admission,
        environment: &mut dyn Environment,
    ) -> Result<Answers, Refusal> {
        // RFC 7143 §9.2.1: an initiator that reflects the challenge would receive the response that it has to send.
        if self.challenge.as_ref().is_some_and(|theirs| theirs.bytes == challenge.bytes) {
            return Err(RefusalReason::ReflectedChallenge.into());
        }
        let secret = self.known_secret(algorithm, challenge, admission, environment)?;
        environment.authorize(admission, Some(&self.name))?;
        admission.account = Some(self.name);
        let Some(theirs) = self.challenge else { return Ok(Vec::new()) };
        let ours = environment.own_credentials(admission).ok_or(RefusalReason::NoOwnCredentials)?;
        // RFC 7143 §9.2.1: otherwise the target's response would be valid for an initiator in another login.
        if ours.secret == secret {
            return Err(RefusalReason::SameSecret.into());
        }
        let response = chap::encode(&algorithm.response(&theirs, &ours.secret));
        Ok(vec![("CHAP_N", ours.name), ("CHAP_R", response)])
    }

    /// Returns the account's secret if the response was computed with it. The check of an unknown account takes as long
    /// as that of a known one: it verifies the response with a random secret.
    fn known_secret(
        &self,
        algorithm: Algorithm,
        challenge: &Challenge,
        admission: &Admission,
        environment: &mut dyn Environment,
    ) -> Result<Secret, RefusalReason> {
        let mut random = [0; CHALLENGE_LENGTH];
        environment.fill_random(&mut random);
        let nobodys = Secret(chap::encode(&random));
        let found = environment.secret_of(admission, &self.name);
        let right = algorithm.verify(challenge, found.as_ref().unwrap_or(&nobodys), &self.response);
        match (found, right) {
            (None, _) => Err(RefusalReason::UnknownAccount),
            (Some(_), false) => Err(RefusalReason::WrongSecret),
            (Some(secret), true) => Ok(secret),
        }
    }
}
