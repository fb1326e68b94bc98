//! Asks `lvmd` one question: `lvmd-call SOCKET METHOD JSON`. Prints the answer as JSON, or the gRPC code and
//! message, and ends with 1. Runs in the guest, beside the daemon.

use std::process::ExitCode;

use anyhow::{Context, bail};
use lvmd::proto::{self, lvmd_client::LvmdClient};
use serde_json::{Value, json};
use tonic::transport::Endpoint;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let (socket, method) = (args.next().context("no socket")?, args.next().context("no method")?);
    let question: Value = serde_json::from_str(&args.next().unwrap_or_else(|| "{}".to_owned()))?;
    let channel = Endpoint::from_shared(format!("unix://{socket}"))?.connect().await?;
    match ask(LvmdClient::new(channel), &method, &question).await {
        Ok(answer) => {
            println!("{answer}");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => match error.downcast_ref::<tonic::Status>() {
            Some(status) => {
                eprintln!("{:?}: {}", status.code(), status.message());
                Ok(ExitCode::FAILURE)
            }
            None => Err(error),
        },
    }
}

async fn ask(mut lvmd: LvmdClient<tonic::transport::Channel>, method: &str, question: &Value) -> anyhow::Result<Value> {
    let text = |name: &str| question[name].as_str().unwrap_or_default().to_owned();
    let number = |name: &str| question[name].as_u64().unwrap_or_default();
    let flag = |name: &str| question[name] == true;
    let wanted = || question["wanted"].to_string().into_bytes();
    let volume = || Some(proto::VolumeId { name: text("name"), cluster_id: text("cluster"), class: text("class") });
    let made = |volume: proto::Volume| {
        json!({
            "vg": volume.vg_name, "vg_uuid": volume.vg_uuid, "lv_uuid": volume.lv_uuid, "size": volume.size,
            "fs_type": volume.fs_type, "fs_uuid": volume.fs_uuid, "used": volume.used,
        })
    };
    Ok(match method {
        "info" => {
            let info = lvmd.info(proto::InfoRequest {}).await?.into_inner();
            json!({"version": info.version, "lvm": info.lvm_version, "missing": info.missing})
        }
        "plan" => {
            let plan = lvmd.plan(proto::PlanRequest { wanted: wanted(), known: Vec::new() }).await?.into_inner();
            serde_json::from_slice(&plan.report)?
        }
        "apply" => {
            let request = proto::ApplyRequest { wanted: wanted(), hash: text("hash"), known: Vec::new() };
            json!({"done": lvmd.apply(request).await?.into_inner().done})
        }
        "create" => made(
            lvmd.create_volume(proto::CreateVolumeRequest {
                volume: volume(),
                size: number("size"),
                reserve: number("reserve"),
                access: text("access"),
                claim: text("claim"),
                adopt_lv_uuid: text("adopt"),
            })
            .await?
            .into_inner(),
        ),
        "grow" => made(
            lvmd.grow_volume(proto::GrowVolumeRequest {
                volume: volume(),
                lv_uuid: text("lv_uuid"),
                size: number("size"),
                reserve: number("reserve"),
            })
            .await?
            .into_inner(),
        ),
        "delete" => {
            let request =
                proto::DeleteVolumeRequest { volume: volume(), vg_uuid: text("vg_uuid"), lv_uuid: text("lv_uuid") };
            lvmd.delete_volume(request).await?;
            json!({})
        }
        "stage" => {
            let staged = lvmd
                .stage(proto::StageRequest {
                    volume: volume(),
                    staging_path: text("staging"),
                    fs_type: text("fs"),
                    mount_options: Vec::new(),
                    block: flag("block"),
                    read_only: false,
                })
                .await?
                .into_inner();
            json!({"fs_type": staged.fs_type, "fs_uuid": staged.fs_uuid})
        }
        "unstage" => {
            lvmd.unstage(proto::UnstageRequest { volume: volume(), staging_path: text("staging") }).await?;
            json!({})
        }
        "publish" => {
            lvmd.publish(proto::PublishRequest {
                volume: volume(),
                staging_path: text("staging"),
                target_path: text("target"),
                block: flag("block"),
                read_only: flag("read_only"),
            })
            .await?;
            json!({})
        }
        "unpublish" => {
            lvmd.unpublish(proto::UnpublishRequest { volume: volume(), target_path: text("target") }).await?;
            json!({})
        }
        "grow_filesystem" => {
            let request = proto::GrowFilesystemRequest { volume: volume(), path: text("path"), block: flag("block") };
            json!({"size": lvmd.grow_filesystem(request).await?.into_inner().size})
        }
        "stats" => {
            let stats = lvmd.stats(proto::StatsRequest { volume: volume(), path: text("path") }).await?.into_inner();
            json!({"total": stats.total_bytes, "used": stats.used_bytes, "available": stats.available_bytes, "block": stats.block})
        }
        other => bail!("there is no method {other}"),
    })
}
