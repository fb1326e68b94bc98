//! `rig`: control planes and nodes in virtual machines, for people.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use rig::{
    Result,
    control_plane::{ControlPlane, Options, Timing},
    disk::{Disk, GIB},
    image::StowageImage,
    node::{Node, NodeOptions},
    say,
    setup::{self, MissingPrograms},
};

/// Runs real Kubernetes nodes in virtual machines on this machine.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Which rig: several may run side by side.
    #[arg(long, global = true, default_value = "rig")]
    name: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Says what this machine lacks.
    Setup {
        /// Install missing packages with apt-get.
        #[arg(long)]
        install: bool,
    },
    /// Builds and caches all that a rig is made of.
    Build,
    /// Makes target/image/stowage.tar.
    Image {
        /// Where the programs are; target/image/bin without it.
        #[arg(long)]
        programs: Option<PathBuf>,
    },
    /// Starts a control plane and nodes, and leaves them running.
    Up {
        #[arg(long, default_value_t = 2)]
        nodes: u8,
        /// Blank disks of 4 GiB for each node.
        #[arg(long, default_value_t = 2)]
        disks: u8,
        /// In MiB, for each node.
        #[arg(long, default_value_t = 768)]
        memory: u32,
        /// With Stowage's image, made of the programs in this folder.
        #[arg(long, num_args = 0..=1, default_missing_value = "target/image/bin")]
        stowage: Option<PathBuf>,
        /// Notice a lost node after 6 s, not 45.
        #[arg(long)]
        fast: bool,
    },
    /// Adds a node to a running rig.
    AddNode {
        node: String,
        #[arg(long, default_value_t = 2)]
        disks: u8,
        #[arg(long, default_value_t = 768)]
        memory: u32,
        #[arg(long, num_args = 0..=1, default_missing_value = "target/image/bin")]
        stowage: Option<PathBuf>,
    },
    /// Makes Stowage's image and sends it to all nodes.
    ImageLoad {
        #[arg(long)]
        programs: Option<PathBuf>,
    },
    /// Ends a rig and everything it started.
    Down,
    /// What runs, with its memory.
    Status,
    /// Runs a command on a node.
    Sh {
        node: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Copies a file to a node.
    Push { node: String, from: PathBuf, to: String },
    /// Runs kubectl.
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Cuts a node's power.
    PowerCut { node: String },
    /// Starts a node again that was cut off.
    StartAgain { node: String },
}

fn main() -> ExitCode {
    rig::begin();
    match run(Args::parse()) {
        Ok(code) => code,
        Err(err) => {
            eprintln!("error: {}", err.chain());
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<ExitCode> {
    let name = args.name.as_str();
    match args.command {
        Command::Setup { install } => {
            setup::check(if install { MissingPrograms::Install } else { MissingPrograms::Name })?;
            say("this machine has all that is needed");
        }
        Command::Build => {
            setup::check(MissingPrograms::Name)?;
            Node::prepare(None)?;
        }
        Command::Image { programs } => {
            let image = stowage_image(programs)?;
            say(format!("{} is {}", image.archive.display(), image.names.join(", ")));
        }
        Command::Up { nodes, disks, memory, stowage, fast } => {
            setup::check(MissingPrograms::Name)?;
            let stowage = stowage.map(|folder| StowageImage::of(&folder)).transpose()?;
            let timing = if fast { Timing::Fast } else { Timing::Default };
            let cluster = ControlPlane::start(name, Options { timing, ..Options::default() })?;
            let names: Vec<String> = (1..=nodes).map(|number| format!("node{number}")).collect();
            let options = NodeOptions { memory_mib: memory, disks: blank_disks(disks), stowage };
            let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), options.clone())).collect();
            cluster.add_nodes(&nodes)?;
            cluster.keep()?;
            println!("export KUBECONFIG={}", cluster.kubeconfig_path().display());
        }
        Command::AddNode { node, disks, memory, stowage } => {
            let stowage = stowage.map(|folder| StowageImage::of(&folder)).transpose()?;
            let options = NodeOptions { memory_mib: memory, disks: blank_disks(disks), stowage };
            ControlPlane::attach(name)?.add_node(&node, &options)?;
        }
        Command::ImageLoad { programs } => ControlPlane::attach(name)?.load_stowage(&stowage_image(programs)?)?,
        Command::Down => {
            rig::down(name)?;
            say(format!("{name} is down"));
        }
        Command::Status => {
            let cluster = ControlPlane::attach(name)?;
            for process in cluster.processes() {
                let memory = process.proportional_memory().map_or_else(String::new, |kib| format!("{} MiB", kib >> 10));
                let state = if process.is_alive() { "runs" } else { "ended" };
                println!("{:32} {:8} {state:6} {memory}", process.name(), process.id());
            }
            print!("{}", cluster.kubectl(["get", "nodes", "--output=wide"])?);
            println!("KUBECONFIG={}", cluster.kubeconfig_path().display());
        }
        Command::Sh { node, command } => {
            let node = ControlPlane::attach(name)?.node(&node)?;
            let said = node.try_sh_within(&command.join(" "), Duration::from_secs(3600))?;
            print!("{}", said.out);
            eprint!("{}", said.err);
            return Ok(u8::try_from(said.code).map_or(ExitCode::FAILURE, ExitCode::from));
        }
        Command::Push { node, from, to } => {
            let bytes = std::fs::read(&from)
                .map_err(|source| rig::Error::Io { what: format!("reading {}", from.display()), source })?;
            ControlPlane::attach(name)?.node(&node)?.push(&to, bytes)?;
        }
        Command::Kubectl { args } => {
            let output = ControlPlane::attach(name)?.try_kubectl(args)?;
            print!("{}", output.stdout);
            eprint!("{}", output.stderr);
            return Ok(if output.status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::PowerCut { node } => ControlPlane::attach(name)?.node(&node)?.power_cut()?,
        Command::StartAgain { node } => {
            let cluster = ControlPlane::attach(name)?;
            let node = cluster.node(&node)?;
            node.start_again()?;
            node.wait_ready(&cluster)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn stowage_image(programs: Option<PathBuf>) -> Result<StowageImage> {
    programs.map_or_else(StowageImage::ensure, |folder| StowageImage::of(&folder))
}

fn blank_disks(count: u8) -> Vec<Disk> {
    (1..=count).map(|number| Disk::blank(format!("disk{number}"), 4 * GIB)).collect()
}
