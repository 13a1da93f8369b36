//! CHAP from the initiator's side (RFC 7143 §12.1.3): the keys of one login, in order.

use sarsen_wire::iscsi::text;

use super::super::chap::{self, Algorithm, Challenge, Credentials};
use super::event::{AuthenticationError, ConnectionError};

/// How the initiator proves who it is, and what it demands of the target.
#[derive(Clone, Debug)]
pub struct Authentication {
    /// What the target knows the initiator by.
    pub credentials: Credentials,
    /// The algorithms that are offered, the preferred one first.
    pub algorithms: Vec<Algorithm>,
    /// Demands that the target prove who it is, too.
    pub target: Option<TargetProof>,
}

/// What a target has to show (mutual CHAP).
#[derive(Clone, Debug)]
pub struct TargetProof {
    /// What the initiator knows the target by; the secret may not be the initiator's own.
    pub credentials: Credentials,
    /// To be answered by the target, made for this login alone.
    pub challenge: Challenge,
}

/// What was sent last.
#[derive(Debug)]
enum Sent {
    /// AuthMethod.
    Method,
    /// CHAP_A.
    Algorithms,
    /// CHAP_N and CHAP_R, and our own challenge.
    Response(Algorithm),
    /// Nothing that the target has to answer.
    Nothing,
}

/// One login's authentication.
#[derive(Debug)]
pub(super) struct Chap {
    options: Authentication,
    sent: Sent,
}

/// The values of CHAP keys in one answer.
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

    /// Whether the next request may ask to leave the security stage.
    pub(super) const fn may_leave(&self) -> bool {
        matches!(self.sent, Sent::Response(_) | Sent::Nothing)
    }

    /// Whether the target has shown all that it has to.
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.sent, Sent::Nothing)
    }

    /// The algorithm of the response that the target has to judge now.
    pub(super) const fn responded_with(&self) -> Option<Algorithm> {
        match self.sent {
            Sent::Response(algorithm) => Some(algorithm),
            Sent::Method | Sent::Algorithms | Sent::Nothing => None,
        }
    }

    /// Takes the target's text and gives the keys that answer it.
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

    /// CHAP_A, CHAP_I and CHAP_C came.
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
            // Who knows only one of the two secrets could have us answer our own challenge.
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

    /// The target's own proof, if one is demanded.
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
            // RFC 7143 §6.3: a key comes once.
            if place.replace(value).is_some() {
                return Err(AuthenticationError::Malformed { key }.into());
            }
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
