//! The main job, end to end: a real control plane, real nodes, the real image.

use cluster_tests::{main_job, tell::Tell};

#[test]
fn main_job_from_blank_disks_to_a_lost_node() {
    let site = main_job::tell_all("main-job", &mut Tell::default());
    if let Err(error) = site {
        panic!("{error:#}");
    }
}
