//! CHAP names and secrets, of the initiator and of the target, and their sources.

use sarsen_proto::iscsi::chap::{Algorithm, CHALLENGE_LENGTH, Challenge, Credentials, Secret};
use sarsen_proto::iscsi::initiator::{Authentication, TargetProof};
use sarsen_wire::iscsi::text::MAX_VALUE_LENGTH;

use crate::url_error::UrlError;

/// The user of a session, and the user that the target must authenticate as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChapCredentials {
    /// The user that logs in.
    pub user: Credentials,
    /// The user that the target must authenticate as (mutual CHAP).
    pub target: Option<Credentials>,
}

impl ChapCredentials {
    /// Returns the offer of one login. The challenge is new each time.
    pub fn authentication(&self, algorithms: &[Algorithm]) -> Authentication {
        let target = self.target.clone().map(|credentials| {
            let mut random = [0; 1 + CHALLENGE_LENGTH];
            sarsen_io::random::fill(&mut random);
            TargetProof { credentials, challenge: Challenge::new(random) }
        });
        let credentials = self.user.clone();
        Authentication { credentials, algorithms: algorithms.to_vec(), target }
    }
}

/// Names and secrets from a URL or the environment; some of them may be missing.
///
/// The variables are those of libiscsi: settings for its tools work here, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chap {
    /// The user that logs in: LIBISCSI_CHAP_USERNAME.
    pub user: Option<String>,
    /// The user's secret: LIBISCSI_CHAP_PASSWORD.
    pub secret: Option<Secret>,
    /// The user that the target must authenticate as: LIBISCSI_CHAP_TARGET_USERNAME.
    pub target_user: Option<String>,
    /// The target's secret: LIBISCSI_CHAP_TARGET_PASSWORD.
    pub target_secret: Option<Secret>,
}

impl Chap {
    /// Parses `user` or `user%secret`, the text before the host.
    pub(crate) fn parse(text: &str) -> Self {
        let (user, secret) = match text.split_once('%') {
            Some((user, secret)) => (user, Some(Secret(secret.to_owned()))),
            None => (text, None),
        };
        Self { user: Some(user.to_owned()), secret, ..Self::default() }
    }

    /// Parses `target_user=U&target_password=P`, the text after the `?`.
    pub(crate) fn parse_query(&mut self, query: &str) -> Result<(), UrlError> {
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("target_user", user)) => self.target_user = Some(user.to_owned()),
                Some(("target_password", secret)) => {
                    self.target_secret = Some(Secret(secret.to_owned()));
                }
                // The text after the = may be a secret with a misspelt key.
                Some((key, _)) => return Err(UrlError::Query(key.to_owned())),
                // This may be the end of a secret that contains an &.
                None => return Err(UrlError::QueryValue),
            }
        }
        Ok(())
    }

    /// Completes missing parts from the environment, by the function `variable`. A secret of the environment belongs to
    /// the name in the environment, or to a name that was given without a secret.
    pub fn complete(&mut self, variable: impl Fn(&str) -> Option<String>) {
        let fill = |user: &mut Option<String>, secret: &mut Option<Secret>, names: [&str; 2]| {
            if user.is_none() {
                *user = variable(names[0]).filter(|user| !user.is_empty());
            }
            if user.is_some() && secret.is_none() {
                *secret = variable(names[1]).map(Secret);
            }
        };
        let names = ["LIBISCSI_CHAP_USERNAME", "LIBISCSI_CHAP_PASSWORD"];
        fill(&mut self.user, &mut self.secret, names);
        // This also happens without a user: `identity` then returns an error, because the target would not be
        // authenticated.
        let names = ["LIBISCSI_CHAP_TARGET_USERNAME", "LIBISCSI_CHAP_TARGET_PASSWORD"];
        fill(&mut self.target_user, &mut self.target_secret, names);
    }

    /// Returns the identity that a session needs; `None` if no user is named.
    pub fn identity(&self) -> Result<Option<ChapCredentials>, UrlError> {
        let target = credentials(&self.target_user, &self.target_secret)?;
        match (credentials(&self.user, &self.secret)?, target) {
            (Some(user), target) => Ok(Some(ChapCredentials { user, target })),
            // Without this error, the requested mutual authentication would not happen.
            (None, Some(target)) => Err(UrlError::UserMissing { target: target.name }),
            (None, None) => Ok(None),
        }
    }
}

fn credentials(
    name: &Option<String>,
    secret: &Option<Secret>,
) -> Result<Option<Credentials>, UrlError> {
    let name = match (name, secret) {
        (Some(name), _) => name.clone(),
        (None, Some(_)) => String::new(),
        (None, None) => return Ok(None),
    };
    // A zero byte would end the name in the login's text and begin another key.
    if name.is_empty() || name.len() > MAX_VALUE_LENGTH || name.contains(char::is_control) {
        return Err(UrlError::User(name));
    }
    match secret {
        Some(secret) if !secret.0.is_empty() => {
            Ok(Some(Credentials { name, secret: secret.clone() }))
        }
        _ => Err(UrlError::SecretMissing { user: name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(mut chap: Chap, variables: &[(&str, &str)]) -> Chap {
        chap.complete(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        chap
    }

    const ALL: [(&str, &str); 4] = [
        ("LIBISCSI_CHAP_USERNAME", "me"),
        ("LIBISCSI_CHAP_PASSWORD", "mine"),
        ("LIBISCSI_CHAP_TARGET_USERNAME", "box"),
        ("LIBISCSI_CHAP_TARGET_PASSWORD", "its"),
    ];

    #[test]
    fn environment_completes_url() {
        let identity = |chap, variables| completed(chap, variables).identity();
        let found = identity(Chap::default(), &ALL).unwrap().unwrap();
        assert_eq!((found.user.name.as_str(), found.user.secret.0.as_str()), ("me", "mine"));
        let target = found.target.unwrap();
        assert_eq!((target.name.as_str(), target.secret.0.as_str()), ("box", "its"));
        let found = identity(Chap::parse("you%yours"), &ALL[..2]).unwrap().unwrap();
        assert_eq!((found.user.name.as_str(), found.user.secret.0.as_str()), ("you", "yours"));
        assert_eq!(found.target, None);
        let found = identity(Chap::parse("you"), &ALL[..2]).unwrap().unwrap();
        assert_eq!((found.user.name.as_str(), found.user.secret.0.as_str()), ("you", "mine"));
        assert_eq!(identity(Chap::default(), &ALL[1..2]), Ok(None), "a secret of nobody");
        let unasked = Err(UrlError::UserMissing { target: "box".to_owned() });
        assert_eq!(identity(Chap::default(), &ALL[1..]), unasked, "whom nobody would ask");
        assert_eq!(identity(Chap::default(), &[]), Ok(None));
    }

    #[test]
    fn half_of_a_proof_is_refused() {
        let mut chap = Chap::parse("me");
        let missing = |user: &str| Err(UrlError::SecretMissing { user: user.to_owned() });
        assert_eq!(chap.identity(), missing("me"));
        chap = Chap::parse("me%");
        assert_eq!(chap.identity(), missing("me"));
        chap = Chap::parse("me%mine");
        chap.parse_query("target_user=box").unwrap();
        assert_eq!(chap.identity(), missing("box"));
        chap = Chap::default();
        chap.parse_query("target_user=box&target_password=its").unwrap();
        assert_eq!(chap.identity(), Err(UrlError::UserMissing { target: "box".to_owned() }));
        assert_eq!(chap.parse_query("passwort=x"), Err(UrlError::Query("passwort".to_owned())));
        for name in ["%mine".to_owned(), "a\0CHAP_A=5%mine".to_owned(), "x".repeat(256) + "%mine"] {
            assert!(matches!(Chap::parse(&name).identity(), Err(UrlError::User(_))), "{name:?}");
        }
    }

    #[test]
    fn every_login_has_a_challenge_of_its_own() {
        let mut chap = Chap::parse("me%mine");
        chap.parse_query("target_user=box&target_password=its").unwrap();
        let identity = chap.identity().unwrap().unwrap();
        let challenge = || identity.authentication(&Algorithm::ALL).target.unwrap().challenge;
        assert_ne!(challenge().bytes, challenge().bytes);
    }
}
