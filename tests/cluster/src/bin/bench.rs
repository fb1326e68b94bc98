//! `make bench`: the numbers, measured in one run on one cluster, printed and written to `target/report/bench.json`.
//! Machines are noisy: what can be compared is given as a ratio to something measured in the same run.

use std::time::Instant;

use anyhow::Context;
use cluster_tests::{
    api::{condition, wait_for},
    main_job::PATIENCE,
    site::{Site, measure::Data},
};
use serde_json::{Value, json};

/// Pods of each kind. The first warms the caches of kubelet and of translated code, and is not counted.
const ROUNDS: u32 = 4;

/// One number, and what it is held against.
struct Number {
    name: &'static str,
    unit: &'static str,
    value: f64,
    /// What was measured beside it, in the same unit.
    against: Option<(&'static str, f64)>,
    /// The most that `value`, or the ratio where there is one, may be.
    goal: Option<f64>,
}

impl Number {
    fn ratio(&self) -> Option<f64> {
        self.against.map(|(_, other)| self.value / other)
    }

    fn met(&self) -> Option<bool> {
        self.goal.map(|goal| self.ratio().unwrap_or(self.value) <= goal)
    }

    fn as_json(&self) -> Value {
        json!({
            "name": self.name, "unit": self.unit, "value": self.value,
            "against": self.against.map(|(name, value)| json!({"name": name, "value": value})),
            "ratio": self.ratio(), "goal": self.goal, "met": self.met(),
        })
    }
}

fn main() -> anyhow::Result<()> {
    let mut numbers = Vec::new();
    let result = measure(&mut numbers);
    println!("\n{:<58} {:>10} {:>6} {:>8} {:>6} {:>5}", "number", "value", "unit", "ratio", "goal", "met");
    for number in &numbers {
        let shown = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
        let met = number.met().map_or("", |met| if met { "yes" } else { "NO" });
        println!(
            "{:<58} {:>10.2} {:>6} {:>8} {:>6} {met:>5}",
            number.name,
            number.value,
            number.unit,
            shown(number.ratio()),
            shown(number.goal)
        );
        if let Some((name, value)) = number.against {
            println!("  against {name}: {value:.2} {}", number.unit);
        }
    }
    let all: Vec<Value> = numbers.iter().map(Number::as_json).collect();
    std::fs::create_dir_all("target/report").context("making target/report")?;
    std::fs::write("target/report/bench.json", serde_json::to_string_pretty(&all)?).context("writing bench.json")?;
    result
}

fn measure(numbers: &mut Vec<Number>) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut site = Site::start("bench")?;
    let mut note = |name, unit, value, against, goal| numbers.push(Number { name, unit, value, against, goal });
    note("control plane ready", "s", began.elapsed().as_secs_f64(), None, None);

    let began = Instant::now();
    site.add_nodes(&["node1", "node2"])?;
    note("two machines started to both nodes Ready", "s", began.elapsed().as_secs_f64(), None, None);

    site.install()?;
    let began = Instant::now();
    // The grace is the user's choice and not the system's speed: none here.
    let cluster = std::fs::read_to_string(site.file("config/samples/demo.yaml"))?;
    site.apply(
        &cluster
            .replace("graceSeconds: 15", "graceSeconds: 0")
            .replace("spec:\n  nodeLoss:", "spec:\n  driver: { logLevel: debug }\n  nodeLoss:"),
    )?;
    for node in ["node1", "node2"] {
        wait_for(&format!("the group of {node}"), PATIENCE, || {
            let storage = site.node_storage(node)?;
            let made = storage["status"]["volumeGroups"].as_array().is_some_and(|groups| !groups.is_empty());
            Ok((condition(&storage, "Ready") == "True" && made).then_some(()))
        })?;
    }
    note("StorageCluster applied to both groups Ready", "s", began.elapsed().as_secs_f64(), None, None);
    wait_for("the capacity of both nodes is published", PATIENCE, || {
        Ok((site.capacity_of("node1")?.is_some() && site.capacity_of("node2")?.is_some()).then_some(()))
    })?;

    let (mut empty, mut claimed) = (Vec::new(), Vec::new());
    let before = site.lvm_commands()?;
    for round in 0..ROUNDS {
        empty.push(site.time_of_pod(&format!("empty-{round}"), Data::EmptyDir)?);
        claimed.push(site.time_of_pod(&format!("claim-{round}"), Data::Claim)?);
    }
    let made = site.lvm_commands()?;
    let median = |times: &[f64]| {
        let mut warm = times[1..].to_vec();
        warm.sort_by(f64::total_cmp);
        warm[warm.len() / 2]
    };
    let emptydir = ("the same pod with an emptyDir", median(&empty));
    // 2.9 is what the best known peer takes (FACTS: claim + pod to Ready in such a guest).
    note("claim and pod applied to pod Running", "s", median(&claimed), Some(emptydir), Some(2.9));
    #[expect(clippy::cast_precision_loss, reason = "a handful of processes")]
    let each = |many: u64| many as f64 / f64::from(ROUNDS);
    note(
        "LVM processes that change something, per volume created",
        "",
        each(made.creates - before.creates),
        None,
        Some(1.0),
    );

    for round in 0..ROUNDS {
        site.kubectl(&["delete", &format!("pod/claim-{round}"), &format!("pvc/claim-{round}"), "--wait=true"])?;
    }
    wait_for("all volumes are gone", PATIENCE, || {
        Ok(site.api().list("/apis/stowage.dev/v1alpha1/logicalvolumes")?.is_empty().then_some(()))
    })?;
    let removed = site.lvm_commands()?;
    note(
        "LVM processes that change something, per volume deleted",
        "",
        each(removed.removes - made.removes),
        None,
        Some(1.0),
    );
    note("LVM processes of all kinds, per volume from claim to gone", "", each(removed.all - before.all), None, None);

    let memory = site.memory_of_stowage()?;
    let of = |program: &str| memory.get(program).copied().unwrap_or(f64::NAN);
    note("memory (PSS) of lvmd and driver node together", "MiB", of("lvmd") + of("driver node"), None, Some(16.0));
    note("memory (PSS) of driver controller", "MiB", of("driver controller"), None, Some(20.0));
    note("memory (PSS) of operator", "MiB", of("operator"), None, None);

    site.apply(include_str!("../../manifests/statefulset.yaml"))?;
    let pod = site.wait_pod_running("db-0", "")?;
    let node = site.node_of_pod("db-0")?;
    site.power_off(&node)?;
    let began = Instant::now();
    site.kubectl(&["delete", "node", &node, "--wait=false"])?;
    site.wait_pod_running("db-0", &pod)?;
    // By the source of pod GC, 40 to 80 s without Stowage's own deletes (FACTS).
    note("Node deleted (grace 0) to pod Running elsewhere", "s", began.elapsed().as_secs_f64(), None, Some(40.0));
    Ok(())
}
