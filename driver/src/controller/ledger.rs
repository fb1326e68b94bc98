//! What is free in each class on each node: the groups' sizes, less what volumes take and what claims were promised.
//! A pure function of what the objects say; nothing is counted twice and nothing is given twice.
//!
//! A promise is a claim for which the scheduler has chosen a node and whose volume is not there yet. The scheduler does
//! not count what it has just placed, so more may be placed on a node than fits: promises are granted in the order in
//! which they came, as long as there is room. A promise that was not granted takes nothing, and its volume is refused.

use std::collections::BTreeMap;

/// One class on one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub node: String,
    pub class: String,
}

/// A volume group that takes volumes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub size: u64,
    pub extent: u64,
    pub unmanaged: u64,
    pub reserve: u64,
    /// The largest volume that the empty group can hold.
    pub max_volume_size: u64,
}

impl Group {
    /// What a volume of `bytes` takes in this group.
    pub fn footprint(&self, bytes: u64) -> u64 {
        match self.extent {
            0 => bytes,
            extent => bytes.checked_next_multiple_of(extent).unwrap_or(u64::MAX),
        }
    }

    fn usable(&self) -> u64 {
        self.size.saturating_sub(self.unmanaged).saturating_sub(self.reserve)
    }

    /// The largest volume that fits into `bytes`.
    fn volume_within(&self, bytes: u64) -> u64 {
        let whole = if self.extent == 0 { bytes } else { bytes - bytes % self.extent };
        whole.min(self.max_volume_size)
    }
}

/// A volume that is there, is being made, or was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub place: Place,
    /// The LogicalVolume's name, also before there is one.
    pub volume: String,
    /// Before it is rounded up to extents.
    pub bytes: u64,
}

/// What the scheduler is told of one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    pub free: u64,
    /// The largest volume that can be made now.
    pub largest: u64,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No group of this class takes volumes on this node.
    NoGroup,
    /// Not with what is there and promised.
    Full { free: u64 },
    /// Not even in the empty group.
    TooLarge { largest: u64 },
}

#[derive(Debug, Default)]
struct Account {
    group: Group,
    volumes: BTreeMap<String, u64>,
    granted: BTreeMap<String, u64>,
}

impl Account {
    fn taken(&self) -> u64 {
        let all = self.volumes.values().chain(self.granted.values());
        all.fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    fn free(&self) -> u64 {
        self.group.usable().saturating_sub(self.taken())
    }

    fn figures(&self) -> Figures {
        let free = self.free();
        Figures { free, largest: self.group.volume_within(free) }
    }
}

#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<Place, Account>,
}

impl Ledger {
    /// `promises` in the order in which they were made. Of two entries for one volume at one place the larger counts; a
    /// promise whose volume is there already is none.
    pub fn new(
        groups: impl IntoIterator<Item = (Place, Group)>,
        volumes: impl IntoIterator<Item = Entry>,
        promises: impl IntoIterator<Item = Entry>,
    ) -> Self {
        let account = |(place, group)| (place, Account { group, ..Account::default() });
        let mut accounts: BTreeMap<_, _> = groups.into_iter().map(account).collect();
        for entry in volumes {
            let Some(account) = accounts.get_mut(&entry.place) else { continue };
            let bytes = account.group.footprint(entry.bytes);
            let kept = account.volumes.entry(entry.volume).or_default();
            *kept = bytes.max(*kept);
        }
        for entry in promises {
            let Some(account) = accounts.get_mut(&entry.place) else { continue };
            let bytes = account.group.footprint(entry.bytes);
            if !account.volumes.contains_key(&entry.volume) && bytes <= account.group.volume_within(account.free()) {
                account.granted.insert(entry.volume, bytes);
            }
        }
        Self { accounts }
    }

    /// All places that take volumes.
    pub fn figures(&self) -> impl Iterator<Item = (&Place, Figures)> {
        self.accounts.iter().map(|(place, account)| (place, account.figures()))
    }

    /// `None` where no group takes volumes.
    pub fn figures_of(&self, place: &Place) -> Option<Figures> {
        self.accounts.get(place).map(Account::figures)
    }

    /// The size of `volume` in the group's extents, if it may have `bytes` there. What it has, or was promised, is its own.
    pub fn ask(&self, place: &Place, volume: &str, bytes: u64) -> Result<u64, Refusal> {
        let account = self.accounts.get(place).ok_or(Refusal::NoGroup)?;
        let own = account.volumes.get(volume).or(account.granted.get(volume)).copied().unwrap_or(0);
        // Not `free() + own`: where a group shrank below what its volumes take, that would be more than there is.
        let free = account.group.usable().saturating_sub(account.taken().saturating_sub(own));
        let asked = account.group.footprint(bytes);
        if asked > account.group.max_volume_size {
            Err(Refusal::TooLarge { largest: account.group.max_volume_size })
        } else if asked > free {
            Err(Refusal::Full { free })
        } else {
            Ok(asked)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const MI: u64 = 1 << 20;

    fn place(node: &str) -> Place {
        Place { node: node.into(), class: "fast".into() }
    }

    fn group(size: u64) -> Group {
        Group { size, extent: 4 * MI, unmanaged: 0, reserve: 0, max_volume_size: size }
    }

    fn entry(node: &str, volume: &str, bytes: u64) -> Entry {
        Entry { place: place(node), volume: volume.into(), bytes }
    }

    #[test]
    fn free_is_what_is_neither_taken_nor_promised_nor_kept_back() {
        let there = Group { unmanaged: 8 * MI, reserve: 12 * MI, ..group(100 * MI) };
        let ledger = Ledger::new(
            [(place("n1"), there)],
            [entry("n1", "a", 3 * MI), entry("n2", "b", 50 * MI)],
            [entry("n1", "c", 5 * MI)],
        );
        let free = (100 - 8 - 12 - 4 - 8) * MI;
        assert_eq!(ledger.figures_of(&place("n1")), Some(Figures { free, largest: free }));
        assert_eq!(ledger.figures_of(&place("n2")), None);
        assert_eq!(ledger.ask(&place("n2"), "d", 1), Err(Refusal::NoGroup));
        assert_eq!(ledger.ask(&place("n1"), "d", free), Ok(free));
        assert_eq!(ledger.ask(&place("n1"), "d", free + 1), Err(Refusal::Full { free }));
        assert_eq!(ledger.ask(&place("n1"), "d", 101 * MI), Err(Refusal::TooLarge { largest: 100 * MI }));
    }

    /// D1: each fits alone, not both.
    #[test]
    fn of_two_claims_that_fit_alone_the_first_is_promised_the_room() {
        let both = [entry("n1", "first", 60 * MI), entry("n1", "second", 60 * MI)];
        let ledger = Ledger::new([(place("n1"), group(100 * MI))], [], both);
        assert_eq!(ledger.ask(&place("n1"), "second", 60 * MI), Err(Refusal::Full { free: 40 * MI }));
        assert_eq!(ledger.ask(&place("n1"), "first", 60 * MI), Ok(60 * MI));
        assert_eq!(ledger.figures_of(&place("n1")).unwrap().free, 40 * MI);
    }

    #[test]
    fn a_volume_that_grows_is_asked_for_what_it_lacks() {
        let there = [entry("n1", "a", 40 * MI), entry("n1", "b", 40 * MI)];
        let ledger = Ledger::new([(place("n1"), group(100 * MI))], there, []);
        assert_eq!(ledger.ask(&place("n1"), "a", 60 * MI), Ok(60 * MI));
        assert_eq!(ledger.ask(&place("n1"), "a", 61 * MI), Err(Refusal::Full { free: 60 * MI }));
    }

    #[test]
    fn a_group_that_shrank_gives_nothing() {
        let ledger = Ledger::new([(place("n1"), group(20 * MI))], [entry("n1", "a", 80 * MI)], []);
        assert_eq!(ledger.figures_of(&place("n1")), Some(Figures { free: 0, largest: 0 }));
        assert_eq!(ledger.ask(&place("n1"), "b", 4 * MI), Err(Refusal::Full { free: 0 }));
    }

    /// A group on each of three nodes, and entries in all of them.
    fn groups() -> impl Strategy<Value = Vec<(Place, Group)>> {
        let figures = (0..2048_u64, 0..64_u64, 0..64_u64, 0..4096_u64);
        vec(figures, 3).prop_map(|all| {
            let group = |(n, (size, unmanaged, reserve, max)): (usize, (u64, u64, u64, u64))| {
                let group = Group {
                    size: size * MI,
                    extent: 4 * MI,
                    unmanaged: unmanaged * MI,
                    reserve: reserve * MI,
                    max_volume_size: max / 4 * 4 * MI,
                };
                (place(&format!("n{n}")), group)
            };
            all.into_iter().enumerate().map(group).collect()
        })
    }

    fn entries(prefix: &'static str) -> impl Strategy<Value = Vec<Entry>> {
        vec((0..4_u8, 1..512 * MI), 0..24).prop_map(move |all| {
            let one = |(n, (node, bytes))| entry(&format!("n{node}"), &format!("{prefix}{n}"), bytes);
            all.into_iter().enumerate().map(one).collect()
        })
    }

    /// What all accounts hold, against what the groups have.
    fn over_promised(ledger: &Ledger) -> bool {
        ledger.accounts.values().any(|account| {
            let volumes: u64 = account.volumes.values().sum();
            let granted: u64 = account.granted.values().sum();
            granted > account.group.usable().saturating_sub(volumes)
        })
    }

    proptest! {
        /// D5.
        #[test]
        fn nothing_is_promised_that_is_not_there(groups in groups(), there in entries("v"), wanted in entries("p")) {
            let ledger = Ledger::new(groups, there, wanted);
            prop_assert!(!over_promised(&ledger));
            for (_, figures) in ledger.figures() {
                prop_assert!(figures.largest <= figures.free);
            }
        }

        #[test]
        fn a_promise_that_becomes_a_volume_changes_nothing(
            groups in groups(), there in entries("v"), wanted in entries("p"), chosen: prop::sample::Index,
        ) {
            prop_assume!(!wanted.is_empty());
            let before = Ledger::new(groups.clone(), there.clone(), wanted.clone());
            let made = chosen.get(&wanted).clone();
            let granted = before.accounts.get(&made.place).is_some_and(|a| a.granted.contains_key(&made.volume));
            let asked = before.ask(&made.place, &made.volume, made.bytes);
            prop_assert_eq!(asked.is_ok(), granted);
            prop_assume!(granted);
            let mut there = there;
            there.push(made);
            // The claim is seen as bound later than its volume is seen.
            let after = Ledger::new(groups, there, wanted);
            prop_assert_eq!(before.figures().collect::<Vec<_>>(), after.figures().collect::<Vec<_>>());
        }

        #[test]
        fn volumes_made_as_they_are_allowed_never_take_what_was_promised(
            groups in groups(), wanted in entries("p"), asked in entries("v"),
        ) {
            let mut there: Vec<Entry> = Vec::new();
            let promised = |there: &[Entry]| Ledger::new(groups.clone(), there.to_vec(), wanted.clone());
            let granted = |ledger: &Ledger| {
                ledger.accounts.values().flat_map(|a| a.granted.keys().cloned()).collect::<Vec<_>>()
            };
            let at_first = granted(&promised(&there));
            for volume in asked {
                let ledger = promised(&there);
                if ledger.ask(&volume.place, &volume.volume, volume.bytes).is_ok() {
                    there.push(volume);
                }
                let ledger = promised(&there);
                prop_assert!(!over_promised(&ledger));
                prop_assert_eq!(granted(&ledger), at_first.clone());
            }
            for (place, account) in promised(&there).accounts {
                prop_assert!(account.taken() <= account.group.usable(), "{place:?}");
            }
        }
    }
}
