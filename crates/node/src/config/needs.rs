//! The needs of targets: a portal in each group that they name, and a portal that asks clients for certificates where a
//! rule names a certificate. The server refuses a change that causes a new unmet need. A server with a state continues
//! when portals are missing, for example because a flag was removed.

use std::collections::BTreeSet;

use super::{Config, Invalid, Portal, TargetConfig, target_port_groups};
use crate::model::{Key, ObjectKind};

/// A need of a target that a portal has to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PortalRequirement {
    /// The portal is in this group.
    Group(u16),
    /// The portal asks clients for certificates.
    ClientCertificates,
}

/// A need of a target that no portal meets.
pub(crate) struct UnmetRequirement<'a> {
    pub(crate) target: &'a str,
    pub(crate) need: PortalRequirement,
    /// The field of the target that states the need.
    field: String,
    groups: String,
}

impl TargetConfig {
    /// Returns the portal groups that the target names.
    pub(super) fn named_groups(&self) -> impl Iterator<Item = u16> {
        let named = self.access.keys().copied().chain(self.preferred);
        named.chain(self.groups.iter().flatten().copied())
    }
}

impl Config {
    /// Returns the needs of targets in a finished configuration that no portal meets.
    pub(crate) fn unmet_needs(&self) -> impl Iterator<Item = UnmetRequirement<'_>> {
        let groups = target_port_groups(&self.listen);
        let asks = |portal: &Portal| portal.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let asks = self.listen.iter().any(asks);
        self.targets.iter().flat_map(move |target| {
            let name = target.name.as_str();
            let named: BTreeSet<u16> = target.named_groups().collect();
            let missing = named.difference(&groups);
            let of_group = |&group| UnmetRequirement {
                target: name,
                need: PortalRequirement::Group(group),
                field: String::new(),
                groups: groups.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
            };
            let rule = target.allow.iter().position(|rule| rule.certificate.is_some());
            let of_rule = |rule| UnmetRequirement {
                target: name,
                need: PortalRequirement::ClientCertificates,
                // The rules of hosts have other numbers here than in the document.
                field: if self.hosts.is_empty() {
                    format!("allow[{rule}].certificate")
                } else {
                    "allow".to_owned()
                },
                groups: String::new(),
            };
            let rule = rule.filter(|_| !asks).map(of_rule);
            missing.map(of_group).chain(rule).collect::<Vec<_>>()
        })
    }
}

impl UnmetRequirement<'_> {
    /// Returns the problem and its remedy.
    pub(crate) fn message(&self) -> String {
        match self.need {
            PortalRequirement::Group(group) => format!(
                "no portal is in group {group} (groups: {}): put one there, such as listen = \
                 [\"0.0.0.0:3260,{group}\"], or sarsen portal create ADDRESS --group {group}",
                self.groups
            ),
            PortalRequirement::ClientCertificates => {
                "certificate: no portal asks clients for one; set tls with client-ca on a portal"
                    .into()
            }
        }
    }

    /// Returns the same text, with the target.
    pub(crate) fn invalid(self) -> Invalid {
        let message = match self.need {
            PortalRequirement::Group(_) => format!("target {}: {}", self.target, self.message()),
            PortalRequirement::ClientCertificates => self.message(),
        };
        Invalid::new(Key::new(ObjectKind::Target, self.target), self.field, message)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse_file;
    use super::*;

    const TARGETS: &str = "[[target]]\nname = \"iqn.2026-11.x:a\"\ngroups = [1, 2]\npreferred = 2\n\
        [[target]]\nname = \"iqn.2026-11.x:b\"\nallow = [{ certificate = \"x\" }]\n\
        [[target]]\nname = \"iqn.2026-11.x:c\"\n";

    fn parsed(listen: &str) -> Config {
        let text = format!("{TARGETS}[[portal]]\naddress = \"127.0.0.1:0\"\n{listen}");
        parse_file(Path::new("s.toml"), &text).expect("it can be read")
    }

    #[test]
    fn unknown_portal_group_is_refused() {
        let all =
            BTreeSet::from([PortalRequirement::Group(2), PortalRequirement::ClientCertificates]);
        let finished = parsed("").finish_with(Some(&all)).expect("all of it is known");
        let found: Vec<_> = finished.unmet_needs().map(|one| (one.target, one.need)).collect();
        let expected = [
            ("iqn.2026-11.x:a", PortalRequirement::Group(2)),
            ("iqn.2026-11.x:b", PortalRequirement::ClientCertificates),
        ];
        assert_eq!(found, expected);
        assert!(parsed("").finish_with(None).is_ok());
        for (known, reported) in [
            (
                PortalRequirement::Group(2),
                "iqn.2026-11.x:b.allow[0].certificate: certificate: no portal asks clients",
            ),
            (
                PortalRequirement::ClientCertificates,
                "target iqn.2026-11.x:a: no portal is in group 2 (groups: 1)",
            ),
        ] {
            let refused = parsed("").finish_with(Some(&[known].into())).expect_err(reported);
            assert!(refused.to_string().contains(reported), "{refused}");
        }
        let both = "group = 2\ntls = { certificate = \"c\", key = \"k\", client-ca = \"a\" }\n";
        let refused = parsed(both).finish_managed().expect_err("group 1 is gone");
        assert!(refused.to_string().contains("no portal is in group 1"), "{refused}");
    }
}
