//! SendTargets (RFC 7143 appendix C).

use sarsen_proto::iscsi::initiator::{ConnectionError, Event, SessionTarget};
use sarsen_wire::iscsi::text;

use crate::error::SessionError;
use crate::establish::{Established, establish, in_time, spawn};
use crate::instance::{Instance, State};
use crate::options::SessionOptions;
use crate::url::Portal;

/// A target that a portal reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// iSCSI name.
    pub name: String,
    /// `address:port,portal group tag`, as the target reports them; none means the portal that was queried.
    pub addresses: Vec<String>,
}

/// Asks a portal for the targets that this initiator may use, as the user of the options if there is one.
pub async fn discover(
    portal: &Portal,
    options: &SessionOptions,
) -> Result<Vec<DiscoveredTarget>, SessionError> {
    let (identity, limit) = (options.identity.as_ref(), options.answer_limit);
    let portals = std::slice::from_ref(portal);
    let Established { link, machine, portal, .. } =
        establish(portals, &SessionTarget::Discovery, options, identity).await?;
    let live = spawn(link, machine, portal.clone(), 0);
    let instance = &live.instance;
    let result = in_time(&portal, limit, send_targets(instance)).await;
    if result.is_ok() {
        // The answer is complete: an error at the logout does not matter.
        let _ = in_time(&portal, limit, instance.leave()).await;
    }
    result
}

/// Sends SendTargets in a discovery session.
pub(crate) async fn send_targets(
    instance: &Instance,
) -> Result<Vec<DiscoveredTarget>, SessionError> {
    let token = instance.token();
    let send = |state: &mut State| state.machine.text(b"SendTargets=All\0", token);
    match instance.wait_for_event(token, send).await? {
        Event::TextDone { text, .. } => targets(&text),
        Event::Rejected { reason, .. } => Err(SessionError::Rejected(reason)),
        _ => Err(SessionError::Aborted),
    }
}

fn targets(answer: &[u8]) -> Result<Vec<DiscoveredTarget>, SessionError> {
    let malformed = || SessionError::MalformedAnswer { command: "SendTargets" };
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    for pair in text::pairs(answer) {
        let (key, value) = pair.map_err(ConnectionError::from)?;
        // No name or address has control characters, and a terminal would interpret them.
        if value.contains(char::is_control) {
            return Err(malformed());
        }
        match (key, value) {
            ("TargetName", name) => {
                targets.push(DiscoveredTarget { name: name.to_owned(), addresses: Vec::new() });
            }
            ("TargetAddress", address) => match targets.last_mut() {
                Some(target) => target.addresses.push(address.to_owned()),
                None => return Err(malformed()),
            },
            _ => {}
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_appendix_c_addresses_belong_to_the_name_before_them() {
        let answer =
            b"TargetName=iqn.a\0TargetAddress=1.2.3.4:3260,1\0TargetAddress=[::1]:3260,1\0\
            TargetName=iqn.b\0";
        let found = targets(answer).unwrap();
        assert_eq!(found[0].addresses, ["1.2.3.4:3260,1", "[::1]:3260,1"]);
        assert_eq!((found[1].name.as_str(), found[1].addresses.len()), ("iqn.b", 0));
        assert!(targets(b"TargetAddress=1.2.3.4:3260,1\0").is_err());
    }

    #[test]
    fn names_that_a_terminal_would_obey_are_refused() {
        assert!(targets(b"TargetName=iqn.a\x1b[2J\0").is_err());
        assert!(targets(b"TargetName=iqn.a\0TargetAddress=box\r\n:3260,1\0").is_err());
    }
}
