//! The portals of a set.

use std::net::SocketAddr;

use crate::discovery::discover;
use crate::options::SessionOptions;
use crate::url::{Portal, Url};
use crate::url_error::PORTAL_LIMIT;

/// Returns the portals of a URL. If it names one, those that the target reports there follow, unless the options forbid that.
pub(super) async fn portals(url: &Url, options: &SessionOptions) -> Vec<Portal> {
    let mut portals = url.portals.clone();
    if portals.len() > 1 || !options.discovers_portals {
        return portals;
    }
    let own = url.portal();
    let Ok(identity) = url.chap.identity() else { return portals };
    let options = SessionOptions {
        identity: identity.or_else(|| options.identity.clone()),
        ..options.clone()
    };
    let mut found = discover(own, &options).await;
    // Many targets have accounts for their units alone. Who must prove itself is not asked without a proof.
    if found.is_err() && options.identity.as_ref().is_some_and(|user| user.target.is_none()) {
        found = discover(own, &SessionOptions { identity: None, ..options }).await;
    }
    let targets = match found {
        Ok(targets) => targets,
        Err(error) => {
            tracing::info!(portal = %own, %error, "no further portals are known: the discovery failed");
            return portals;
        }
    };
    let resolved: Vec<SocketAddr> =
        match tokio::net::lookup_host((own.host.as_str(), own.port)).await {
            Ok(addresses) => addresses.collect(),
            Err(_) => return portals,
        };
    let reported = targets.iter().filter(|target| target.name == url.target);
    for address in reported.flat_map(|target| &target.addresses) {
        let Some(portal) = reported_portal(address, own) else { continue };
        let is_own = || match portal.host.parse() {
            Ok(ip) => resolved.contains(&SocketAddr::new(ip, portal.port)),
            Err(_) => false,
        };
        if portals.len() < PORTAL_LIMIT && !portals.contains(&portal) && !is_own() {
            portals.push(portal);
        }
    }
    portals
}

/// Returns the portal of a TargetAddress: `address:port,portal group tag`.
fn reported_portal(address: &str, own: &Portal) -> Option<Portal> {
    let place = address.split(',').next()?;
    let portal: Portal = place.parse().ok()?;
    let is_unspecified =
        portal.host.parse().is_ok_and(|address: std::net::IpAddr| address.is_unspecified());
    (!is_unspecified).then(|| Portal { tls: own.tls.clone(), ..portal })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_13_8_the_tag_of_the_group_is_not_a_part_of_the_address() {
        let own: Portal = "box".parse().unwrap();
        let portal = |address| reported_portal(address, &own).map(|portal| portal.to_string());
        assert_eq!(portal("192.0.2.1:3261,1").as_deref(), Some("192.0.2.1:3261"));
        assert_eq!(portal("[2001:db8::1]:3260,2").as_deref(), Some("[2001:db8::1]:3260"));
        assert_eq!(portal("san.example").as_deref(), Some("san.example:3260"));
        assert_eq!(portal("0.0.0.0:3260,1"), None, "an address of no machine");
        assert_eq!(portal("[::]:3260,1"), None);
        assert_eq!(portal(""), None);
    }
}
