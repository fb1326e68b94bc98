//! Requests and limits of the containers.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ResourceRequirements, apimachinery::pkg::api::resource::Quantity};
use serde_json::{Value, json};

/// What `given` says, or these requests and limits.
pub fn or(given: Option<&ResourceRequirements>, cpu: &str, memory: &str, memory_limit: &str) -> Value {
    match given {
        Some(given) => json!(given),
        // No limit of CPU time: throttling would make a mount slow exactly when the node is busy.
        None => json!({ "requests": { "cpu": cpu, "memory": memory }, "limits": { "memory": memory_limit } }),
    }
}

/// Half of everything that can be halved; what can not be read is left out, since the API server refuses it anyway.
pub fn half(all: &ResourceRequirements) -> ResourceRequirements {
    let halves = |list: &Option<BTreeMap<String, Quantity>>| {
        list.as_ref().map(|list| {
            list.iter().filter_map(|(name, quantity)| Some((name.clone(), half_quantity(name, quantity)?))).collect()
        })
    };
    ResourceRequirements { claims: None, limits: halves(&all.limits), requests: halves(&all.requests) }
}

fn half_quantity(name: &str, quantity: &Quantity) -> Option<Quantity> {
    if name == "cpu" {
        let milli = match quantity.0.strip_suffix('m') {
            Some(milli) => milli.parse::<u64>().ok()?,
            None => thousandths(&quantity.0)?,
        };
        return Some(Quantity(format!("{}m", milli.div_ceil(2))));
    }
    Some(crds::quantity::from_bytes(crds::quantity::bytes(quantity).ok()?.div_ceil(2)))
}

/// `1.5` → 1500.
fn thousandths(cores: &str) -> Option<u64> {
    let (whole, fraction) = cores.split_once('.').unwrap_or((cores, ""));
    let fraction: u64 = format!("{fraction:0<3.3}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(of: &[(&str, &str)]) -> Option<BTreeMap<String, Quantity>> {
        Some(of.iter().map(|(name, quantity)| ((*name).to_owned(), Quantity((*quantity).to_owned()))).collect())
    }

    #[test]
    fn half_of_a_container_is_half_of_each_of_its_resources() {
        let all = ResourceRequirements {
            claims: None,
            limits: list(&[("memory", "1Gi"), ("cpu", "1.5")]),
            requests: list(&[("memory", "64Mi"), ("cpu", "15m"), ("odd", "x")]),
        };
        assert_eq!(half(&all).limits, list(&[("memory", "512Mi"), ("cpu", "750m")]));
        assert_eq!(half(&all).requests, list(&[("memory", "32Mi"), ("cpu", "8m")]));
    }
}
