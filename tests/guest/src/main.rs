//! The guest's first program: in the initramfs it finds the root, as PID 1 it makes the machine usable, and as
//! `agent` it does what the host asks. It is static, so that it runs where there is nothing else yet.

mod agent;
mod initramfs;
mod machine;

use std::{env, path::Path, process};

fn main() {
    if env::args().nth(1).as_deref() == Some("agent") {
        agent::run();
    } else if Path::new(initramfs::MODULES).exists() {
        initramfs::run();
    } else if process::id() == 1 {
        machine::run();
    } else {
        eprintln!("this is the first program of a test guest; there is nothing for it to do here");
        process::exit(2);
    }
}
