//! CHAP on the initiator's side (RFC 7143 §12.1.3): the keys of one login, in order.

use sarsen_wire::iscsi::text;

use super::super::chap::{self, Algorithm, Challenge, Credentials};
use super::event::{AuthenticationError, ConnectionError};

/// The authentication of the initiator, and its requirements for the target.
#[derive(Clone, Debug)]
pub struct Authentication {
    /// Credentials of the initiator.
    pub credentials: Credentials,
    /// The algorithms that the initiator offers, in order of preference.
    pub algorithms: Vec<Algorithm>,
    /// The authentication that the target must provide, if it is required (mutual CHAP).
    pub target: Option<TargetProof>,
}

/// The authentication of a target (mutual CHAP).
#[derive(Clone, Debug)]
pub struct TargetProof {
    /// Credentials of the target. The secret must differ from the initiator's own.
    pub credentials: Credentials,
    /// The challenge to the target, created for this login only.
    pub challenge: Challenge,
}

/// The keys that the initiator sent last.
#[derive(Debug)]
enum Sent {
    /// AuthMethod.
    Method,
    /// CHAP_A.
    Algorithms,
    /// CHAP_N and CHAP_R, and our own challenge.
    Response(Algorithm),
    /// No key that the target must answer.
    Nothing,
}

/// The state of one login's authentication.
#[derive(Debug)]
pub(super) struct Chap {
    options: Authentication,
    sent: Sent,
}

/// The values of CHAP keys in one login response.
#[derive(Default)]
struct Answer<'a> {
    method: Option<&'a str>,
    algorithm: Option<&'a str>,
    identifier: Option<&'a str>,
    challenge: Option<&'a str>,
    name: Option<&'a str>,
    response: Option<&'a str>,
}

impl Chap {
    pub(super) const fn new(options: Authentication) -> Self {
        Self { options, sent: Sent::Method }
    }

    /// Returns whether the next request may ask to leave the security stage.
    pub(super) const fn may_leave(&self) -> bool {
        matches!(self.sent, Sent::Response(_) | Sent::Nothing)
    }

    /// Returns whether the authentication is complete.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.sent, Sent::Nothing)
    }

    /// Returns the algorithm of the response that the target now checks.
    pub(super) const fn responded_with(&self) -> Option<Algorithm> {
        match self.sent {
            Sent::Response(algorithm) => Some(algorithm),
            Sent::Method | Sent::Algorithms | Sent::Nothing => None,
        }
    }

    /// Handles the target's text and returns the keys that answer it.
    pub(super) fn handle(
        &mut self,
        text: &[u8],
    ) -> Result<Vec<(&'static str, String)>, ConnectionError> {
        let answer = Answer::parse(text)?;
        match self.sent {
            Sent::Method => {
                if answer.method != Some("CHAP") {
                    let answered = answer.method.unwrap_or_default().to_owned();
                    return Err(AuthenticationError::Method { answered }.into());
                }
                self.sent = Sent::Algorithms;
                Ok(vec![("CHAP_A", chap::list(&self.options.algorithms))])
            }
            Sent::Algorithms => Ok(self.respond(&answer)?),
            Sent::Response(algorithm) => {
                self.verify(algorithm, &answer)?;
                self.sent = Sent::Nothing;
                Ok(Vec::new())
            }
            Sent::Nothing => Ok(Vec::new()),
        }
    }

    /// Answers CHAP_A, CHAP_I and CHAP_C.
    fn respond(
        &mut self,
        answer: &Answer<'_>,
    ) -> Result<Vec<(&'static str, String)>, AuthenticationError> {
        let number = answer.algorithm.ok_or(AuthenticationError::Missing { key: "CHAP_A" })?;
        let algorithm = Algorithm::parse(number)
            .filter(|algorithm| self.options.algorithms.contains(algorithm))
            .ok_or_else(|| AuthenticationError::Algorithm { answered: number.to_owned() })?;
        let malformed = |key| AuthenticationError::Malformed { key };
        let identifier = answer.identifier.ok_or(AuthenticationError::Missing { key: "CHAP_I" })?;
        let identifier = text::number(identifier).and_then(|number| u8::try_from(number).ok());
        let bytes = answer.challenge.ok_or(AuthenticationError::Missing { key: "CHAP_C" })?;
        let challenge = Challenge {
            identifier: identifier.ok_or(malformed("CHAP_I"))?,
            bytes: chap::decode(bytes).ok_or(malformed("CHAP_C"))?,
        };
        let Credentials { name, secret } = &self.options.credentials;
        let mut keys = Vec::new();
        if let Some(target) = &self.options.target {
            // A reflection attack: a target that does not know both secrets could make us answer our own challenge.
            if challenge.bytes == target.challenge.bytes {
                return Err(AuthenticationError::Reflection);
            }
            if target.credentials.secret == *secret {
                return Err(AuthenticationError::SameSecret);
            }
            keys.push(("CHAP_I", target.challenge.identifier.to_string()));
            keys.push(("CHAP_C", chap::encode(&target.challenge.bytes)));
        }
        let response = chap::encode(&algorithm.response(&challenge, secret));
        keys.splice(0..0, [("CHAP_N", name.clone()), ("CHAP_R", response)]);
        self.sent = Sent::Response(algorithm);
        Ok(keys)
    }

    /// Checks the target's response, if mutual CHAP is required.
    fn verify(&self, algorithm: Algorithm, answer: &Answer<'_>) -> Result<(), AuthenticationError> {
        let Some(TargetProof { credentials, challenge }) = &self.options.target else {
            return Ok(());
        };
        let (Some(name), Some(response)) = (answer.name, answer.response) else {
            return Err(AuthenticationError::TargetSilent);
        };
        let response =
            chap::decode(response).ok_or(AuthenticationError::Malformed { key: "CHAP_R" })?;
        if name != credentials.name || !algorithm.verify(challenge, &credentials.secret, &response)
        {
            return Err(AuthenticationError::Target { name: name.to_owned() });
        }
        Ok(())
    }
}

impl<'a> Answer<'a> {
    fn parse(text: &'a [u8]) -> Result<Self, ConnectionError> {
        let mut answer = Self::default();
        for pair in text::pairs(text) {
            let (key, value) = pair?;
            let (key, place) = match key {
                "AuthMethod" => ("AuthMethod", &mut answer.method),
                "CHAP_A" => ("CHAP_A", &mut answer.algorithm),
                "CHAP_I" => ("CHAP_I", &mut answer.identifier),
                "CHAP_C" => ("CHAP_C", &mut answer.challenge),
                "CHAP_N" => ("CHAP_N", &mut answer.name),
                "CHAP_R" => ("CHAP_R", &mut answer.response),
                // Declarations such as TargetAlias and TargetPortalGroupTag.
                _ => continue,
            };
            // RFC 7143 §6.3: a key may occur only once.
            if place.replace(value).is_some() {
                return Err(AuthenticationError::Malformed { key }.into());
            }
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
