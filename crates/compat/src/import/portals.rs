//! Converts the portal groups of several targets into portals of the server. In sarsen, a portal is in one group, and
//! targets select among the groups.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use sarsen_node::model::GroupTag;
use sarsen_node::model::document::Portal;

/// A target, and the tag of one of its own portal groups.
pub(super) type GroupPath = (usize, u16);

/// The targets that are reachable at each address.
#[derive(Default)]
pub(super) struct TargetAddresses {
    by_address: BTreeMap<SocketAddr, BTreeSet<GroupPath>>,
}

/// The converted portals.
pub(super) struct Assigned {
    /// The server's portals.
    pub(super) portals: Vec<Portal>,
    /// The portal groups of the server for each own group of a target.
    pub(super) groups: BTreeMap<GroupPath, BTreeSet<u16>>,
}

impl TargetAddresses {
    /// Adds an address at which a target is reachable in one of its groups.
    pub(super) fn add(&mut self, address: SocketAddr, path: GroupPath) {
        self.by_address.entry(address).or_default().insert(path);
    }

    /// Returns whether no target has an address.
    pub(super) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// Converts the addresses. Addresses with the same targets become one group. It keeps its tag if possible; the
    /// group with the most targets has precedence.
    pub(super) fn assign(self) -> Assigned {
        let mut alike: BTreeMap<BTreeSet<GroupPath>, Vec<SocketAddr>> = BTreeMap::new();
        for (address, paths) in self.by_address {
            alike.entry(paths).or_default().push(address);
        }
        let wished =
            |paths: &BTreeSet<GroupPath>| paths.iter().map(|(_, tag)| *tag).min().unwrap_or(1);
        let mut alike: Vec<_> = alike.into_iter().collect();
        alike.sort_by_key(|(paths, _)| (wished(paths), Reverse(paths.len())));
        let (mut portals, mut groups, mut taken) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        for (paths, addresses) in alike {
            let wish = wished(&paths).max(1);
            let free = [wish].into_iter().chain(1..).find(|tag| taken.insert(*tag));
            let Some(group) = free else { break };
            for path in paths {
                groups.entry(path).or_insert_with(BTreeSet::new).insert(group);
            }
            let tag = GroupTag::new(group.into()).filter(|_| group != 1);
            portals.extend(addresses.iter().map(|address| Portal {
                protocol: None,
                address: (*address).into(),
                group: tag,
                tls: None,
            }));
        }
        Assigned { portals, groups }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: u8) -> SocketAddr {
        ([10, 0, 0, host], 3260).into()
    }

    #[test]
    fn groups_keep_their_tags_where_all_targets_agree() {
        let mut added = TargetAddresses::default();
        for target in 0..2 {
            added.add(address(1), (target, 1));
            added.add(address(2), (target, 7));
        }
        let assigned = added.assign();
        let tags: Vec<_> = assigned.portals.iter().map(Portal::group).collect();
        assert_eq!(tags, [1, 7]);
        assert_eq!(assigned.groups[&(1, 7)], BTreeSet::from([7]));
    }

    #[test]
    fn one_tag_for_different_addresses_becomes_groups_of_their_own() {
        let mut added = TargetAddresses::default();
        added.add(address(1), (0, 1));
        added.add(address(1), (1, 1));
        added.add(address(2), (1, 1));
        let assigned = added.assign();
        assert_eq!(assigned.portals.len(), 2);
        assert_eq!(assigned.groups[&(0, 1)].len(), 1);
        assert_eq!(assigned.groups[&(1, 1)], BTreeSet::from([1, 2]));
    }
}
