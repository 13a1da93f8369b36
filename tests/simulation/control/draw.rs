//! Draws the login attempts of initiators: most of them permitted by the document, and many of them not.

use sarsen_block::Rng;
use sarsen_node::model::Document;

use super::document::{ACCOUNTS, ADDRESSES, INITIATORS, OWN_ACCOUNTS, PORTALS, TARGETS, one_of};
use super::rules::{Attempt, Credentials};

/// Returns an account with its secret, or with a wrong secret.
fn credentials(rng: &mut Rng, document: &Document, name: &str, right_percent: u32) -> Credentials {
    let account = document.account.iter().find(|account| account.name == name);
    let secret = account.and_then(|account| account.secret.as_ref()).map(|secret| secret.0.clone());
    let wrong = format!("{:016x} is wrong", rng.bits());
    let secret = secret.filter(|_| rng.chance(right_percent)).unwrap_or(wrong);
    Credentials { name: name.to_owned(), secret }
}

/// Draws an attempt to log in to a server with this document.
pub(super) fn attempt(rng: &mut Rng, document: &Document) -> Attempt {
    let target = match rng.below(100) {
        0..25 => None,
        25..32 => Some((*one_of(rng, &TARGETS)).to_owned()),
        _ => Some(one_of(rng, &document.target).name.clone()),
    };
    let found = document.target.iter().find(|one| Some(&one.name) == target.as_ref());
    let discovery = document.discovery.as_ref().filter(|_| target.is_none());
    let none = (&[] as &[String], None);
    let (chap, own) = match (found, discovery) {
        (Some(one), _) => (&*one.chap, one.own_account.as_deref()),
        (_, Some(one)) => (&*one.chap, one.own_account.as_deref()),
        _ => none,
    };
    let mut proof = None;
    if rng.chance(if chap.is_empty() { 10 } else { 80 }) {
        let name = match chap.is_empty() || rng.chance(20) {
            true if rng.chance(25) => (*one_of(rng, &OWN_ACCOUNTS)).to_owned(),
            true => (*one_of(rng, &ACCOUNTS)).to_owned(),
            false => one_of(rng, chap).clone(),
        };
        proof = Some(credentials(rng, document, &name, 85));
    }
    let mut expects = None;
    if proof.is_some() && rng.chance(if own.is_some() { 50 } else { 10 }) {
        let name = match own {
            Some(own) if rng.chance(85) => own,
            _ => one_of(rng, &OWN_ACCOUNTS),
        };
        // RFC 7143 §9.2.1: an initiator does not use the same secret for both directions.
        let expected = credentials(rng, document, name, 80);
        expects =
            Some(expected).filter(|one| proof.as_ref().is_some_and(|own| own.secret != one.secret));
    }
    Attempt {
        initiator: (*one_of(rng, &INITIATORS)).to_owned(),
        address: one_of(rng, &ADDRESSES).parse().expect("an address"),
        portal: rng.below(PORTALS.len() as u64) as usize,
        target,
        proof,
        expects,
    }
}
