//! The half that runs once per cluster.

use std::future::Future;

#[derive(clap::Args, Clone, Debug)]
pub struct Args {}

pub async fn run(_: Args, _: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    anyhow::bail!("not here yet")
}
