use clap::Parser;

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = operator::Args::parse();
    runtime::start_logging(&args.log)?;
    operator::run(args, runtime::stop_signal()).await
}
