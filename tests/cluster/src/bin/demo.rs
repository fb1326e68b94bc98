//! `make demo`: the main job for a person's eyes. The cluster stays.

use cluster_tests::{main_job, tell::Tell};

fn main() -> anyhow::Result<()> {
    let site = main_job::tell_all("demo", &mut Tell::default())?;
    let kubeconfig = site.leave_running()?;
    println!(
        "\nThe cluster runs on. Look around:\n  export KUBECONFIG={0}\n  kubectl get stowage\n\
         Apply a claim (config/samples), or: cargo run -p rig -- --name demo sh node3 vgs\nTake it away: make demo-down",
        kubeconfig.display()
    );
    Ok(())
}
