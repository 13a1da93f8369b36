//! CHAP from the target's side (RFC 7143 §6.3.2, §12.1.3): the keys of one login's security stage, in
//! order. `login` holds it against the stages: nobody leaves this one without the proof.

use sarsen_wire::iscsi::text::{self, MAX_VALUE_LENGTH, NONE};

use super::{Admission, AuthRequirement, Environment, Refusal, RefusalReason};
use crate::iscsi::chap::{self, Algorithm, CHALLENGE_LENGTH, Challenge, Secret};

/// The value of AuthMethod.
const CHAP: &str = "CHAP";

/// One login's authentication.
#[derive(Default)]
pub(super) struct Authentication {
    state: ChapState,
    keys: Keys,
}

#[derive(Default)]
enum ChapState {
    /// What has to be proven is not known yet.
    #[default]
    Undecided,
    /// Nothing had to be proven.
    Free,
    /// AuthMethod is to come.
    Method(Vec<Algorithm>),
    /// CHAP_A is to come.
    Algorithms(Vec<Algorithm>),
    /// CHAP_N and CHAP_R are to come.
    Challenged(Algorithm, Challenge),
    /// The proof was right.
    Proven,
}

/// The values of one request's keys.
#[derive(Default)]
struct Keys {
    method: Option<String>,
    algorithms: Option<String>,
    name: Option<String>,
    response: Option<String>,
    identifier: Option<String>,
    challenge: Option<String>,
}

/// What these keys say together.
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
    /// CHAP_I and CHAP_C: we are to prove who we are, too.
    challenge: Option<Challenge>,
}

/// Keys with their values, to be sent.
type Answers = Vec<(&'static str, String)>;

impl Authentication {
    /// Takes a key of the security stage, to be looked at when the request is complete.
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

    /// Who wants in is known, and so is what it has to prove.
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

    /// Whether all is proven that has to be.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, ChapState::Free | ChapState::Proven)
    }

    /// Takes the keys of a complete request and gives those that answer them. Once the proof is there
    /// and the account is let in, `admission` names it.
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
            // It goes on with CHAP though the answer was None.
            (ChapState::Free, ChapKeys::Algorithms(_) | ChapKeys::Proof(_)) => {
                return Err(RefusalReason::ChapNotConfigured.into());
            }
            // A key before its turn, after it, or where nothing is to be proven.
            _ => return Err(RefusalReason::Malformed.into()),
        };
        self.state = state;
        Ok(answers)
    }
}

/// AuthMethod lists what the initiator can do; we want one thing.
fn choose(list: &str, wanted: &str, refusal: RefusalReason) -> Result<String, RefusalReason> {
    match list.split(',').any(|method| method == wanted) {
        true => Ok(wanted.to_owned()),
        false => Err(refusal),
    }
}

/// The first algorithm of the initiator's list that we accept, and a challenge that is used once.
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
    /// Keys that do not belong together are none that anyone honest sends.
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
        // RFC 7143 §9.2.1: who sends our challenge back would have us make its proof.
        if self.challenge.as_ref().is_some_and(|theirs| theirs.bytes == challenge.bytes) {
            return Err(RefusalReason::ReflectedChallenge.into());
        }
        let secret = self.known_secret(algorithm, challenge, admission, environment)?;
        environment.authorize(admission, Some(&self.name))?;
        admission.account = Some(self.name);
        let Some(theirs) = self.challenge else { return Ok(Vec::new()) };
        let ours = environment.own_credentials(admission).ok_or(RefusalReason::NoOwnCredentials)?;
        // RFC 7143 §9.2.1: or our answers would be an initiator's, in another login.
        if ours.secret == secret {
            return Err(RefusalReason::SameSecret.into());
        }
        let response = chap::encode(&algorithm.response(&theirs, &ours.secret));
        Ok(vec![("CHAP_N", ours.name), ("CHAP_R", response)])
    }

    /// The account's secret, if the response was made with it. An account that does not exist takes as
    /// long as one that does: its response is held against a secret that nobody knows.
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
