//! PID 1: mounts, modules, udev, the agent; from then on it only reaps.
//!
//! The agent is a process of its own, so that PID 1 may wait for whatever ends without taking away the exit
//! code that the agent waits for.

use std::{
    ffi::CString,
    fs::{self, File},
    os::unix::fs::symlink,
    process::{Child, Command, Stdio},
};

use rustix::{
    mount::{MountFlags, mount},
    process::{WaitOptions, wait},
    system::{finit_module, sethostname},
};

const MODULES: &str = "/etc/rig.modules";
/// Seconds since the kernel's start at which each step was done: `name seconds` by line.
const BOOT_TIMES: &str = "/run/rig.boot";

pub fn run() -> ! {
    mount_special("devpts", "/dev/pts", "");
    mount_special("tmpfs", "/dev/shm", "mode=1777");
    mount_special("tmpfs", "/run", "mode=755");
    mount_special("tmpfs", "/tmp", "mode=1777");
    mount_special("cgroup2", "/sys/fs/cgroup", "");
    for folder in ["/run/lock/lvm", "/run/lvm", "/run/udev"] {
        fs::create_dir_all(folder).expect("folders in /run");
    }
    for (link, target) in [
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        let _ = symlink(target, link);
    }
    let mut times = format!("kernel {}\n", uptime());
    let name = kernel_option("rig.name=").unwrap_or_else(|| "rig".to_owned());
    let _ = sethostname(name.as_bytes());

    insert_modules(MODULES);
    if let Some(modules) = kernel_option("rig.modules=") {
        start("modprobe", &[&["-a"], modules.split(',').collect::<Vec<_>>().as_slice()].concat());
    }
    times += &format!("modules {}\n", uptime());
    start("/lib/systemd/systemd-udevd", &["--daemon"]);
    let subsystems = ["block", "nvme", "virtio-ports", "net", "misc"].map(|name| format!("--subsystem-match={name}"));
    let trigger = ["trigger", "--type=all", "--action=add"].into_iter().chain(subsystems.iter().map(String::as_str));
    start("udevadm", &trigger.collect::<Vec<_>>());
    // `udevadm trigger --settle` was seen to wait for ever for events that never come.
    start("udevadm", &["settle", "-t", "20"]);
    times += &format!("udev {}\n", uptime());
    start("ip", &["link", "set", "lo", "up"]);
    fs::write(BOOT_TIMES, times).expect("a file in /run");

    #[expect(clippy::zombie_processes, reason = "the loop below waits for whatever ends")]
    let agent = command("/init", &["agent"]).spawn().expect("the agent");
    let agent = i32::try_from(agent.id()).expect("a process id");
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended.as_raw_nonzero().get() == agent => panic!("the agent ended: {status:?}"),
            Ok(_) => {}
            Err(errno) => panic!("nothing left to wait for: {errno}"),
        }
    }
}

/// Mounts a filesystem without a device, unless that is not possible: the console then says so.
pub fn mount_special(kind: &str, target: &str, options: &str) {
    let _ = fs::create_dir_all(target);
    let options = CString::new(options).expect("options without NUL");
    if let Err(errno) = mount(kind, target, kind, MountFlags::empty(), options.as_c_str()) {
        println!("cannot mount {kind} at {target}: {errno}");
    }
}

/// Loads the modules that a file names, one path by line, in the order of their needs.
pub fn insert_modules(list: &str) {
    for module in fs::read_to_string(list).unwrap_or_default().lines() {
        match File::open(module) {
            Ok(file) => drop(finit_module(&file, c"", 0)),
            Err(err) => println!("{module}: {err}"),
        }
    }
}

fn kernel_option(name: &str) -> Option<String> {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    line.split_whitespace().find_map(|word| word.strip_prefix(name)).map(str::to_owned)
}

fn uptime() -> String {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

fn start(program: &str, args: &[&str]) {
    match command(program, args).spawn().and_then(|mut child: Child| child.wait()) {
        Ok(status) if status.success() => {}
        Ok(status) => println!("{program} {}: {status}", args.join(" ")),
        Err(err) => println!("{program}: {err}"),
    }
}

/// The environment of everything in the guest.
#[expect(clippy::disallowed_methods, reason = "the guest has no runner: this is its init")]
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("LC_ALL", "C")
        .env("LVM_SUPPRESS_FD_WARNINGS", "1");
    command
}
