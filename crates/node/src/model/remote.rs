//! URLs of remote logical units, without secrets: users in them are names of accounts.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use sarsen_initiator::{Chap, Portal, Url};

use super::text::written_as_text;

/// The URL of a remote logical unit. Its user, and its `target_user`, are names of accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    text: String,
    url: Url,
}

impl RemoteUrl {
    /// Returns the URL without the secrets of its users.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Returns the unit at each portal, as a text that is the same one for the same unit there.
    pub(crate) fn places(&self) -> impl Iterator<Item = String> {
        let Url { portals, target, lun, .. } = &self.url;
        portals.iter().map(move |portal| format!("iscsi://{portal}/{target}/{lun}"))
    }

    /// Returns its text.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the names of the accounts.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &str> {
        let chap = &self.url.chap;
        chap.user.iter().chain(&chap.target_user).map(String::as_str)
    }

    /// Replaces the name of an account, if the URL can have the new one there and stays the same otherwise.
    pub(crate) fn rename_account(&mut self, old: &str, new: &str) {
        let (scheme, rest) = self.text.split_once("://").unwrap_or_default();
        let rest = match rest.strip_prefix(old).and_then(|rest| rest.strip_prefix('@')) {
            Some(rest) => format!("{new}@{rest}"),
            None => rest.to_owned(),
        };
        let (place, query) = rest.split_once('?').unwrap_or((&rest, ""));
        let renamed = |pair: &str| match pair {
            pair if pair == format!("target_user={old}") => format!("target_user={new}"),
            pair => pair.to_owned(),
        };
        let query: Vec<String> = query.split('&').map(renamed).collect();
        let mark = if rest.contains('?') { "?" } else { "" };
        let Ok(renamed) = format!("{scheme}://{place}{mark}{}", query.join("&")).parse::<Self>()
        else {
            return;
        };
        let mut expected = self.url.clone();
        let Chap { user, target_user, .. } = &mut expected.chap;
        for name in [user, target_user].into_iter().flatten().filter(|name| *name == old) {
            new.clone_into(name);
        }
        // A name could contain what looks like another server.
        if renamed.url == expected {
            *self = renamed;
        }
    }

    /// Returns the URL with more portals, in the form of [`sarsen_initiator::Portal`]'s text. Its own text stays.
    pub(crate) fn with_portals(&self, portals: &[String]) -> Self {
        let mut url = self.url.clone();
        let tls = url.portal().tls.clone();
        for portal in portals.iter().filter_map(|portal| portal.parse::<Portal>().ok()) {
            let portal = Portal { tls: tls.clone(), ..portal };
            if !url.portals.contains(&portal) {
                url.portals.push(portal);
            }
        }
        Self { text: self.text.clone(), url }
    }

    /// Returns whether both lead to the same unit, through the same portals: only the accounts may differ.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        let place = |url: &Url| Url { chap: Chap::default(), ..url.clone() };
        place(&self.url) == place(&other.url)
    }
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for RemoteUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url: Url = text.parse().map_err(|error| {
            format!("{error}; a remote volume is iscsi://[ACCOUNT@]HOST[:PORT][,HOST[:PORT]...]/TARGET/LUN")
        })?;
        if url.chap.secret.is_some() || url.chap.target_secret.is_some() {
            return Err("a URL in a configuration has no secret: write iscsi://ACCOUNT@HOST/TARGET/LUN, and \
                        create the account with its secret"
                .to_owned());
        }
        Ok(Self { text: text.to_owned(), url })
    }
}

written_as_text!(RemoteUrl);

/// Returns the URL that a device of a pool has in the place of a path, or why it is none; `None` for a path.
pub(crate) fn remote_device(device: &Path) -> Option<Result<RemoteUrl, String>> {
    let text = device.to_str()?;
    ["iscsi://", "iscsis://"].iter().any(|scheme| text.starts_with(scheme)).then(|| text.parse())
}

/// Returns whether two devices of pools are one: they have one path, or a portal and a unit there in common.
pub(crate) fn is_same_device(one: &Path, other: &Path) -> bool {
    if one == other {
        return true;
    }
    let (Some(Ok(one)), Some(Ok(other))) = (remote_device(one), remote_device(other)) else {
        return false;
    };
    one.places().any(|place| other.places().any(|other| place == other))
}

/// Returns whether a device of a pool is an absolute path or a URL.
pub(crate) fn is_device_path(device: &Path) -> bool {
    device.is_absolute() || remote_device(device).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_refused_and_not_shown() {
        for text in [
            "iscsi://me%verysecret12@h/iqn.2026-01.x:a/0",
            "iscsi://me@h/iqn.2026-01.x:a/0?target_password=verysecret12",
        ] {
            let error = text.parse::<RemoteUrl>().expect_err(text);
            assert!(error.contains("no secret") && !error.contains("verysecret12"), "{error}");
        }
    }

    #[test]
    fn further_portals_are_added_once_and_not_shown() {
        let text = "iscsi://192.0.2.1/iqn.2026-01.x:a/0";
        let url: RemoteUrl = text.parse().expect("valid");
        let portals = ["192.0.2.1:3260", "[2001:db8::1]:3261"].map(str::to_owned);
        let more = url.with_portals(&portals);
        assert_eq!(more.to_string(), text);
        assert_eq!(more.url().portals.iter().map(ToString::to_string).collect::<Vec<_>>(), portals);
        assert_eq!(url.with_portals(&[]), url);
    }

    #[test]
    fn users_are_accounts_that_can_be_renamed() {
        let text = "iscsi://me@h,[::1]:3261/iqn.2026-01.x:a/0?target_user=it";
        let mut url: RemoteUrl = text.parse().expect("valid");
        assert_eq!(url.accounts().collect::<Vec<_>>(), ["me", "it"]);
        url.rename_account("h", "x");
        url.rename_account("m", "x");
        assert_eq!(url.to_string(), text);
        url.rename_account("me", "you");
        url.rename_account("it", "them");
        assert_eq!(url.to_string(), "iscsi://you@h,[::1]:3261/iqn.2026-01.x:a/0?target_user=them");
        for other in ["a/b", "a%b", "u@evil/iqn.2026-01.x:t/0?target_user="] {
            url.rename_account("you", other);
            assert_eq!(url.accounts().next(), Some("you"), "no URL can have {other} there");
        }
        assert!(url.is_same_place(&text.parse().expect("valid")), "only the accounts differ");
        let mut plain: RemoteUrl = "iscsi://h/iqn.2026-01.x:a/0".parse().expect("valid");
        plain.rename_account("me", "you");
        assert_eq!(
            (plain.to_string().as_str(), plain.accounts().count()),
            ("iscsi://h/iqn.2026-01.x:a/0", 0)
        );
    }
}
