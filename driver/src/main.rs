use clap::{Parser, Subcommand};

/// The CSI driver of Stowage.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    half: Half,
}

#[derive(Subcommand, Debug)]
enum Half {
    /// Serves kubelet on one node, and looks after the node's disks and volumes through lvmd.
    Node {
        #[command(flatten)]
        log: runtime::LogArgs,
        #[command(flatten)]
        args: driver::node::Args,
    },
    /// Serves csi-provisioner and csi-resizer.
    Controller {
        #[command(flatten)]
        log: runtime::LogArgs,
        #[command(flatten)]
        args: driver::controller::Args,
    },
}

// Two threads, whatever the number of cores: each one costs memory, and nothing here computes.
#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    match Args::parse().half {
        Half::Node { log, args } => {
            runtime::start_logging(&log)?;
            driver::node::run(args, runtime::stop_signal()).await
        }
        Half::Controller { log, args } => {
            runtime::start_logging(&log)?;
            driver::controller::run(args, runtime::stop_signal()).await
        }
    }
}
