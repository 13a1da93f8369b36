//! The parameters of a unit in `--params`: `scsi_sn=…,vendor_id=…`.

use crate::import::show_as_tgt;
use sarsen_node::model::CacheMode;
use sarsen_node::model::document::Volume;

use super::Failure;

/// Parameters that are accepted without an effect: sarsen reports the properties of the file or device.
const HINTS: [&str; 10] = [
    "sense_format",
    "lbppbe",
    "la_lba",
    "optimal_xfer_gran",
    "optimal_xfer_len",
    "thin_provisioning",
    "rotation_rate",
    "online",
    "bsopts",
    "bsoflags",
];
/// The number of the caching mode page. Bit [`WRITE_CACHE`] of its third byte enables the write cache (SBC-4 6.5.5).
const CACHING: &str = "8";
const WRITE_CACHE: u8 = 0x04;

/// Applies parameters to a unit.
pub(super) fn take(volume: &mut Volume, params: &str) -> Result<(), Failure> {
    for param in params.split(',').filter(|param| !param.is_empty()) {
        let (key, value) = param.split_once('=').unwrap_or((param, ""));
        let value = value.trim_matches('"');
        let text = || Some(value.trim().to_owned()).filter(|text| !text.is_empty());
        match key {
            "scsi_id" => show_as_tgt(volume, value),
            "scsi_sn" => volume.serial = text(),
            "vendor_id" => volume.vendor = text(),
            "product_id" => volume.product = text(),
            "product_rev" => volume.revision = text(),
            "readonly" => volume.read_only = value == "1",
            "removable" => volume.removable = value == "1",
            "path" => volume.path = text().map(Into::into),
            "mode_page" => take_mode_page(volume, value),
            key if HINTS.contains(&key) => {}
            _ => return Err(Failure::Invalid(format!("unknown parameter {key}"))),
        }
    }
    Ok(())
}

/// Parses `8:0:18:0x10:…`: page, subpage, length, bytes. Pages other than the caching page are sarsen's own.
fn take_mode_page(volume: &mut Volume, value: &str) {
    let mut fields = value.split(':');
    if fields.next() != Some(CACHING) {
        return;
    }
    let Some(first) = fields.nth(2) else { return };
    let byte = match first.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16),
        None => first.parse(),
    };
    let has_cache = byte.is_ok_and(|byte| byte & WRITE_CACHE != 0);
    let is_cached =
        matches!(volume.cache, None | Some(CacheMode::WriteBack | CacheMode::WriteThrough));
    volume.cache = match (is_cached, has_cache) {
        (true, true) => None,
        (true, false) => Some(CacheMode::WriteThrough),
        (false, true) => Some(CacheMode::None),
        (false, false) => Some(CacheMode::DirectSync),
    };
}

#[cfg(test)]
mod tests {
    use sarsen_scsi::Naa;

    use super::*;

    #[test]
    fn identity_of_unit_can_be_changed() {
        let mut volume = Volume::default();
        take(
            &mut volume,
            "scsi_sn=abc,vendor_id=\"ACME\",mode_page=8:0:18:0x10:0:0xff,thin_provisioning=1,\
             scsi_id=IET     00010001",
        )
        .expect("known");
        assert_eq!(
            (volume.serial.as_deref(), volume.vendor.as_deref()),
            (Some("abc"), Some("ACME"))
        );
        assert_eq!(volume.cache, Some(CacheMode::WriteThrough));
        assert_eq!(volume.naa, Naa::parse("60000000000000000e00000000010001"));
        take(&mut volume, "mode_page=8:0:18:0x14:0").expect("known");
        assert_eq!(volume.cache, None);
        assert!(take(&mut volume, "colour=red").is_err());
    }
}
