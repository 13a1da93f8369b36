//! A login attempt, and the properties that a client finds after it.

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_initiator::{Command, Inquiry, SessionOptions, TransferRequest, Unit};
use sarsen_proof::process;

use crate::client::{LIMIT, run};

pub(crate) const ANYBODY: &str = "iqn.2026-11.proof:anybody";
pub(crate) const SATURN: &str = "iqn.2026-11.proof:saturn";

const DESIGNATOR_HEADER: usize = 4;
const OF_PORT: u8 = 0x10;
const RELATIVE_TARGET_PORT: u8 = 4;
/// MODE SENSE(6): the header and the caching page, without block descriptors.
const CACHING_PAGE: [u8; 6] = [0x1a, 0x08, 0x08, 0, 64, 0];
const WRITE_PROTECT: u8 = 0x80;
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 252, 0, 0];
const REPORT_TARGET_PORT_GROUPS: [u8; 12] = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 252, 0, 0];
const PREFERRED: u8 = 0x80;

/// The properties that a client finds at a LUN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Vendor, product and revision, in libiscsi's format.
    pub(crate) standard: Vec<String>,
    pub(crate) serial: String,
    /// CODE SET, DESIGNATOR TYPE and DESIGNATOR of each designator of the unit.
    pub(crate) designators: Vec<(u8, u8, Vec<u8>)>,
    /// The unit is write-protected.
    pub(crate) is_protected: bool,
    /// All LUNs that this initiator is shown.
    pub(crate) luns: Vec<u16>,
}

/// A login attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    target: &'static str,
    lun: u16,
    /// Index of the server's port.
    way: usize,
    /// Account name and secret, and those of the target.
    user: Option<(&'static str, &'static str)>,
    own: Option<(&'static str, &'static str)>,
    initiator: &'static str,
    is_ours_alone: bool,
}

impl Attempt {
    pub(crate) fn new(target: &'static str, lun: u16) -> Self {
        Self {
            target,
            lun,
            way: 0,
            user: None,
            own: None,
            initiator: ANYBODY,
            is_ours_alone: false,
        }
    }

    pub(crate) fn by(self, user: &'static str, secret: &'static str) -> Self {
        Self { user: Some((user, secret)), ..self }
    }

    pub(crate) fn of(self, user: &'static str, secret: &'static str) -> Self {
        Self { own: Some((user, secret)), ..self }
    }

    pub(crate) fn from(self, initiator: &'static str) -> Self {
        Self { initiator, ..self }
    }

    /// Marks an attempt that the project's own initiator can make and libiscsi cannot.
    pub(crate) fn without_libiscsi(self) -> Self {
        Self { is_ours_alone: true, ..self }
    }

    pub(crate) fn through(self, way: usize) -> Self {
        Self { way, ..self }
    }

    fn url(&self, port: u16) -> String {
        let user = self.user.map_or(String::new(), |(user, secret)| format!("{user}%{secret}@"));
        let own = self.own.map_or(String::new(), |(user, secret)| {
            format!("?target_user={user}&target_password={secret}")
        });
        format!("iscsi://{user}127.0.0.1:{port}/{}/{}{own}", self.target, self.lun)
    }

    pub(crate) fn reported(&self) -> String {
        format!("{} from {} through {}", self.url(0), self.initiator, self.way)
    }

    /// Returns the properties at the LUN, or `None` if the login fails.
    pub(crate) fn carry_out(&self, ports: &[u16]) -> Result<Option<Known>> {
        let url = self.url(ports[self.way]);
        let inquiry = |page: &[&str]| {
            let mut command = process::command("iscsi-inq")?;
            command.args(["-i", self.initiator]).args(page).arg(&url);
            Ok::<_, anyhow::Error>(process::finish(&mut command, LIMIT)?)
        };
        let standard = inquiry(&[])?;
        let is_in = standard.status.is_some_and(|status| status.success());
        let asked = self.ask(&url)?;
        ensure!(
            is_in == asked.is_some() || self.is_ours_alone,
            "{}: our initiator gets in: {}, libiscsi: {is_in}: {}",
            self.reported(),
            asked.is_some(),
            standard.output
        );
        let Some(asked) = asked else { return Ok(None) };
        if is_in {
            let (standard, serial) =
                (standard.success()?, inquiry(&["--evpd", "1", "--pagecode", "128"])?.success()?);
            let shown = |line: &String| standard.lines().any(|shown| shown.trim_end() == line);
            let shown = asked.standard.iter().all(shown) && serial.contains(&asked.serial);
            ensure!(shown, "libiscsi finds {standard}{serial} at {}", self.reported());
        }
        let luns = asked.luns.chunks_exact(8).skip(1);
        let mut luns: Vec<u16> =
            luns.map(|lun| u16::from_be_bytes([lun[0], lun[1]]) & 0x3fff).collect();
        luns.sort_unstable();
        Ok(Some(Known {
            standard: asked.standard,
            serial: asked.serial,
            designators: designators(&asked.page),
            is_protected: asked.mode.get(2).is_some_and(|flags| flags & WRITE_PROTECT != 0),
            luns,
        }))
    }

    fn ask(&self, url: &str) -> Result<Option<Asked>> {
        run(async {
            let Some(unit) = self.log_in(url).await? else { return Ok(None) };
            let Inquiry { vendor, product, revision, .. } = unit.inquiry().await?;
            let standard = [("Vendor", vendor), ("Product", product), ("Revision", revision)];
            let serial = unit.inquiry_data(Some(0x80)).await?.to_vec();
            let serial = String::from_utf8_lossy(serial.get(4..).unwrap_or_default()).into_owned();
            let page = unit.inquiry_data(Some(0x83)).await?.to_vec();
            let mode = data_of(&unit, &CACHING_PAGE).await?;
            let luns = data_of(&unit, &REPORT_LUNS).await?;
            unit.logout().await?;
            Ok(Some(Asked {
                standard: standard.map(|(key, text)| format!("{key}:{}", text.trim_end())).to_vec(),
                serial: serial.trim_matches(['\0', ' ']).to_owned(),
                page,
                mode,
                luns,
            }))
        })
    }

    async fn log_in(&self, url: &str) -> Result<Option<Unit>> {
        let options = SessionOptions {
            initiator_name: self.initiator.to_owned(),
            ..SessionOptions::default()
        };
        Ok(Unit::connect(&url.parse()?, &options).await.ok())
    }

    /// Returns ASYMMETRIC ACCESS STATE of the port of this attempt, and PREF (SPC-4 6.37).
    pub(crate) fn access(&self, ports: &[u16]) -> Result<(u8, bool)> {
        let (page, groups) = run(async {
            let unit = self.log_in(&self.url(ports[self.way])).await?.context("a login")?;
            let page = unit.inquiry_data(Some(0x83)).await?.to_vec();
            let groups = data_of(&unit, &REPORT_TARGET_PORT_GROUPS).await?;
            unit.logout().await?;
            Ok((page, groups))
        })?;
        let own = all_designators(&page)
            .into_iter()
            .find(|one| one.association == OF_PORT && one.kind == RELATIVE_TARGET_PORT);
        let own = own.context("a relative target port identifier")?.value;
        let mut rest = groups.get(4..).context("a list of groups")?;
        while let Some((group, after)) = rest.split_at_checked(8) {
            let (ports, next) = after.split_at((usize::from(group[7]) * 4).min(after.len()));
            if ports.chunks(4).any(|port| port.ends_with(&own[2..])) {
                return Ok((group[0] & 0x0f, group[0] & PREFERRED != 0));
            }
            rest = next;
        }
        bail!("no group has the port {own:?}: {groups:?}")
    }
}

/// The data that the project's own initiator reads.
struct Asked {
    standard: Vec<String>,
    serial: String,
    /// Device Identification page.
    page: Vec<u8>,
    /// A mode page with its header.
    mode: Vec<u8>,
    /// The list of LUNs with its header.
    luns: Vec<u8>,
}

async fn data_of(unit: &Unit, cdb: &[u8]) -> Result<Vec<u8>> {
    let command = Command::new(cdb, TransferRequest::Read(252));
    let completion = unit.command(Command { time_limit: Some(LIMIT), ..command }).await?;
    Ok(completion.data.map_or(Vec::new(), |data| data.to_vec()))
}

/// A designator from the page.
struct Designator {
    code_set: u8,
    association: u8,
    kind: u8,
    value: Vec<u8>,
}

fn all_designators(page: &[u8]) -> Vec<Designator> {
    let mut rest = page.get(4..).unwrap_or_default();
    let mut found = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(DESIGNATOR_HEADER) {
        let length = usize::from(header[3]).min(after.len());
        let (value, next) = after.split_at(length);
        rest = next;
        found.push(Designator {
            code_set: header[0] & 0x0f,
            association: header[1] & 0x30,
            kind: header[1] & 0x0f,
            value: value.to_vec(),
        });
    }
    found
}

/// Returns the designators of the unit, without the padding of texts.
fn designators(page: &[u8]) -> Vec<(u8, u8, Vec<u8>)> {
    const OF_UNIT: u8 = 0;
    /// The kernel's target groups units by their common states; this designator identifies no unit.
    const LOGICAL_UNIT_GROUP: u8 = 6;
    const BINARY: u8 = 1;
    const ASCII: u8 = 2;
    let of_unit = all_designators(page)
        .into_iter()
        .filter(|one| one.association == OF_UNIT && one.kind != LOGICAL_UNIT_GROUP);
    let reported = of_unit.map(|Designator { code_set, kind, value, .. }| {
        let is_text = code_set != BINARY;
        let end = value.iter().rposition(|byte| !is_text || !b"\0 ".contains(byte));
        let value = value[..end.map_or(0, |end| end + 1)].to_vec();
        // istgt reports ASCII text as UTF-8.
        (if is_text { ASCII } else { BINARY }, kind, value)
    });
    reported.collect()
}
