//! URLs of remote disks: logical units of iSCSI targets, and exports of NBD servers. They have no secrets: users in them are names of
//! accounts.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use sarsen_initiator::nbd::{NbdPlace, NbdUrl};
use sarsen_initiator::{Chap, Portal, Url};

use super::text::written_as_text;

/// What begins the URL of a remote disk.
const SCHEMES: &[&str] = &["iscsi://", "iscsis://", "nbd://", "nbds://", "nbd+unix://"];

/// The URL of a remote disk. Its user, and its `target_user`, are names of accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteUrl {
    text: String,
    place: RemotePlace,
}

/// Where a remote disk is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemotePlace {
    /// A logical unit, without the secrets of its users.
    Iscsi(Url),
    /// An export.
    Nbd(NbdUrl),
}

impl RemoteUrl {
    /// Returns where the disk is.
    pub fn place(&self) -> &RemotePlace {
        &self.place
    }

    /// Returns the URL of a logical unit, if it is one.
    pub fn iscsi(&self) -> Option<&Url> {
        match &self.place {
            RemotePlace::Iscsi(url) => Some(url),
            RemotePlace::Nbd(_) => None,
        }
    }

    /// Returns the disk at each portal, as a text that is the same one for the same disk there.
    pub(crate) fn places(&self) -> Vec<String> {
        match &self.place {
            RemotePlace::Iscsi(Url { portals, target, lun, .. }) => {
                let place = |portal: &Portal| format!("iscsi://{portal}/{target}/{lun}");
                portals.iter().map(place).collect()
            }
            RemotePlace::Nbd(url) => {
                let mut url = url.clone();
                if let NbdPlace::Host(portal) = &mut url.place {
                    portal.tls = None;
                }
                vec![url.to_string()]
            }
        }
    }

    /// Returns the name of the disk at its server: the same one through every portal.
    pub(crate) fn disk_name(&self) -> String {
        match &self.place {
            RemotePlace::Iscsi(Url { target, lun, .. }) => format!("{target}/{lun}"),
            RemotePlace::Nbd(url) => url.export.clone(),
        }
    }

    /// Returns its text.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the names of the accounts.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &str> {
        let chap = self.iscsi().map(|url| &url.chap);
        let users = chap.into_iter().flat_map(|chap| chap.user.iter().chain(&chap.target_user));
        users.map(String::as_str)
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
        let mut expected = self.place.clone();
        if let RemotePlace::Iscsi(Url { chap: Chap { user, target_user, .. }, .. }) = &mut expected
        {
            for name in [user, target_user].into_iter().flatten().filter(|name| *name == old) {
                new.clone_into(name);
            }
        }
        // A name could contain what looks like another server.
        if renamed.place == expected {
            *self = renamed;
        }
    }

    /// Returns the URL with more portals, in the form of [`sarsen_initiator::Portal`]'s text. Its own text stays.
    pub(crate) fn with_portals(&self, portals: &[String]) -> Self {
        let RemotePlace::Iscsi(url) = &self.place else { return self.clone() };
        let mut url = url.clone();
        let tls = url.portal().tls.clone();
        for portal in portals.iter().filter_map(|portal| portal.parse::<Portal>().ok()) {
            let portal = Portal { tls: tls.clone(), ..portal };
            if !url.portals.contains(&portal) {
                url.portals.push(portal);
            }
        }
        Self { text: self.text.clone(), place: RemotePlace::Iscsi(url) }
    }

    /// Returns whether both lead to the same unit, through the same portals: only the accounts may differ.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        match (&self.place, &other.place) {
            (RemotePlace::Iscsi(one), RemotePlace::Iscsi(other)) => {
                let place = |url: &Url| Url { chap: Chap::default(), ..url.clone() };
                place(one) == place(other)
            }
            (one, other) => one == other,
        }
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
        if text.starts_with("nbd") {
            let url: NbdUrl = text.parse().map_err(|error| format!("{error}"))?;
            if let NbdPlace::Socket(path) = &url.place
                && !path.is_absolute()
            {
                return Err(format!(
                    "the path of the socket must be absolute, and {} is not",
                    path.display()
                ));
            }
            return Ok(Self { text: text.to_owned(), place: RemotePlace::Nbd(url) });
        }
        let url: Url = text.parse().map_err(|error| {
            format!(
                "{error}; a remote volume is iscsi://[ACCOUNT@]HOST[:PORT][,HOST[:PORT]...]/TARGET/LUN or \
                 nbd://HOST[:PORT]/EXPORT"
            )
        })?;
        if url.chap.secret.is_some() || url.chap.target_secret.is_some() {
            return Err("a URL in a configuration has no secret: write iscsi://ACCOUNT@HOST/TARGET/LUN, and \
                        create the account with its secret"
                .to_owned());
        }
        Ok(Self { text: text.to_owned(), place: RemotePlace::Iscsi(url) })
    }
}

written_as_text!(RemoteUrl);

/// Returns the URL that a device of a pool has in the place of a path, or why it is none; `None` for a path.
pub(crate) fn remote_device(device: &Path) -> Option<Result<RemoteUrl, String>> {
    let text = device.to_str()?;
    SCHEMES.iter().any(|scheme| text.starts_with(scheme)).then(|| text.parse())
}

/// Returns whether two devices of pools are one: they have one path, or a portal and a unit there in common.
pub(crate) fn is_same_device(one: &Path, other: &Path) -> bool {
    if one == other {
        return true;
    }
    let (Some(Ok(one)), Some(Ok(other))) = (remote_device(one), remote_device(other)) else {
        return false;
    };
    one.places().iter().any(|place| other.places().contains(place))
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
        let known = more.iscsi().map(|url| &url.portals).into_iter().flatten();
        assert_eq!(known.map(ToString::to_string).collect::<Vec<_>>(), portals);
        assert_eq!(url.with_portals(&[]), url);
    }

    #[test]
    fn an_export_is_one_device_with_and_without_tls() {
        let device = |text: &str| Path::new(text).to_owned();
        for (one, other, is_same) in [
            ("nbd://h/x", "nbds://h:10809/x?ca=/ca.pem", true),
            ("nbd://h/x", "nbd://h/y", false),
            ("nbd://h/x", "iscsi://h:10809/x/0", false),
            ("nbd+unix:///x?socket=/s", "nbd+unix:///x?socket=%2Fs", true),
        ] {
            assert_eq!(is_same_device(&device(one), &device(other)), is_same, "{one} {other}");
        }
        let mut url: RemoteUrl = "nbd://h/x".parse().expect("valid");
        url.rename_account("h", "x");
        assert_eq!((url.to_string().as_str(), url.accounts().count()), ("nbd://h/x", 0));
        assert!(url.is_same_place(&"nbd://h:10809/x".parse().expect("valid")));
        for text in ["nbdx://h/x", "nbd+unix:///x?socket=s"] {
            assert!(text.parse::<RemoteUrl>().is_err(), "{text}");
        }
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
