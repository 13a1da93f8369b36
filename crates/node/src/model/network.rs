//! Networks: ranges of addresses with a common prefix.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::text::written_as_text;

/// All addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    /// Length of the prefix in bits.
    length: u8,
}

impl Network {
    /// Returns whether the address is in the network. An IPv4-mapped IPv6 address counts as its IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.first.is_ipv4() && masked(address, self.length) == self.first
    }
}

/// Displays the network in the form of the configuration.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.length) {
            (IpAddr::V4(address), 32) => write!(f, "{address}"),
            (IpAddr::V6(address), 128) => write!(f, "{address}"),
            (first, length) => write!(f, "{first}/{length}"),
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_network(text)
    }
}

written_as_text!(Network);

/// Clears all bits of the address beyond the first `length`.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

/// Parses `10.0.0.0/8`, `2001:db8::/32`, or one address.
pub fn parse_network(text: &str) -> Result<Network, String> {
    let form =
        || format!("{text:?} is not a network: write 10.0.0.0/8, 2001:db8::/32 or one address");
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| form())?;
    if address.to_canonical() != address {
        return Err(format!("{text:?}: write this address as IPv4: {}", address.to_canonical()));
    }
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(length) => length.parse().ok().filter(|length| *length <= bits).ok_or_else(form)?,
        None => bits,
    };
    let network = Network { first: masked(address, length), length };
    if network.first == address {
        Ok(network)
    } else {
        Err(format!("{text:?} has bits after the prefix; write {network}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
            ("fe80::1/128", "fe80::1", "fe80::2"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
        ] {
            let parsed = parse_network(network).expect(network);
            assert!(parsed.contains(inside.parse().expect(inside)), "{network} {inside}");
            assert!(!parsed.contains(outside.parse().expect(outside)), "{network} {outside}");
            assert_eq!(parse_network(&parsed.to_string()), Ok(parsed));
        }
    }

    #[test]
    fn invalid_network_is_reported_with_remedy() {
        for (text, reported) in [
            ("10.0.0.0/33", "is not a network: write 10.0.0.0/8"),
            ("::/129", "is not a network"),
            ("10.0.0/8", "is not a network"),
            ("10.0.0.0/", "is not a network"),
            ("10.0.0.0/-1", "is not a network"),
            ("host", "is not a network"),
            ("10.0.0.1/8", "has bits after the prefix; write 10.0.0.0/8"),
            ("::ffff:10.0.0.1", "write this address as IPv4: 10.0.0.1"),
        ] {
            let message = parse_network(text).expect_err(text);
            assert!(message.contains(reported), "{message}");
        }
    }
}
