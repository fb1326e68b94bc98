//! Kubernetes quantities as numbers of bytes, both ways.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a size: write a number of bytes with an optional suffix, for example 10Gi or 500M")]
pub struct BadQuantity(pub String);

/// The suffixes of the Kubernetes resource model that make sense for bytes
/// (`m` for thousandths is refused: half a byte is nobody's wish).
const SUFFIXES: [(&str, u64); 12] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
];

/// The number of bytes that `quantity` says, rounded up to a whole byte.
pub fn bytes(quantity: &Quantity) -> Result<u64, BadQuantity> {
    parse(&quantity.0)
}

/// As [`bytes`], from the text.
pub fn parse(text: &str) -> Result<u64, BadQuantity> {
    let bad = || BadQuantity(text.to_owned());
    let (number, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)))
        .unwrap_or((text, 1));
    let (number, exponent) = match number.split_once(['e', 'E']) {
        Some((number, exponent)) if factor == 1 => (number, exponent.parse::<u32>().map_err(|_| bad())?),
        Some(_) => return Err(bad()),
        None => (number, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || !(whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let scale = u32::try_from(fraction.len()).ok().and_then(|digits| 10_u128.checked_pow(digits)).ok_or_else(bad)?;
    let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| bad())?;
    digits
        .checked_mul(u128::from(factor))
        .and_then(|all| all.checked_mul(10_u128.checked_pow(exponent)?))
        .map(|all| all.div_ceil(scale))
        .and_then(|all| u64::try_from(all).ok())
        .ok_or_else(bad)
}

/// `bytes` as a quantity that is exactly equal, with the largest binary suffix
/// that leaves a whole number.
pub fn from_bytes(bytes: u64) -> Quantity {
    let binary = SUFFIXES[..6].iter().rev().find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor));
    Quantity(match binary {
        Some((suffix, factor)) => format!("{}{suffix}", bytes / factor),
        None => bytes.to_string(),
    })
}

/// `bytes` for a sentence: three significant digits and a binary suffix.
pub fn for_people(bytes: u64) -> String {
    match SUFFIXES[..6].iter().rev().find(|(_, factor)| bytes >= *factor) {
        None => format!("{bytes} B"),
        Some((suffix, factor)) => {
            #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
            let value = bytes as f64 / *factor as f64;
            let digits = if value >= 100.0 || bytes.is_multiple_of(*factor) { 0 } else { 1 };
            format!("{value:.digits$} {suffix}B")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("10Gi", 10 << 30),
            ("1.5Gi", 3 << 29),
            ("500M", 500_000_000),
            ("1e3", 1000),
            ("1E", 1_000_000_000_000_000_000),
            (".5Ki", 512),
            ("0.1", 1),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_what_to_write_instead() {
        for text in ["", "Gi", "-1", "1 Gi", "1gi", "100m", "1e3Ki", "99999999Ei", "0x10", "1.2.3", "1e99", "."] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("x").unwrap_err().to_string().contains("10Gi"));
    }

    #[test]
    fn people_read_three_digits() {
        assert_eq!(for_people(0), "0 B");
        assert_eq!(for_people(4 << 30), "4 GiB");
        assert_eq!(for_people((4 << 30) + (1 << 29)), "4.5 GiB");
        assert_eq!(for_people(1000), "1000 B");
    }

    proptest! {
        #[test]
        fn every_number_of_bytes_comes_back(bytes: u64) {
            prop_assert_eq!(super::bytes(&from_bytes(bytes)), Ok(bytes));
        }
    }
}
