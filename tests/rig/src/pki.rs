//! Certificates of one cluster, made by openssl.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    error::{Context, Result},
    guest_image::{make_folder, write},
    run::Run,
};

const EC: [&str; 4] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

/// The folder of keys and certificates.
#[derive(Clone, Debug)]
pub(crate) struct Pki {
    folder: PathBuf,
}

impl Pki {
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// A new authority, and the key that signs service accounts' tokens.
    pub fn create_authority(&self) -> Result<()> {
        make_folder(&self.folder)?;
        self.openssl()
            .args([
                "req", "-x509", "-nodes", "-days", "3650", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=rig",
            ])
            .args(EC)
            .check()?;
        self.openssl().args(["genpkey", "-algorithm", "EC", "-pkeyopt", EC[3], "-out", "sa.key"]).check()?;
        self.openssl().args(["pkey", "-in", "sa.key", "-pubout", "-out", "sa.pub"]).check()?;
        Ok(())
    }

    /// A key and a certificate for server and client alike, unless they are there. `subject` is openssl's `/O=…/CN=…`.
    pub fn certificate(&self, name: &str, subject: &str, alternatives: &str) -> Result<()> {
        if self.file(name, "crt").exists() {
            return Ok(());
        }
        let mut extensions = "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n\
            extendedKeyUsage=serverAuth,clientAuth\n"
            .to_owned();
        if !alternatives.is_empty() {
            extensions += &format!("subjectAltName={alternatives}\n");
        }
        write(&self.file(name, "ext"), &extensions)?;
        let (key, request) = (format!("{name}.key"), format!("{name}.csr"));
        self.openssl().args(["req", "-nodes", "-subj", subject, "-keyout", &key, "-out", &request]).args(EC).check()?;
        // A serial of its own for each, not from a shared file: nodes join side by side.
        let serial = format!("0x{}", &crate::cache::Inputs::default().text(name).text(subject).key()[..14]);
        self.openssl()
            .args(["x509", "-req", "-days", "3650", "-CA", "ca.crt", "-CAkey", "ca.key", "-set_serial", &serial])
            .args(["-in", &request, "-out", &format!("{name}.crt"), "-extfile", &format!("{name}.ext")])
            .check()?;
        Ok(())
    }

    pub fn file(&self, name: &str, end: &str) -> PathBuf {
        self.folder.join(format!("{name}.{end}"))
    }

    pub fn read(&self, name: &str, end: &str) -> Result<Vec<u8>> {
        let path = self.file(name, end);
        fs::read(&path).context(|| format!("reading {}", path.display()))
    }

    /// A kubeconfig, as JSON, for the holder of this certificate.
    pub fn kubeconfig(&self, server: &str, name: &str) -> Result<String> {
        let user = json!({
            "client-certificate-data": base64(&self.read(name, "crt")?),
            "client-key-data": base64(&self.read(name, "key")?),
        });
        self.config(server, &user)
    }

    pub fn kubeconfig_with_token(&self, server: &str, token: &str) -> Result<String> {
        self.config(server, &json!({ "token": token }))
    }

    fn config(&self, server: &str, user: &Value) -> Result<String> {
        let authority = base64(&self.read("ca", "crt")?);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "rig",
            "clusters": [{ "name": "rig", "cluster": { "server": server, "certificate-authority-data": authority } }],
            "users": [{ "name": "rig", "user": user }],
            "contexts": [{ "name": "rig", "context": { "cluster": "rig", "user": "rig" } }],
        });
        Ok(config.to_string())
    }

    fn openssl(&self) -> Run {
        Run::new("openssl").folder(&self.folder)
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0_usize, |number, at| number << 8 | usize::from(*three.get(at).unwrap_or(&0)));
        for digit in 0..4 {
            let pad = digit > three.len();
            text.push(if pad { '=' } else { char::from(DIGITS[number >> (18 - 6 * digit) & 63]) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_pads_to_four() {
        let texts = ["", "f", "fo", "foo", "foob"].map(|text| base64(text.as_bytes()));
        assert_eq!(texts, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]);
    }
}
