use clap::Parser;

// Two threads whatever the number of processors: calls wait for programs and disks, and memory counts on nodes.
#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = lvmd::Args::parse();
    runtime::start_logging(&args.log)?;
    lvmd::run(args, runtime::stop_signal()).await
}
