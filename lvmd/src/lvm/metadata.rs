//! LVM's own copy of a group's metadata, which it writes to a file after each change that it has committed
//! (lvm.conf(5), `backup/backup`; vgcfgbackup(8)): what came of a command is read there, and no second process is
//! started to ask for it.
//!
//! Only groups of plain linear and striped LVs are read. For all others, and whenever the file does not show a newer
//! state than the one that is known, LVM is asked.

use std::{collections::BTreeMap, path::Path};

use crate::{
    lvm::report::{Group, Lv, Pv},
    name::{Bytes, LvmUuid},
};

/// Metadata counts in sectors of 512 bytes.
const SECTOR: u64 = 512;

/// The group as the file shows it, if it is a later state of `before` on the same PVs. Nodes of PVs are those of
/// `before`: the file has them as hints only.
pub fn read(folder: &Path, before: &Group) -> Option<Group> {
    let text = std::fs::read_to_string(folder.join("backup").join(before.name.as_str())).ok()?;
    later(&text, before)
}

fn later(text: &str, before: &Group) -> Option<Group> {
    let mut root = Section::parse(text)?;
    let group = root.sections.remove(before.name.as_str())?;
    let uuid = LvmUuid::try_from(group.text("id")?).ok()?;
    let seqno = group.number("seqno")?;
    if uuid != before.uuid || seqno <= before.seqno {
        return None;
    }
    let extent = Bytes(group.number("extent_size")?.checked_mul(SECTOR)?);
    let (mut extents, mut pvs, mut names) = (0, Vec::new(), Vec::new());
    for (name, pv) in &group.sections.get("physical_volumes")?.sections {
        let uuid = LvmUuid::try_from(pv.text("id")?).ok()?;
        let known = before.pvs.iter().find(|known| known.uuid == uuid)?;
        extents += pv.number("pe_count")?;
        pvs.push(Pv { uuid, node: known.node.clone() });
        names.push(name.as_str());
    }
    if pvs.len() != before.pvs.len() || pvs.iter().any(|pv| pv.node.is_none()) {
        return None;
    }
    let (mut used, mut lvs) = (0, Vec::new());
    // A group without LVs has no such section.
    let volumes = group.sections.get("logical_volumes").map(|all| &all.sections);
    for (name, lv) in volumes.into_iter().flatten() {
        let count = extents_of(lv, &names)?;
        used += count;
        lvs.push(Lv {
            name: name.clone(),
            uuid: LvmUuid::try_from(lv.text("id")?).ok()?,
            size: Bytes(count.checked_mul(extent.0)?),
            tags: lv.list("tags").iter().cloned().collect(),
        });
    }
    Some(Group {
        name: before.name.clone(),
        uuid,
        seqno,
        tags: group.list("tags").iter().cloned().collect(),
        extent,
        extents,
        free: extents.checked_sub(used)?,
        missing: 0,
        foreign: before.foreign.clone(),
        pvs,
        lvs,
    })
}

/// Of an LV whose segments lie on PVs.
fn extents_of(lv: &Section, pvs: &[&str]) -> Option<u64> {
    if !lv.list("status").iter().any(|status| status == "VISIBLE") {
        return None;
    }
    lv.sections.values().try_fold(0_u64, |sum, segment| {
        let plain =
            segment.text("type")? == "striped" && segment.list("stripes").iter().all(|on| pvs.contains(&on.as_str()));
        if plain { sum.checked_add(segment.number("extent_count")?) } else { None }
    })
}

/// `name { key = value … }`. Of lists, the strings.
#[derive(Debug, Default, PartialEq, Eq)]
struct Section {
    values: BTreeMap<String, Value>,
    sections: BTreeMap<String, Section>,
}

#[derive(Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Text(String),
    List(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

impl Section {
    fn parse(text: &str) -> Option<Self> {
        let tokens = tokens(text)?;
        let mut rest = tokens.as_slice();
        let section = Self::body(&mut rest, 0)?;
        rest.is_empty().then_some(section)
    }

    fn body(rest: &mut &[Token], depth: usize) -> Option<Self> {
        // LVM's own metadata is five deep.
        if depth > 16 {
            return None;
        }
        let mut section = Self::default();
        while let [Token::Word(name), after @ ..] = rest {
            match after {
                [Token::Sign('{'), inner @ ..] => {
                    *rest = inner;
                    section.sections.insert(name.clone(), Self::body(rest, depth + 1)?);
                    let [Token::Sign('}'), after @ ..] = rest else { return None };
                    *rest = after;
                }
                [Token::Sign('='), value @ ..] => {
                    *rest = value;
                    section.values.insert(name.clone(), Self::value(rest)?);
                }
                _ => return None,
            }
        }
        Some(section)
    }

    fn value(rest: &mut &[Token]) -> Option<Value> {
        let (first, after) = rest.split_first()?;
        *rest = after;
        match first {
            Token::Text(text) => Some(Value::Text(text.clone())),
            Token::Word(word) => word.parse().ok().map(Value::Number),
            Token::Sign('[') => {
                let mut list = Vec::new();
                loop {
                    let (one, after) = rest.split_first()?;
                    *rest = after;
                    match one {
                        Token::Text(text) => list.push(text.clone()),
                        Token::Sign(']') => return Some(Value::List(list)),
                        Token::Word(_) | Token::Sign(',') => {}
                        Token::Sign(_) => return None,
                    }
                }
            }
            Token::Sign(_) => None,
        }
    }

    fn number(&self, key: &str) -> Option<u64> {
        match self.values.get(key)? {
            Value::Number(number) => Some(*number),
            Value::Text(_) | Value::List(_) => None,
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        match self.values.get(key)? {
            Value::Text(text) => Some(text),
            Value::Number(_) | Value::List(_) => None,
        }
    }

    fn list(&self, key: &str) -> &[String] {
        match self.values.get(key) {
            Some(Value::List(list)) => list,
            Some(Value::Number(_) | Value::Text(_)) | None => &[],
        }
    }
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut all = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '#' => while chars.next_if(|c| *c != '\n').is_some() {},
            '"' => {
                let mut text = String::new();
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => text.push(chars.next()?),
                        c => text.push(c),
                    }
                }
                all.push(Token::Text(text));
            }
            '{' | '}' | '[' | ']' | '=' | ',' => all.push(Token::Sign(c)),
            c if c.is_whitespace() => {}
            c => {
                let mut word = String::from(c);
                while let Some(c) = chars.next_if(|c| !c.is_whitespace() && !"{}[]=,#\"".contains(*c)) {
                    word.push(c);
                }
                all.push(Token::Word(word));
            }
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lvm::report::parse;

    const FILE: &str = include_str!("../../tests/fixtures/lvm/backup.txt");

    fn known() -> Group {
        let report = include_str!("../../tests/fixtures/lvm/groups.json");
        let mut group = parse(report).unwrap().groups.remove(0);
        group.seqno -= 1;
        group
    }

    /// The file and the report were recorded of the same group at the same time.
    #[test]
    fn the_file_says_what_the_report_says() {
        let reported = parse(include_str!("../../tests/fixtures/lvm/groups.json")).unwrap().groups.remove(0);
        assert_eq!(later(FILE, &known()), Some(reported));
    }

    #[test]
    fn an_old_or_another_state_does_not_count() {
        let old = Group { seqno: known().seqno + 1, ..known() };
        assert_eq!(later(FILE, &old), None);
        let other = LvmUuid::try_from("aaaaaa-bbbb-cccc-dddd-eeee-ffff-gggggg").unwrap();
        assert_eq!(later(FILE, &Group { uuid: other, ..known() }), None);
        assert_eq!(later(FILE, &Group { pvs: known().pvs[..1].to_vec(), ..known() }), None);
        assert_eq!(later(&FILE[..FILE.len() / 2], &known()), None);
        assert_eq!(later("", &known()), None);
    }

    #[test]
    fn lvs_that_are_not_plain_are_left_to_lvm() {
        assert_eq!(later(&FILE.replace("\"striped\"", "\"thin-pool\""), &known()), None);
        assert_eq!(later(&FILE.replace("\"VISIBLE\"", "\"PVMOVE\""), &known()), None);
    }

    #[test]
    fn quotes_and_comments_are_understood() {
        let section = Section::parse("a = \"x \\\"y\\\" # \" # b = 1\nc { d = [\"e\", 5, \"f\"] }\n").unwrap();
        assert_eq!(section.text("a"), Some("x \"y\" # "));
        assert_eq!(section.sections["c"].list("d"), ["e", "f"]);
        assert_eq!(section.number("b"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "[a-z0-9 \\n{}\\[\\]=,#\"\\\\]{0,200}") {
            let _ = Section::parse(&text);
        }
    }
}
