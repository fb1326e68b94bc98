use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = lvmd::Args::parse();
    runtime::start_logging(&args.log)?;
    lvmd::run(args, runtime::stop_signal()).await
}
