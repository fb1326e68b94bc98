//! Serves an lvmd without a machine, so that `driver node` can be run beside an API server where no disk is needed:
//! `scripted-lvmd <socket> <disk>…`. Each line on stdin plugs one more disk; what it is asked is printed.

#![allow(clippy::unwrap_used, reason = "a tool of tests")]

#[path = "../tests/scripted/mod.rs"]
mod scripted;

use std::{path::PathBuf, time::Duration};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let socket = PathBuf::from(args.next().ok_or_else(|| anyhow::anyhow!("usage: scripted-lvmd <socket> <disk>…"))?);
    let disks: Vec<_> = args.collect();
    let lvmd = scripted::Scripted::new(&disks.iter().map(String::as_str).collect::<Vec<_>>());
    let plugged = lvmd.clone();
    std::thread::spawn(move || std::io::stdin().lines().map_while(Result::ok).for_each(|disk| plugged.plug(&disk)));
    let printed = lvmd.clone();
    tokio::spawn(async move {
        let mut heard = 0;
        loop {
            let asked: Vec<_> = printed.table.lock().unwrap().asked[heard..].to_vec();
            heard += asked.len();
            asked.iter().for_each(|request| println!("{}", request.chars().take(300).collect::<String>()));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    lvmd.serve(&socket).await;
    Ok(())
}
