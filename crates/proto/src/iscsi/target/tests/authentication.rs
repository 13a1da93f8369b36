//! Tests of CHAP with scripted initiators.

use super::*;
use crate::iscsi::chap::{self, Challenge};

pub(super) const ACCOUNT: (&str, &str) = ("host", "the host's secret");
const OTHER: (&str, &str) = ("guest", "the guest's secret");
pub(super) const OWN: (&str, &str) = ("box", "the box's own secret");

/// T, with the current stage security and the next stage operational.
const TO_OPERATIONAL: u8 = 0x81;
const TO_FULL_FEATURE: u8 = 0x83;

/// The accounts that the test environment has, and the calls that it received.
pub(super) struct Security {
    pub(super) requirement: AuthRequirement,
    pub(super) alias: Option<String>,
    accounts: Vec<(&'static str, &'static str)>,
    pub(super) own: Option<(&'static str, &'static str)>,
    refusal: Option<RefusalReason>,
    /// The accounts in the calls of [`Environment::authorize`].
    pub(super) asked: Vec<Option<String>>,
    /// Number of calls of [`Self::fill_random`].
    random: u8,
}

impl Default for Security {
    fn default() -> Self {
        Self {
            requirement: AuthRequirement::Nothing,
            alias: None,
            accounts: vec![ACCOUNT, OTHER],
            own: Some(OWN),
            refusal: None,
            asked: Vec::new(),
            random: 0,
        }
    }
}

impl Security {
    pub(super) fn secret_of(&mut self, admission: &Admission, account: &str) -> Option<Secret> {
        assert_eq!(admission.account, None, "not proven yet");
        let found = self.accounts.iter().find(|(name, _)| *name == account);
        found.map(|(_, secret)| Secret((*secret).to_owned()))
    }

    pub(super) fn own_credentials(&mut self, admission: &Admission) -> Option<Credentials> {
        assert!(admission.account.is_some(), "strangers are proven nothing");
        self.own.map(|(name, secret)| Credentials {
            name: name.to_owned(),
            secret: Secret(secret.to_owned()),
        })
    }

    pub(super) fn authorize(
        &mut self,
        _: &Admission,
        account: Option<&str>,
    ) -> Result<(), Refusal> {
        self.asked.push(account.map(str::to_owned));
        self.refusal.map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Fills `bytes` with a different value in each call.
    pub(super) fn fill_random(&mut self, bytes: &mut [u8]) {
        self.random = self.random.wrapping_add(1);
        bytes.fill(self.random);
    }
}

pub(super) fn demanding(algorithms: &[Algorithm]) -> Script {
    let mut script = Script::new();
    script.world.security.requirement = AuthRequirement::Chap(algorithms.to_vec());
    script
}

fn identity() -> String {
    format!("InitiatorName=iqn.2026-11.test:x\0TargetName={TARGET}\0")
}

/// Returns the flags and the text of a login response that is not a refusal.
fn answer(script: &mut Script) -> (u8, String) {
    let (header, text) = script.next();
    let response = LoginResponse::view(&header);
    assert_eq!(response.status(), LoginStatus::Success, "{:?}", script.connection.closing());
    (response.flags, String::from_utf8(text).expect("text"))
}

/// Returns the reason why the login was refused. The response contains only its status.
fn refusal(script: &mut Script) -> RefusalReason {
    assert!(script.connection.poll_event().is_none(), "no session");
    let (header, text) = script.next();
    assert!(text.is_empty());
    let Some(CloseReason::LoginRefused(refusal)) = script.connection.closing() else {
        panic!("the login is not over");
    };
    assert_eq!(LoginResponse::view(&header).status(), refusal.reason.status());
    refusal.reason
}

/// Returns the value of a key.
fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let mut pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == key).unwrap_or_else(|| panic!("no {key} in {text:?}")).1
}

/// Logs in up to the challenge. Returns the challenge.
fn challenged(script: &mut Script, list: &str) -> (Algorithm, Challenge) {
    script.login(0, &format!("{}AuthMethod=CHAP,None\0", identity()));
    let wanted = "TargetPortalGroupTag=1\0AuthMethod=CHAP\0".to_owned();
    assert_eq!(answer(script), (0, wanted));
    script.login(0, &format!("CHAP_A={list}\0"));
    let (flags, text) = answer(script);
    assert_eq!(flags, 0);
    parse_challenge(&text)
}

fn parse_challenge(text: &str) -> (Algorithm, Challenge) {
    let algorithm = Algorithm::parse(value(text, "CHAP_A")).expect("an algorithm");
    let identifier = value(text, "CHAP_I").parse().expect("a byte");
    let bytes = chap::decode(value(text, "CHAP_C")).expect("bytes");
    (algorithm, Challenge { identifier, bytes })
}

fn proof((algorithm, challenge): &(Algorithm, Challenge), (name, secret): (&str, &str)) -> String {
    let response = algorithm.response(challenge, &Secret(secret.to_owned()));
    format!("CHAP_N={name}\0CHAP_R={}\0", chap::encode(&response))
}

/// Returns CHAP_I and CHAP_C of the initiator's challenge.
fn counter(challenge: &Challenge) -> String {
    format!("CHAP_I={}\0CHAP_C={}\0", challenge.identifier, chap::encode(&challenge.bytes))
}

fn theirs() -> Challenge {
    Challenge { identifier: 200, bytes: b"what the initiator asks".to_vec() }
}

/// Checks that the session is established. Returns its admission.
fn established(script: &mut Script) -> Admission {
    let admission = match script.connection.poll_event() {
        Some(Event::Establish(admission)) => admission,
        other => panic!("{other:?}, {:?}", script.connection.closing()),
    };
    script.connection.establish(1);
    assert_eq!(answer(script).0 & 0x83, 0x83);
    admission
}

#[test]
fn rfc7143_12_1_3_each_algorithm_one_way() {
    for algorithm in Algorithm::ALL {
        let mut script = demanding(&Algorithm::ALL);
        script.world.security.alias = Some("a disk".to_owned());
        let asked = challenged(&mut script, &algorithm.number().to_string());
        assert_eq!(asked.0, algorithm);
        assert_eq!(asked.1.bytes.len(), chap::CHALLENGE_LENGTH);
        script.login(TO_OPERATIONAL, &proof(&asked, ACCOUNT));
        // The target reports its alias only after the initiator has authenticated.
        assert_eq!(answer(&mut script), (TO_OPERATIONAL, "TargetAlias=a disk\0".to_owned()));
        script.login(0x87, "MaxBurstLength=4096\0");
        let admission = established(&mut script);
        assert_eq!(admission.account.as_deref(), Some(ACCOUNT.0));
        assert_eq!(script.world.security.asked, [Some(ACCOUNT.0.to_owned())]);
    }
}

#[test]
fn rfc7143_12_1_3_each_algorithm_both_ways() {
    for algorithm in Algorithm::ALL {
        let mut script = demanding(&Algorithm::ALL);
        let asked = challenged(&mut script, &algorithm.number().to_string());
        script.login(TO_FULL_FEATURE, &(proof(&asked, ACCOUNT) + &counter(&theirs())));
        assert!(matches!(script.connection.poll_event(), Some(Event::Establish(_))));
        script.connection.establish(1);
        let wanted = proof(&(algorithm, theirs()), OWN);
        assert_eq!(answer(&mut script), (TO_FULL_FEATURE, wanted));
    }
}

#[test]
fn rfc7143_6_2_1_the_first_acceptable_algorithm_of_the_list_is_taken() {
    let acceptable = [Algorithm::Sha3, Algorithm::Sha256];
    for (list, wanted) in
        [("7,8", 7), ("8,7", 8), ("5,6,7", 7), ("x,,300,7,5", 7), ("0x8", 8), ("56,8", 8)]
    {
        let (algorithm, _) = challenged(&mut demanding(&acceptable), list);
        assert_eq!(algorithm.number(), wanted, "{list}");
    }
    for list in ["5", "5,6", "56", "none", "8.7", "-7"] {
        let mut script = demanding(&acceptable);
        script.login(0, &format!("{}AuthMethod=CHAP\0", identity()));
        answer(&mut script);
        script.login(0, &format!("CHAP_A={list}\0"));
        assert_eq!(refusal(&mut script), RefusalReason::NoCommonMethod, "{list}");
    }
}

#[test]
fn rfc7143_6_1_responses_and_challenges_may_be_base64() {
    let mut script = demanding(&[Algorithm::Md5]);
    let (algorithm, challenge) = challenged(&mut script, "5");
    let response = algorithm.response(&challenge, &Secret(ACCOUNT.1.to_owned()));
    let keys = format!("CHAP_N=host\0CHAP_R={}\0CHAP_I=0x7\0CHAP_C=0bCv8Q\0", base64(&response));
    script.login(TO_OPERATIONAL, &keys);
    let challenge = Challenge { identifier: 7, bytes: vec![0x0a, 0xff, 0x10] };
    assert_eq!(answer(&mut script).1, proof(&(algorithm, challenge), OWN));
}

fn base64(bytes: &[u8]) -> String {
    const MESSAGES: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let letter = |bits: u32| char::from(MESSAGES[(bits & 0x3f) as usize]);
    let mut text = "0b".to_owned();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, &byte| bits << 8 | u32::from(byte));
        let bits = bits << (8 * (3 - group.len()));
        text.extend((0..=group.len()).map(|i| letter(bits >> (18 - 6 * i))));
        text.extend(std::iter::repeat_n('=', 3 - group.len()));
    }
    text
}

#[test]
fn rfc7143_12_1_3_wrong_secrets_and_unknown_accounts_look_the_same() {
    for ((name, secret), reason) in [
        ((ACCOUNT.0, "another secret"), RefusalReason::WrongSecret),
        ((ACCOUNT.0, OTHER.1), RefusalReason::WrongSecret),
        ((ACCOUNT.0, ""), RefusalReason::WrongSecret),
        (("nobody", ACCOUNT.1), RefusalReason::UnknownAccount),
        (("Host", ACCOUNT.1), RefusalReason::UnknownAccount),
        (("host ", ACCOUNT.1), RefusalReason::UnknownAccount),
        // The target's own credentials are not an account.
        (OWN, RefusalReason::UnknownAccount),
    ] {
        let mut script = demanding(&Algorithm::ALL);
        let asked = challenged(&mut script, "7");
        script.login(TO_OPERATIONAL, &(proof(&asked, (name, secret)) + &counter(&theirs())));
        let made = script.world.security.random;
        assert_eq!(refusal(&mut script), reason, "{name}");
        assert_eq!(reason.status(), LoginStatus::AuthenticationFailure);
        assert_eq!(made, 2, "a challenge, and a secret of nobody's for everyone");
        assert!(script.world.security.asked.is_empty());
    }
}

#[test]
fn rfc7143_9_2_1_a_response_serves_one_challenge() {
    let mut script = demanding(&[Algorithm::Sha256]);
    let first = challenged(&mut script, "7");
    let recorded = proof(&first, ACCOUNT);
    let mut later = demanding(&[Algorithm::Sha256]);
    later.world.security.random = script.world.security.random;
    let second = challenged(&mut later, "7");
    assert_ne!(first.1, second.1);
    later.login(TO_OPERATIONAL, &recorded);
    assert_eq!(refusal(&mut later), RefusalReason::WrongSecret);
    // A response with missing or additional bytes is wrong, too.
    for change in [|bytes: &mut Vec<u8>| bytes.truncate(31), |bytes: &mut Vec<u8>| bytes.push(0)] {
        let mut script = demanding(&[Algorithm::Sha256]);
        let (algorithm, challenge) = challenged(&mut script, "7");
        let mut response = algorithm.response(&challenge, &Secret(ACCOUNT.1.to_owned()));
        change(&mut response);
        script.login(0, &format!("CHAP_N=host\0CHAP_R={}\0", chap::encode(&response)));
        assert_eq!(refusal(&mut script), RefusalReason::WrongSecret);
    }
}

#[test]
fn rfc7143_9_2_1_our_own_challenge_is_not_answered() {
    for secret in [ACCOUNT.1, "another secret"] {
        let mut script = demanding(&Algorithm::ALL);
        let asked = challenged(&mut script, "8");
        // The challenge is the same, although its identifier differs.
        let back = Challenge { identifier: 1, ..asked.1.clone() };
        script.login(TO_OPERATIONAL, &(proof(&asked, (ACCOUNT.0, secret)) + &counter(&back)));
        assert_eq!(refusal(&mut script), RefusalReason::ReflectedChallenge);
    }
}

#[test]
fn rfc7143_9_2_1_one_secret_does_not_serve_both_ways() {
    for (own, reason) in [
        (Some(("box", ACCOUNT.1)), RefusalReason::SameSecret),
        (None, RefusalReason::NoOwnCredentials),
    ] {
        let mut script = demanding(&Algorithm::ALL);
        script.world.security.own = own;
        let asked = challenged(&mut script, "7");
        script.login(TO_OPERATIONAL, &(proof(&asked, ACCOUNT) + &counter(&theirs())));
        assert_eq!(refusal(&mut script), reason);
        // An initiator that does not authenticate the target is not affected.
        let mut script = demanding(&Algorithm::ALL);
        script.world.security.own = own;
        let asked = challenged(&mut script, "7");
        script.login(TO_OPERATIONAL, &proof(&asked, ACCOUNT));
        assert_eq!(answer(&mut script), (TO_OPERATIONAL, String::new()));
    }
}

#[test]
fn rfc7143_6_3_2_early_transit_request_is_answered_with_stay() {
    for flags in [TO_OPERATIONAL, TO_FULL_FEATURE] {
        let mut script = demanding(&Algorithm::ALL);
        script.login(flags, &format!("{}AuthMethod=CHAP\0", identity()));
        assert_eq!(answer(&mut script).0, 0);
        script.login(flags, "CHAP_A=7\0");
        let (flags_answered, text) = answer(&mut script);
        assert_eq!(flags_answered, 0);
        // The initiator sends its proof without T, then T without keys.
        script.login(0, &(proof(&parse_challenge(&text), ACCOUNT) + &counter(&theirs())));
        let wanted = proof(&(Algorithm::Sha256, theirs()), OWN);
        assert_eq!(answer(&mut script), (0, wanted));
        assert!(script.connection.poll_event().is_none());
        script.login(flags, "");
        if flags == TO_FULL_FEATURE {
            established(&mut script);
        } else {
            assert_eq!(answer(&mut script), (flags, String::new()));
        }
    }
}

#[test]
fn rfc7143_6_3_2_the_security_stage_is_not_skipped() {
    let name = identity();
    let offer = format!("{name}AuthMethod=CHAP\0");
    let steps: [&[(u8, &str)]; 10] = [
        // These logins begin with the operational stage.
        &[(0x04, &name)],
        &[(0x87, &name)],
        &[(0x87, &format!("{name}MaxBurstLength=4096\0"))],
        // These logins end the security stage without authentication.
        &[(TO_OPERATIONAL, &name)],
        &[(TO_FULL_FEATURE, &name)],
        &[(0, &name), (TO_FULL_FEATURE, "")],
        &[(0, &offer), (TO_OPERATIONAL, "")],
        &[(0, &offer), (0, "CHAP_A=7\0"), (TO_FULL_FEATURE, "")],
        &[(0, &offer), (0, "CHAP_A=7\0"), (TO_FULL_FEATURE, "X-other=1\0")],
        &[(0, &offer), (0, ""), (TO_OPERATIONAL, "MaxBurstLength=4096\0")],
    ];
    for requests in steps {
        let mut script = demanding(&Algorithm::ALL);
        let (last, first) = requests.split_last().expect("one at least");
        for (flags, keys) in first {
            script.login(*flags, keys);
            assert_eq!(answer(&mut script).0, 0);
        }
        script.login(last.0, last.1);
        assert_eq!(refusal(&mut script), RefusalReason::ProofMissing, "{requests:?}");
        assert!(script.world.security.asked.is_empty());
    }
    // A request must not name a stage that the login has not reached. No other method than CHAP is sufficient.
    let mut script = demanding(&Algorithm::ALL);
    script.login(0, &offer);
    answer(&mut script);
    script.login(0x87, "");
    assert_eq!(refusal(&mut script), RefusalReason::Malformed);
    for method in ["None", "SRP,KRB5", "chap", "CHAPS"] {
        let mut script = demanding(&Algorithm::ALL);
        script.login(TO_OPERATIONAL, &format!("{name}AuthMethod={method}\0"));
        assert_eq!(refusal(&mut script), RefusalReason::NoCommonMethod, "{method}");
    }
}

#[test]
fn rfc7143_12_1_3_keys_out_of_their_order_end_the_login() {
    let offer = format!("{}AuthMethod=CHAP\0", identity());
    let long_name = format!("CHAP_N={}\0CHAP_R=0x00\0", "n".repeat(256));
    let long_response = format!("CHAP_N=host\0CHAP_R={}\0", chap::encode(&[1; 1025]));
    let long_list = format!("CHAP_A=5{}\0", ",5".repeat(128));
    let steps: &[&[&str]] = &[
        &[&format!("{offer}CHAP_A=7\0")],
        &[&format!("{}CHAP_A=7\0", identity())],
        &[&format!("{}CHAP_N=host\0CHAP_R=0x00\0", identity())],
        &[&format!("{}AuthMethod=\0", identity())],
        &[&offer, "CHAP_N=host\0CHAP_R=0x00\0"],
        &[&offer, "AuthMethod=CHAP\0"],
        &[&offer, "CHAP_A=7\0CHAP_A=7\0"],
        &[&offer, "CHAP_A=7\0CHAP_N=host\0CHAP_R=0x00\0"],
        &[&offer, "CHAP_A=\0"],
        &[&offer, &long_list],
        &[&offer, "CHAP_I=1\0CHAP_C=0x00\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_A=8\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_R=0x00\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=\0CHAP_R=0x00\0"],
        &[&offer, "CHAP_A=7\0", &long_name],
        &[&offer, "CHAP_A=7\0", &long_response],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0CHAP_R=\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0CHAP_R=0x\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0CHAP_R=00\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0CHAP_R=0x00\0CHAP_R=0x00\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0CHAP_R=0x00\0CHAP_I=1\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0CHAP_R=0x00\0CHAP_C=0x11\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0CHAP_R=0x00\0CHAP_I=256\0CHAP_C=0x11\0"],
        &[&offer, "CHAP_A=7\0", "CHAP_N=host\0CHAP_R=0x00\0CHAP_I=1\0CHAP_C=0x\0"],
    ];
    for requests in steps {
        let mut script = demanding(&Algorithm::ALL);
        let (last, first) = requests.split_last().expect("one at least");
        for keys in first {
            script.login(0, keys);
            answer(&mut script);
        }
        script.login(0, last);
        assert_eq!(refusal(&mut script), RefusalReason::Malformed, "{requests:?}");
    }
}

#[test]
fn rfc7143_12_1_3_the_proof_comes_once() {
    for more in ["CHAP_N=guest\0CHAP_R=0x00\0", "CHAP_I=1\0CHAP_C=0x11\0", "CHAP_A=5\0"] {
        let mut script = demanding(&Algorithm::ALL);
        let asked = challenged(&mut script, "7");
        script.login(0, &proof(&asked, ACCOUNT));
        assert_eq!(answer(&mut script), (0, String::new()));
        script.login(TO_OPERATIONAL, more);
        assert_eq!(refusal(&mut script), RefusalReason::Malformed, "{more}");
    }
    // The operational stage permits no keys for authentication.
    for keys in ["AuthMethod=CHAP\0", "CHAP_A=7\0", "CHAP_N=host\0"] {
        let mut script = Script::new();
        script.login(0x04, &(identity() + keys));
        assert_eq!(refusal(&mut script), RefusalReason::Malformed, "{keys}");
    }
}

#[test]
fn rfc7143_6_3_initiator_name_is_fixed_after_first_request() {
    for keys in
        ["TargetName=iqn.2026-11.test:other\0", "SessionType=Normal\0", "InitiatorName=iqn.y\0"]
    {
        let mut script = demanding(&Algorithm::ALL);
        script
            .login(0, "InitiatorName=iqn.2026-11.test:x\0SessionType=Discovery\0AuthMethod=CHAP\0");
        answer(&mut script);
        script.login(0, keys);
        assert_eq!(refusal(&mut script), RefusalReason::Malformed, "{keys}");
    }
}

#[test]
fn an_account_that_has_no_access_is_not_let_in_and_proven_nothing() {
    let mut script = demanding(&Algorithm::ALL);
    script.world.security.refusal = Some(RefusalReason::AccountNotAllowed);
    let asked = challenged(&mut script, "7");
    script.login(TO_OPERATIONAL, &(proof(&asked, ACCOUNT) + &counter(&theirs())));
    assert_eq!(refusal(&mut script), RefusalReason::AccountNotAllowed);
    assert_eq!(script.world.security.asked, [Some(ACCOUNT.0.to_owned())]);
}

#[test]
fn leave_to_enter_is_asked_once_where_nothing_is_to_be_proven() {
    for refused in [None, Some(RefusalReason::InitiatorNotAllowed)] {
        let mut script = Script::new();
        script.world.security.refusal = refused;
        script.login(0, &format!("{}AuthMethod=CHAP,None\0", identity()));
        if let Some(reason) = refused {
            assert_eq!(refusal(&mut script), reason);
        } else {
            assert!(answer(&mut script).1.ends_with("AuthMethod=None\0"));
            script.login(TO_OPERATIONAL, "");
            answer(&mut script);
            script.login(0x87, "");
            assert_eq!(established(&mut script).account, None);
        }
        assert_eq!(script.world.security.asked, [None]);
    }
    // If the target has no accounts, it refuses an initiator that requires CHAP before any credentials are sent.
    let mut script = Script::new();
    script.login(TO_OPERATIONAL, &format!("{}AuthMethod=CHAP\0", identity()));
    assert_eq!(refusal(&mut script), RefusalReason::ChapNotConfigured);
    // This initiator offers both methods, and continues with CHAP although the answer is None, as libiscsi does.
    let mut script = Script::new();
    script.login(0, &format!("{}AuthMethod=CHAP,None\0", identity()));
    assert!(answer(&mut script).1.ends_with("AuthMethod=None\0"));
    script.login(0, "CHAP_A=5\0");
    assert_eq!(refusal(&mut script), RefusalReason::ChapNotConfigured);
}

#[test]
fn rfc7143_4_3_discovery_sessions_authenticate_too() {
    let name = "InitiatorName=iqn.2026-11.test:x\0SessionType=Discovery\0";
    let mut script = demanding(&Algorithm::ALL);
    script.login(0, &format!("{name}AuthMethod=CHAP\0"));
    assert_eq!(answer(&mut script), (0, "AuthMethod=CHAP\0".to_owned()));
    script.login(0, "CHAP_A=8\0");
    let asked = parse_challenge(&answer(&mut script).1);
    script.login(TO_FULL_FEATURE, &proof(&asked, OTHER));
    let admission = established(&mut script);
    assert_eq!(admission.account.as_deref(), Some(OTHER.0));
    assert_eq!(script.world.security.asked, [Some(OTHER.0.to_owned())]);
    let mut script = demanding(&Algorithm::ALL);
    script.login(0x87, name);
    assert_eq!(refusal(&mut script), RefusalReason::ProofMissing);
}

#[test]
fn rfc7143_6_3_1_connection_that_joins_session_authenticates() {
    const TSIH: u16 = 7;
    let mut first = demanding(&Algorithm::ALL);
    let asked = challenged(&mut first, "7");
    first.login(TO_OPERATIONAL, &proof(&asked, ACCOUNT));
    answer(&mut first);
    first.login(0x87, "MaxConnections=4\0");
    assert!(matches!(first.connection.poll_event(), Some(Event::Establish(_))));
    let (session, _) = first.connection.establish(TSIH).expect("others may join");
    let joining = || {
        let mut script = demanding(&Algorithm::ALL);
        script.world.session = Some(session.clone());
        (script.tsih, script.cid, script.cmd_sn) = (TSIH, 1, first.cmd_sn);
        script
    };
    let mut stranger = joining();
    stranger.login(0x87, &identity());
    assert_eq!(refusal(&mut stranger), RefusalReason::ProofMissing);
    let mut second = joining();
    let asked = challenged(&mut second, "7");
    second.login(TO_FULL_FEATURE, &proof(&asked, OTHER));
    // The layer above decides whether this account may join a session of another account.
    let admission = established(&mut second);
    assert_eq!((admission.tsih, admission.account.as_deref()), (TSIH, Some(OTHER.0)));
}

/// A step of an initiator that tries to log in.
#[derive(Clone, Debug)]
enum Move {
    Identity,
    Method(&'static str),
    Algorithms(&'static str),
    /// A response to the last challenge: the name, the secret, and whether the initiator authenticates the target.
    Proof(&'static str, &'static str, bool),
    /// The target's challenge, sent back.
    Reflection(&'static str),
    Other(&'static str),
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        2 => Just(Move::Identity),
        4 => prop::sample::select(vec!["CHAP", "None", "CHAP,None", ""]).prop_map(Move::Method),
        4 => prop::sample::select(vec!["5", "7,8", "9", ""]).prop_map(Move::Algorithms),
        4 => (
            prop::sample::select(vec![ACCOUNT.0, OTHER.0, OWN.0, "nobody", ""]),
            prop::sample::select(vec![ACCOUNT.1, OTHER.1, OWN.1, "guess", ""]),
            any::<bool>(),
        ).prop_map(|(name, secret, mutual)| Move::Proof(name, secret, mutual)),
        1 => prop::sample::select(vec![ACCOUNT.0, OWN.0]).prop_map(Move::Reflection),
        2 => prop::sample::select(vec![
            "CHAP_N=host\0", "CHAP_R=0x00\0", "CHAP_I=1\0", "CHAP_C=0x11\0", "MaxBurstLength=512\0",
            "SessionType=Discovery\0", "X-other=1\0", "AuthMethod=None\0",
        ]).prop_map(Move::Other),
    ]
}

proptest! {
    /// No sequence of keys and flags establishes a session without the correct response.
    #[test]
    fn rfc7143_6_3_2_wrong_chap_response_is_refused(
        // Most logins begin correctly. Some set T too early.
        begins_well in prop::bool::weighted(0.8),
        hurry in prop::sample::select(vec![0u8, 0, 0x81, 0x83]),
        moves in prop::collection::vec(
            (
                prop_oneof![
                    Just(0u8), Just(0x81), Just(0x83), Just(0x87), Just(0x04), Just(0x40), any::<u8>()
                ],
                prop::collection::vec(any_move(), 0..3),
            ),
            1..8,
        ),
    ) {
        let mut script = demanding(&[Algorithm::Md5, Algorithm::Sha256, Algorithm::Sha3]);
        let mut last_challenge = None;
        let mut right = false;
        let beginning = [vec![Move::Identity, Move::Method("CHAP")], vec![Move::Algorithms("7")]];
        let beginning = beginning.map(|moves| (hurry, moves)).into_iter().filter(|_| begins_well);
        for (flags, moves) in beginning.chain(moves) {
            let mut text = String::new();
            for one in moves {
                let nothing = (Algorithm::Md5, theirs());
                let asked = last_challenge.as_ref().unwrap_or(&nothing);
                match one {
                    Move::Identity => text += &identity(),
                    Move::Method(list) => text += &format!("AuthMethod={list}\0"),
                    Move::Algorithms(list) => text += &format!("CHAP_A={list}\0"),
                    Move::Proof(name, secret, mutual) => {
                        right |= last_challenge.is_some()
                            && [ACCOUNT, OTHER].contains(&(name, secret));
                        text += &proof(asked, (name, secret));
                        if mutual {
                            text += &counter(&theirs());
                        }
                    }
                    Move::Reflection(name) => {
                        let bytes = chap::encode(&asked.1.bytes);
                        text += &format!("CHAP_N={name}\0CHAP_R={bytes}\0{}", counter(&asked.1));
                    }
                    Move::Other(keys) => text += keys,
                }
            }
            script.login(flags, &text);
            while let Some(event) = script.connection.poll_event() {
                if let Event::Establish(admission) = event {
                    prop_assert!(right, "in with {text:?}");
                    prop_assert_eq!(script.world.security.asked.len(), 1);
                    prop_assert_eq!(&script.world.security.asked[0], &admission.account);
                    prop_assert!(admission.account.is_some());
                }
            }
            if !matches!(script.connection.phase, Phase::Login(_)) {
                break;
            }
            let (_, answered) = answer(&mut script);
            prop_assert!(right || !answered.contains("CHAP_N="), "a proof for a stranger");
            if answered.contains("CHAP_C=") {
                last_challenge = Some(parse_challenge(&answered));
            }
        }
    }
}
