//! Writes what a release contains besides programs: licences and the list of its parts.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::rust_library::RustLibrary;
use crate::sbom::{checksums, sbom};
use crate::system_packages::SystemPackage;
use crate::third_party::third_party;
use crate::{files, metadata};

pub(crate) const NAMES: [&str; 2] = ["third-party", "sbom"];

/// Prints the file with this name. The arguments are a target, and packages of Debian whose static libraries are linked, as
/// packaging/static/linked prints them.
pub(crate) fn write(name: &str, arguments: &[String]) -> Result<()> {
    let [target, packages @ ..] = arguments else { bail!("name a target, such as x86_64-unknown-linux-gnu") };
    let metadata = metadata::read_for(target)?;
    let system: Vec<_> =
        packages.iter().map(|package| SystemPackage::parse(package)).collect::<Result<_>>()?;
    let rust = RustLibrary::read()?;
    if name == "third-party" {
        print!("{}", third_party(&metadata, &rust, &system)?);
        return Ok(());
    }
    let lock = fs::read_to_string(files::root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let seconds = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let seconds =
        seconds.context("SOURCE_DATE_EPOCH must be the time of the release, in seconds since 1970")?;
    println!("{:#}", sbom(&metadata, &checksums(&lock), &rust, &system, &rfc3339(seconds))?);
    Ok(())
}

/// A time in the form `2026-01-31T23:59:59Z`.
fn rfc3339(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_right_date() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_772_323_261, "2026-03-01T00:01:01Z"),
        ] {
            assert_eq!(rfc3339(seconds), expected);
        }
    }
}
