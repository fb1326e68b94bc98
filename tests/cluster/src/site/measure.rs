//! What the benchmarks measure on a site.

use std::{collections::BTreeMap, time::Instant};

use anyhow::Context;

use super::Site;

/// How many LVM processes the daemons of all nodes have started.
#[derive(Clone, Copy, Debug, Default)]
pub struct LvmCommands {
    pub all: u64,
    pub creates: u64,
    pub removes: u64,
}

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: NAME
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: c
      image: rig.local/busybox:1
      imagePullPolicy: Never
      command: [/bin/sh, -c, \"trap 'exit 0' TERM; while :; do sleep 1; done\"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes:
    - name: data
";

const CLAIM: &str = "
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: NAME
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: stowage-standard
  resources: {requests: {storage: 320Mi}}
";

/// The data of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    EmptyDir,
    Claim,
}

impl Site {
    /// Seconds from `kubectl apply` to Running, of a pod whose data is an emptyDir or a claim of its own.
    pub fn time_of_pod(&self, name: &str, data: Data) -> anyhow::Result<f64> {
        let manifest = match data {
            Data::EmptyDir => format!("{POD}      emptyDir: {{}}\n"),
            Data::Claim => format!("{POD}      persistentVolumeClaim: {{claimName: NAME}}\n{CLAIM}"),
        };
        let began = Instant::now();
        self.apply(&manifest.replace("NAME", name))?;
        self.wait_pod_running(name, "")?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Counted in the logs of the daemons, which must be at `logLevel: debug`.
    pub fn lvm_commands(&self) -> anyhow::Result<LvmCommands> {
        let mut count = LvmCommands::default();
        for pod in self
            .api()
            .list("/api/v1/namespaces/stowage-system/pods?labelSelector=app.kubernetes.io/component%3Dnode")?
        {
            let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
            let log = self.kubectl(&["-n", "stowage-system", "logs", name, "-c", "lvmd"])?;
            for line in log.lines().filter(|line| line.contains("starting") && line.contains("/lvm ")) {
                count.all += 1;
                count.creates += u64::from(line.contains(" lvcreate "));
                count.removes += u64::from(line.contains(" lvremove "));
            }
        }
        Ok(count)
    }

    /// Proportional set size in MiB of each program of Stowage, the largest over the nodes.
    pub fn memory_of_stowage(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        let script = "for p in /proc/[0-9]*; do c=$(tr '\\0' ' ' < $p/cmdline 2>/dev/null); case $c in /usr/local/bin/*) \
                      s=$(grep '^Pss:' $p/smaps_rollup 2>/dev/null); echo \"$c|${s#Pss:}\";; esac; done";
        let mut memory = BTreeMap::new();
        for node in self.nodes_in_cluster()? {
            for line in self.node_sh(&node, script)?.lines() {
                let Some((command, size)) = line.split_once('|') else { continue };
                let Some(kib) = size.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()) else {
                    continue;
                };
                let mut words = command.split_whitespace().map(|word| word.rsplit('/').next().unwrap_or(word));
                let program = match (words.next(), words.next()) {
                    (Some("driver"), Some(part)) => format!("driver {part}"),
                    (Some(program), _) => program.to_owned(),
                    (None, _) => continue,
                };
                let largest = memory.entry(program).or_insert(0.0_f64);
                *largest = largest.max(kib / 1024.0);
            }
        }
        Ok(memory)
    }
}
