//! The definitions in the repository are the ones the types make.

/// `UPDATE=1 cargo test -p crds --test golden` rewrites the files; the diff is
/// then part of the review.
#[test]
fn the_installed_definitions_are_the_generated_ones() {
    #[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
    let update = std::env::var("UPDATE").is_ok();
    for crd in crds::all() {
        let name = crd.metadata.name.as_deref().unwrap();
        let path = format!("{}/../config/crd/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let made = serde_saphyr::to_string(&crd).unwrap();
        if update {
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == made, "{path} is out of date: run UPDATE=1 cargo test -p crds --test golden");
    }
}

/// Every field that a person may write says what it is for (`kubectl explain`), but for the ones that are
/// explained by the type they have.
#[test]
fn every_field_of_a_spec_has_a_description() {
    let mut missing = Vec::new();
    for crd in crds::all() {
        let crd = serde_json::to_value(&crd).unwrap();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        undescribed(spec, &format!("{}.spec", crd["spec"]["names"]["kind"].as_str().unwrap()), &mut missing);
    }
    assert_eq!(missing, Vec::<String>::new());
}

fn undescribed(schema: &serde_json::Value, at: &str, missing: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        // Kubernetes' own types and one-word fields of a described object explain themselves.
        let own = !["nodeSelector", "tolerations", "resources", "pullSecrets"].contains(&name.as_str());
        if own && field.get("description").is_none() {
            missing.push(format!("{at}.{name}"));
        }
        if own {
            undescribed(field, &format!("{at}.{name}"), missing);
            undescribed(&field["items"], &format!("{at}.{name}[]"), missing);
        }
    }
}
